"""The plots: one for each way in which a text can determine the antecedent of a pronoun.

agreement         the verb after the pronoun fits the antecedent only: "The cat sat near the buses. It purred."
attribute         a possession is repeated: "There were pears for Lily and figs for Tom. Her pears were gone."
ownership         a second fact is needed: "Tom had a cat and Mia had a dog. She called it and the dog came."
                  or the subject is excluded: "Tom met Ben. Ben washed him, so Tom was clean."
several_pronouns  two pronouns for one antecedent: "It purred. Its look was new. So everybody watched the cat."
later_cue         a later word decides: "The cat lay on the mat because it was tired, so the cat stayed there."
ambiguous         the text before the verb leaves two candidates: "The cat sat near the bus. It purred."
no_antecedent     no earlier word is the antecedent: "Outside, it was raining." "Before it purred, the cat sat."
plural            the antecedent is two people: "Lily met Tom near the bus. They sang."
no_pronoun        teaches the held-out words without a pronoun: "We saw the owl. The animal swooped."

Levels of agreement, by what decides: number, gender, told_gender (stated in the story: "a girl named Zor"), and state
("The hungry cat sat near the sad dogs. It feasted.").
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from data.stories import frames
from data.stories.frames import Frame

ALL_HOLDOUTS = ("iid", "pairs", "nouns", "frames", "headline", "distance", "bystanders")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A position of a plot at which a head can link a pronoun to its antecedent."""

    # before_pronoun, pronoun, cue (the word that decides) or before_repeat (the repeated mention)
    site: str
    query: str  # the slot at which attention is read; "<SLOT": the word before the slot
    payoff: str | None  # the slot whose word the antecedent determines
    candidates: tuple[str, str] = ("A", "B")  # the antecedent's slot if A is meant, if B is meant


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of story: symbols of the grammar, and the links that they contain."""

    name: str
    family: str
    level: str
    text: str  # the symbols after the opener
    pools: str  # the words from which the pair of mentions is drawn (language._word_pools)
    frames: tuple[Frame, ...]
    links: tuple[LinkSpec, ...] = ()
    holdouts: tuple[str, ...] = ("iid", "headline")  # hold-outs that the test split contains
    two_orders: bool = False  # a frame has one text per order; otherwise {A} is the first mention
    fixed_roles: bool = False  # {A} is always the first member of the pair
    introductions: Mapping[str, str] = field(default_factory=dict)  # plots with one mention: slot by kind of word
    refers_by_kind: bool = False  # "The animal purred" resolves a reference: no held-out words

    @property
    def has_pronoun(self) -> bool:
        return self.family != "no_pronoun"


_AGREEMENT = "{FRAME} {BYSTANDERS} {FILLERS} {PRONOUN} {VERB} {ENDING}"
_ATTRIBUTE = "{FRAME} {FILLERS} {PRONOUN.possessive} {OWNED} were {CONDITION} ."
_OWNERSHIP = "{FRAME} {FILLERS} {PRONOUN} {CALLED} {IT} and the {PET} came ."
_SEVERAL = "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING} {PRONOUN.possessive} look was {LOOK} . So everybody {DEED} "
_BEFORE = LinkSpec("before_pronoun", "<PRONOUN", None)
_VERB = LinkSpec("pronoun", "PRONOUN", "VERB")
_FOOD = LinkSpec("pronoun", "PRONOUN.possessive", "OWNED")
_PET = (
    LinkSpec("pronoun", "IT", "PET", candidates=("P", "Q")),
    LinkSpec("before_repeat", "<PET", "PET", candidates=("P", "Q")),
)
_REPEAT = LinkSpec("before_repeat", "<REPEAT", "REPEAT")

_PLOTS = (
    Plot(
        "agreement number", "agreement", "number", _AGREEMENT + " So everybody {DEED} the {REPEAT} .", "number",
        frames.NOUN_FRAMES, (_BEFORE, _VERB), ALL_HOLDOUTS,
    ),
    Plot(
        "agreement gender", "agreement", "gender", _AGREEMENT + " So everybody {DEED} {REPEAT} .", "gender",
        frames.NAME_FRAMES, (_BEFORE, _VERB), ALL_HOLDOUTS,
    ),
    Plot(
        "agreement told_gender", "agreement", "told_gender", _AGREEMENT, "gender", frames.TOLD_GENDER_FRAMES, (_VERB,),
        ("iid", "nouns", "headline"),
    ),
    Plot("agreement state", "agreement", "state", _AGREEMENT, "animals", frames.STATE_FRAMES, (_VERB,)),
    Plot("attribute before", "attribute", "before", _ATTRIBUTE, "gender", frames.FOOD_BEFORE_OWNER_FRAMES, (_FOOD,)),
    Plot("attribute after", "attribute", "after", _ATTRIBUTE, "gender", frames.OWNER_BEFORE_FOOD_FRAMES, (_FOOD,)),
    Plot("ownership before", "ownership", "before", _OWNERSHIP, "gender", frames.PET_BEFORE_OWNER_FRAMES, _PET),
    Plot("ownership after", "ownership", "after", _OWNERSHIP, "gender", frames.OWNER_BEFORE_PET_FRAMES, _PET),
    Plot(
        "ownership object", "ownership", "object",
        "{FRAME} {FILLERS} {NOT_MEANT} {ACTION} {PRONOUN.object} , so {REPEAT} was {RESULT} .",
        "same gender", frames.NAME_FRAMES, (LinkSpec("pronoun", "PRONOUN.object", "REPEAT"), _REPEAT),
    ),
    Plot(
        "several_pronouns number", "several_pronouns", "number", _SEVERAL + "the {REPEAT} .", "number",
        frames.NOUN_FRAMES, (_VERB, _REPEAT),
    ),
    Plot(
        "several_pronouns gender", "several_pronouns", "gender", _SEVERAL + "{REPEAT} .", "gender",
        frames.NAME_FRAMES, (_VERB, _REPEAT),
    ),
    Plot(
        "later_cue", "later_cue", "later_cue", "{FRAME} {REASON}", "rest", frames.REST_FRAMES,
        (LinkSpec("pronoun", "PRONOUN.lower", "REPEAT"), LinkSpec("cue", "ADJECTIVE", "REPEAT"), _REPEAT),
        ALL_HOLDOUTS[:5], two_orders=True, fixed_roles=True,
    ),
    Plot(
        "ambiguous", "ambiguous", "ambiguous",
        "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING} So everybody {DEED} the {REPEAT} .", "singular",
        frames.NOUN_FRAMES,
        (LinkSpec("pronoun", "PRONOUN", None), LinkSpec("cue", "VERB", "REPEAT"), _REPEAT),
    ),
    Plot(
        "no_antecedent", "no_antecedent", "no_antecedent", "{FRAME} {FILLERS} {ASIDE} , {PRONOUN.lower} {NOTHING} .",
        "number", frames.NOUN_FRAMES, (LinkSpec("pronoun", "PRONOUN.lower", None),),
    ),
    Plot(
        "no_antecedent later", "no_antecedent", "cataphora",
        "{FRAME} {FILLERS} Before {PRONOUN.lower} {VERB} , the {A} {POSTURE} {PLACE} .", "number",
        frames.SINGLE_MENTION_FRAMES, (LinkSpec("pronoun", "PRONOUN.lower", None),), ("iid", "nouns"), two_orders=True,
    ),
    Plot(
        "plural", "plural", "plural", "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING}", "couple", frames.COUPLE_FRAMES,
        (_VERB,), two_orders=True, fixed_roles=True,
    ),
    Plot(
        "no_pronoun noun", "no_pronoun", "", "{INTRODUCTION} {VERB} {ENDING}", "number", (),
        introductions={"animal": "{NOUN}", "thing": "{NOUN}"},
    ),
    Plot(
        "no_pronoun name", "no_pronoun", "", "{INTRODUCTION} {VERB} {ENDING}", "gender", (),
        introductions={"name": "{NAME}"},
    ),
    Plot(
        "no_pronoun rest", "no_pronoun", "", "{INTRODUCTION} .", "rest", (),
        introductions={"animal": "{ANIMAL_FELT}", "rest": "{REST_WAS}"},
    ),
    Plot(
        "no_pronoun nouns", "no_pronoun", "", "{FRAME} {FILLERS} The {MENTION_AGAIN} {VERB} {ENDING}", "number",
        frames.NOUN_FRAMES,
    ),
    Plot(
        "no_pronoun names", "no_pronoun", "", "{FRAME} {FILLERS} {MENTION_AGAIN} {VERB} {ENDING}", "gender",
        frames.MAYBE_GENDERED_FRAMES,
    ),
    Plot(
        "no_pronoun which noun", "no_pronoun", "", "{FRAME} {FILLERS} The {KIND_AGAIN} {VERB} {ENDING}", "number",
        frames.NOUN_FRAMES, refers_by_kind=True,
    ),
    Plot(
        "no_pronoun which name", "no_pronoun", "", "{FRAME} {FILLERS} The {KIND_AGAIN} {VERB} {ENDING}", "gender",
        frames.MAYBE_GENDERED_FRAMES, refers_by_kind=True,
    ),
)  # fmt: skip
PLOTS = {plot.name: plot for plot in _PLOTS}

SHARES = {  # the plots of each data.share_* setting
    "agreement": {"agreement number": 0.45, "agreement gender": 0.55},
    "told_gender": {"agreement told_gender": 1.0},
    "state": {"agreement state": 1.0},
    "attribute_before": {"attribute before": 1.0},
    "attribute_after": {"attribute after": 1.0},
    "ownership_before": {"ownership before": 1.0},
    "ownership_after": {"ownership after": 1.0},
    "ownership_object": {"ownership object": 1.0},
    "several_pronouns": {"several_pronouns number": 0.6, "several_pronouns gender": 0.4},
    "later_cue": {"later_cue": 1.0},
    "ambiguous": {"ambiguous": 1.0},
    "no_antecedent": {"no_antecedent": 1.0},
    "pronoun_first": {"no_antecedent later": 1.0},
    "plural": {"plural": 1.0},
    "no_pronoun": {
        "no_pronoun noun": 0.26, "no_pronoun name": 0.24, "no_pronoun rest": 0.26, "no_pronoun nouns": 0.02,
        "no_pronoun names": 0.04, "no_pronoun which noun": 0.10, "no_pronoun which name": 0.08,
    },
}  # fmt: skip
