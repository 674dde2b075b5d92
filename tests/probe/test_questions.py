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
