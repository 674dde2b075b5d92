"""Questions cover all story families, do not overlap, and the undecided sites are undecided."""

from collections import Counter, defaultdict

import pytest

from data.links import LinkItem
from model.observe import TransformerView
from probe.items import EMPTY, QUESTIONS, UNDECIDED, Question, questions_with_items
from probe.scores import check_blocks, measure_heads, score_heads
from tests.data.test_links import undecided
from tests.probe.story_items import CONFIG, FULL, story_items, story_model

ALL_QUESTIONS = (*QUESTIONS, *UNDECIDED, EMPTY)


def by_holdout(question: Question, items: list[LinkItem]) -> list[list[LinkItem]]:
    groups = defaultdict(list)
    for item in items:
        if question.matches(item):
            groups[item.holdout].append(item)
    return list(groups.values())


def test_names_are_unique() -> None:
    assert max(Counter(question.name for question in ALL_QUESTIONS).values()) == 1


def test_the_full_mix_has_items_for_every_question() -> None:
    questions = [question for question in ALL_QUESTIONS if question.name != "english"]
    assert questions_with_items(ALL_QUESTIONS, story_items("test", config=FULL)) == questions


def test_the_default_mix_has_the_four_default_questions_and_its_checks() -> None:
    names = [question.name for question in questions_with_items(ALL_QUESTIONS, story_items("test", config=CONFIG))]
    checks = ["agreement_before_pronoun", "later_cue_at_pronoun", "no_antecedent"]
    assert names == ["number", "gender", "later_cue", "later_cue_repeat", *checks]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_items_of_a_question_are_whole_blocks(split: str) -> None:
    for question in ALL_QUESTIONS:
        for items in by_holdout(question, story_items(split, config=FULL)):
            check_blocks(items)
            assert len({item.block for item in items}) == len(items) // 4


def test_no_item_belongs_to_two_watched_questions() -> None:
    watched = [question for question in QUESTIONS if question.watched]
    for item in story_items("test", config=FULL):
        assert sum(question.matches(item) for question in watched) <= 1


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["default", "full"])
def test_the_undecided_questions_are_the_sites_whose_texts_differ_only_later(config) -> None:  # noqa: ANN001
    items = story_items("test", config=config)
    questions = questions_with_items(UNDECIDED, items)
    sites = {(question.family, level, question.site) for question in questions for level in question.levels}
    assert undecided(items) == sites


@pytest.mark.parametrize("question", UNDECIDED, ids=lambda question: question.name)
def test_at_undecided_sites_every_head_has_accuracy_one_half_in_every_block(question: Question) -> None:
    for items in by_holdout(question, story_items("test", config=FULL)):
        scores = score_heads(measure_heads(TransformerView(story_model()), items, 4096))
        assert (scores.accuracy == 0.5).all()
        assert (scores.pair_accuracy == 0).all()
