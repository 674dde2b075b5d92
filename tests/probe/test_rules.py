"""Rules and random labels get their exact scores."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data.pairs import Cell, Items
from probe.attention import HeadRows, HeadScores
from probe.results import Head
from probe.rules import FIXED_RULES, fit_rules, fixed_offset, most_frequent, score_rules, selectivity
from tests.probe.factories import story_pairs

DEV = story_pairs("study").of("number", "dev")
TEST = story_pairs("study").of("number", "iid")
FIRST = DEV.cells[0]


@pytest.mark.parametrize("question", ["number", "gender", "later_cue"])
def test_over_balanced_blocks_every_rule_scores_one_half(question: str) -> None:
    items = story_pairs("study")
    rules = fit_rules(items.of(question, "dev"))
    scores = score_rules(rules, items.of(question, "headline"))
    assert set(rules) == {*FIXED_RULES, "most frequent", "fixed offset"}
    for name in rules:
        assert (scores[name].accuracy.mean(), scores[name].block_accuracy.mean()) == (0.5, 0), name


def with_mentions(meant: list[Any], other: list[Any], **changes: Any) -> Cell:
    return replace(FIRST, meant=tuple(meant), other=tuple(other[:1]), bystanders=tuple(other[1:]), **changes)


def test_rules_compare_the_best_antecedent_with_the_best_other_mention() -> None:
    cell = with_mentions([(3,), (7, 8)], [(5,), (6,), (2,)], subject=(7, 8))
    preferences = {name: rule(cell) for name, rule in FIXED_RULES.items()}
    assert preferences == {"nearest": 1, "first": -1, "subject": 1, "uniform": 0}
    assert FIXED_RULES["subject"](replace(cell, subject=(5,))) == -1


def test_the_most_frequent_antecedent_of_dev_is_preferred_and_unknown_words_tie() -> None:
    frequent, rare = with_mentions([(4,)], [(6,)]), with_mentions([(6,)], [(4,)])
    rule = most_frequent([frequent, frequent, frequent, rare])
    assert [rule(cell) for cell in (frequent, rare, with_mentions([(2,)], [(3,)]))] == [1, -1, 0]


def test_the_fixed_offset_is_the_distance_that_is_right_most_often_in_dev() -> None:
    def sign(cell: Cell, offset: int) -> int:
        right, wrong = (
            min(abs(cell.query - word[-1] - offset) for word in side) for side in (cell.meant, cell.not_meant)
        )
        return (right < wrong) - (right > wrong)

    cells = DEV.cells[::3]
    offsets = sorted({cell.query - word[-1] for cell in cells for word in cell.meant + cell.not_meant})
    best = max(offsets, key=lambda offset: sum(sign(cell, offset) for cell in cells))
    assert [fixed_offset(cells)(cell) for cell in TEST.cells] == [sign(cell, best) for cell in TEST.cells]


# Selectivity


def of_texts(items: Items) -> list[tuple[int, tuple[str, ...]]]:
    """Return which word each text means, and both words."""
    return [(meant, pair.clusters[1:]) for pair in items.pairs for meant in (0, 1)]


def heads_of(items: Items, *margins: np.ndarray) -> HeadScores:
    """Return the scores of one layer of heads with these margins [texts] each."""
    margin = np.stack(margins, axis=-1)[:, None]
    return HeadScores(items, HeadRows(margin, margin, margin, margin))


def test_a_link_head_has_selectivity_one_half_and_the_control_may_choose_any_head() -> None:
    n_dev, n_test = len(DEV.cells), len(TEST.cells)
    dev = heads_of(DEV, np.ones(n_dev), np.zeros(n_dev))
    test = heads_of(TEST, np.ones(n_test), np.zeros(n_test))
    of_best, of_link, of_tie = (selectivity(dev, test, 7, 0, place) for place in (None, Head(0, 0), Head(0, 1)))
    assert (of_best, of_link, of_tie) == (0.5, 0.5, 0.0)  # accuracy 1, on control tasks 1/2


def test_a_head_that_ranks_the_words_as_the_control_task_does_has_no_selectivity() -> None:
    words = sorted({word for items in (DEV, TEST) for _, both in of_texts(items) for word in both})
    rank = dict(zip(words, np.random.default_rng(5).permutation(len(words)), strict=True))

    def ranking_head(items: Items) -> HeadScores:
        prefers_meant = [(rank[first] > rank[second]) == (meant == 0) for meant, (first, second) in of_texts(items)]
        return heads_of(items, np.where(prefers_meant, 1.0, -1.0))

    result = selectivity(ranking_head(DEV), ranking_head(TEST), n_controls=1, seed=5)
    assert result == -0.5  # accuracy 1/2, on the control task 1
