"""Attention: right, causal, and the same whether it is observed or not."""

import pytest
import torch
import torch.nn.functional as F

from model.attention import Attention, causal_attention_scores, causal_attention_weights, fused_attention, rotate
from model.config import ModelConfig

B, H, T, K = 2, 3, 7, 10  # head_dim must be even; the rest are distinct primes


def config(**changes: object) -> ModelConfig:
    shape = {"n_layer": 2, "n_head": H, "d_model": H * K, "d_mlp": 41, "context_length": 13}
    return ModelConfig(**shape, rope_theta=10000.0, norm_eps=1e-5, dropout=0.0, **changes)


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


def test_a_two_token_case_by_hand() -> None:
    query = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]]]])
    key = torch.tensor([[[[2.0, 0.0], [0.0, 4.0]]]])
    weights = causal_attention_weights(query, key)[0, 0]
    odds = torch.tensor(4.0 / 2**0.5 - 2.0 / 2**0.5).exp()  # e^(q·k2 - q·k1)/sqrt(2)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0], [1 / (1 + odds), odds / (1 + odds)]]))


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
