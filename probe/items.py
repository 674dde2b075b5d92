"""The questions that every attention head is tested on: a family of stories, a site to read at, and levels.

Sites are never pooled. before_pronoun: the token before the pronoun. pronoun: the pronoun. cue: the later word that
decides what the pronoun refers to. before_repeat: the token before a second mention of the antecedent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from data.links import LinkItem

HEADLINE = "headline"  # the hold-out of the verdict: new nouns in new frames


@dataclass(frozen=True, slots=True)
class OwnWords:
    """How a question of the user's own is described, and which guards of the verdict it switches off."""

    file: str
    description: str
    link: str  # what a head links: "a verb to its subject"
    guards_off: list[str]  # some of data.own_items.GUARDS


@dataclass(frozen=True, slots=True)
class Question:
    """One question about every head: at this site, does it attend more to the antecedent than to the distractor?"""

    name: str  # the same in probe.json, metrics.jsonl, TensorBoard and the report
    family: str
    site: str
    levels: tuple[str, ...]
    description: str
    watched: bool = True  # if True, also probed during training
    own: OwnWords | None = None  # None: a built-in question

    def matches(self, item: LinkItem) -> bool:
        """Return whether `item` belongs to this question."""
        return item.family == self.family and item.site == self.site and item.level in self.levels


_AGREEMENT = ("number", "gender")
QUESTIONS = (
    Question("number", "agreement", "pronoun", ("number",), '"it" or "they": number agreement, at the pronoun'),
    Question("gender", "agreement", "pronoun", ("gender",), '"he" or "she": gender agreement, at the pronoun'),
    Question("told_gender", "agreement", "pronoun", ("told_gender",), '"he" or "she": gender stated in the story'),
    Question("state", "agreement", "pronoun", ("state",), '"it" or "they": the antecedent\'s state decides the verb'),
    Question("several_pronouns", "several_pronouns", "pronoun", _AGREEMENT, "at the first of several pronouns"),
    Question("attribute_before", "attribute", "pronoun", ("before",), '"her pears": food named before its owner'),
    Question("attribute_after", "attribute", "pronoun", ("after",), '"her pears": food named after its owner'),
    Question("ownership_before", "ownership", "pronoun", ("before",), '"she called it": pet named before its owner'),
    Question("ownership_after", "ownership", "pronoun", ("after",), '"she called it": pet named after its owner'),
    Question("ownership_object", "ownership", "pronoun", ("object",), '"Ben washed him": not the subject'),
    Question("plural", "plural", "pronoun", ("plural",), '"they" for two people together, or "it"'),
    Question("later_cue", "later_cue", "cue", ("later_cue",), '"because it was tired": at the word "tired"'),
    Question("ambiguous", "ambiguous", "cue", ("ambiguous",), '"it purred": at the verb that decides'),
    Question("later_cue_repeat", "later_cue", "before_repeat", ("later_cue",), "before the second mention", False),
    Question(
        "several_pronouns_repeat", "several_pronouns", "before_repeat", _AGREEMENT, "before the second mention", False
    ),
    Question(
        "ownership_repeat", "ownership", "before_repeat", ("before", "after"), "before the pet's second mention", False
    ),
)

# At these sites the text so far is the same for both answers, so accuracy must be exactly 1/2: instrument checks.
UNDECIDED = (
    Question("agreement_before_pronoun", "agreement", "before_pronoun", _AGREEMENT, "before the pronoun", False),
    Question("later_cue_at_pronoun", "later_cue", "pronoun", ("later_cue",), "at the pronoun, before the cue", False),
    Question("ambiguous_at_pronoun", "ambiguous", "pronoun", ("ambiguous",), "at the pronoun, before the cue", False),
)

# A pronoun without an antecedent ("Outside, it was raining"): a link head must not attend to nouns there.
EMPTY = Question(
    "no_antecedent", "no_antecedent", "pronoun", ("no_antecedent",), "at a pronoun without antecedent", False
)


def questions_with_items(questions: Sequence[Question], items: Sequence[LinkItem]) -> list[Question]:
    """Return the questions that at least one item belongs to."""
    return [question for question in questions if any(question.matches(item) for item in items)]
