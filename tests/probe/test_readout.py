"""Readings of a model agree with their definitions, computed from whole attention maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import LinkItem
from model.observe import HeadWeights, TransformerView
from probe.scores import HeadRows, read_heads, score_heads
from tests.probe.pair_items import link
from tests.probe.story_items import SIZES, rows_of_scores, story_items, story_model, vocabulary
from tests.tiny_models import untrained


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
    rows = read_heads(model, list(SHAPES.values()), tokens_per_batch=30).take(np.array([list(SHAPES).index(shape)]))
    gold, other = ([*sum(words, ())] for words in (item.antecedents, item.distractors))
    for layer, record in enumerate(model.record(torch.tensor([item.tokens]))):
        for head in range(model.n_head):
            weights = record.scores[0, head, item.query].softmax(-1)
            moved = weights * (record.values[0, head] @ model.head_weights(layer).output[head].T).norm(dim=-1)
            best_gold, best_other = (
                max(weights[list(word)].sum().log() for word in words) for words in (item.antecedents, item.distractors)
            )
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
    rows = read_heads(model, story_items("test", "agreement", "pronoun")[:1], 100)
    assert (rows.value_log_ratio == 0).all()
    assert (rows.log_ratio != 0).all()


class WithoutWeights(TransformerView):
    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, None)


def test_a_model_without_known_output_weights_has_no_value_weighted_attention() -> None:
    items = story_items("test", "agreement", "pronoun")[:4]
    rows = read_heads(WithoutWeights(story_model()), items, 100)
    assert np.isnan(rows.value_log_ratio).all()
    assert np.isfinite(rows.log_ratio).all()


def test_batching_does_not_change_the_reading(model: TransformerView) -> None:
    items = story_items("dev")[:60]
    single, together = (read_heads(model, items, tokens_per_batch=size) for size in (1, 10**6))
    np.testing.assert_allclose(single.log_ratio, together.log_ratio, rtol=1e-4, atol=1e-5)


def test_the_rows_at_it_are_bit_identical_whether_tired_or_soft_follows(model: TransformerView) -> None:
    items = story_items("test", "later_cue", "pronoun")
    rows = read_heads(model, items, tokens_per_batch=4096)
    assert len(items) >= 100
    assert all(tired.tokens != soft.tokens for tired, soft in zip(items[::2], items[1::2], strict=True))
    np.testing.assert_array_equal(rows.attention_margin[::2], -rows.attention_margin[1::2])
    assert (score_heads(rows).accuracy == 0.5).all()
