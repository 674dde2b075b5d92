"""What is asked of every head: at which site of which stories to look, and whether anything has been decided there.

Sites are never pooled. S0: the word before the pronoun. S1: the pronoun. S2: the word that decides. S3: the word before
a mention said again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from data.links import LinkItem


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to ask of every head."""

    name: str
    family: str
    site: str
    levels: tuple[str, ...]
    meaning: str
    watched: bool = True  # while training too; a part of another question is not

    def picks(self, item: LinkItem) -> bool:
        """Whether `item` asks this question."""
        return item.family == self.family and item.site == self.site and item.level in self.levels

    @property
    def curve(self) -> str:
        """Its name in metrics.jsonl and TensorBoard."""
        return curve_name(self.name)


def curve_name(question: str) -> str:
    """Return the name of a question's curves: number for "number"."""
    return question.replace(" at ", " ").replace(" ", "_")


QUESTIONS = (
    Question("number", "agreement", "pronoun", ("number",), '"it" or "they": number agreement, read at the pronoun'),
    Question("gender", "agreement", "pronoun", ("gender",), '"he" or "she": gender agreement, read at the pronoun'),
    Question("told_gender", "agreement", "pronoun", ("told_gender",), "the same, a gender that the story itself tells"),
    Question(
        "state", "agreement", "pronoun", ("state",), "at the pronoun; what follows is the state its antecedent was in"
    ),
    Question(
        "several_pronouns", "several_pronouns", "pronoun", ("number", "gender"), "at the first of several pronouns"
    ),
    Question(
        "attribute_before",
        "attribute",
        "pronoun",
        ("before",),
        "at her or his, whose food, told before its owner, comes next",
    ),
    Question("attribute_after", "attribute", "pronoun", ("after",), "the same, each food told after its owner"),
    Question(
        "ownership_before", "ownership", "pronoun", ("before",), "at it, the pet of she or he, told before its owner"
    ),
    Question("ownership_after", "ownership", "pronoun", ("after",), "the same, each pet told after its owner"),
    Question("ownership_object", "ownership", "pronoun", ("object",), "at him or her, which is not the subject"),
    Question("plural", "plural", "pronoun", ("plural",), "at they, which is two people together, or at it"),
    Question(
        "later_cue",
        "later_cue",
        "cue",
        ("later_cue",),
        "at the adjective that decides what the pronoun before it meant",
    ),
    Question(
        "ambiguous", "ambiguous", "cue", ("ambiguous",), "at the verb that decides what the pronoun before it meant"
    ),
    Question(
        "later_cue_repeat",
        "later_cue",
        "before_repeat",
        ("later_cue",),
        "before the mention that is said again",
        watched=False,
    ),
    Question(
        "several_pronouns_repeat",
        "several_pronouns",
        "before_repeat",
        ("number", "gender"),
        "before the mention that is said again",
        watched=False,
    ),
    Question(
        "ownership_repeat",
        "ownership",
        "before_repeat",
        ("before", "after"),
        "before the pet that is said again",
        watched=False,
    ),
)


# Nothing before these sites decides, so their rows are the same for both answers: a check of the instrument, no result.
UNDECIDED = (
    Question("agreement_before_pronoun", "agreement", "before_pronoun", ("number", "gender"), "before the pronoun"),
    Question("later_cue_at_pronoun", "later_cue", "pronoun", ("later_cue",), "at a pronoun that a later word decides"),
    Question("ambiguous_at_pronoun", "ambiguous", "pronoun", ("ambiguous",), "at a pronoun that a later word decides"),
)


# A pronoun that means nothing that was mentioned: where a link head must not look at nouns.
EMPTY = Question("no_antecedent", "no_antecedent", "pronoun", ("no_antecedent",), "at a pronoun that means nothing")


def asked(questions: Sequence[Question], items: Sequence[LinkItem]) -> list[Question]:
    """Return the questions that some item asks."""
    return [question for question in questions if any(question.picks(item) for item in items)]
