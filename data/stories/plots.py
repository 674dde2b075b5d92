"""The plots: one for each way in which a text can determine the antecedent of a pronoun.

agreement         the verb after the pronoun fits the antecedent only: "The cat sat near the buses. It purred."
later_cue         a later word decides: "The cat lay on the mat because it was tired, so the cat stayed there."
no_antecedent     no earlier word is the antecedent: "Outside, it was raining."
no_pronoun        teaches the held-out words without a pronoun: "We saw the owl. The animal swooped."
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from data.stories import frames
from data.stories.frames import Frame


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A position of a plot at which a head can link a pronoun to its antecedent."""

    question: str  # name of the question that it belongs to
    query: str  # the slot at which attention is read; "<SLOT": the word before the slot
    payoff: str | None  # the slot whose word the antecedent determines


@dataclass(frozen=True, slots=True)
class Plot:
    """A kind of story: symbols of the grammar, and the links that they contain."""

    name: str
    family: str
    weight: float  # its share of the family's stories
    text: str  # the symbols after the opener
    pools: str  # the words from which the pair of mentions is drawn (language._word_pools)
    frames: tuple[Frame, ...]
    links: tuple[LinkSpec, ...] = ()
    # A frame has one text per order, and {A} is the pair's first word; otherwise {A} is the first mention.
    two_orders: bool = False
    introductions: Mapping[str, str] = field(default_factory=dict)  # plots with one mention: slot by kind of word
    refers_by_kind: bool = False  # "The animal purred" resolves a reference: no held-out words

    @property
    def has_pronoun(self) -> bool:
        return self.family != "no_pronoun"


_AGREEMENT = "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING}"
_BEFORE = LinkSpec("agreement_before_pronoun", "<PRONOUN", None)

_PLOTS = (
    Plot(
        "agreement number", "agreement", 0.45, _AGREEMENT + " So everybody {DEED} the {REPEAT} .", "number",
        frames.NOUN_FRAMES, (_BEFORE, LinkSpec("number", "PRONOUN", "VERB")),
    ),
    Plot(
        "agreement gender", "agreement", 0.55, _AGREEMENT + " So everybody {DEED} {REPEAT} .", "gender",
        frames.NAME_FRAMES, (_BEFORE, LinkSpec("gender", "PRONOUN", "VERB")),
    ),
    Plot(
        "later_cue", "later_cue", 1.0, "{FRAME} {REASON}", "rest", frames.REST_FRAMES,
        (LinkSpec("later_cue_at_pronoun", "PRONOUN.lower", "REPEAT"), LinkSpec("later_cue", "ADJECTIVE", "REPEAT")),
        two_orders=True,
    ),
    Plot(
        "no_antecedent", "no_antecedent", 1.0,
        "{FRAME} {FILLERS} {ASIDE} , {PRONOUN.lower} {NOTHING} .", "number",
        frames.NOUN_FRAMES, (LinkSpec("no_antecedent", "PRONOUN.lower", None),),
    ),
    Plot(
        "no_pronoun noun", "no_pronoun", 0.26, "{INTRODUCTION} {VERB} {ENDING}", "number", (),
        introductions={"animal": "{NOUN}", "thing": "{NOUN}"},
    ),
    Plot(
        "no_pronoun name", "no_pronoun", 0.24, "{INTRODUCTION} {VERB} {ENDING}", "gender", (),
        introductions={"name": "{NAME}"},
    ),
    Plot(
        "no_pronoun rest", "no_pronoun", 0.18, "{INTRODUCTION} .", "rest", (),
        introductions={"animal": "{ANIMAL_FELT}", "rest": "{REST_WAS}"},
    ),
    Plot(
        "no_pronoun rests", "no_pronoun", 0.08, "{FRAME}", "rest", frames.NEAR_FRAMES, two_orders=True,
    ),
    Plot(
        "no_pronoun nouns", "no_pronoun", 0.02, "{FRAME} {FILLERS} The {MENTION_AGAIN} {VERB} {ENDING}", "number",
        frames.NOUN_FRAMES,
    ),
    Plot(
        "no_pronoun names", "no_pronoun", 0.04, "{FRAME} {FILLERS} {MENTION_AGAIN} {VERB} {ENDING}", "gender",
        frames.MAYBE_GENDERED_FRAMES,
    ),
    Plot(
        "no_pronoun which noun", "no_pronoun", 0.10, "{FRAME} {FILLERS} The {KIND_AGAIN} {VERB} {ENDING}", "number",
        frames.NOUN_FRAMES, refers_by_kind=True,
    ),
    Plot(
        "no_pronoun which name", "no_pronoun", 0.08, "{FRAME} {FILLERS} The {KIND_AGAIN} {VERB} {ENDING}", "gender",
        frames.MAYBE_GENDERED_FRAMES, refers_by_kind=True,
    ),
)  # fmt: skip
PLOTS = {plot.name: plot for plot in _PLOTS}
