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
    """Return the name of a question's curves: V_S1 for "V at S1"."""
    return question.replace(" at ", " ").replace(" ", "_")


QUESTIONS = (
    Question("V at S1", "V", "S1", ("L1", "L2"), "at the pronoun, where number or gender has already decided"),
    Question("V at S1, it/they", "V", "S1", ("L1",), "the same, number alone", watched=False),
    Question("V at S1, he/she", "V", "S1", ("L2",), "the same, gender alone", watched=False),
    Question("V told at S1", "V", "S1", ("L3",), "the same, a gender that the story itself tells"),
    Question("V state at S1", "V", "S1", ("state",), "at the pronoun; what follows is the state its antecedent was in"),
    Question("K at S1", "K", "S1", ("L1", "L2"), "at the first of several pronouns"),
    Question("W before at S1", "W", "S1", ("before",), "at her or his, whose food, told before its owner, comes next"),
    Question("W after at S1", "W", "S1", ("after",), "the same, each food told after its owner"),
    Question("O before at S1", "O", "S1", ("L4 before",), "at it, the pet of she or he, told before its owner"),
    Question("O after at S1", "O", "S1", ("L4 after",), "the same, each pet told after its owner"),
    Question("O not at S1", "O", "S1", ("L5",), "at him or her, which is not the subject"),
    Question("P at S1", "P", "S1", ("P",), "at they, which is two people together, or at it"),
    Question("R at S2", "R", "S2", ("R",), "at the adjective that decides what the pronoun before it meant"),
    Question("A at S2", "A", "S2", ("A",), "at the verb that decides what the pronoun before it meant"),
    Question("R at S3", "R", "S3", ("R",), "before the mention that is said again", watched=False),
    Question("K at S3", "K", "S3", ("L1", "L2"), "before the mention that is said again", watched=False),
    Question("O at S3", "O", "S3", ("L4 before", "L4 after"), "before the pet that is said again", watched=False),
)
# Nothing before these sites decides, so their rows are the same for both answers: a check of the instrument, no result.
UNDECIDED = (
    Question("V at S0", "V", "S0", ("L1", "L2"), "before the pronoun"),
    Question("R at S1", "R", "S1", ("R",), "at a pronoun that a later word decides"),
    Question("A at S1", "A", "S1", ("A",), "at a pronoun that a later word decides"),
)
# A pronoun that means nothing that was mentioned: where a link head must not look at nouns.
EMPTY = Question("N at S1", "N", "S1", ("N",), "at a pronoun that means nothing")


def asked(questions: Sequence[Question], items: Sequence[LinkItem]) -> list[Question]:
    """Return the questions that some item asks."""
    return [question for question in questions if any(question.picks(item) for item in items)]
