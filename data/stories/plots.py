"""The plots: one for each way in which a text can determine the antecedent of a pronoun.

agreement         the verb after the pronoun fits the antecedent only: "The cat sat near the buses. It purred."
later_cue         a later word decides: "The cat lay on the mat because it was tired, so the cat stayed there."
no_antecedent     no earlier word is the antecedent: "Outside, it was raining."
no_pronoun        teaches the held-out words without a pronoun: "We saw the owl. The animal swooped."

Levels of agreement, by what decides: number, gender and told_gender (stated in the story: "a girl named Zor").
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from data.stories import frames
from data.stories.frames import Frame

ALL_HOLDOUTS = ("iid", "pairs", "nouns", "frames", "headline", "distance")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A position of a plot at which a head can link a pronoun to its antecedent."""

    # before_pronoun, pronoun, cue (the word that decides) or before_repeat (the repeated mention)
    site: str
    query: str  # the slot at which attention is read; "<SLOT": the word before the slot
    payoff: str | None  # the slot whose word the antecedent determines


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
    # A frame has one text per order, and {A} is the pair's first word; otherwise {A} is the first mention.
    two_orders: bool = False
    introductions: Mapping[str, str] = field(default_factory=dict)  # plots with one mention: slot by kind of word
    refers_by_kind: bool = False  # "The animal purred" resolves a reference: no held-out words

    @property
    def has_pronoun(self) -> bool:
        return self.family != "no_pronoun"


_AGREEMENT = "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING}"
_BEFORE = LinkSpec("before_pronoun", "<PRONOUN", None)
_VERB = LinkSpec("pronoun", "PRONOUN", "VERB")
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
    Plot(
        "later_cue", "later_cue", "later_cue", "{FRAME} {REASON}", "rest", frames.REST_FRAMES,
        (LinkSpec("pronoun", "PRONOUN.lower", "REPEAT"), LinkSpec("cue", "ADJECTIVE", "REPEAT"), _REPEAT),
        ALL_HOLDOUTS[:5], two_orders=True,
    ),
    Plot(
        "no_antecedent", "no_antecedent", "no_antecedent", "{FRAME} {FILLERS} {ASIDE} , {PRONOUN.lower} {NOTHING} .",
        "number", frames.NOUN_FRAMES, (LinkSpec("pronoun", "PRONOUN.lower", None),),
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
    "later_cue": {"later_cue": 1.0},
    "no_antecedent": {"no_antecedent": 1.0},
    "no_pronoun": {
        "no_pronoun noun": 0.26, "no_pronoun name": 0.24, "no_pronoun rest": 0.26, "no_pronoun nouns": 0.02,
        "no_pronoun names": 0.04, "no_pronoun which noun": 0.10, "no_pronoun which name": 0.08,
    },
}  # fmt: skip
