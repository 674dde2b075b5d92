"""What is told: one plot for each way in which a text can decide what a pronoun means.

V  the verb after the pronoun is one of its antecedent's own: "The cat sat near the buses. It purred."
W  what is owned is said again: "There were pears for Lily and figs for Tom. Her pears were gone."
O  a second fact is needed: "Tom had a cat and Mia had a dog. She called it and the dog came." "Tom washed him."
K  one pronoun, several payoffs: "It purred. Its look was new. So everybody watched the cat."
R  a later word decides: "The cat lay on the mat because it was tired, so the cat stayed there."
A  nothing decides until the verb: "The cat sat near the bus. It purred."
N  the pronoun means nothing that came before: "Outside, it was raining." "Before it purred, the cat stood at home."
P  the pronoun means two: "Lily met Tom near the bus. They sang."
X  no pronoun at all, so that nouns kept out of the rest are still known: "We saw the owl. The animal swooped."

What decides: L1 number, L2 gender, L3 gender that the story itself tells, L4 whose it is, L5 that it is not the
subject.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from data.stories import frames
from data.stories.frames import Frame

ALL_HOLDOUTS = ("iid", "pairs", "nouns", "templates", "headline", "distance", "distractors")


@dataclass(frozen=True, slots=True)
class Ask:
    """One link of a plot: where to read, and what is to come there."""

    site: str  # S0 before the pronoun, S1 the pronoun, S2 what decides, S3 before a mention said again
    query: str  # a slot, or <SLOT: the word before it
    payoff: str | None  # the slot that only the antecedent explains
    candidates: tuple[str, str] = ("A", "B")  # the slots of what may be meant: if A is meant, if B is


@dataclass(frozen=True, slots=True)
class Plot:
    """One way to go from two mentions to a payoff."""

    name: str
    family: str
    level: str
    text: str
    pools: str  # where the two mentions come from
    frames: Callable[[], tuple[Frame, ...]] | None
    asks: tuple[Ask, ...] = ()
    holdouts: tuple[str, ...] = ("iid", "headline")  # of the test split
    own_orders: bool = False  # each order has a text of its own; else {A} is the mention that comes first
    fixed: bool = False  # {A} is always the first member of the pair
    alone: Mapping[str, str] = field(default_factory=dict)  # of a plot with one mention: what is told of each kind
    chooses: bool = False  # without a pronoun, yet it must be found out who is meant: never of words kept from that


@cache
def _told_or_not() -> tuple[Frame, ...]:
    """Return the frames of two names, each of which may be told to be a girl's or a boy's."""
    told = (text.replace("{A}", "{A.told}").replace("{B}", "{B.told}") for text, _ in frames.name_frames())
    return tuple((text, text) for text in told)


_VERB = (Ask("pronoun", "PRONOUN", "VERB"),)
_V = "{FRAME} {BYSTANDERS} {FILLERS} {PRONOUN} {VERB} {ENDING}"
_W = "{FRAME} {FILLERS} {PRONOUN.own} {OWNED} were {TASTE} ."
_O = "{FRAME} {FILLERS} {PRONOUN} {CALLED} it and the {PET} came ."
_K = "{PRONOUN} {VERB} {ENDING} {PRONOUN.own} look was {LOOK} . So everybody {DEED} "
_W_ASKS = (Ask("pronoun", "PRONOUN.own", "OWNED"),)
_O_ASKS = (Ask("pronoun", "IT", "PET", ("P", "Q")), Ask("before_repeat", "<PET", "PET", ("P", "Q")))
_O = _O.replace(" it ", " {IT} ")

_EVERY = (
    Plot("agreement number", "agreement", "number", _V, "number", frames.noun_frames, (Ask("before_pronoun", "<PRONOUN", None), *_VERB), ALL_HOLDOUTS),
    Plot("agreement gender", "agreement", "gender", _V, "gender", frames.name_frames, (Ask("before_pronoun", "<PRONOUN", None), *_VERB), ALL_HOLDOUTS),
    Plot("agreement told_gender", "agreement", "told_gender", _V, "gender", frames.told_frames, _VERB, ("iid", "nouns", "headline")),
    Plot("agreement state", "agreement", "state", _V, "animals", frames.state_frames, _VERB),
    Plot("attribute before", "attribute", "before", _W, "gender", frames.owned_first_frames, _W_ASKS),
    Plot("attribute after", "attribute", "after", _W, "gender", frames.owner_first_frames, _W_ASKS),
    Plot("ownership before", "ownership", "before", _O, "gender", frames.pet_first_frames, _O_ASKS),
    Plot("ownership after", "ownership", "after", _O, "gender", frames.keeper_first_frames, _O_ASKS),
    Plot(
        "ownership object", "ownership", "object", "{FRAME} {FILLERS} {OTHER} {DID} {PRONOUN.object} , so {AGAIN} was {RESULT} .",
        "same gender", frames.name_frames,
        (Ask("pronoun", "PRONOUN.object", "AGAIN"), Ask("before_repeat", "<AGAIN", "AGAIN")),
    ),
    Plot(
        "several_pronouns number", "several_pronouns", "number", f"{{FRAME}} {{FILLERS}} {_K} the {{AGAIN}} .", "number", frames.noun_frames,
        (*_VERB, Ask("before_repeat", "<AGAIN", "AGAIN")),
    ),
    Plot(
        "several_pronouns gender", "several_pronouns", "gender", f"{{FRAME}} {{FILLERS}} {_K} {{AGAIN}} .", "gender", frames.name_frames,
        (*_VERB, Ask("before_repeat", "<AGAIN", "AGAIN")),
    ),
    Plot(
        "later_cue", "later_cue", "later_cue", "{FRAME} {LATER}", "rest", frames.rest_frames,
        (Ask("pronoun", "PRONOUN.low", "AGAIN"), Ask("cue", "ADJECTIVE", "AGAIN"), Ask("before_repeat", "<AGAIN", "AGAIN")),
        ALL_HOLDOUTS[:5], own_orders=True, fixed=True,
    ),
    Plot(
        "ambiguous", "ambiguous", "ambiguous", "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING} So everybody {DEED} the {AGAIN} .", "singular",
        frames.noun_frames, (Ask("pronoun", "PRONOUN", None), Ask("cue", "VERB", "AGAIN"), Ask("before_repeat", "<AGAIN", "AGAIN")),
    ),
    Plot(
        "no_antecedent", "no_antecedent", "no_antecedent", "{FRAME} {FILLERS} {ASIDE} , {PRONOUN.low} {NOTHING} .", "number", frames.noun_frames,
        (Ask("pronoun", "PRONOUN.low", None),),
    ),
    Plot(
        "no_antecedent later", "no_antecedent", "cataphora", "{FRAME} {FILLERS} Before {PRONOUN.low} {VERB} , the {A} {POSTURE} {PLACE} .",
        "number", frames.present_frames, (Ask("pronoun", "PRONOUN.low", None),), ("iid", "nouns"), own_orders=True,
    ),
    Plot(
        "plural", "plural", "plural", "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING}", "couple", frames.couple_frames, _VERB,
        own_orders=True, fixed=True,
    ),
    Plot(
        "no_pronoun noun", "no_pronoun", "", "{ALONE} {VERB} {ENDING}", "number", None,
        alone=dict.fromkeys(("animal", "thing"), "{NOUN}"),
    ),
    Plot("no_pronoun name", "no_pronoun", "", "{ALONE} {VERB} {ENDING}", "gender", None, alone={"name": "{NAME}"}),
    Plot("no_pronoun rest", "no_pronoun", "", "{ALONE} .", "rest", None, alone={"animal": "{FELT}", "rest": "{BEING}"}),
    Plot("no_pronoun nouns", "no_pronoun", "", "{FRAME} {FILLERS} The {SAID_AGAIN} {VERB} {ENDING}", "number", frames.noun_frames),
    Plot("no_pronoun names", "no_pronoun", "", "{FRAME} {FILLERS} {SAID_AGAIN} {VERB} {ENDING}", "gender", _told_or_not),
    Plot(
        "no_pronoun which noun", "no_pronoun", "", "{FRAME} {FILLERS} The {WHICH} {VERB} {ENDING}", "number", frames.noun_frames,
        chooses=True,
    ),
    Plot(
        "no_pronoun which name", "no_pronoun", "", "{FRAME} {FILLERS} The {WHICH} {VERB} {ENDING}", "gender", _told_or_not, chooses=True,
    ),
)  # fmt: skip
PLOTS = {plot.name: plot for plot in _EVERY}
# Of the stories without a pronoun: a noun alone, a name alone, an animal or its rest, two nouns or names of which one
# is said again, two of which "the animal" or "the girl" must be found.
NO_PRONOUN_SHARES = {
    "no_pronoun noun": 0.34, "no_pronoun name": 0.24, "no_pronoun rest": 0.14, "no_pronoun nouns": 0.03, "no_pronoun names": 0.05, "no_pronoun which noun": 0.12,
    "no_pronoun which name": 0.08,
}  # fmt: skip
