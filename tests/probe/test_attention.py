"""Heads are measured and scored as their definitions say: on whole attention maps, and on heads of known behaviour."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from data.pairs import Cell, Items, Pair
from model.observe import HeadWeights, TransformerView
from probe.attention import SET, HeadRows, HeadScores, measure_heads, score
from probe.results import Head
from tests.probe.factories import cell, chosen, story_model, story_pairs

ORDER = np.array([0, 0, 1, 1])
MEANT = np.array([0, 1, 0, 1])  # the cells of a block


def log_ratios(*, coreference: float = 0, first: float = 0, singular: float = 0, lexical: float = 0) -> np.ndarray:
    """Return the log ratios of 13 blocks of a head that is the sum of these habits."""
    to_first = np.where(ORDER == MEANT, first, -first)
    to_singular = np.where(MEANT == 0, singular, -singular)
    to_word = np.where(MEANT == 0, 1, -1) * np.random.default_rng(0).normal(size=(13, 1)) * lexical
    return np.asarray(coreference + to_first + to_singular + to_word).ravel()


def means(values: np.ndarray) -> tuple[float, ...]:
    scores = score(values, values)
    names = ("accuracy", "pair_accuracy", "block_accuracy", "contrast")
    return tuple(float(getattr(scores, name).mean()) for name in names)


@pytest.mark.parametrize(
    ("habits", "expected"),
    [
        ({"coreference": 2}, (1, 1, 1, 2)),
        ({"first": 2}, (0.5, 0, 0, 0)),
        ({"singular": 2}, (0.5, 0, 0, 0)),
        ({"lexical": 2}, (0.5, 0, 0, 0)),
        ({"coreference": 1.5, "first": 2}, (0.5, 0, 0, 1.5)),
        ({"coreference": 2, "first": 1.5}, (1, 1, 1, 2)),
        ({}, (0.5, 0, 0, 0)),  # ties
    ],
    ids=str,
)
def test_a_habit_scores_what_its_definition_says(habits: dict[str, float], expected: tuple[float, ...]) -> None:
    assert means(log_ratios(**habits)) == pytest.approx(expected)


# Measured on a model


@pytest.fixture(scope="module")
def model() -> TransformerView:
    return TransformerView(story_model(d_model=30))


def made_up(words: list[tuple[int, ...]], n_meant: int) -> Cell:
    """Return a text of 12 tokens with these mentions, the first `n_meant` of them antecedents."""
    tokens = [0, *np.random.default_rng(len(words)).integers(1, 90, size=11).tolist()]
    return cell(tokens, (words[0], words[-1]), 0, meant=tuple(words[:n_meant]), other=tuple(words[n_meant:]))


def items_of(cells: list[Cell]) -> Items:
    return Items([Pair("number", "dev", (one, one), ("", ""), i, ("", "", "")) for i, one in enumerate(cells)])


SHAPES = {
    "one against one": made_up([(3,), (7,)], 1),
    "three others, one of three tokens": made_up([(4,), (2,), (6, 7, 8), (9,)], 1),
    "two antecedents of several tokens": made_up([(1, 2), (8, 9, 10), (5,), (4,)], 2),
    "the query is a mention": made_up([(11,), (3, 4)], 1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_field_is_its_definition_on_the_whole_map(model: TransformerView, shape: str) -> None:
    text = SHAPES[shape]
    row = 2 * list(SHAPES).index(shape)
    rows = measure_heads(model, items_of(list(SHAPES.values())), tokens_per_batch=30)
    meant = [*sum(text.meant, ())]
    other = [*sum(text.other, ())]
    for layer, record in enumerate(model.record(torch.tensor([text.tokens]))):
        for head in range(model.n_head):
            weights = record.scores[0, head, text.query].softmax(-1)
            output = model.head_weights(layer).output
            assert output is not None
            moved = weights * (record.values[0, head] @ output[head].T).norm(dim=-1)
            best, best_other = (
                max(weights[list(word)].sum().log() for word in words) for words in (text.meant, text.other)
            )
            expected = {
                "log_ratio": weights[meant].sum().log() - weights[other].sum().log(),
                "value_log_ratio": moved[meant].sum().log() - moved[other].sum().log(),
                "attention_margin": best - best_other,
                "mass": weights[meant + other].sum(),
            }
            values = {field.name: getattr(rows, field.name)[row, layer, head] for field in fields(HeadRows)}
            assert values == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-4)


class WithoutWeights(TransformerView):
    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, None)


def test_a_model_without_known_output_weights_has_no_value_weighted_attention() -> None:
    rows = measure_heads(WithoutWeights(story_model()), story_pairs("test").of("number", "iid").take([0, 1]), 100)
    assert np.isnan(rows.value_log_ratio).all() and np.isfinite(rows.log_ratio).all()


def test_the_rows_at_it_are_bit_identical_whether_tired_or_soft_follows(model: TransformerView) -> None:
    items = chosen(story_pairs("test"), "later_cue_at_pronoun")
    scores = HeadScores.of_model(model, items, 4096)
    assert len(items) >= 50 and all(pair.cells[0].tokens != pair.cells[1].tokens for pair in items.pairs)
    np.testing.assert_array_equal(scores.rows.attention_margin[::2], -scores.rows.attention_margin[1::2])
    assert (scores.scores().accuracy == 0.5).all() and (scores.scores().pair_accuracy == 0).all()


def rows_of(log_ratio: np.ndarray, mass: np.ndarray) -> HeadRows:
    nothing = np.zeros_like(log_ratio)
    return HeadRows(log_ratio, nothing, nothing, mass)


def test_the_weights_of_heads_are_added() -> None:
    """Weights of .3 and .1 on the antecedent, .1 and .3 on the other mention: together a tie."""
    log_ratio = np.log([[[3.0, 1 / 3]], [[9.0, 1.0]]])
    rows = rows_of(log_ratio, np.array([[[0.4, 0.4]], [[0.5, 0.2]]]))
    joint = rows.joint_log_ratio([Head(0, 0), Head(0, 1)])
    np.testing.assert_allclose(joint, [0.0, np.log(0.55 / 0.15)], atol=1e-12)
    np.testing.assert_allclose(rows.joint_log_ratio([Head(0, 1)]), log_ratio[:, 0, 1], atol=1e-12)
    of_set = HeadScores(Items([]), rows).with_set([Head(0, 0), Head(0, 1)]).rows
    assert (of_set.attention_margin[:, *SET] == joint).all() and np.isnan(of_set.value_log_ratio[:, *SET]).all()


def test_the_weight_difference_is_that_of_the_attention_weights() -> None:
    """Weights .6 and .2, then .1 and .3: the mean of .4 and .2."""
    weights = np.array([[0.6, 0.2], [0.1, 0.3]])
    rows = rows_of(np.log(weights[:, 0] / weights[:, 1])[:, None, None], weights.sum(axis=1)[:, None, None])
    assert rows.weight_difference() == pytest.approx(np.array([[0.3]]))
