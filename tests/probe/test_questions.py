"""What is asked: every question of real stories, none twice, and nothing where nothing has been decided."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from data.links import LinkItem
from probe.items import EMPTY, QUESTIONS, UNDECIDED, Question, asked, curve_name
from probe.scores import check_blocks, read_rows, score
from probe.study import only_the_two
from tests.data.test_links import undecided
from tests.probe.story_items import CONFIG, FULL, random_model, story_items

EVERY = (*QUESTIONS, *UNDECIDED, EMPTY)


def test_names_and_curves_are_unique() -> None:
    for names in ([one.name for one in EVERY], [one.curve for one in EVERY]):
        assert max(Counter(names).values()) == 1
    assert curve_name("number") == "number" and curve_name("ownership_before") == "O_before_S1"
    assert not any(set(one.curve) & {" ", "/"} for one in QUESTIONS if one.watched)


def test_the_full_mix_asks_every_question_and_the_default_mix_the_first_few() -> None:
    assert asked(EVERY, story_items("test", config=FULL)) == list(EVERY)
    watched = [question for question in QUESTIONS if question.watched]
    on_dev = asked(QUESTIONS, [item for item in story_items("dev", config=FULL) if item.holdout == "iid"])
    assert [question for question in on_dev if question.watched] == watched  # not every frame says a mention again
    of_default = [one.name for one in asked(EVERY, story_items("test", config=CONFIG))]
    assert of_default == [
        "number", "number", "gender", "later_cue", "later_cue_repeat", "agreement_before_pronoun", "later_cue_at_pronoun", "no_antecedent",
    ]  # fmt: skip


def by_holdout(question: Question, items: list[LinkItem]) -> list[list[LinkItem]]:
    found = defaultdict(list)
    for item in items:
        if question.picks(item):
            found[item.holdout].append(item)
    return list(found.values())


@pytest.mark.parametrize("split", ["dev", "test"])
def test_every_question_is_asked_in_whole_blocks_once_a_story(split: str) -> None:
    items = story_items(split, config=FULL)
    for question in EVERY:
        for some in by_holdout(question, items):
            check_blocks(some)
            assert len({item.block for item in some}) == len(some) // 4


def test_no_two_watched_questions_share_an_item() -> None:
    for item in story_items("test", config=FULL):
        assert sum(question.picks(item) for question in EVERY if getattr(question, "watched", True)) <= 1


def test_the_sites_said_to_be_undecided_are_those_whose_texts_part_later() -> None:
    for config in (CONFIG, FULL):
        items = story_items("test", config=config)
        said = {(one.family, level, one.site) for one in asked(UNDECIDED, items) for level in one.levels}
        assert undecided(items) == said


@pytest.mark.parametrize("question", UNDECIDED, ids=lambda one: one.name)
def test_where_nothing_is_decided_every_head_is_right_in_exactly_half(question: Question) -> None:
    model = random_model()
    every = by_holdout(question, story_items("test", config=FULL))
    if question.family != "A":
        every += by_holdout(question, story_items("test", config=CONFIG))
    for some in every:
        rows = read_rows(model, only_the_two(some), tokens_per_batch=4096)
        scores = score(rows.preference, rows.selects, rows.strict)
        assert (scores.accuracy == 0.5).all() and (scores.pair_accuracy == 0).all()


def test_a_third_mention_is_left_out_of_undecided_sites_and_the_two_are_kept() -> None:
    items = [item for item in story_items("test", "agreement", "before_pronoun", FULL) if len(item.distractors) > 1]
    whole = [
        item
        for item in story_items("test", "agreement", "before_pronoun", FULL)
        if item.block in {one.block for one in items}
    ]
    assert items
    for item, alone in zip(whole, only_the_two(whole), strict=True):
        assert alone.antecedents == item.antecedents and len(alone.distractors) == 1
        other = next(one for one in whole if (one.block, one.order) == (item.block, item.order) and one is not item)
        assert alone.distractors == other.antecedents and alone.distractors[0] in item.distractors
    rows = [read_rows(random_model(), some, 4096) for some in (whole, only_the_two(whole))]
    np.testing.assert_array_equal(rows[0].first_mass, rows[1].first_mass)  # read as before
    assert (rows[0].mass > rows[1].mass).any()
