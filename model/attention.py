"""Masked multi-head self-attention: pure functions first, the module that holds the weights after them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair (i, i + K/2) of `x` by an angle that grows with its position (RoPE, Su et al. 2021, eq. 34).

    Args:
        x: [..., T, K] queries or keys, K even.
        positions: [T] or broadcastable to x.shape[:-1]; any origin, since only differences reach the scores.
        theta: base of the angles.

    Returns:
        [..., T, K], each vector as long as before; computed in float32, returned in x's type.

    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies  # [..., T, K/2]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().split(half, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def causal_attention_scores(query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return what each query position thinks of each key position before the softmax (Vaswani et al. 2017, eq. 1).

    Args:
        query: [B, H, Tq, K].
        key: [B, H, Tk, K].
        query_positions: [B, Tq] where each query stands among the keys; None: query i stands at key i.

    Returns:
        [B, H, Tq, Tk] float32, q·k / sqrt(K), exactly -inf at every key after the query.

    """
    scores = query.float() @ key.float().transpose(-1, -2) / query.shape[-1] ** 0.5
    if query_positions is None:
        query_positions = torch.arange(query.shape[-2], device=query.device)[None]
    allowed = torch.arange(key.shape[-2], device=key.device) <= query_positions[:, None, :, None]
    return scores.masked_fill(~allowed, float("-inf"))


def causal_attention_weights(query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return the softmax of `causal_attention_scores`: [B, H, Tq, Tk], rows that sum to 1, exactly 0 in the future."""
    return causal_attention_scores(query, key, query_positions).softmax(dim=-1)


def within_texts(texts: Tensor) -> Tensor:
    """Return which key each query may see where a row holds several texts: [B, 1, T, T], causal and of its own text.

    Args:
        texts: [B, T] the number of the text that each token belongs to.

    """
    places = torch.arange(texts.shape[1], device=texts.device)
    return ((texts[:, :, None] == texts[:, None, :]) & (places[None, :] <= places[:, None]))[:, None]


def fused_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Return weights @ value [B, H, T, K] without ever holding the weights.

    On a CPU in bfloat16 the fused kernel is many times slower than in float32 (measured, torch 2.13), so there it is
    given float32.

    Args:
        query: [B, H, T, K].
        key: [B, H, T, K].
        value: [B, H, T, K].
        allowed: `within_texts`; None where a row is one text.

    """
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):
            return fused_attention(query.float(), key.float(), value.float(), allowed).to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, is_causal=allowed is None)


class Attention(nn.Module):
    """The weights of one layer's attention and the two ways through it: fused to train, observed to look."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the four projections, D to D, without biases."""
        super().__init__()
        self.n_head, self.theta = config.n_head, config.rope_theta
        self.query, self.key, self.value, self.output = (
            nn.Linear(config.d_model, config.d_model, bias=False) for _ in range(4)
        )

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (both turned by their positions) and value of `x` [B, T, D], each [B, H, T, K].

        `first` is the position of the first of the T tokens.
        """
        query, key, value = (self._heads(linear(x)) for linear in (self.query, self.key, self.value))
        positions = torch.arange(first, first + x.shape[1], device=x.device)
        query, key = rotate(torch.stack((query, key)), positions, self.theta)  # in one call: a step is 5 % shorter
        return query, key, value

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return what attention adds to the stream: [B, T, D] from [B, T, D]."""
        return self.merge(fused_attention(*self.project(x), allowed))

    def merge(self, mixed: Tensor) -> Tensor:
        """Return what all heads together add to the stream, [B, T, D] from the values they mixed [B, H, T, K]."""
        return self.output(mixed.transpose(1, 2).flatten(2))

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights as each head has them: query, key and value [H, K, D], output [H, D, K]."""
        read = (linear.weight.unflatten(0, (self.n_head, -1)) for linear in (self.query, self.key, self.value))
        query, key, value = read
        return query, key, value, self.output.weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)

    def scores(self, x: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return `causal_attention_scores` of `x`, of all positions or of `query_positions` [B, Tq] alone."""
        query, key, _ = self.project(x)
        if query_positions is not None:
            index = query_positions[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1])
            query = query.gather(2, index)  # [B, H, Tq, K]
        return causal_attention_scores(query, key, query_positions)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # [B, H, T, K]
