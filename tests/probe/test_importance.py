"""Weight, what is moved and what hangs on it: against plain forward passes, and planted where the three come apart."""

import json
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from data.links import LinkItem, Word
from model.config import ModelConfig, Position, Weighting
from model.transformer import Transformer
from probe.causal import draw_clusters
from probe.config import ProbeConfig
from probe.importance import MEANINGS, N_BLOCKS, agreement, importance_study, read_links, resampled, spread
from probe.items import QUESTIONS
from tests.model.standard import PLAIN
from tests.probe.conftest import Studied
from tests.probe.story_items import random_model as story_model
from tests.probe.test_causal import NOUN, PRONOUN, SETTINGS, VERB, H, K, L, V, blocks, margin, planted_items

VARIANTS = {
    "standard": {},
    "shares of a sum, learned places": {"weighting": Weighting.sum, "position": Position.learned},
    "one projection, sines": {"tie_query_key": True, "tie_key_value": True, "position": Position.sinusoidal},
}


def random_model(**changes: Any) -> Transformer:
    """Return random weights with nothing zero, in one of the model's variants."""
    shape = {"n_layer": L, "n_head": H, "d_model": H * K, "d_mlp": 41, "context_length": 64}
    model = Transformer(ModelConfig(**shape, **PLAIN | changes), V, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            mean, std = (0.0, 0.3) if parameter.ndim == 2 else (1.0, 0.2)
            parameter.normal_(mean, std, generator=generator)
    return model.eval()


Cut = tuple[int, int, Word]  # layer, head, word


@torch.no_grad()
def plain(model: Transformer, item: LinkItem, cut: Cut | None) -> tuple[float, float, float]:
    """Return M, and the weight and the length that an edge had before it was cut, in a pass written out here."""
    x, weight, length = model.embed(torch.tensor([item.tokens])), 0.0, 0.0
    seen = torch.ones(len(item.tokens), len(item.tokens)).tril()
    for i, block in enumerate(model.layers()):
        query, key, value = block.attention.project(block.norm_1(x))
        scores = query @ key.transpose(2, 3) / math.sqrt(K)
        positive = scores.relu() + 1e-4 if model.config.weighting is Weighting.sum else scores.exp()
        weights = positive * seen / (positive * seen).sum(-1, keepdim=True)
        added = block.attention.merge(weights @ value)
        if cut and cut[0] == i:
            place = 0, cut[1], item.query, list(cut[2])
            weight = weights[place].sum().item()
            weights[place] = 0
            length = (added - block.attention.merge(weights @ value))[0, item.query].norm().item()
            added = block.attention.merge(weights @ value)
        x = x + added
        x = x + block.mlp(block.norm_2(x))
    return margin(model.unembed(x)[0], item), weight, length


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_link_is_what_a_plain_forward_pass_without_its_edge_gives(variant: str) -> None:
    model, items = random_model(**VARIANTS[variant]), blocks()
    found = read_links(model, items, 60)
    for row, item in enumerate(items):
        words = item.antecedents + item.distractors
        clean, _, _ = plain(model, item, None)
        for layer, head, (i, word) in product(range(L), range(H), enumerate(words)):
            cut, weight, length = plain(model, item, (layer, head, word))
            link = row, layer, head, i
            assert found.weight[link] == pytest.approx(weight, abs=1e-5)
            assert found.value_norm[link] == pytest.approx(length, abs=2e-5)
            assert found.effect[link] == pytest.approx(abs(clean - cut), abs=3e-5)
        assert np.isnan(found.effect[row, :, :, len(words) :]).all() and len(words) in (2, 3)
    assert np.nanmax(found.effect) > 0.3


@torch.no_grad()
def test_weights_are_the_softmax_of_what_the_model_judges_in_every_variant() -> None:
    for changes in VARIANTS.values():
        model, items = random_model(**changes), blocks()
        found = read_links(model, items, 10**6)
        for row, item in enumerate(items):
            block, x = model.blocks[0], model.embed(torch.tensor([item.tokens]))
            query, key, _ = block.attention.project(block.norm_1(x))
            weights = block.attention.judge(query, key).softmax(-1)[0, :, item.query]
            for i, word in enumerate(item.antecedents + item.distractors):
                np.testing.assert_allclose(found.weight[row, 0, :, i], weights[:, list(word)].sum(-1), atol=1e-6)


def test_in_the_last_layer_nothing_hangs_on_an_edge_where_the_payoff_comes_after_the_query() -> None:
    items = blocks()
    found = read_links(random_model(), items, 60)
    later = np.array([item.payoff > item.query for item in items])
    assert 0 < later.sum() < len(items)
    assert np.nanmax(found.effect[later, L - 1]) == 0 and np.nanmin(found.weight[later, L - 1]) > 0
    assert np.nanmax(found.effect[later, 0]) > 0.1 and np.nanmax(found.effect[~later, L - 1]) > 0.1


def test_an_effect_smaller_than_rounding_is_none() -> None:
    """Rounding would otherwise be ranked."""
    weak, items = random_model(), blocks()
    before = read_links(weak, items, 60).effect
    with torch.no_grad():
        weak.blocks[1].attention.output.weight[:, :K] *= 1e-7
    after = read_links(weak, items, 60)
    assert np.nanmax(before[:, 1, 0]) > 0.1
    assert np.nanmax(after.effect[:, 1, 0]) == 0 < np.nanmin(after.value_norm[:, 1, 0])


# Three heads look at the same words with the same weights. The first brings the answer, the second nothing, the third
# what no answer is made of. Norms only pass on (a large eps, undone by the gain), so every number is known by hand.
GAIN, LONGER = 3.0, 7.0  # lengths of what the first and the third move at weight 1


def three_heads() -> Transformer:
    shape = {"n_layer": 1, "n_head": 3, "d_model": 12, "d_mlp": 5, "context_length": 31}
    model = Transformer(ModelConfig(**shape, **PLAIN | {"rope_theta": 1e24, "norm_eps": 1e12}), 10, seed=0)
    attention = model.blocks[0].attention
    with torch.no_grad():
        for norm in (model.blocks[0].norm_1, model.blocks[0].norm_2, model.final_norm):
            norm.gain.fill_(1e6)
        model.token_embedding.weight.copy_(torch.eye(10, 12))
        for linear in (attention.query, attention.key, attention.value, attention.output):
            linear.weight.zero_()
        for kind, head in product((0, 1), range(3)):
            sign, nouns = 1 - 2 * kind, list(NOUN[kind::2])
            attention.query.weight[4 * head + 1, PRONOUN[kind]] = 2.0 * sign  # a score of 1 after 1 / sqrt(4)
            attention.key.weight[4 * head + 1, nouns] = sign
            attention.value.weight[4 * head + kind, nouns] = 1
        for kind in (0, 1):
            attention.output.weight[VERB[kind], kind] = GAIN
            attention.output.weight[10, 8 + kind] = LONGER
    return model.eval()


def weights_by_hand(items: list[LinkItem]) -> np.ndarray:
    """Return [N, 2]: the antecedent's score is 1, the distractor's -1, everything else's 0."""
    others = np.array([len(item.tokens) - 2 for item in items])
    scores = np.exp([1, -1])
    return scores / (scores.sum() + others)[:, None]


def test_equal_weights_may_move_nothing_or_move_far_and_change_no_answer() -> None:
    items = planted_items()
    found, weights = read_links(three_heads(), items, 60), weights_by_hand(items)
    for head, (length, effect) in enumerate(((GAIN, GAIN), (0, 0), (LONGER, 0))):
        np.testing.assert_allclose(found.weight[:, 0, head], weights, rtol=1e-5)
        np.testing.assert_allclose(found.value_norm[:, 0, head], length * weights, rtol=1e-5)
        np.testing.assert_allclose(found.effect[:, 0, head], effect * weights, rtol=1e-4)


@pytest.fixture(scope="module")
def studies() -> list[dict[str, Any]]:
    return [importance_study(three_heads(), planted_items(), 0, head, **SETTINGS) for head in range(3)]


def test_the_means_of_every_head_show_which_is_largest_in_each_meaning(studies: list) -> None:
    one = studies[0]
    means = weights_by_hand(planted_items()).mean(axis=0)
    assert [(each["layer"], each["head"]) for each in one["heads"]] == [(0, 0), (0, 1), (0, 2)]
    for side, mean in zip(("antecedent", "distractor"), means, strict=True):
        for each, (length, effect) in zip(one["heads"], ((GAIN, GAIN), (0, 0), (LONGER, 0)), strict=True):
            assert list(each[side].values()) == pytest.approx([mean, length * mean, effect * mean], rel=1e-4)
            assert tuple(each[side]) == MEANINGS
    assert one["heads"] == studies[1]["heads"] == studies[2]["heads"]


def test_correlations_are_those_of_the_numbers_known_by_hand(studies: list) -> None:
    """To three hundredths: weights that are equal by hand may differ in their last bit."""
    weight = np.repeat(weights_by_hand(planted_items())[None], 3, axis=0)  # [H, N, W]
    by_hand = np.array([GAIN, 0, LONGER])[:, None, None] * weight, np.array([GAIN, 0, 0])[:, None, None] * weight
    lines = dict(zip(MEANINGS, (weight, *by_hand), strict=True))
    found = studies[0]["all_heads"]
    assert found["n_links"] == 3 * 16 * 2 and studies[0]["n_items"] == 16
    for one, other in (("weight", "value_norm"), ("weight", "effect"), ("value_norm", "effect")):
        expected = stats.spearmanr(lines[one].ravel(), lines[other].ravel()).statistic
        assert found[f"{one}_{other}"] == pytest.approx(expected, abs=0.03)
        low, high = found[f"{one}_{other}_interval"]
        assert -1 <= low <= high <= 1


def test_within_a_head_that_moves_nothing_or_turns_nothing_there_is_no_correlation(studies: list) -> None:
    answers, silent, beside = (one["chosen_head"] for one in studies)
    assert answers["n_links"] == silent["n_links"] == beside["n_links"] == 32
    for name in ("weight_value_norm", "weight_effect", "value_norm_effect"):
        assert answers[name] == pytest.approx(1, abs=0.03)
        assert silent[name] is None and silent[f"{name}_interval"] is None
        assert (beside[name] is None) == (name != "weight_value_norm")


def test_a_resampling_is_spearmans_correlation_of_the_links_drawn_as_often() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 7, size=53)
    values = np.stack([rng.normal(size=53), rng.integers(0, 4, size=53), np.where(clusters == 0, 1.0, 2.0)])
    values[1] += values[0] > 1
    drawn = rng.multinomial(7, np.full(7, 1 / 7), size=41)
    found = resampled(values, clusters, drawn)
    assert found.shape == (41, 3, 3)
    constant = 0
    for one, counts in zip(found, drawn, strict=True):
        links = np.repeat(values, counts[clusters], axis=1)
        for i, j in ((0, 1), (0, 2), (1, 2)):
            if np.ptp(links[i]) == 0 or np.ptp(links[j]) == 0:
                assert np.isnan(one[i, j])
                constant += 1
            else:
                assert one[i, j] == pytest.approx(stats.spearmanr(links[i], links[j]).statistic)
    assert 0 < constant < 41


def test_a_resampling_in_parts_is_the_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    values, clusters, drawn = rng.normal(size=(3, 19)), np.arange(19) % 5, rng.integers(0, 3, size=(11, 5))
    whole = resampled(values, clusters, drawn)
    monkeypatch.setattr("probe.importance._N_AT_ONCE", 40)
    np.testing.assert_allclose(resampled(values, clusters, drawn), whole)


def test_the_interval_is_the_widest_over_whole_clusters_of_frames_and_words() -> None:
    items = blocks()
    rng = np.random.default_rng(2)
    values = rng.normal(size=(3, len(items), 2)) + rng.normal(size=len(items))[:, None]
    values[:, ::3, 1] = np.nan  # no second word there
    draws = draw_clusters(items, 301, seed=4)
    found = agreement(values, draws)
    there = ~np.isnan(values[0])
    assert found["n_links"] == there.sum() < 40
    bounds = []
    for index, drawn in draws:
        each = []
        for counts in drawn:
            rows = np.repeat(np.arange(len(items)), counts[index])
            links = values[:, rows][:, there[rows]]
            each.append(stats.spearmanr(links[0], links[2]).statistic)
        bounds.append(np.percentile(each, (2.5, 97.5)))
    expected = min(low for low, _ in bounds), max(high for _, high in bounds)
    assert found["weight_effect_interval"] == pytest.approx(expected)
    assert found["weight_effect"] == pytest.approx(stats.spearmanr(values[0][there], values[2][there]).statistic)


def test_the_same_seed_gives_the_same_study_in_any_batches_and_it_is_json() -> None:
    model, items = random_model(), blocks()
    one, again, many = (
        importance_study(model, items, 1, 2, **SETTINGS | {"tokens_per_batch": n}) for n in (60, 60, 10**6)
    )
    assert one == again
    assert json.loads(json.dumps(one, allow_nan=False))["all_heads"]["n_links"] == L * H * (16 * 2 + 4 * 3)
    for name in ("weight_value_norm", "weight_effect", "value_norm_effect"):
        assert many["all_heads"][name] == pytest.approx(one["all_heads"][name], abs=1e-3)
        assert many["chosen_head"][f"{name}_interval"] == pytest.approx(
            one["chosen_head"][f"{name}_interval"], abs=0.01
        )


def test_items_are_whole_blocks_spread_evenly_from_the_first_to_the_last() -> None:
    items = [replace(planted_items()[0], block=block, order=cell) for block in range(201) for cell in range(4)]
    some = spread(items, 5)
    assert [item.block for item in some] == [block for block in (0, 50, 100, 150, 200) for _ in range(4)]
    assert [item.order for item in some] == [0, 1, 2, 3] * 5
    assert len(spread(items)) == 4 * N_BLOCKS and spread(items[:12]) == items[:12]


def test_items_without_a_partner_are_left_out_and_none_left_is_an_error() -> None:
    items = blocks()
    alone = [replace(item, payoff=None) if item.block == 0 else item for item in items]
    assert importance_study(random_model(), alone, 0, 0, **SETTINGS)["n_items"] == 16
    with pytest.raises(ValueError, match="swap partner"):
        importance_study(random_model(), alone[:4], 0, 0, **SETTINGS)


def test_a_study_asks_the_questions_that_are_watched_and_finds_the_planted_head_in_every_meaning(
    studied: Studied, studied_planted: Studied, settings: ProbeConfig
) -> None:
    results, readings = studied
    assert [one["question"] for one in results["importance"]] == ["number", "later_cue"]
    for one in results["importance"]:
        chosen = next(each for each in results["selected"] if each["question"] == one["question"])
        assert (one["layer"], one["head"], one["holdout"]) == (chosen["layer"], chosen["head"], "headline")
        question = next(each for each in QUESTIONS if each.name == one["question"])
        items = readings["test"].picked(question, "headline")
        luck = {"tokens_per_batch": settings.tokens_per_batch, "n_bootstrap": settings.n_bootstrap, "seed": 0}
        found = importance_study(story_model(), items, one["layer"], one["head"], **luck)
        assert found["n_items"] == min(4 * N_BLOCKS, len(items)) and one.items() > found.items()
    [one] = studied_planted[0]["importance"]
    for meaning in MEANINGS:
        most = max(one["heads"], key=lambda each: each["antecedent"][meaning])
        assert (most["layer"], most["head"]) == (1, 2)
        assert most["antecedent"][meaning] > most["distractor"][meaning]
    assert one["chosen_head"]["weight_effect"] > 0.5
