"""Interventions against a plain forward pass written out here, and effects on a head whose work is planted."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import LinkItem, Word
from model.config import ModelConfig, Weighting
from model.observe import streams
from model.transformer import Transformer
from probe.causal import (
    CHANGES,
    POSITIONS,
    _direct,
    _means,
    ablations,
    attribution,
    causal_study,
    direct_contributions,
    draw_clusters,
    edges,
    head_effects,
    ratio_interval,
    with_row,
)
from probe.interventions import (
    Pairs,
    align,
    exchange,
    from_partner,
    margins,
    observe,
    pair_up,
    partner,
    with_head,
    with_stream,
)
from probe.statistics import cluster_interval
from tests.model.standard import PLAIN, VARIANTS

L, H, K, V = 2, 3, 10, 53
CPU = torch.device("cpu")
SETTINGS = {"tokens_per_batch": 60, "n_bootstrap": 101, "seed": 0}


def link(tokens: list[int], words: tuple[Word, Word], meant: int, **changes: object) -> LinkItem:
    """Make an item that means one of two words; of what may come at its payoff, 2 are one's and 3 the other's."""
    last, own = len(tokens) - 1, ((41, 43), (44, 45, 46))
    facts = {"tokens": tuple(tokens), "query": last, "payoff": last, "subject": None, "target": own[meant][0]}
    facts |= {"antecedents": (words[meant],), "distractors": (words[1 - meant],)}
    facts |= {"answers": own[meant], "foils": own[1 - meant], "surprisal": (), "family": "agreement", "level": "number"}
    facts |= {"site": "pronoun", "holdout": "iid", "template": "t", "pair": "a b", "block": 0, "order": 0, "text": ""}
    return LinkItem(**facts | {"meant": meant} | changes)


def blocks() -> list[LinkItem]:
    """Make five blocks of random words: mentions of one to three pieces, texts of many lengths, some with an after.

    In the first a mention stands right behind the first token and in the last right before the query; in the third
    the texts part before the query.
    """
    rng = np.random.default_rng(0)
    items = []
    for block, (n_before, pieces, n_between, n_behind, n_after) in enumerate(
        [(0, (1, 1), 2, 2, 0), (4, (2, 1), 3, 1, 0), (2, (1, 3), 1, 2, 3), (3, (1, 1), 5, 1, 2), (2, (2, 2), 2, 0, 0)]
    ):
        names = [list(rng.integers(1, 30, n)) for n in pieces]
        gaps = [list(rng.integers(1, 30, n)) for n in (n_before, n_between, n_behind)]
        third = ((n_before - 1,),) if block == 3 else ()  # a third candidate that is never meant
        for order in (0, 1):
            first, second = names[order], names[1 - order]
            prefix = [0, *gaps[0], *first, *gaps[1], *second, *gaps[2]]
            start = n_before + 1
            one = tuple(range(start, start + len(first)))
            two = tuple(range(start + len(first) + n_between, start + len(first) + n_between + len(second)))
            words = (one, two) if order == 0 else (two, one)
            for meant in (0, 1):
                prefix[-1] = 30 + meant if block == 2 else prefix[-1]
                tokens = [int(i) for i in [*prefix, 32 + meant, *range(34, 34 + n_after)]]
                distractors = (words[1 - meant], *third)
                place = {"block": block, "order": order, "query": len(prefix), "template": f"t{block % 3}"}
                place |= {"pair": f"a{block % 2} b{block}", "distractors": distractors}
                items.append(link(tokens, words, meant, **place))
    return items


@pytest.fixture(scope="module")
def items() -> list[LinkItem]:
    return blocks()


def random_model(seed: int = 1, **switches: object) -> Transformer:
    """Return random weights with nothing zero and no gain one, so that every part of every layer matters."""
    shape = {"n_layer": L, "n_head": H, "d_model": H * K, "d_mlp": 41, "context_length": 64}
    model = Transformer(ModelConfig(**{**shape, **PLAIN, **switches}), V, seed=0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            mean, std = (0.0, 0.3) if parameter.ndim == 2 else (1.0, 0.2)
            parameter.normal_(mean, std, generator=generator)
    return model.eval()


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(**request.param)


@pytest.fixture(scope="module")
def pairs(items: list[LinkItem]) -> Pairs:
    kept, n_dropped = pair_up(items)
    assert kept == list(range(20)) and n_dropped == 0
    return align(items, kept, CPU)


def margin(logits: torch.Tensor, item: LinkItem) -> float:
    chances = logits[item.payoff].softmax(-1)
    return (chances[list(item.answers)].sum().log() - chances[list(item.foils)].sum().log()).item()


Change = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # of one head: weights, outputs


@torch.no_grad()
def plain(model: Transformer, item: LinkItem, layer: int, head: int, row: Callable) -> torch.Tensor:
    """Return the logits [T, V] of one text, alone, where `row` rewrites the head's scores at the query into weights."""
    x = model.embed(torch.tensor([item.tokens]))
    for i, block in enumerate(model.layers()):
        seen = block.norm_1(x)
        query, key, value = block.attention.project(seen)
        scores = block.attention.scores(seen)
        weights = scores.softmax(-1)
        if i == layer:
            weights[0, head, item.query] = row(scores[0, head, item.query])
        x = x + block.attention.merge(weights @ value)
        x = x + block.mlp(block.norm_2(x))
    return model.unembed(x)[0]


@torch.no_grad()
def run_of(model: Transformer, pairs: Pairs) -> tuple:
    return observe(model, pairs), torch.zeros(4, K)


@torch.no_grad()
def test_with_nothing_changed_the_second_path_is_the_model(model: Transformer, items: list, pairs: Pairs) -> None:
    run = observe(model, pairs)
    found = margins(model, pairs, run.streams[-1])
    for row, item in enumerate(items):
        alone = torch.tensor([item.tokens])
        assert found[row].item() == pytest.approx(margin(model(alone)[0], item), abs=1e-5)
        for ours, theirs in zip(run.streams, streams(model, alone), strict=True):
            torch.testing.assert_close(ours[row][~pairs.padding[row]], theirs[0], atol=3e-5, rtol=1e-5)


def test_marks_stand_on_the_right_tokens(items: list, pairs: Pairs) -> None:
    for row, item in enumerate(items):
        real = pairs.tokens[row][~pairs.padding[row]]
        assert tuple(real.tolist()) == item.tokens
        for mark, words in ((pairs.antecedent, item.antecedents), (pairs.distractor, items[row ^ 1].antecedents)):
            assert pairs.tokens[row][mark[row]].tolist() == [item.tokens[i] for word in words for i in word]
        assert int(pairs.mention[row].sum()) == sum(map(len, item.antecedents + item.distractors))
        assert pairs.parted[row].int().argmax() == pairs.query - (item.block == 2)
        assert pairs.parted[row, pairs.query :].all()
        assert pairs.payoff[row] - pairs.query == item.payoff - item.query


@torch.no_grad()
def test_every_edit_of_an_edge_is_what_a_plain_forward_pass_gives(
    model: Transformer, items: list, pairs: Pairs
) -> None:
    run = observe(model, pairs)
    for layer, head in ((0, 1), (1, 2)):
        changed = edges(pairs, run, layer, head)
        for row, item in enumerate(items):
            gold = [i for word in item.antecedents for i in word]
            other = [i for word in items[row ^ 1].antecedents for i in word]
            mentions = {i for word in item.antecedents + item.distractors for i in word}
            before = [i - 1 for i in gold if i > 1 and i - 1 not in mentions]
            after = [i + 1 for i in gold if i + 1 not in mentions and i + 1 < item.query]

            def knocked(places: list[int]) -> Callable:
                return lambda s: s.index_fill(0, torch.tensor(places, dtype=torch.int64), -torch.inf).softmax(0)

            def removed(places: list[int]) -> Callable:
                return lambda s: s.softmax(0).index_fill(0, torch.tensor(places), 0)

            def swapped(scores: torch.Tensor, gold: list[int] = gold, other: list[int] = other) -> torch.Tensor:
                weights = scores.softmax(0)
                new = weights.clone()
                new[gold] = weights[gold] * weights[other].sum() / weights[gold].sum()
                new[other] = weights[other] * weights[gold].sum() / weights[other].sum()
                return new

            expected = {"ko_antecedent": knocked(gold), "ko_distractor": knocked(other), "attention_swap": swapped}
            expected |= {"ko_before": knocked(before), "ko_after": knocked(after)}
            expected |= {"removal": removed(gold), "removal_distractor": removed(other)}
            assert set(expected) == set(changed)
            for name, edit in expected.items():
                mixed = with_row(pairs, run, layer, head, changed[name])
                found = margins(model, pairs, with_head(model, pairs, run, layer, head, mixed))[row].item()
                assert found == pytest.approx(margin(plain(model, item, layer, head, edit), item), abs=2e-5), name


@torch.no_grad()
def test_a_head_set_to_zero_is_a_head_without_output_weights(model: Transformer, items: list, pairs: Pairs) -> None:
    run, means = run_of(model, pairs)
    for layer, head in ((0, 2), (1, 0)):
        silent = deepcopy(model)
        silent.blocks[layer].attention.output.weight[:, head * K : (head + 1) * K] = 0
        mixed = ablations(pairs, run, layer, head, means)["zero"]
        found = margins(model, pairs, with_head(model, pairs, run, layer, head, mixed))
        expected = [margin(silent(torch.tensor([item.tokens]))[0], item) for item in items]
        np.testing.assert_allclose(found, expected, atol=2e-5)


@torch.no_grad()
def test_the_mean_of_a_head_is_taken_over_texts_by_kind_of_position(model: Transformer, items: list) -> None:
    by_kind: dict[int, list] = {0: [], 1: [], 2: [], 3: []}
    for item in items:
        *_, before = list(streams(model, torch.tensor([item.tokens])))[:2]
        block = model.blocks[1]
        _, _, value = block.attention.project(block.norm_1(before))
        mixed = (block.attention.scores(block.norm_1(before)).softmax(-1) @ value)[0, 2]
        mentions = {i for word in item.antecedents + item.distractors for i in word}
        for i, row in enumerate(mixed):
            by_kind[3 if i == item.query else 2 if i == item.payoff else 1 if i in mentions else 0].append(row)
    found = _means(model, items, pair_up(items)[0], 1, 2, 50)
    for kind, rows in by_kind.items():
        torch.testing.assert_close(found[kind], torch.stack(rows).mean(0), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_resampling_changes_nothing_before_the_texts_part_and_everything_asked_after(
    model: Transformer, pairs: Pairs
) -> None:
    run, means = run_of(model, pairs)
    own = run.mixed[1][:, 1]
    changed = ablations(pairs, run, 1, 1, means)
    assert torch.equal(changed["resample"][:, pairs.query :], partner(own)[:, pairs.query :])
    for row in range(len(own)):
        parts = pairs.query - (row // 4 == 2)
        assert torch.equal(changed["resample"][row, :parts], own[row, :parts])
        assert torch.equal(changed["resample"][row, parts], own[row ^ 1, parts])
    assert torch.equal(changed["resample_query"][:, pairs.query], partner(own)[:, pairs.query])
    beside = torch.arange(own.shape[1]) != pairs.query
    for name in ("resample_query", "zero_query", "mean_query"):
        assert torch.equal(changed[name][:, beside], own[:, beside])
        assert not torch.equal(changed[name], own)


@torch.no_grad()
def test_resampling_from_itself_is_the_identity(model: Transformer, items: list) -> None:
    same = align([items[9], replace(items[9])], [0, 1], CPU)
    run, means = run_of(model, same)
    own = run.mixed[0][:, 1]
    assert torch.equal(from_partner(same, run.streams[1]), run.streams[1])
    assert torch.equal(ablations(same, run, 0, 1, means)["resample"], own)
    assert with_head(model, same, run, 0, 1, own.clone()) is run.streams[-1]


@torch.no_grad()
def test_restoring_the_whole_stream_at_any_layer_restores_the_partners_answer_wholly(
    model: Transformer, pairs: Pairs
) -> None:
    run = observe(model, pairs)
    expected = margins(model, pairs, partner(run.streams[-1]))
    assert (expected - margins(model, pairs, run.streams[-1])).abs().max() > 0.5
    for layer in range(L + 1):
        stream = with_stream(model, pairs, run, layer, from_partner(pairs, run.streams[layer]))
        torch.testing.assert_close(margins(model, pairs, stream), expected, atol=1e-5, rtol=1e-5)


def test_exchange_by_hand_pieces_keep_their_proportions() -> None:
    weights = torch.tensor([[0.1, 0.06, 0.02, 0.5, 0.32], [0.7, 0.0, 0.0, 0.3, 0.0]])
    one, other = torch.tensor([[0, 1, 1, 0, 0]] * 2).bool(), torch.tensor([[0, 0, 0, 1, 0]] * 2).bool()
    expected = torch.tensor([[0.1, 0.375, 0.125, 0.08, 0.32], [0.7, 0.15, 0.15, 0.0, 0.0]])
    torch.testing.assert_close(exchange(weights, one, other), expected)


def test_swapping_twice_is_the_identity_and_keeps_the_sum(pairs: Pairs) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(pairs.tokens.shape, generator=generator).mul(3).softmax(-1)
    once = exchange(weights, pairs.antecedent, pairs.distractor)
    assert (once - weights).abs().max() > 0.1
    torch.testing.assert_close(once.sum(-1), torch.ones(len(once)))
    torch.testing.assert_close(exchange(once, pairs.antecedent, pairs.distractor), weights, atol=1e-6, rtol=0)


@torch.no_grad()
def test_direct_contributions_add_up_to_the_logit_difference(model: Transformer, items: list, pairs: Pairs) -> None:
    embedding, heads, mlps = direct_contributions(model, pairs, observe(model, pairs))
    assert heads.shape == (20, L, H) and mlps.shape == (20, L)
    total = embedding + heads.sum((1, 2)) + mlps.sum(1)
    sources = _direct(model, pairs, observe(model, pairs), 1, 2)
    from_all = sources["dla_antecedent"] + sources["dla_distractor"] + sources["dla_other"]
    read_there = pairs.payoff == pairs.query
    torch.testing.assert_close(from_all[read_there], heads[read_there, 1, 2], atol=1e-5, rtol=1e-5)
    assert from_all[~read_there].isnan().all()
    for row, item in enumerate(items):
        logits = model(torch.tensor([item.tokens]))[0, item.payoff]
        difference = logits[list(item.answers)].mean() - logits[list(item.foils)].mean()
        assert total[row].item() == pytest.approx(difference.item(), abs=1e-5)


@torch.no_grad()
def test_attribution_is_the_slope_of_the_margin_towards_the_partner(model: Transformer, pairs: Pairs) -> None:
    run = observe(model, pairs)
    found = attribution(model, pairs, run)
    step = 3e-3
    for layer in range(L):
        for head in range(H):
            own = run.mixed[layer][:, head]
            way = from_partner(pairs, own) - own
            slopes = []
            for wide in (2 * step, step):
                there, back = (
                    margins(model, pairs, with_head(model, pairs, run, layer, head, own + sign * wide * way))
                    for sign in (1, -1)
                )
                slopes.append((there - back) / (2 * wide))
            # Richardson: what grows with the square of the step cancels.
            expected = (4 * slopes[1] - slopes[0]) / 3
            n_off = int(((found[:, layer, head] - expected).abs() > 2e-3 + 1e-2 * expected.abs()).sum())
            # A share of a sum has a kink where a score passes 0, and no slope there.
            assert n_off <= (1 if model.config.weighting is Weighting.sum else 0)


def test_pairs_that_cannot_be_compared_are_left_out_and_counted(items: list) -> None:
    longer = replace(items[1], tokens=(*items[1].tokens, 3))
    unread = replace(items[3], query=items[3].query - 1, payoff=items[3].payoff)
    stranger = replace(items[5], antecedents=((1,),))
    nothing = [replace(item, antecedents=(), payoff=None) for item in items[6:8]]
    some = [items[0], longer, items[2], unread, items[4], stranger, *nothing, *items[8:12]]
    assert pair_up(some) == ([8, 9, 10, 11], 4)
    with pytest.raises(ValueError, match="swap partner"):
        causal_study(None, some[:8], 0, 0, **SETTINGS)


def test_the_interval_of_a_plain_mean_is_the_widest_of_the_cluster_intervals(items: list) -> None:
    values = np.random.default_rng(3).normal(size=20)
    found = ratio_interval(values, np.ones(20), draw_clusters(items, 499, seed=5))
    clusterings = ([i.template for i in items], [i.pair.split()[0] for i in items], [i.pair.split()[1] for i in items])
    each = [cluster_interval(values, np.array(clusters), 499, seed=5) for clusters in clusterings]
    assert found == pytest.approx((min(low for low, _ in each), max(high for _, high in each)))


def test_the_interval_of_a_constant_ratio_is_that_ratio(items: list) -> None:
    below = np.random.default_rng(4).uniform(1, 9, size=20)
    assert ratio_interval(0.3 * below, below, draw_clusters(items, 101, seed=0)) == pytest.approx((0.3, 0.3))


# A model in which head 1 of layer 0 alone links: pronoun p looks for nouns of its kind and brings their verbs.
BOS, OTHER, VERB = 0, 1, (2, 3)
PRONOUN = (4, 5)  # of either kind
NOUN = (6, 7, 8, 9)  # of kinds 0, 1, 0, 1, with verbs of kinds 0, 1, 0, 1
STRENGTH = 40.0  # of a match before the softmax; large, so that the head looks at one word alone


def planted() -> Transformer:
    """Return a one-layer model of two heads; head 0 writes nothing. Every token has a direction of its own."""
    shape = {"n_layer": 1, "n_head": 2, "d_model": 12, "d_mlp": 5, "context_length": 31}
    model = Transformer(ModelConfig(**shape, **PLAIN | {"rope_theta": 1e24, "norm_eps": 1e-9}), 10, seed=0)
    attention = model.blocks[0].attention
    with torch.no_grad():
        model.token_embedding.weight.copy_(torch.eye(10, 12))
        for linear in (attention.query, attention.key, attention.value, attention.output):
            linear.weight.zero_()
        for kind in (0, 1):
            sign = 1 - 2 * kind
            attention.query.weight[7, PRONOUN[kind]] = sign * STRENGTH  # head 1, an angle that does not turn (theta)
            attention.key.weight[7, list(NOUN[kind::2])] = sign
            attention.value.weight[6 + kind, list(NOUN[kind::2])] = 1
            attention.output.weight[VERB[kind], 6 + kind] = 1
    return model.eval()


def planted_items() -> list[LinkItem]:
    items = []
    for block, (a, b) in enumerate(((6, 7), (8, 9), (6, 9), (8, 7))):
        for order in (0, 1):
            first, second = (a, b) if order == 0 else (b, a)
            words = ((2,), (4,)) if order == 0 else ((4,), (2,))
            for meant in (0, 1):
                tokens = [BOS, OTHER, first, OTHER, second, *[OTHER] * block, PRONOUN[meant]]
                answers = {"answers": (VERB[meant],), "foils": (VERB[1 - meant],)}
                place = {"block": block, "order": order, "pair": f"{a} {b}", "template": f"t{block}"}
                items.append(link(tokens, words, meant, **place, **answers))
    return items


@pytest.fixture(scope="module")
def found() -> dict:
    return causal_study(planted(), planted_items(), 0, 1, **SETTINGS)


def test_a_head_that_alone_decides_has_every_effect_one(found: dict) -> None:
    assert (found["n_pairs"], found["n_dropped"], found["n_templates"]) == (8, 0, 4)
    for name in ("resample", "resample_query", "attention_swap", "denoised"):
        assert found[name]["value"] == pytest.approx(1, abs=1e-4)
        assert found[name]["interval"] == pytest.approx((1, 1), abs=1e-4)
    for name in ("zero", "zero_query", "mean_query", "removal"):  # nothing is left to tell the verbs apart: half of 2 D
        assert found[name]["value"] == pytest.approx(0.5, abs=1e-4)
    for name in ("ko_before", "ko_after", "ko_distractor", "removal_distractor"):
        assert found[name]["value"] == pytest.approx(0, abs=1e-4)
    assert found["es"]["value"] == found["ko_antecedent"]["value"] > 0.4
    assert found["d"] == found["margin"]


def test_its_direct_contribution_is_the_whole_logit_difference_and_comes_from_the_antecedent(found: dict) -> None:
    direct = {name: value["value"] for name, value in found["direct"].items()}
    assert direct["antecedent"] == pytest.approx(direct["all"]) and direct["all"] > 1
    assert (direct["distractor"], direct["other"]) == pytest.approx((0, 0), abs=1e-5)


def test_the_answer_moves_with_the_query_and_with_nothing_else(found: dict) -> None:
    assert found["interchange"]["map"] == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert found["interchange"]["positions"] == list(POSITIONS)
    assert (found["interchange"]["unpatched"], found["interchange"]["donor"]) == (0, 1)


def test_a_head_without_effect_has_none_and_is_the_control_of_the_other(found: dict) -> None:
    idle = causal_study(planted(), planted_items(), 0, 0, **SETTINGS)
    for name in (*CHANGES, "es", "denoised", "collateral_nats"):
        assert idle[name]["value"] == 0 and idle[name]["interval"] == (0, 0), name
    assert found["controls"] == {"heads": [0], "resample": [0], "resample_query": [0], "attention_swap": [0]}
    assert idle["controls"]["attention_swap"] == pytest.approx([1], abs=1e-4)
    np.testing.assert_allclose(found["heads"]["attention_swap"], [[0, 1]], atol=1e-4)


def test_a_study_of_random_weights_is_json_the_same_in_any_batches_and_agrees_with_all_heads(
    model: Transformer, items: list
) -> None:
    labelled = towards_the_model(model, items)
    one = causal_study(model, labelled, 1, 2, **SETTINGS)
    many = causal_study(model, labelled, 1, 2, **SETTINGS | {"tokens_per_batch": 10**6})
    assert json.loads(json.dumps(one, allow_nan=False))["resample"]["value"] == one["resample"]["value"]
    for name in (*CHANGES, "es", "denoised", "collateral_nats", "d", "margin"):
        assert one[name]["value"] == pytest.approx(many[name]["value"], abs=1e-4), name
        assert one[name]["interval"] == pytest.approx(many[name]["interval"], abs=1e-4), name
        assert one[name]["value"] != 0
    assert (one["ko_before"]["n"], one["ko_after"]["n"]) == (18, 18)  # of 20: not the first token, not the query
    effects = head_effects(model, labelled, tokens_per_batch=100)
    for name in ("resample", "resample_query", "attention_swap"):
        assert effects[name].shape == (L, H)
        assert effects[name][1, 2] == pytest.approx(one[name]["value"], abs=1e-4)
    assert -1 <= one["spearman_attribution"] <= 1
    assert one["direct"]["all"]["n"] == sum(item.query == item.payoff for item in items) < len(items)


def towards_the_model(model: Transformer, items: list[LinkItem]) -> list[LinkItem]:
    """Exchange answers and foils wherever the model tells the partners apart the other way round."""
    labelled = []
    for one, two in zip(items[::2], items[1::2], strict=True):
        with torch.no_grad():
            difference = sum(margin(model(torch.tensor([item.tokens]))[0], item) for item in (one, two))
        flip = [replace(item, answers=item.foils, foils=item.answers) for item in (one, two)]
        labelled += [one, two] if difference > 0 else flip
    return labelled


def test_restoring_one_head_is_resampling_it_seen_from_the_partner(model: Transformer, items: list) -> None:
    """Answers and foils of partners are exchanged, so over whole pairs the two shares are the same number."""
    found = causal_study(model, towards_the_model(model, items), 0, 1, **SETTINGS)
    assert found["denoised"]["value"] == pytest.approx(found["resample"]["value"], abs=1e-6)


@torch.no_grad()
def test_collateral_loss_is_that_of_the_tokens_before_the_payoff(model: Transformer, items: list) -> None:
    labelled = towards_the_model(model, items)
    found = causal_study(model, labelled, 0, 1, **SETTINGS)["collateral_nats"]["value"]
    means = _means(model, items, list(range(20)), 0, 1, 10**6)
    changes = []
    for item in items[::2]:
        tokens = torch.tensor([item.tokens])
        mentions = {i for word in item.antecedents + item.distractors for i in word}
        x = model.embed(tokens)
        for i, block in enumerate(model.layers()):
            _, _, value = block.attention.project(block.norm_1(x))
            mixed = block.attention.scores(block.norm_1(x)).softmax(-1) @ value
            for place in range(len(item.tokens)) if i == 0 else ():
                kind = 3 if place == item.query else 2 if place == item.payoff else int(place in mentions)
                mixed[0, 1, place] = means[kind]
            x = x + block.attention.merge(mixed)
            x = x + block.mlp(block.norm_2(x))
        losses = [
            torch.nn.functional.cross_entropy(one[0, :-1], tokens[0, 1:]) for one in (model.unembed(x), model(tokens))
        ]
        changes.append((losses[0] - losses[1]).item())
    assert found == pytest.approx(np.mean(changes), abs=1e-5)


def test_where_the_model_does_not_tell_partners_apart_nothing_is_explained(model: Transformer, items: list) -> None:
    same = [replace(item, tokens=items[i - i % 2].tokens) for i, item in enumerate(items)]
    found = causal_study(model, same, 0, 1, **SETTINGS)
    assert abs(found["d"]["value"]) < 1e-6
    assert {found[name] for name in (*CHANGES, "es", "denoised")} == {None}
    assert found["heads"] is found["controls"] is found["spearman_attribution"] is None
    json.dumps(found, allow_nan=False)
