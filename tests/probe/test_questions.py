"""Questions do not overlap, cover the stories, and their bars compare numbers that a finding has."""

from collections import Counter, defaultdict
from string import Formatter

import pytest

from data.passages import CLASSES
from probe.questions import (
    EMPTY,
    LEVELS,
    PASSAGE_QUESTIONS,
    QUESTIONS,
    STORY_QUESTIONS,
    UNDECIDED,
    Question,
)
from probe.results import MEASURES
from tests.probe.factories import CONFIG, EVERY, story_pairs

ALL = (*QUESTIONS.values(), EMPTY)


def test_no_name_is_there_twice() -> None:
    assert max(Counter([*(question.name for question in ALL), *UNDECIDED]).values()) == 1
    assert set(PASSAGE_QUESTIONS) == set(CLASSES)


# The bars as they were fixed before anything was measured against them.
LINK_BARS = [
    ("pronoun_flip", "E2", "p_pair_accuracy", "value", "below", 0.01),
    ("pronoun_flip", "E2", "p_contrast", "value", "below", 0.01),
    ("beats_baselines", "E1", "lead", "low", "above", 0.0),
    ("selective", "", "selectivity", "value", "above", 0.15),
    ("causal_edge", "E3", "swap", "value", "above", 0.2),
    ("causal_edge", "E3", "specificity", "low", "above", 0.0),
    ("rests_without_antecedent", "", "unlinked_share", "value", "below", 0.5),
    ("restores_the_answer", "E4", "restored", "value", "above", 0.5),
    ("restores_the_answer", "E4", "ov_auc", "low", "above", 0.5),
]
EDGE_BARS = [
    ("E1", "follows", "low", "above", 0.5),
    ("E2", "p", "value", "below", 0.01),
    ("E2", "t", "value", "above", 0.0),
    ("E2", "t_lead", "value", "above", 0.0),
    ("E3", "cut_meant", "value", "at least", 0.1),
    ("E3", "cut_meant", "low", "above", 0.02),
    ("E3", "cut_other", "high", "below", 0.0),
    ("E3", "beyond_control", "low", "above", 0.0),
    ("E3", "swap", "value", "at least", 0.2),
    ("E4", "author_where_nearest_wrong", "low", "above", 0.5),
]
WHOSE_BARS = [
    ("E2", "p_beyond_place", "value", "below", 0.01),
    ("E2", "beyond_place", "value", "above", 0.0),
    ("E2", "passages", "value", "at least", 700),
    ("E3", "choice_share", "value", "at least", 0.2),
    ("E3", "choice_share", "low", "above", 0.05),
]


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=list(QUESTIONS))
def test_the_bars_are_those_that_were_fixed_in_advance(question: Question) -> None:
    rows = [(bar.criterion, bar.level, bar.measure, bar.end, bar.needed, bar.limit) for bar in question.bars]
    if question.outcome == "attention":
        assert rows == LINK_BARS
    else:
        assert [row[1:] for row in rows] == (EDGE_BARS if question.outcome == "edge" else WHOSE_BARS)


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.name)
def test_every_bar_and_its_reason_name_measures(question: Question) -> None:
    names = {*MEASURES, "t_lead"}
    bars = {f"{bar.key}_bar" for bar in question.bars}
    known = bars | {name + end for name in names for end in ("", "_low", "_high")}
    for bar in question.bars:
        assert bar.measure in names and bar.level in (*LEVELS[question.outcome], "")
        assert {field for _, field, *_ in Formatter().parse(bar.reason) if field} <= known
    first_bars = {bar.criterion: bar for bar in reversed(question.bars)}
    assert all(first_bars[name].reason for name in question.criteria)
    assert set(question.suggestive) <= set(question.criteria)


def test_the_full_mix_has_items_for_every_question_and_the_default_mix_for_three() -> None:
    stories = [question.name for question in STORY_QUESTIONS]
    assert all(story_pairs("test", EVERY).parts(name) for name in (*stories, *UNDECIDED, EMPTY.name))
    names = [question.name for question in STORY_QUESTIONS if story_pairs("test", CONFIG).parts(question.name)]
    assert names == ["number", "gender", "later_cue"]


@pytest.mark.parametrize("config", [CONFIG, EVERY], ids=["default", "full"])
def test_the_undecided_questions_are_those_whose_texts_differ_only_later(config) -> None:  # noqa: ANN001
    is_alike = defaultdict(set)
    for pair in story_pairs("test", config).pairs:
        first, second = (cell.tokens[: cell.query + 1] for cell in pair.cells)
        is_alike[pair.question].add(first == second)
    assert {name for name, values in is_alike.items() if name != EMPTY.name and True in values} == set(UNDECIDED)
    assert all(is_alike[name] == {True} for name in UNDECIDED)
