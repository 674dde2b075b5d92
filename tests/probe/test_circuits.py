"""What the weights say, on heads made by hand and against the model's own scores."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import stats

from data.links import LinkItem
from model.config import Position, Scale
from model.transformer import Transformer
from probe.weights import (
    N_SHUFFLES,
    asymmetry,
    continuations,
    copying,
    ov_logits,
    payoff_areas,
    payoff_auc,
    qk_agreement,
    qk_scores,
    weights_study,
)
from tests.probe.test_causal import NOUN, STRENGTH, VERB, blocks, planted, planted_items, random_model

SIDE = 12**0.5  # what the norm makes of a one-hot embedding of 12


TURNED = {"plain": {}, "unscaled": {"scale": Scale.none}, "queries are keys": {"tie_query_key": True}}
TURNED |= {"no positions": {"position": Position.none}, "falling scores": {"position": Position.alibi}}


@pytest.fixture(scope="module", params=TURNED.values(), ids=TURNED)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(**request.param)


def test_scores_from_the_weights_are_those_of_the_model_at_every_distance(model: Transformer) -> None:
    """In the first layer a token's score depends on itself, the key and the distance alone."""
    tokens = torch.randint(0, 53, (1, 11), generator=torch.Generator().manual_seed(0))
    block = model.blocks[0]
    with torch.no_grad():
        expected = block.attention.scores(block.norm_1(model.token_embedding(tokens)))[0]  # [H, Tq, Tk]
        for head in range(3):
            for i in (3, 7, 10):
                distances = torch.tensor([1, 3])
                found = qk_scores(model, [int(tokens[0, i])], tokens[0].tolist(), distances, 0, head)
                for n, distance in enumerate(distances):
                    assert found[0, i - distance, n].item() == pytest.approx(
                        expected[head, i, i - distance].item(), abs=1e-4
                    )


@torch.no_grad()
def test_ov_logits_are_what_looking_at_a_token_adds_up_to_the_norms_one_division(model: Transformer) -> None:
    """A model of this head alone, without MLP, at a text of one token: the logits of what attention adds."""
    alone = deepcopy(model)
    attention = alone.blocks[0].attention
    attention.output.weight[:, :10] = 0
    attention.output.weight[:, 20:] = 0
    for token in (3, 17, 51):
        added = attention(alone.blocks[0].norm_1(alone.token_embedding(torch.tensor([[token]]))))
        logits = alone.unembed(added)[0, 0]
        sigma = (added.pow(2).mean() + alone.final_norm.eps).sqrt()
        found = ov_logits(model, [token], range(53), 0, 1)[0]
        torch.testing.assert_close(found, logits * sigma, atol=1e-4, rtol=1e-4)


def test_the_planted_head_raises_every_words_own_verbs_and_its_idle_neighbour_none() -> None:
    verbs = continuations(planted_items())
    assert verbs == {(6,): {2}, (7,): {3}, (8,): {2}, (9,): {3}}
    assert (payoff_areas(planted(), verbs, 0, 1) == 1).all()
    assert (payoff_areas(planted(), verbs, 0, 0) == 0.5).all()  # all ties
    crossed = {word: {5 - verb for verb in own} for word, own in verbs.items()}
    assert (payoff_areas(planted(), crossed, 0, 1) == 0).all()
    for nothing in ({(6,): {2, 3}}, {}):
        assert payoff_auc(payoff_areas(planted(), nothing, 0, 1), seed=0)["ov_auc"] is None


@torch.no_grad()
def test_auc_is_the_share_of_pairs_in_the_right_order_averaged_over_words(model: Transformer) -> None:
    verbs = {(7,): {41, 43}, (9, 11): {43, 44, 45}, (13, 14, 15): {41, 46, 47, 48, 49}}
    every, areas = sorted(set().union(*verbs.values())), []
    for word, own in verbs.items():
        raised = ov_logits(model, word, every, 1, 2).mean(0)
        score = dict(zip(every, raised.tolist(), strict=True))
        areas.append(np.mean([score[mine] > score[other] for mine in own for other in set(every) - own]))
    found = payoff_auc(payoff_areas(model, verbs, 1, 2), seed=0)
    assert found["ov_auc"] == pytest.approx(np.mean(areas))
    assert found["ov_auc_interval"][0] <= found["ov_auc"] <= found["ov_auc_interval"][1]
    assert 0 < np.mean(areas) < 1


def test_copying_by_hand() -> None:
    assert copying(torch.eye(5)) == pytest.approx(1)
    assert copying(-torch.eye(5)) == pytest.approx(-1)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])  # eigenvalues i and -i
    assert copying(turn) == pytest.approx(0, abs=1e-9)
    assert copying(torch.diag(torch.tensor([3.0, 1.0, -1.0]))) == pytest.approx(3 / 5)
    assert copying(torch.zeros(3, 3)) is None


def test_agreement_and_asymmetry_of_the_planted_head_by_hand() -> None:
    """Its score is + strength on a match, - on a mismatch and 0 from a noun, through two norms of one-hot vectors."""
    score = STRENGTH * SIDE**2 / 6**0.5
    items = planted_items()
    agreement, in_sd = qk_agreement(planted(), items, 0, 1, seed=0)
    assert agreement == pytest.approx(2 * score, rel=1e-4)
    assert asymmetry(planted(), items, 0, 1) == pytest.approx(2 * score, rel=1e-4)
    # Of the 6 ways to halve 4 nouns one gives +2 s, one -2 s and four 0: SD 2 s sqrt(2 / 6)
    assert in_sd == pytest.approx(1 / (2 / 6) ** 0.5, rel=4 / N_SHUFFLES**0.5)
    assert qk_agreement(planted(), items, 0, 0, seed=0) == (0, None)


@torch.no_grad()
def test_asymmetry_is_zero_for_a_head_that_looks_both_ways(model: Transformer) -> None:
    """Query and key share weights on the first half of every turned pair alone: s = sum of x y cos(distance)."""
    symmetric = deepcopy(model)
    for linear in (symmetric.blocks[0].attention.query, symmetric.blocks[0].attention.key):
        linear.weight.copy_(model.blocks[0].attention.query.weight)
        linear.weight.unflatten(0, (3, 10))[:, 5:] = 0
    items = blocks()
    assert asymmetry(symmetric, items, 0, 1) == pytest.approx(0, abs=1e-5)
    assert abs(asymmetry(model, items, 0, 1)) > 0.05  # of queries that are keys only the turning is left


def test_asymmetry_against_a_loop_over_items_and_pieces(model: Transformer) -> None:
    items, expected = blocks(), []
    for item in items:
        sides = []
        for words in (item.antecedents, item.distractors):
            found = []
            for place in (place for word in words for place in word):
                tokens, distance = (item.tokens[item.query], item.tokens[place]), torch.tensor([item.query - place])
                forth, back = (qk_scores(model, [a], [b], distance, 1, 0).item() for a, b in (tokens, tokens[::-1]))
                found.append(forth - back)
            sides.append(np.mean(found))
        expected.append(sides[0] - sides[1])
    assert asymmetry(model, items, 1, 0) == pytest.approx(np.mean(expected), abs=1e-5)


def test_agreement_against_a_loop_over_what_may_be_meant(model: Transformer) -> None:
    items = blocks()
    words = {True: set(), False: set()}
    distances = []
    for item in items:
        for matched, found in ((True, item.antecedents), (False, item.distractors)):
            words[matched] |= {(item.tokens[item.query], tuple(item.tokens[i] for i in word)) for word in found}
            distances += [item.query - i for word in found for i in word]
    both = words[True] & words[False]

    def mean(pairs: set) -> float:
        return np.mean([qk_scores(model, [q], w, torch.tensor(distances), 0, 2).mean().item() for q, w in pairs])

    assert not both
    found, _ = qk_agreement(model, items, 0, 2, seed=0)
    assert found == pytest.approx(mean(words[True]) - mean(words[False]), abs=1e-4)


def test_agreement_of_random_weights_is_within_luck() -> None:
    """Over many heads that know nothing the standard scores are spread about 1."""
    items, found = planted_items(), []
    for seed in range(40):
        model = random_model(seed)
        found += [qk_agreement(model, items, 0, head, seed=0)[1] for head in range(3)]
    assert abs(np.mean(found)) < 0.4
    assert stats.chi2.ppf(0.0005, 119) / 119 < np.var(found) < stats.chi2.ppf(0.9995, 119) / 119


def test_a_study_of_the_weights_is_json_and_says_where_it_sees_the_direct_path_only(model: Transformer) -> None:
    items: list[LinkItem] = blocks()
    for layer in (0, 1):
        found = weights_study(model, items, layer, 2, seed=0)
        assert found["direct_path_only"] == (layer > 0)
        assert all(isinstance(value, float | bool) for name, value in found.items() if name != "ov_auc_interval")
        json.dumps(found, allow_nan=False)
    nouns = ov_logits(planted(), NOUN, NOUN, 0, 1)
    assert (nouns == 0).all()  # it brings verbs and copies nothing
    assert ov_logits(planted(), NOUN, VERB, 0, 1).argmax(1).tolist() == [0, 1, 0, 1]
    assert set(weights_study(model, [], 0, 0, seed=0).values()) == {None, False}
