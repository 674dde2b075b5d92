"""Heads are measured and scored as their definitions say: on whole attention maps, and on heads of known behaviour."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.links import LinkItem
from model.observe import HeadWeights, TransformerView
from probe.results import Head
from probe.scores import (
    HeadRows,
    best_head,
    check_blocks,
    item_batches,
    joint_log_ratio,
    measure_heads,
    output_norms,
    score,
    score_heads,
)
from tests.probe.pair_items import link
from tests.probe.story_items import SIZES, rows_of_scores, story_items, story_model, vocabulary
from tests.tiny_models import untrained

ORDER = np.array([0, 0, 1, 1])
MEANT = np.array([0, 1, 0, 1])  # the cells of a block


def log_ratios(
    n_blocks: int = 13, *, coreference: float = 0, first: float = 0, singular: float = 0, lexical: float = 0
) -> np.ndarray:
    """Return the log ratios [4 n_blocks] of a head that is the sum of these habits."""
    to_first = np.where(ORDER == MEANT, first, -first)
    to_singular = np.where(MEANT == 0, singular, -singular)
    per_word = np.random.default_rng(0).normal(size=n_blocks) * lexical
    to_word = np.where(MEANT == 0, 1, -1)[None] * per_word[:, None]
    return (coreference + to_first + to_singular + to_word).ravel()


def means(values: np.ndarray) -> tuple[float, ...]:
    scores = score(values, values, (values > 0).astype(float))
    names = ("accuracy", "pair_accuracy", "block_accuracy", "pronoun_contrast")
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
def test_a_habit_scores_what_its_definition_says(habits: dict[str, float], expected: tuple) -> None:
    assert means(log_ratios(**habits)) == pytest.approx(expected)


def test_both_pronouns_right_in_one_order_is_a_pair_and_not_a_block() -> None:
    assert means(np.array([1.0, 1.0, -1.0, 1.0])) == (0.75, 0.5, 0, 0.5)


def test_the_best_head_has_the_highest_block_accuracy() -> None:
    values = np.stack([log_ratios(first=1), log_ratios(coreference=2)], axis=-1)[:, None]  # [N, 1 layer, 2 heads]
    assert best_head(score(values, values, (values > 0).astype(float))) == (0, 1)


def cells(pairs: list[str]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(block=i, order=o, meant=m, pair=pair)
        for i, pair in enumerate(pairs)
        for o, m in zip(ORDER.tolist(), MEANT.tolist(), strict=True)
    ]


@pytest.mark.parametrize("index", [[3, 2, 1, 0], [0, 1, 2], [0, 1, 2, 7]], ids=["reversed", "incomplete", "mixed"])
def test_items_that_are_not_whole_blocks_are_refused(index: list[int]) -> None:
    items = cells(["a b", "c d"])
    check_blocks(items)
    with pytest.raises(ValueError, match="whole blocks"):
        check_blocks([items[i] for i in index])


# Measured on a model


@pytest.fixture(scope="module")
def model() -> TransformerView:
    return TransformerView(story_model(d_model=30))


def made_up(words: list[tuple[int, ...]], n_gold: int) -> LinkItem:
    """Return an item of 12 tokens with these mentions, the first `n_gold` of them antecedents."""
    tokens = [0, *np.random.default_rng(len(words)).integers(1, 90, size=11).tolist()]
    mentions = {"antecedents": tuple(words[:n_gold]), "distractors": tuple(words[n_gold:])}
    return link(tokens, (words[0], words[-1]), 0, **mentions)


SHAPES = {
    "one against one": made_up([(3,), (7,)], 1),
    "three distractors, one of three tokens": made_up([(4,), (2,), (6, 7, 8), (9,)], 1),
    "two antecedents of several tokens": made_up([(1, 2), (8, 9, 10), (5,), (4,)], 2),
    "the query is a mention": made_up([(11,), (3, 4)], 1),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_field_is_its_definition_on_the_whole_map(model: TransformerView, shape: str) -> None:
    item = SHAPES[shape]
    rows = measure_heads(model, list(SHAPES.values()), tokens_per_batch=30).take(np.array([list(SHAPES).index(shape)]))
    gold = [*sum(item.antecedents, ())]
    other = [*sum(item.distractors, ())]
    for layer, record in enumerate(model.record(torch.tensor([item.tokens]))):
        for head in range(model.n_head):
            weights = record.scores[0, head, item.query].softmax(-1)
            moved = weights * (record.values[0, head] @ model.head_weights(layer).output[head].T).norm(dim=-1)
            best_gold = max(weights[list(word)].sum().log() for word in item.antecedents)
            best_other = max(weights[list(word)].sum().log() for word in item.distractors)
            expected = {
                "log_ratio": weights[gold].sum().log() - weights[other].sum().log(),
                "value_log_ratio": moved[gold].sum().log() - moved[other].sum().log(),
                "attention_margin": best_gold - best_other,
                "strict": 1 + int(weights[1:].argmax()) in gold,
                "mass": weights[gold + other].sum(),
                "first_mass": weights[0],
            }
            values = {name: getattr(rows, name)[0, layer, head] for name in HeadRows.__dataclass_fields__}
            assert values == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-4)


@pytest.mark.parametrize(
    ("scores", "strict"),
    [([9, 2, 1, 0], 1), ([0, 2, 1, 3], 0), ([0, 2, 1, 0], 1), ([0, 0, 0, 0], 1 / 3), ([0, 5, 0, 5], 1 / 2)],
    ids=["sink", "other token", "antecedent", "uniform", "tie"],
)
def test_strict_ignores_the_first_token_and_shares_ties(scores: list[float], strict: float) -> None:
    item = replace(made_up([(1,), (2,)], 1), query=3)
    rows = rows_of_scores([item], [np.array(scores, dtype=np.float32)])
    assert rows.strict.item() == pytest.approx(strict)


def test_a_head_that_writes_nothing_has_no_value_weighted_preference() -> None:
    model = TransformerView(untrained(len(vocabulary()), **SIZES))  # output projections start at 0
    rows = measure_heads(model, story_items("test", "agreement", "pronoun")[:1], 100)
    assert (rows.value_log_ratio == 0).all()
    assert (rows.log_ratio != 0).all()


class WithoutWeights(TransformerView):
    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, None)


def test_a_model_without_known_output_weights_has_no_value_weighted_attention() -> None:
    items = story_items("test", "agreement", "pronoun")[:4]
    rows = measure_heads(WithoutWeights(story_model()), items, 100)
    assert np.isnan(rows.value_log_ratio).all()
    assert np.isfinite(rows.log_ratio).all()


def test_output_norms_are_the_lengths_of_what_each_value_adds(model: TransformerView) -> None:
    record = model.record(torch.tensor([[0, 5, 6, 7], [0, 8, 9, 1]]))[1]
    weight = model.head_weights(1).output
    norms = output_norms(weight, record, torch.tensor([1, 0]), torch.tensor([[[1, 3]], [[2, 0]]]))  # [N, H, W, P]
    assert norms.shape == (2, model.n_head, 1, 2)
    expected = (weight[2] @ record.values[1, 2, 3]).norm()
    assert norms[0, 2, 0, 1].item() == pytest.approx(expected.item(), rel=1e-4)


def test_items_that_are_equal_up_to_the_query_share_a_row() -> None:
    items = [made_up([(3,), (7,)], 1), made_up([(7,), (3,)], 1)]
    [batch] = item_batches(items, 100)
    assert (batch.members, batch.rows.tolist(), len(batch.tokens)) == ([0, 1], [0, 0], 1)
    assert batch.query.tolist() == [[items[0].query]]


def test_batching_does_not_change_what_is_measured(model: TransformerView) -> None:
    items = story_items("dev")[:60]
    single, together = (measure_heads(model, items, tokens_per_batch=size) for size in (1, 10**6))
    np.testing.assert_allclose(single.log_ratio, together.log_ratio, rtol=1e-4, atol=1e-5)


def test_the_rows_at_it_are_bit_identical_whether_tired_or_soft_follows(model: TransformerView) -> None:
    items = story_items("test", "later_cue", "pronoun")
    rows = measure_heads(model, items, tokens_per_batch=4096)
    assert len(items) >= 100
    assert all(tired.tokens != soft.tokens for tired, soft in zip(items[::2], items[1::2], strict=True))
    np.testing.assert_array_equal(rows.attention_margin[::2], -rows.attention_margin[1::2])
    assert (score_heads(rows).accuracy == 0.5).all()


def test_the_weights_of_heads_are_added() -> None:
    """Weights of .3 and .1 on the antecedent, .1 and .3 on the distractor: together a tie."""
    log_ratio = np.log([[[3.0, 1 / 3]], [[9.0, 1.0]]])
    rows = HeadRows(*[np.zeros_like(log_ratio)] * 6)
    rows = replace(rows, log_ratio=log_ratio, mass=np.array([[[0.4, 0.4]], [[0.5, 0.2]]]))
    joint = joint_log_ratio(rows, [Head(0, 0), Head(0, 1)])
    np.testing.assert_allclose(joint, [0.0, np.log(0.55 / 0.15)], atol=1e-12)
    np.testing.assert_allclose(joint_log_ratio(rows, [Head(0, 1)]), log_ratio[:, 0, 1], atol=1e-12)
