"""Attention: right, causal, and the same whether it is observed or not."""

import pytest
import torch
import torch.nn.functional as F

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.transformer import (
    Attention,
    causal_attention_scores,
    causal_attention_weights,
    fused_attention,
    head_slopes,
    log_shares,
    positions_within,
    rotate,
    sinusoids,
    summed_attention,
    within_texts,
)
from tests.model.standard import PLAIN, VARIANTS

B, H, T, K = 2, 3, 7, 10  # head_dim must be even; the rest are distinct primes


def config(**changes: object) -> ModelConfig:
    shape = {"n_layer": 2, "n_head": H, "d_model": H * K, "d_mlp": 41, "context_length": 13}
    return ModelConfig(**{**shape, **PLAIN, **changes})


@pytest.fixture
def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, H, T, K, generator=generator) for _ in range(3))


def test_rows_sum_to_one_and_the_future_is_exactly_zero(qkv: tuple) -> None:
    weights = causal_attention_weights(qkv[0], qkv[1])
    assert weights.shape == (B, H, T, T)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert (weights[..., future] == 0).all()
    assert (weights[..., ~future] > 0).all()


def test_weights_times_values_equal_torchs_scaled_dot_product_attention(qkv: tuple) -> None:
    query, key, value = qkv
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(causal_attention_weights(query, key) @ value, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(fused_attention(query, key, value), expected, atol=1e-6, rtol=0)


def test_fused_attention_in_bfloat16_keeps_its_type_and_its_answer(qkv: tuple) -> None:
    half = tuple(one.bfloat16() for one in qkv)
    out = fused_attention(*half)
    assert out.dtype == torch.bfloat16
    expected = F.scaled_dot_product_attention(*(one.float() for one in half), is_causal=True)
    torch.testing.assert_close(out.float(), expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize(("length", "scaled"), [(131, True), (257, False)])
def test_long_rows_in_bfloat16_give_the_answer_and_the_gradients_of_float32(length: int, scaled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 2, 17, length, 6, generator=generator).bfloat16()
    upstream = torch.randn(2, length, 17, 6, generator=generator).bfloat16().transpose(1, 2)
    found, expected = [], []
    for numbers, kept in ((torch.bfloat16, found), (torch.float32, expected)):
        leaves = [one.to(numbers).requires_grad_() for one in parts]
        mixed = fused_attention(*leaves, scaled=scaled)
        assert mixed.dtype == numbers
        mixed.backward(upstream.to(numbers))
        kept += [mixed.detach(), *(one.grad for one in leaves)]
    for ours, reference in zip(found, expected, strict=True):
        error = (ours.float() - reference).square().mean().sqrt() / reference.square().mean().sqrt()
        assert error < 0.02  # bfloat16 keeps eight bits


def test_long_rows_in_bfloat16_see_exactly_nothing_of_the_future() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (one.requires_grad_() for one in torch.randn(3, 1, 2, 131, 6, generator=generator).bfloat16())
    fused_attention(query, key, value)[:, :, :70].float().sum().backward()
    for one in (query, key, value):
        assert one.grad is not None and (one.grad[:, :, 70:] == 0).all() and (one.grad[:, :, 1:70] != 0).any()


def test_short_rows_in_bfloat16_are_float32s_to_the_bit() -> None:
    """Losses that were published, of stories and characters at 64 tokens, stay what they were."""
    query, key, value = torch.randn(3, 2, 3, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), is_causal=True).bfloat16()
    assert torch.equal(fused_attention(query, key, value), expected)


def test_a_two_token_case_by_hand() -> None:
    query = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]]]])
    key = torch.tensor([[[[2.0, 0.0], [0.0, 4.0]]]])
    weights = causal_attention_weights(query, key)[0, 0]
    odds = torch.tensor(4.0 / 2**0.5 - 2.0 / 2**0.5).exp()  # e^(q·k2 - q·k1)/sqrt(2)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0], [1 / (1 + odds), odds / (1 + odds)]]))


def test_slopes_are_the_papers_and_scores_fall_by_them_from_each_key_to_the_one_before(qkv: tuple) -> None:
    assert head_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]  # Press et al. 2022, section 3
    query, key, _ = qkv
    plain, fallen = (causal_attention_scores(query, key, slopes=one) for one in (None, head_slopes(H)))
    for head, slope in enumerate(head_slopes(H)):
        for i in range(T):
            by_hand = plain[:, head, i, : i + 1] - slope * torch.arange(i, -1, -1)
            torch.testing.assert_close(fallen[:, head, i, : i + 1], by_hand)


def test_a_few_keys_at_places_of_their_own_score_as_they_do_among_all(qkv: tuple) -> None:
    query, key, _ = qkv
    places = torch.tensor([[1, 4], [0, 3]])
    some = torch.stack([one[:, place] for one, place in zip(key, places, strict=True)])
    found = causal_attention_scores(query, some, None, places, slopes=head_slopes(H))
    every = causal_attention_scores(query, key, slopes=head_slopes(H))
    for row, place in enumerate(places):
        torch.testing.assert_close(found[row], every[row][..., place])


def test_rotation_keeps_lengths_and_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, T, K, generator=generator)
    here, there = torch.arange(T), torch.arange(T) + 11
    torch.testing.assert_close(rotate(x, here, 100.0).norm(dim=-1), x.norm(dim=-1))
    near = rotate(x, here, 100.0) @ rotate(y, here, 100.0).T
    torch.testing.assert_close(near, rotate(x, there, 100.0) @ rotate(y, there, 100.0).T, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(near, x @ y.T)


def test_rotation_of_one_pair_by_hand() -> None:
    turned = rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([2]), theta=10.0)  # one pair: the angle is the position
    torch.testing.assert_close(
        turned, torch.tensor([[2.0, 2.0]]).cos() * torch.tensor([[1.0, 0.0]]) + torch.tensor([[0.0, 2.0]]).sin()
    )


def test_asked_rows_equal_the_same_rows_of_the_whole_map() -> None:
    torch.manual_seed(2)
    attention = Attention(config())
    x = torch.randn(B, T, H * K)
    asked = torch.tensor([[6, 2, 0], [1, 1, 5]])
    whole, rows = attention.scores(x), attention.scores(x, asked)
    assert rows.shape == (B, H, 3, T)
    for b in range(B):
        torch.testing.assert_close(rows[b], whole[b][:, asked[b]])


def test_tokens_projected_from_their_own_position_on_are_those_of_the_whole_text() -> None:
    torch.manual_seed(3)
    attention = Attention(config())
    x = torch.randn(B, T, H * K)
    for whole, part in zip(attention.project(x), attention.project(x[:, 4:], first=4), strict=True):
        torch.testing.assert_close(part, whole[:, :, 4:], atol=1e-5, rtol=1e-5)


def test_the_weights_of_the_heads_one_by_one_add_up_to_what_all_add_together() -> None:
    torch.manual_seed(4)
    attention = Attention(config())
    x = torch.randn(B, T, H * K)
    q, k, v, o = attention.by_head()
    _, _, value = attention.project(x)
    torch.testing.assert_close(torch.einsum("btd,hkd->bhtk", x, v), value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.einsum("bhtk,hdk->btd", value, o), attention.merge(value), atol=1e-5, rtol=1e-5)
    alone = torch.einsum("btd,hkd->bhtk", x, q)[:, :, :1], torch.einsum("btd,hkd->bhtk", x, k)[:, :, :1]
    for expected, turned in zip(alone, attention.project(x[:, :1]), strict=False):  # position 0 does not turn
        torch.testing.assert_close(turned, expected, atol=1e-5, rtol=1e-5)


def test_scores_are_minus_infinity_in_the_future_only(qkv: tuple) -> None:
    scores = causal_attention_scores(qkv[0][:, :, :2], qkv[1], torch.tensor([[3, 0], [6, 4]]))
    assert torch.equal(scores[0, 0, 0].isinf(), torch.arange(T) > 3)
    assert torch.equal(scores[1, 2, 1].isinf(), torch.arange(T) > 4)


def test_the_standard_switches_cost_not_a_bit(qkv: tuple) -> None:
    """What every run before the switches computed, bit by bit: queries and keys turned one by one, torch's own call."""
    torch.manual_seed(5)
    attention = Attention(config())
    x = torch.randn(B, T, H * K)
    query, key, value = (
        linear(x).unflatten(-1, (H, K)).transpose(1, 2) for linear in (attention.query, attention.key, attention.value)
    )
    here = torch.arange(T)
    query, key = rotate(query, here, 10000.0), rotate(key, here, 10000.0)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(attention(x), attention.output(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
def test_in_every_variant_the_observed_weights_are_the_ones_that_are_used(switches: dict) -> None:
    torch.manual_seed(6)
    attention = Attention(config(**switches))
    x = torch.randn(B, T, H * K)
    weights = attention.scores(x).softmax(-1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    assert (weights[..., torch.ones(T, T, dtype=torch.bool).triu(1)] == 0).all()
    _, _, value = attention.project(x)
    torch.testing.assert_close(attention.merge(weights @ value), attention(x), atol=1e-5, rtol=1e-5)


def test_without_a_scale_scores_are_the_dot_products_themselves(qkv: tuple) -> None:
    query, key, value = qkv
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    plain = (query @ key.transpose(-1, -2))[..., seen]
    torch.testing.assert_close(causal_attention_scores(query, key, scaled=False)[..., seen], plain)
    torch.testing.assert_close(causal_attention_scores(query, key)[..., seen], plain / K**0.5)
    expected = F.scaled_dot_product_attention(query * K**0.5, key, value, is_causal=True)
    torch.testing.assert_close(fused_attention(query, key, value, scaled=False), expected, atol=1e-4, rtol=1e-4)


def test_shares_by_hand_are_what_is_positive_over_its_sum_and_alike_where_nothing_is() -> None:
    """Scores 3, 1, -2 give 3/4, 1/4 and next to nothing; all negative, each key the same."""
    weights = log_shares(torch.tensor([[3.0, 1.0, -2.0], [-1.0, -5.0, -0.5]])).softmax(-1)
    torch.testing.assert_close(weights, torch.tensor([[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]]), atol=1e-4, rtol=0)
    hidden = log_shares(torch.tensor([2.0, -1.0, float("-inf")])).softmax(-1)
    assert hidden[2] == 0 and hidden[0] > 0.999


def test_shares_need_no_exponential(qkv: tuple) -> None:
    """Twice the scores, the same shares; the softmax would sharpen."""
    query, key, value = qkv
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    once, twice = (summed_attention(query * factor, key, value, seen) for factor in (1, 2))
    torch.testing.assert_close(once, twice, atol=2e-2, rtol=0)
    scores = ((query @ key.transpose(-1, -2) / K**0.5).relu() + 1e-4).masked_fill(~seen, 0)[1, 2, 5]
    torch.testing.assert_close(once[1, 2, 5], scores / scores.sum() @ value[1, 2], atol=1e-5, rtol=0)


def test_tied_projections_are_one_and_queries_that_are_keys_score_alike_both_ways() -> None:
    torch.manual_seed(7)
    attention = Attention(config(tie_query_key=True, tie_key_value=True, position=Position.none))
    assert attention.query is attention.key is attention.value
    assert len(list(attention.parameters())) == 2
    query, key, value = attention.project(torch.randn(B, T, H * K))
    assert torch.equal(query, key) and torch.equal(key, value)
    scores = query @ key.transpose(-1, -2)
    torch.testing.assert_close(scores, scores.transpose(-1, -2))
    apart = Attention(config(position=Position.none))
    scores = torch.matmul(
        *(one if i == 0 else one.mT for i, one in enumerate(apart.project(torch.randn(1, T, 30))[:2]))
    )
    assert not torch.allclose(scores, scores.mT, atol=0.1)


def test_sinusoids_are_the_papers_over_sqrt_width_and_as_long_everywhere() -> None:
    found = sinusoids(torch.tensor([0, 3]), 6)
    angles = 3 * 10000.0 ** (-torch.tensor([0.0, 2.0, 4.0]) / 6)
    expected = torch.stack([torch.tensor([0.0, 0, 0, 1, 1, 1]), torch.cat([angles.sin(), angles.cos()])]) / 6**0.5
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.norm(dim=-1), torch.full((2,), 0.5**0.5))


def test_positions_count_within_each_of_the_texts_of_a_row() -> None:
    texts = torch.tensor([[0, 0, 0, 1, 1, -1], [4, 5, 5, 5, -1, -1]])
    assert positions_within(texts).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 0, 1]]


def test_without_a_mask_every_token_of_its_own_text_is_seen_and_nothing_can_be_observed(qkv: tuple) -> None:
    assert within_texts(torch.tensor([[0, 0, 1]]), causal=False)[0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    whole = F.scaled_dot_product_attention(*qkv)
    torch.testing.assert_close(fused_attention(*qkv, causal=False), whole)
    with pytest.raises(ValueError, match="mask=none"):
        Attention(config(mask=Mask.none)).scores(torch.zeros(1, T, H * K))


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (
            {"weighting": Weighting.sum, "scale": Scale.none},
            "model.scale=none changes nothing where model.weighting=sum",
        ),
        ({"n_head": 6, "d_model": 30}, "must be even: RoPE"),
        ({"n_head": 1, "d_model": 15, "position": Position.sinusoidal}, "model.position=sinusoidal"),
        ({"weighting": Weighting.sum, "position": Position.alibi}, "shares of a sum do not fall"),
    ],
)
def test_impossible_mixes_are_refused_by_name(switches: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**switches)
    assert config(n_head=6, position=Position.none).head_dim == 5
