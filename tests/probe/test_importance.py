"""Three measures of a link are those of single texts, and their agreement is Spearman's."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from data.typed_json import to_json
from model.config import Position, Weighting
from model.observe import HeadEdit
from probe.importance import N_BLOCKS, importance_study, measure_links, rank_correlations, spread_blocks
from tests.probe.pair_items import (
    GAIN,
    OUTSIDE,
    SETTINGS,
    margin_alone,
    noun_items,
    pair_view,
    random_items,
    three_heads,
    weights_by_hand,
)
from tests.tiny_models import H, L

STUDY = SETTINGS | {"question": "number", "holdout": "iid"}


@pytest.mark.parametrize(
    "switches",
    [{}, {"weighting": Weighting.sum, "position": Position.learned}, {"tie_query_key": True, "tie_key_value": True}],
    ids=["rope", "sum", "tied"],
)
def test_every_measure_equals_that_of_the_text_alone(switches: dict[str, object]) -> None:
    view = pair_view(**switches)
    items = random_items()
    links = measure_links(view, items, range(L), 60)
    for row, item in enumerate(items):
        records = view.record(torch.tensor([item.tokens]))
        clean = margin_alone(view, item, None, item.tokens)
        words = item.antecedents + item.distractors
        for layer, head, (i, word) in product(range(L), range(H), enumerate(words)):
            weights = records[layer].scores[0, head, item.query].softmax(-1)[list(word)]
            output = view.head_weights(layer).output[head]
            added = output @ (weights[:, None] * records[layer].values[0, head, list(word)]).sum(0)

            def cut(attention: torch.Tensor, item=item, word=word) -> torch.Tensor:  # noqa: ANN001
                attention = attention.clone()
                attention[0, item.query, list(word)] = 0
                return attention

            effect = abs(margin_alone(view, item, HeadEdit(layer, head, weights=cut), item.tokens) - clean)
            expected = [weights.sum().item(), added.norm().item(), effect]
            np.testing.assert_allclose(links[:, row, layer, head, i], expected, rtol=1e-4, atol=5e-5)
        assert np.isnan(links[:, row, :, :, len(words) :]).all()


def test_a_last_layer_edge_has_no_effect_if_the_payoff_comes_after_the_query() -> None:
    items = random_items()
    weights, _, effects = measure_links(pair_view(), items, range(L), 60)
    later = np.array([item.payoff > item.query for item in items])
    assert np.nanmax(effects[later, L - 1]) == 0 < np.nanmin(weights[later, L - 1])
    assert np.nanmax(effects[~later, L - 1]) > 0.1


def test_equal_weights_may_have_different_norms_and_effects() -> None:
    """All three heads have the same weights; head 1 writes nothing, head 2 nothing that an answer uses."""
    links = measure_links(three_heads(), noun_items(), [0], 60)
    weights = weights_by_hand()
    for head, (length, effect) in enumerate(((GAIN, GAIN), (0, 0), (OUTSIDE, 0))):
        np.testing.assert_allclose(links[0, :, 0, head], weights, rtol=1e-4)
        np.testing.assert_allclose(links[1, :, 0, head], length * weights, rtol=1e-4)
        np.testing.assert_allclose(links[2, :, 0, head], effect * weights, rtol=1e-3)


def test_head_means_are_those_by_hand() -> None:
    study = importance_study(three_heads(), noun_items(), 0, 0, **STUDY)
    for side, mean in zip(("antecedent", "distractor"), weights_by_hand().mean(axis=0), strict=True):
        for head, (length, effect) in zip(study.heads, ((GAIN, GAIN), (0, 0), (OUTSIDE, 0)), strict=True):
            means = getattr(head, side)
            measured = (means.weight, means.value_norm, means.effect)
            assert measured == pytest.approx((mean, length * mean, effect * mean), rel=1e-3)


def test_a_constant_measure_has_no_correlation() -> None:
    writes, silent = (importance_study(three_heads(), noun_items(), 0, head, **STUDY) for head in (0, 1))
    for name in ("weight_value_norm", "weight_effect", "value_norm_effect"):
        # Equal weights may differ in the last bit.
        assert getattr(writes.chosen_head, name) == pytest.approx(1, abs=0.03)
        assert getattr(silent.chosen_head, name) is getattr(silent.chosen_head, f"{name}_interval") is None


def test_a_weighted_rank_correlation_is_spearmans_of_repeated_links() -> None:
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=53), rng.integers(0, 4, size=53), np.full(53, 2.0)])
    values[1] += values[0] > 1
    weights = rng.integers(0, 4, size=(41, 53)).astype(float)
    for row, correlations in zip(weights, rank_correlations(values, weights), strict=True):
        repeated = np.repeat(values, row.astype(int), axis=1)
        assert correlations[0] == pytest.approx(stats.spearmanr(repeated[0], repeated[1]).statistic)
        assert np.isnan(correlations[1:]).all()


def test_batch_size_does_not_change_a_study_and_it_is_json() -> None:
    small, large = (
        importance_study(pair_view(), random_items(), 1, 2, **STUDY | {"tokens_per_batch": n}) for n in (60, 10**6)
    )
    assert small.all_heads.n_links == L * H * (16 * 2 + 4 * 3)
    json.dumps(to_json(small), allow_nan=False)
    for name in ("weight_value_norm", "weight_effect", "value_norm_effect"):
        assert getattr(small.all_heads, name) == pytest.approx(getattr(large.all_heads, name), abs=1e-3)


def test_a_large_model_is_measured_in_the_chosen_layer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.importance.MAX_HEADS", L * H - 1)
    study = importance_study(pair_view(), random_items(), 1, 2, **STUDY)
    assert study.layers == [1] and [head.layer for head in study.heads] == [1] * H


def test_blocks_are_spread_evenly_from_the_first_to_the_last() -> None:
    items = [replace(noun_items()[0], block=block, order=cell) for block in range(201) for cell in range(4)]
    assert [item.block for item in spread_blocks(items, 5)[::4]] == [0, 50, 100, 150, 200]
    assert [item.order for item in spread_blocks(items, 5)] == [0, 1, 2, 3] * 5
    assert len(spread_blocks(items)) == 4 * N_BLOCKS and spread_blocks(items[:12]) == items[:12]


def test_without_pairs_a_study_is_an_error() -> None:
    alone = [replace(item, payoff=None) for item in random_items()]
    with pytest.raises(ValueError, match="partner"):
        importance_study(pair_view(), alone, 0, 0, **STUDY)
