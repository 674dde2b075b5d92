"""Masked multi-head self-attention: pure functions first, the module that holds the weights after them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig, Position, Scale, Weighting
from model.fast import PieceAttention
from model.positions import falling, head_slopes, hidden_once, rotate
from model.products import product

# On a CPU in bfloat16, from this context on, attention by pieces is taken where a block as a whole cannot be fast
# (measured at 256: 2.2 times as fast as the fused kernel in float32, both ways together; at 64 1.2 times).
_LEAST_CONTEXT = 128
# Added to what is positive of each score where weights are shares (weighting=sum): a query whose scores are all
# negative then looks everywhere alike instead of dividing 0 by 0.
_LEAST_SCORE = 1e-4


def causal_attention_scores(
    query: Tensor,
    key: Tensor,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    *,
    scaled: bool = True,
    slopes: Tensor | None = None,
) -> Tensor:
    """Return what each query position thinks of each key position before the softmax (Vaswani et al. 2017, eq. 1).

    Args:
        query: [B, H, Tq, K].
        key: [B, H, Tk, K].
        query_positions: [B, Tq] where each query stands; None: query i stands at i.
        key_positions: [B, Tk] where each key stands; None: key i stands at i.
        scaled: by 1 / sqrt(K), or not at all.
        slopes: [H] what a step of distance costs in each head (`head_slopes`); None: nothing.

    Returns:
        [B, H, Tq, Tk] float32, q·k / sqrt(K), exactly -inf at every key after the query.

    """
    scores = query.float() @ key.float().transpose(-1, -2)
    if scaled:
        scores = scores / query.shape[-1] ** 0.5
    if query_positions is None:
        query_positions = torch.arange(query.shape[-2], device=query.device)[None]
    if key_positions is None:
        key_positions = torch.arange(key.shape[-2], device=key.device)[None]
    distances = query_positions[:, None, :, None] - key_positions[:, None, None, :]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distances
    return scores.masked_fill(distances < 0, float("-inf"))


def causal_attention_weights(query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return the softmax of `causal_attention_scores`: [B, H, Tq, Tk], rows that sum to 1, exactly 0 in the future."""
    return causal_attention_scores(query, key, query_positions).softmax(dim=-1)


def log_shares(scores: Tensor) -> Tensor:
    """Return numbers whose softmax is each score's share of the sum of all, what is negative counting as next to 0.

    Args:
        scores: [..., Tk] float32, -inf where a key may not be seen.

    Returns:
        [..., Tk], log(max(score, 0) + 0.0001), -inf where a key may not be seen.

    """
    return (scores.relu() + _LEAST_SCORE).log().masked_fill(scores.isneginf(), float("-inf"))


def summed_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Return weights @ value [B, H, T, K], the weights being scores over their sum: attention without an exponential.

    Args:
        query: [B, H, T, K].
        key: [B, H, T, K].
        value: [B, H, T, K].
        allowed: broadcastable to [B, H, T, T], True where a key may be seen.

    """
    scores = query.float() @ key.float().transpose(-1, -2) / query.shape[-1] ** 0.5
    shares = (scores.relu() + _LEAST_SCORE) * allowed
    return ((shares / shares.sum(-1, keepdim=True)) @ value.float()).to(value.dtype)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None = None,
    *,
    causal: bool = True,
    scaled: bool = True,
    slopes: Tensor | None = None,
) -> Tensor:
    """Return weights @ value [B, H, T, K] without ever holding the weights.

    On a CPU in bfloat16 the fused kernel is many times slower than in float32 (measured, torch 2.13), so there it is
    given float32, or done without (`PieceAttention`, which keeps its weights) where a row is one long text.

    Args:
        query: [B, H, T, K].
        key: [B, H, T, K].
        value: [B, H, T, K].
        allowed: `within_texts`; None where a row is one text.
        causal: where a row is one text, whether its future is hidden.
        scaled: by 1 / sqrt(K), or not at all.
        slopes: [H] what a step of distance costs in each head; None: nothing.

    """
    alone = causal and allowed is None
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        with torch.autocast("cpu", enabled=False):
            if alone and query.shape[-2] >= _LEAST_CONTEXT and not torch.compiler.is_compiling():
                hidden = hidden_once(query.shape[-2], 0 if slopes is None else query.shape[1])
                return PieceAttention.apply(query, key, value, query.shape[-1] ** -0.5 if scaled else 1.0, hidden)
            heads = (query.float(), key.float(), value.float())
            mixed = fused_attention(*heads, allowed, causal=causal, scaled=scaled, slopes=slopes)
        return mixed.to(query.dtype)
    if slopes is not None:
        added = falling(query.shape[-2], slopes, causal=alone).to(query.dtype)
        allowed = added if allowed is None else added.where(allowed, float("-inf"))
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, is_causal=causal and allowed is None, scale=None if scaled else 1.0
    )


class Attention(nn.Module):
    """The weights of one layer's attention and the two ways through it: fused to train, observed to look."""

    slopes: Tensor | None  # [H] what a step of distance costs

    def __init__(self, config: ModelConfig) -> None:
        """Make the four projections, D to D, without biases; tied ones are one and the same."""
        super().__init__()
        self.n_head, self.theta = config.n_head, config.rope_theta
        self.scaled, self.causal = config.scale is Scale.inverse_sqrt, config.is_causal
        self.turned, self.summed = config.position is Position.rope, config.weighting is Weighting.sum
        slopes = head_slopes(config.n_head) if config.position is Position.alibi else None
        self.register_buffer("slopes", slopes, persistent=False)  # [H], and moves to a device with the weights

        def projection() -> nn.Linear:
            return nn.Linear(config.d_model, config.d_model, bias=False)

        self.query = projection()
        self.key = self.query if config.tie_query_key else projection()
        self.value = self.key if config.tie_key_value else projection()
        self.output = projection()

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (both turned by their positions) and value of `x` [B, T, D], each [B, H, T, K].

        `first` is the position of the first of the T tokens.
        """
        query, key, value = (self._heads(product(x, one.weight)) for one in (self.query, self.key, self.value))
        if self.turned:
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            query, key = self.turn(torch.stack((query, key)), positions)  # in one call: a step is 5 % shorter
        return query, key, value

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys `x` [..., T, K] turned by their positions, as `rotate` does; of a model that turns."""
        return rotate(x, positions, self.theta)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return what attention adds to the stream: [B, T, D] from [B, T, D]."""
        return self.merge(self.mix(*self.project(x), allowed))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Return weights @ value [B, H, T, K] of what `project` gave, without ever holding the weights of softmax."""
        if self.summed:
            if allowed is None:
                allowed = torch.ones(2 * query.shape[2:3], dtype=torch.bool, device=query.device)
                allowed = allowed.tril() if self.causal else allowed
            return summed_attention(query, key, value, allowed)
        return fused_attention(query, key, value, allowed, causal=self.causal, scaled=self.scaled, slopes=self.slopes)

    def merge(self, mixed: Tensor) -> Tensor:
        """Return what all heads together add to the stream, [B, T, D] from the values they mixed [B, H, T, K]."""
        return product(mixed.transpose(1, 2).flatten(2), self.output.weight)

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights as each head has them: query, key and value [H, K, D], output [H, D, K]."""
        read = (linear.weight.unflatten(0, (self.n_head, -1)) for linear in (self.query, self.key, self.value))
        query, key, value = read
        return query, key, value, self.output.weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)

    def offsets_by_head(self) -> tuple[Tensor, Tensor] | None:
        """Return what is added to each head's query and key [H, K] whatever is read; None: nothing, as here."""
        return None

    def scores(self, x: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return `judge` of `x`, of all positions or of `query_positions` [B, Tq] alone."""
        query, key, _ = self.project(x)
        return self.rows(query, key, query_positions)

    def rows(self, query: Tensor, key: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Return `judge` of what `project` gave, of all positions or of `query_positions` [B, Tq] alone."""
        if query_positions is not None:
            index = query_positions[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[-1])
            query = query.gather(2, index)  # [B, H, Tq, K]
        return self.judge(query, key, query_positions)

    def judge(
        self, query: Tensor, key: Tensor, query_positions: Tensor | None = None, key_positions: Tensor | None = None
    ) -> Tensor:
        """Return the numbers whose softmax the weights are: [B, H, Tq, Tk], arguments as `causal_attention_scores`.

        Where weights are shares of a sum, those numbers are their logarithms (`log_shares`), so that whoever observes
        reads every kind of attention in one way. Of a model without a mask nothing can be observed.

        Raises:
            ValueError: model.mask=none.

        """
        if not self.causal:
            raise ValueError("a model trained with model.mask=none reads what it must predict: its heads say nothing")
        scores = causal_attention_scores(
            query, key, query_positions, key_positions, scaled=self.scaled, slopes=self.slopes
        )
        return log_shares(scores) if self.summed else scores

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)  # [B, H, T, K]
