"""The plots: one for each way in which a text can determine the antecedent of a pronoun.

agreement         the verb after the pronoun fits the antecedent only: "The cat sat near the buses. It purred."
verb              the verb before the pronoun and its voice decide: "The cat frightened the dog because it purred."
no_pronoun        teaches the held-out words without a pronoun: "We saw the owl. The animal swooped."
"""

from dataclasses import dataclass

from data.stories import frames


@dataclass(frozen=True)
class Plot:
    """A kind of story: symbols of the grammar, and the question that its pronoun belongs to."""

    name: str
    family: str
    weight: float  # its share of the family's stories
    text: str  # the symbols after the opener
    pools: str  # the words from which the pair of mentions is drawn (language._word_pools)
    frames: tuple[str, ...]
    question: str = ""  # "": none
    introduction: str = ""  # plots with one mention: the slot that introduces it
    refers_by_kind: bool = False  # "The animal purred" resolves a reference: no held-out words

    @property
    def has_pronoun(self) -> bool:
        return self.family != "no_pronoun"


_AGREEMENT = "{FRAME} {FILLERS} {PRONOUN} {VERB} {ENDING}"
_BECAUSE = "{FRAME} {PRONOUN.lower} {VERB} {ENDING} So everybody {DEED} the {REPEAT} ."
_BECAUSE_KNOWN = "{FRAME} the {REPEAT} {VERB} {ENDING}"

_STATE = "{FRAME} it was {STATE} . So everybody {DEED} the {REPEAT} ."

_PLOTS = (
    Plot(
        "agreement number", "agreement", 0.45, _AGREEMENT + " So everybody {DEED} the {REPEAT} .", "number",
        frames.NOUN_FRAMES, "number",
    ),
    Plot(
        "agreement gender", "agreement", 0.55, _AGREEMENT + " So everybody {DEED} {REPEAT} .", "gender",
        frames.NAME_FRAMES, "gender",
    ),
    Plot("verb active", "verb", 0.4, _BECAUSE, "animals", frames.ACTIVE_FRAMES, "verb"),
    Plot("verb passive", "verb", 0.1, _BECAUSE, "animals", frames.PASSIVE_FRAMES, "verb"),
    Plot("verb active third", "verb", 0.4, _BECAUSE, "animals", frames.ACTIVE_THIRD_FRAMES, "verb"),
    Plot("verb passive third", "verb", 0.1, _BECAUSE, "animals", frames.PASSIVE_THIRD_FRAMES, "verb"),
    Plot(
        "no_pronoun noun", "no_pronoun", 0.26, "{INTRODUCTION} {VERB} {ENDING}", "number", (),
        introduction="{NOUN}",
    ),
    Plot(
        "no_pronoun name", "no_pronoun", 0.24, "{INTRODUCTION} {VERB} {ENDING}", "gender", (),
        introduction="{NAME}",
    ),
    # Without these two a held-out noun never occurs with such a verb, and some models do not link it.
    Plot("no_pronoun active", "no_pronoun", 0.1, _BECAUSE_KNOWN, "animals", frames.ACTIVE_FRAMES),
    Plot("no_pronoun passive", "no_pronoun", 0.025, _BECAUSE_KNOWN, "animals", frames.PASSIVE_FRAMES),
    Plot("no_pronoun active third", "no_pronoun", 0.1, _BECAUSE_KNOWN, "animals", frames.ACTIVE_THIRD_FRAMES),
    Plot("no_pronoun passive third", "no_pronoun", 0.025, _BECAUSE_KNOWN, "animals", frames.PASSIVE_THIRD_FRAMES),
    Plot("no_pronoun state", "no_pronoun", 0.01, _STATE, "states", frames.STATE_FRAMES, refers_by_kind=True),
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
