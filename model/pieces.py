"""Attention for a CPU in bfloat16: the one place where its speed took more than torch's own call.

tests/model/test_attention.py holds it to the plain path.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# On a CPU in bfloat16, from this context on, this is taken (measured at 256: 2.2 times as fast
# as the fused kernel in float32, both ways together; at 64 1.2 times, for which no published loss is worth changing).
LEAST_CONTEXT = 128
_SCORES_AT_ONCE = 2**20  # 2 MB of bfloat16: what stays in the cache between one product and the next


class PieceAttention(torch.autograd.Function):
    """Causal attention in bfloat16, some heads at a time, so that their scores never leave the cache.

    Products are of bfloat16 numbers and so are the scores; the softmax is computed in float32 inside.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Return weights @ value [B, H, T, K] from three of that shape, scores being multiplied by `scale`."""
        shape, length = query.shape, query.shape[-2]
        query, key, value = (one.reshape(-1, *shape[-2:]) for one in (query, key, value))  # [B * H, T, K]
        hidden = query.new_full((length, length), float("-inf")).triu(1)
        weights, mixed = query.new_empty(len(query), length, length), torch.empty_like(value)
        for piece in _pieces(weights):
            scores = torch.baddbmm(hidden[None], query[piece], key[piece].mT, alpha=scale)
            torch.softmax(scores, -1, out=weights[piece])
            torch.bmm(weights[piece], value[piece], out=mixed[piece])
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return mixed.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        """Return the gradients of query, key and value from that of the result, all [B, H, T, K]."""
        query, key, value, weights = ctx.saved_tensors
        shape = gradient.shape
        gradient = gradient.reshape(query.shape)
        to_query, to_key, to_value = (torch.empty_like(one) for one in (query, key, value))
        for piece in _pieces(weights):
            torch.bmm(weights[piece].mT, gradient[piece], out=to_value[piece])
            to_weights = torch.bmm(gradient[piece], value[piece].mT)
            to_scores = torch.ops.aten._softmax_backward_data(to_weights, weights[piece], -1, weights.dtype)
            to_scores.mul_(ctx.scale)
            torch.bmm(to_scores, key[piece], out=to_query[piece])
            torch.bmm(to_scores.mT, query[piece], out=to_key[piece])
        return to_query.view(shape), to_key.view(shape), to_value.view(shape), None


def _pieces(weights: Tensor) -> list[slice]:
    """Return which rows of [N, T, T] are computed together."""
    n_rows = max(1, _SCORES_AT_ONCE // weights[0].numel())
    return [slice(first, first + n_rows) for first in range(0, len(weights), n_rows)]
