"""The questions about every attention head, as data: items, how a head is chosen, bars, levels and words.

Three outcomes. attention: does a head attend more to the antecedent than to the other mentions? edge: how much of the
answer goes through a head's edges to the mentions? whose: do these edges predict whom the author means? The bars were
fixed before anything was measured against them; they are our conventions where no source is named. The rule for sets of
heads was added after seeds 121 to 140, in which two heads shared the work in several failures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from data.pairs import Link, LinkedText
from probe.sentences import EXAMPLE_BLOCK, TIRED_OR_SOFT, Example

HEADLINE = "headline"  # the part of the verdict: new nouns in new frames
DEV = "dev"  # the part that heads are chosen on
SAME_WORDS = "iid"  # test stories with the words of dev
TESTED = "tested"  # passages of the documents that are not in dev
WHOSE = "whose"  # passages with two people and new names, of both halves and of a text for testing only
MAX_P = 0.01  # max-T tests, already corrected for the search over heads
MIN_SHARE = 0.8  # a set of heads grows one by one until its swap is this share (McGrath et al. 2023: heads share work)
MAX_OTHER_TYPE = 0.4  # mean weight of a previous-token or induction head on its target


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a criterion; a criterion is met if all its bars are."""

    criterion: str
    level: str  # the first level of evidence that needs it; "" if only "supported" does
    measure: str  # a name of MEASURES, or "t_lead": t minus the largest of untrained models
    end: Literal["value", "low", "high"]  # which number of the estimate
    needed: Literal["above", "at least", "below"]
    limit: float
    reason: str = ""  # at the first bar of a criterion: why it is not met, with values in braces

    @property
    def key(self) -> str:
        """The name of the number that is compared."""
        return self.measure if self.end == "value" else f"{self.measure}_{self.end}"


@dataclass(frozen=True, slots=True)
class Question:
    """One question about every head."""

    name: str  # the same in probe.json, metrics.jsonl, TensorBoard and the report
    description: str
    link: str  # what a head links, by attention, or copies, by edges
    outcome: Literal["attention", "edge", "whose"]  # chooses the head (whose: another question does), and is tested
    bars: tuple[Bar, ...]
    suggestive: tuple[str, ...]  # criteria that "suggestive" needs; by attention random weights do not meet it
    least_criteria: int  # that "suggestive" needs in all
    source: tuple[str, ...] = ()  # family, site and levels of stories; class of passages
    words: tuple[str, str, str] = ("", "", "")  # passages: pronouns, one entity, one of each class
    noun: str = "noun"
    exclusions: tuple[str, ...] = ()  # why nothing may be claimed of a head, whatever else it does
    is_watched: bool = True  # also asked during training, and of sets of heads
    examples: tuple[Example, ...] = ()  # written for it, to look at
    file: str | None = None  # file of a question of the user's own

    @property
    def criteria(self) -> list[str]:
        """The names of the criteria of "supported", in order."""
        return list(dict.fromkeys(bar.criterion for bar in self.bars if bar.level != "E4"))

    @property
    def words_of_findings(self) -> dict[str, Any]:
        """What every finding about this question says of it."""
        names = ("description", "link", "outcome", "file")
        return {"question": self.name} | {name: getattr(self, name) for name in names}


WITHOUT_LINK = "more_than_without_the_link"  # criterion of a question of the user's own with controls
_LINK_BARS = (
    Bar("pronoun_flip", "E2", "p_pair_accuracy", "value", "below", MAX_P,
        "following the pronoun may be chance: corrected p {p_pair_accuracy} (pair accuracy) and {p_contrast} (pronoun "
        "contrast); needed: below {p_contrast_bar}"),
    Bar("pronoun_flip", "E2", "p_contrast", "value", "below", MAX_P),
    Bar("beats_baselines", "E1", "lead", "low", "above", 0.0,
        "it does not beat the best baseline: its lead in accuracy may be as low as {lead_low}"),
    Bar("selective", "", "selectivity", "value", "above", 0.15,  # Hewitt & Liang 2019 give no bar
        "preferences for single words fit it too: selectivity {selectivity}; needed: above {selectivity_bar}"),
    Bar("causal_edge", "E3", "swap", "value", "above", 0.2,
        "the model's answer is not shown to depend on this edge: attention swap {swap}, edge specificity from "
        "{specificity_low}; needed: above {swap_bar} and above {specificity_low_bar}"),
    Bar("causal_edge", "E3", "specificity", "low", "above", 0.0),
    Bar("rests_without_antecedent", "", "unlinked_share", "value", "below", 0.5,
        "it attends to nouns at a pronoun without antecedent: {unlinked_share} of the weight they get otherwise; "
        "needed: below {unlinked_share_bar}"),
    Bar(WITHOUT_LINK, "E2", "beyond_control_text", "low", "above", 0.0,
        "much of it remains in texts without the link: the contrast is higher by {beyond_control_text}, from "
        "{beyond_control_text_low}; needed: above {beyond_control_text_low_bar}"),
    Bar("restores_the_answer", "E4", "restored", "value", "above", 0.5),  # most of the answer
    Bar("restores_the_answer", "E4", "ov_auc", "low", "above", 0.5),
)  # fmt: skip
_EDGE_BARS = (
    Bar("the pronoun follows the twin", "E1", "follows", "low", "above", 0.5, "from {follows_low}"),
    Bar("corrected p below 0.01", "E2", "p", "value", "below", MAX_P, "{p}"),
    Bar("corrected p below 0.01", "E2", "t", "value", "above", 0.0),
    Bar("t above every untrained model", "E2", "t_lead", "value", "above", 0.0, "{t}, {t_lead} above the largest"),
    Bar("cutting the meant edge takes 10% of the margin", "E3", "cut_meant", "value", "at least", 0.10,
        "{cut_meant}, from {cut_meant_low}"),
    Bar("cutting the meant edge takes 10% of the margin", "E3", "cut_meant", "low", "above", 0.02),
    Bar("cutting the other edge raises it", "E3", "cut_other", "high", "below", 0.0, "up to {cut_other_high}"),
    Bar("more than a random content word's edge", "E3", "beyond_control", "low", "above", 0.0,
        "from {beyond_control_low}"),
    Bar("share exchanged of 0.2 or more", "E3", "swap", "value", "at least", 0.2, "{swap}"),
    Bar("the choice is more than recency", "E4", "author_where_nearest_wrong", "low", "above", 0.5),
)  # fmt: skip
_WHOSE_BARS = (
    Bar("predicts the author's person beyond place", "E2", "p_beyond_place", "value", "below", MAX_P,
        "its edges may tell nothing beyond the place rule: coefficient {beyond_place}, p {p_beyond_place}; needed: p "
        "below {p_beyond_place_bar} on at least {passages_bar} passages, here {passages}"),
    Bar("predicts the author's person beyond place", "E2", "beyond_place", "value", "above", 0.0),
    Bar("predicts the author's person beyond place", "E2", "passages", "value", "at least", 700),
    Bar("the choice depends on it", "E3", "choice_share", "value", "at least", 0.2,
        "{choice_share} of the choice is lost if the head splits its weights as where place looks alike, from "
        "{choice_share_low}; needed: {choice_share_bar}, from {choice_share_low_bar}"),
    Bar("the choice depends on it", "E3", "choice_share", "low", "above", 0.05),
)  # fmt: skip
LEVELS = {  # meaning of each level of evidence, by outcome
    "attention": {
        "E0": "an attention pattern only",
        "E1": "beats every simple rule",
        "E2": "follows the pronoun on held-out items",
        "E3": "the model's answer depends on this attention edge",
        "E4": "the head alone restores most of the answer, its values carry it, and other seeds have such a head",
    },
    "edge": {
        "E0": "the model's pronoun is not shown to follow the entities",
        "E1": "the model's pronoun follows the entities",
        "E2": "cutting the head's edges moves the pronoun, on held-out documents",
        "E3": "what this head copies decides the pronoun",
        "E4": "the choice is more than recency, and other seeds have such a head",
    },
    "whose": {
        "E0": "it is not shown to copy anybody's gender",
        "E1": "it copies, but what it copies is not shown to predict whom the author means",
        "E2": "what it copies predicts whom the author means, beyond a fitted rule of place",
        "E3": "the model's choice between the two people depends on it too",
        "E4": "and other seeds have such a head",
    },
}
_PRONOUN = "a pronoun to its antecedent"
_CUE = "the word that decides a pronoun to the noun that this word fits"


def _link(name: str, description: str, link: str, *source: str, examples: tuple[Example, ...] = ()) -> Question:
    """Return a question by attention; `source` are family, site and levels of the stories, which have no controls."""
    return Question(
        name=name,
        description=description,
        link=link,
        outcome="attention",
        bars=tuple(bar for bar in _LINK_BARS if bar.criterion != WITHOUT_LINK or not source),
        suggestive=("pronoun_flip",),
        least_criteria=2,
        source=source,
        exclusions=("previous", "induction", "value_contrast"),
        examples=examples,
    )


def _edge(name: str, words: tuple[str, str, str], noun: str, copied: str, *, is_watched: bool) -> Question:
    return Question(
        name=f"next_pronoun_{name}",
        description=f"{words[0]}: {name}",
        link=f"{copied} it attends to into the next pronoun ({words[0]})",
        outcome="edge",
        bars=_EDGE_BARS,
        suggestive=tuple(bar.criterion for bar in _EDGE_BARS if bar.level in ("E1", "E2")),
        least_criteria=0,
        source=(name,),
        words=words,
        noun=noun,
        is_watched=is_watched,
    )


_NUMBER = '"it" or "they": number agreement, at the pronoun'
_GENDER = '"he" or "she": gender agreement, at the pronoun'
_TIRED = '"because it was tired": at the word "tired"'
STORY_QUESTIONS = (
    _link("number", _NUMBER, _PRONOUN, "agreement", "pronoun", "number", examples=EXAMPLE_BLOCK),
    _link("gender", _GENDER, _PRONOUN, "agreement", "pronoun", "gender"),
    _link("later_cue", _TIRED, _CUE, "later_cue", "cue", "later_cue", examples=TIRED_OR_SOFT),
)
_PEOPLE = ('"she" or "he"', "one person", "a woman and a man")
_THINGS = ('"it" or "they"', "one thing", "one and several things")
PASSAGE_QUESTIONS = {  # by the question of data.parsing.CLASSES
    "gender": _edge("gender", _PEOPLE, "person", "the gender of the people", is_watched=True),
    "number": _edge("number", _THINGS, "thing", "the number of the things", is_watched=False),
}
# Asked of the heads of an edge question, by its name, on its passages of the part WHOSE.
WHOSE_QUESTIONS = {
    PASSAGE_QUESTIONS["gender"].name: Question(
        name="next_pronoun_whose",
        description='"she" or "he": whose',
        link="what predicts whom the author means, beyond a fitted rule of place",
        outcome="whose",
        bars=_WHOSE_BARS,
        suggestive=(_WHOSE_BARS[0].criterion,),
        least_criteria=0,
        noun="person",
    )
}
_ALL = (*STORY_QUESTIONS, *PASSAGE_QUESTIONS.values(), *WHOSE_QUESTIONS.values())
QUESTIONS = {question.name: question for question in _ALL}

# At these sites the text so far is the same for both answers, so accuracy must be exactly 1/2: instrument checks.
_INSTRUMENT = (
    _link(
        "agreement_before_pronoun", "before the pronoun", _PRONOUN, "agreement", "before_pronoun", "number", "gender"
    ),
    _link("later_cue_at_pronoun", "at the pronoun, before the cue", _PRONOUN, "later_cue", "pronoun", "later_cue"),
)
UNDECIDED = tuple(question.name for question in _INSTRUMENT)

# A pronoun without an antecedent ("Outside, it was raining"): a link head must not attend to nouns there.
EMPTY = _link("no_antecedent", "at a pronoun without antecedent", _PRONOUN, "no_antecedent", "pronoun", "no_antecedent")


def names_of(text: LinkedText, link: Link) -> list[str]:
    """Return the questions that a link of a story belongs to; checks and controls need one part of the test."""
    part_of = dict.fromkeys(UNDECIDED, SAME_WORDS) | {EMPTY.name: HEADLINE}
    names = []
    for question in (*STORY_QUESTIONS, *_INSTRUMENT, EMPTY):
        family, site, *levels = question.source
        is_needed = part_of.get(question.name, text.holdout) == text.holdout
        if is_needed and (text.family, link.site) == (family, site) and link.level in levels:
            names.append(question.name)
    return names


def question_of_file(name: str, description: str, link: str, guards_off: Sequence[str], file: str) -> Question:
    """Return a question of the user's own: one about links, with some guards of the verdict switched off."""
    question = _link(name, description, link)
    return replace(
        question,
        bars=tuple(bar for bar in question.bars if bar.criterion not in guards_off),
        exclusions=tuple(name for name in question.exclusions if name not in guards_off),
        file=file,
    )


def in_words_of(link: str, text: str) -> str:
    """Return a text about a question of the user's own with the word at which `link` begins in place of the pronoun."""
    query = link.partition(" to ")[0].removeprefix("a ").removeprefix("an ").removeprefix("the ")
    return text.replace("pronoun contrast", "contrast").replace("the pronoun", f"the {query}")
