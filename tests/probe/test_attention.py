"""Heads are measured as their definitions say, on whole attention maps, and planted heads as their habits imply."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from data.pairs import Cell, Items, Pair
from model.observe import TransformerView
from probe.attention import SET, HeadRows, HeadScores, measure_heads
from probe.results import Head
from tests.planted import KINDS
from tests.probe.factories import cell, chosen, planted, story_model, story_pairs


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
    rows = measure_heads(model, items_of(list(SHAPES.values())), tokens_per_batch=30).rows
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


def test_the_rows_at_it_are_bit_identical_whether_tired_or_soft_follows(model: TransformerView) -> None:
    items = chosen(story_pairs("test"), "later_cue_at_pronoun")
    scores = measure_heads(model, items, 4096)
    assert len(items) >= 50 and all(pair.cells[0].tokens != pair.cells[1].tokens for pair in items.pairs)
    np.testing.assert_array_equal(scores.rows.attention_margin[::2], -scores.rows.attention_margin[1::2])
    assert (scores.scores().accuracy == 0.5).all() and (scores.scores().pair_accuracy == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["number", "gender", "later_cue"])
def test_a_planted_head_has_the_scores_of_its_habit(kind: str, question: str) -> None:
    model = TransformerView(planted(kind, layer=1, head=2, seed=5))
    scores = measure_heads(model, story_pairs("test").of(question, "headline"), 4096).scores()
    expected = {"coreference": (1, 1, 1, 2), "coreference+first": (0.5, 0, 0, 1.5)}.get(kind, (0.5, 0, 0, 0))
    measured = (scores.accuracy, scores.pair_accuracy, scores.block_accuracy, scores.contrast)
    assert [values.mean(axis=0)[1, 2] for values in measured] == pytest.approx(expected, abs=0.005)


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
