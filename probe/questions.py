"""The questions about every attention head, as data: bars and words.

Three outcomes. attention: does a head attend more to the antecedent than to the other mentions? edge: how much of the
answer goes through a head's edges to the mentions? whose: do these edges predict whom the author means? The bars were
fixed before anything was measured against them; they are our conventions where no source is named. The rule for sets of
heads was added after seeds 121 to 140, in which two heads shared the work in several failures.
"""

from dataclasses import dataclass, replace
from typing import Literal

from probe.results import MIN_CARRIED, NOT_ESTABLISHED

HEADLINE = "headline"  # the part of the verdict: new nouns in new frames
DEV = "dev"  # the part that heads are chosen on
SAME_WORDS = "iid"  # test stories with the words of dev
MAX_P = 0.01  # max-T tests, already corrected for the search over heads
MIN_SHARE = 0.8  # a set of heads grows one by one until its swap is this share (McGrath et al. 2023: heads share work)
MAX_OTHER_TYPE = 0.4  # mean weight of a previous-token or induction head on its target


@dataclass(frozen=True)
class Bar:
    """One bar of a criterion; a criterion is met if all its bars are."""

    criterion: str
    level: str  # the first level of evidence that needs it; "" if only "supported" does
    measure: str  # a name of MEASURES
    end: Literal["value", "low", "high"]  # which number of the estimate
    needed: Literal["above", "at least", "below"]
    limit: float
    reason: str = ""  # at the first bar of a criterion: why it is not met, with values in braces

    @property
    def key(self) -> str:
        return self.measure if self.end == "value" else f"{self.measure}_{self.end}"


@dataclass(frozen=True)
class Example:
    """A sentence, the word at which heads are read (the query), and the two nouns it may refer to."""

    text: str
    query: str
    antecedent: str
    distractor: str


@dataclass(frozen=True)
class Question:
    """One question about every head."""

    name: str  # the same in probe.json, metrics.jsonl, TensorBoard and the report
    description: str
    link: str  # the link of a head, by attention, or its copy, by edges
    outcome: str  # a name of `probe.outcomes.OUTCOMES`: how heads are chosen and tested
    bars: tuple[Bar, ...]
    suggestive: tuple[str, ...]  # criteria that "suggestive" needs; by attention random weights do not meet it
    least_criteria: int  # that "suggestive" needs, those of ABOUT_ANSWER not counted
    exclusions: tuple[str, ...] = ()  # why nothing may be claimed of a head, whatever else it does
    verdict_at_e0: str = NOT_ESTABLISHED  # if no level of evidence is reached
    heads_of: str | None = None  # another question: only heads that it supports are tested
    examples: tuple[Example, ...] = ()  # written for it, to look at
    file: str | None = None  # file of a question of the user's own
    limits: tuple[str, ...] = ()  # conclusions that a reader may draw from a claim, but that it does not show

    @property
    def criteria(self) -> list[str]:
        return list(dict.fromkeys(bar.criterion for bar in self.bars))


ABOUT_ANSWER = {"carries", "answer"}  # criteria that say nothing about where a head looks
WITHOUT_LINK = "more_than_without_the_link"  # criterion of a question of the user's own with controls
LINK_BARS = (
    Bar("pronoun_flip", "E2", "p_pair_accuracy", "value", "below", MAX_P,
        "following what decides may be chance: corrected p {p_pair_accuracy} (pair accuracy) and {p_contrast} "
        "(contrast); needed: below {p_contrast_bar}"),
    Bar("pronoun_flip", "E2", "p_contrast", "value", "below", MAX_P),
    Bar("beats_baselines", "E1", "lead", "low", "above", 0.0,
        "it does not beat the best baseline: its lead in accuracy may be as low as {lead_low}"),
    Bar("selective", "", "selectivity", "value", "above", 0.15,  # Hewitt & Liang 2019 give no bar
        "preferences for single words fit it too: selectivity {selectivity}; needed: above {selectivity_bar}"),
    Bar("causal_edge", "E3", "swap", "value", "above", 0.2,
        "the model's answer is not shown to depend on this edge: attention swap {swap}, edge specificity from "
        "{specificity_low}; needed: above {swap_bar} and above {specificity_low_bar}"),
    Bar("causal_edge", "E3", "specificity", "low", "above", 0.0),
    Bar("carries", "", "carries", "low", "at least", MIN_CARRIED,
        "it carries less than half of the answer: {carries}, from {carries_low}"),
    Bar("answer", "", "answer_accuracy", "value", "at least", 0.9,
        "the model's own answers are right in {answer_accuracy}; needed: at least {answer_accuracy_bar}"),
    Bar(WITHOUT_LINK, "E2", "beyond_control_text", "low", "above", 0.0,
        "much of it remains in texts without the link: the contrast is higher by {beyond_control_text}, from "
        "{beyond_control_text_low}; needed: above {beyond_control_text_low_bar}"),
)  # fmt: skip


def link_question(name: str, description: str, examples: tuple[Example, ...] = ()) -> Question:
    """Return a question by attention about the stories, which have no texts without the link."""
    return Question(
        name=name,
        description=description,
        link="a pronoun to its antecedent",
        outcome="attention",
        bars=tuple(bar for bar in LINK_BARS if bar.criterion != WITHOUT_LINK),
        suggestive=("pronoun_flip",),
        least_criteria=2,
        exclusions=("previous", "induction", "value_contrast"),
        examples=examples,
    )


# All four texts of a block: the order of the nouns x the pronoun.
EXAMPLE_BLOCK = (
    Example("One sunny day, the cat sat near the buses. It", "It", "cat", "buses"),
    Example("One sunny day, the cat sat near the buses. They", "They", "buses", "cat"),
    Example("One sunny day, the buses sat near the cat. It", "It", "cat", "buses"),
    Example("One sunny day, the buses sat near the cat. They", "They", "buses", "cat"),
)
FRIGHTENED_OR_FEARED = (
    Example("One sunny day, the cat frightened the dog because it", "it", "cat", "dog"),
    Example("One sunny day, the cat feared the dog because it", "it", "dog", "cat"),
    Example("One sunny day, the cat was feared by the dog because it", "it", "cat", "dog"),
    Example("One sunny day, the cat was frightened by the dog because it", "it", "dog", "cat"),
)

STORY_QUESTIONS = (
    replace(
        link_question("verb", '"because it": verb and voice', FRIGHTENED_OR_FEARED),
        limits=(
            # research/results/third_noun.md
            "that it holds in other constructions: training has the tested ones, with other nouns",
            'that the pronoun matters: no other word was in its place, such as "the"',
            "anything about other verbs: all that are tested were in training, four of them in the active voice only",
        ),
    ),
    link_question("number", '"it" or "they": number agreement', EXAMPLE_BLOCK),
    link_question("gender", '"he" or "she": gender agreement'),
)
QUESTIONS = {question.name: question for question in STORY_QUESTIONS}  # an extra adds its own
