"""A block forward and backward by hand, for a CPU in bfloat16: the one place where speed took more than torch's calls.

What autocast spends a step on beside its matrix products is here done once, in the cheaper type, or not at all: weights
are cast and joined once for a forward and a backward pass, the norms' gains are multiplied into them, a stream is cast
once and not for each product, and scores never leave the cache. tests/model/test_fast.py holds both passes to the plain
ones; docs/benchmarks.md says what each part gave.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_SCORES_AT_ONCE = 2**20  # 2 MB of bfloat16: what stays in the cache between one product and the next


@dataclass(frozen=True)
class How:
    """What a block's passes depend on beside its weights."""

    n_head: int
    eps: float  # of the norms
    scale: float  # of the scores
    angles: Tensor | None  # [T, K/2] by which queries and keys are turned; None: not at all
    hidden: Tensor  # [1 or H, T, T] bfloat16, added to the scores: -inf where a key may not be seen


class FastBlock(torch.autograd.Function):
    """Block.forward on rows of one text each, in bfloat16; the stream stays float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: How, *weights: Tensor) -> Tensor:
        """Return the stream [B, T, D] after the block.

        Args:
            ctx: of torch.
            x: [B, T, D] float32, the stream that enters it.
            how: see there.
            weights: gain, query, key, value, output; gain, gate, up, down. All float32.

        """
        gain_1, query, key, value, output, gain_2, gate, up, down = weights
        shape = (*x.shape[:2], how.n_head, x.shape[2] // how.n_head)  # B, T, H, K
        stream = x.flatten(0, 1)  # [N, D]
        joined = torch.cat((query, key, value))  # [3 D, D]
        reads = [(one * gain).bfloat16() for one, gain in ((joined, gain_1), (gate, gain_2), (up, gain_2))]
        written_1, written_2 = output.bfloat16(), down.bfloat16()

        normed_1, inverse_1 = _normed(stream, how.eps)
        projected = _by_head(normed_1 @ reads[0].T, shape, how.angles)  # [3, B * H, T, K]
        mixed, shares = attend(projected, how.scale, how.hidden)
        mixed = mixed.view(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2).reshape(stream.shape)
        stream = stream + mixed @ written_1.T

        normed_2, inverse_2 = _normed(stream, how.eps)
        gates, ups = normed_2 @ reads[1].T, normed_2 @ reads[2].T  # [N, M]; apart, or what follows would skip in memory
        opened = F.silu(gates)
        passed = opened * ups
        ctx.save_for_backward(
            *(gain_1, joined, reads[0], normed_1, inverse_1, projected, shares, mixed, written_1),
            *(gain_2, gate, up, *reads[1:], normed_2, inverse_2, gates, ups, opened, passed, written_2),
        )
        ctx.how, ctx.shape = how, shape
        return (stream + passed @ written_2.T).view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of x and of the weights from that of the result, [B, T, D]."""
        how, (n_rows, length, n_head, width) = ctx.how, ctx.shape
        first, second = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
        gain_1, joined, read, normed_1, inverse_1, projected, shares, mixed, written_1 = first
        gain_2, gate, up, read_gate, read_up, normed_2, inverse_2, gates, ups, opened, passed, written_2 = second
        of_stream = gradient.reshape(n_rows * length, -1)

        half = of_stream.bfloat16()
        of_down, of_passed = half.T @ passed, half @ written_2
        of_ups = of_passed * opened
        of_gates = torch.ops.aten.silu_backward(of_passed.mul_(ups), gates)
        of_gain_gate, of_gate = _of_weight(of_gates.T @ normed_2, gate, gain_2)
        of_gain_up, of_up = _of_weight(of_ups.T @ normed_2, up, gain_2)
        of_normed = torch.addmm(of_gates @ read_gate, of_ups, read_up)
        of_stream = _of_normed(of_normed, normed_2, inverse_2).add_(of_stream)

        half = of_stream.bfloat16()
        of_output = half.T @ mixed
        of_mixed = (half @ written_1).view(n_rows, length, n_head, width).transpose(1, 2).reshape(projected[0].shape)
        of_projected = attend_backward(of_mixed, projected, shares, how.scale)
        of_heads = _joined(of_projected, ctx.shape, how.angles)  # [N, 3 D]
        of_gain, of_joined = _of_weight(of_heads.T @ normed_1, joined, gain_1)
        of_stream = of_stream.add_(_of_normed(of_heads @ read, normed_1, inverse_1))
        return (
            *(of_stream.view(gradient.shape), None, of_gain, *of_joined.chunk(3), of_output.float()),
            *(of_gain_gate + of_gain_up, of_gate, of_up, of_down.float()),
        )


def _normed(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms(x) [N, D] in bfloat16 and 1 / rms(x) [N, 1] in float32."""
    squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
    inverse = squares.div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * inverse).bfloat16(), inverse


def _of_normed(gradient: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of what `_normed` was given, [N, D] float32, from that of its result in bfloat16."""
    along = (gradient * normed).sum(-1, keepdim=True, dtype=torch.float32).div_(normed.shape[-1])
    return torch.addcmul(gradient.float(), normed.float(), along, value=-1).mul_(inverse)


def _of_weight(gradient: Tensor, weight: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gain [D] and of the weight [M, D] from that of their product in bfloat16."""
    gradient = gradient.float()
    return (gradient * weight).sum(0), gradient.mul_(gain)


def _by_head(projected: Tensor, shape: tuple[int, int, int, int], angles: Tensor | None) -> Tensor:
    """Return queries, keys and values [3, B * H, T, K] from what was projected, [N, 3 D], turned by `angles`."""
    n_rows, length, n_head, width = shape
    heads = projected.view(n_rows, length, 3, n_head, width).permute(2, 0, 3, 1, 4)
    return _turned(heads, angles).view(3, n_rows * n_head, length, width)


def _joined(heads: Tensor, shape: tuple[int, int, int, int], angles: Tensor | None) -> Tensor:
    """Undo `_by_head` for gradients: [N, 3 D] from [3, B * H, T, K], turned back."""
    n_rows, length, n_head, width = shape
    heads = heads.view(3, n_rows, n_head, length, width)
    heads = _turned(heads, None if angles is None else -angles)
    return heads.permute(1, 3, 0, 2, 4).reshape(n_rows * length, -1)


def _turned(heads: Tensor, angles: Tensor | None) -> Tensor:
    """Return [3, B, H, T, K] in one piece, queries and keys as `positions.rotate` turns them, in float32."""
    heads = heads.contiguous()
    if angles is None:
        return heads
    cos, sin = angles.cos(), angles.sin()
    x = heads[:2].float()
    beside = x.roll(angles.shape[-1], -1)  # the other one of each pair
    x.mul_(torch.cat((cos, cos), -1)).addcmul_(beside, torch.cat((-sin, sin), -1))
    return torch.cat((x.to(heads.dtype), heads[2:]))


def attend(projected: Tensor, scale: float, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights @ value and the weights, some heads at a time, so that their scores never leave the cache.

    Products are of bfloat16 numbers and so are the scores; the softmax is computed in float32 inside.

    Args:
        projected: [3, B * H, T, K] bfloat16, queries, keys, values.
        scale: of the scores.
        hidden: [1 or H, T, T], added to the scores.

    Returns:
        [B * H, T, K] and [B * H, T, T].

    """
    query, key, value = projected
    shares, mixed = query.new_empty(*query.shape[:2], key.shape[1]), torch.empty_like(value)
    pieces = _pieces(shares, len(hidden))
    if len(hidden) > 1:
        hidden = hidden.repeat(pieces[0].stop // len(hidden), 1, 1)
    for piece in pieces:
        added = hidden[: piece.stop - piece.start]  # one for all, or one for each
        scores = torch.baddbmm(added, query[piece], key[piece].mT, alpha=scale)
        torch.softmax(scores, -1, out=shares[piece])
        torch.bmm(shares[piece], value[piece], out=mixed[piece])
    return mixed, shares


def attend_backward(gradient: Tensor, projected: Tensor, shares: Tensor, scale: float) -> Tensor:
    """Return the gradient [3, B * H, T, K] of `projected` from that of what `attend` mixed, [B * H, T, K]."""
    query, key, value = projected
    found = torch.empty_like(projected)
    to_query, to_key, to_value = found
    for piece in _pieces(shares, 1):
        torch.bmm(shares[piece].mT, gradient[piece], out=to_value[piece])
        to_shares = torch.bmm(gradient[piece], value[piece].mT)
        to_scores = torch.ops.aten._softmax_backward_data(to_shares, shares[piece], -1, shares.dtype)
        to_scores.mul_(scale)
        torch.bmm(to_scores, key[piece], out=to_query[piece])
        torch.bmm(to_scores.mT, query[piece], out=to_key[piece])
    return found


def _pieces(shares: Tensor, together: int) -> list[slice]:
    """Return which of [N, T, T] are computed at once: a multiple of `together`, which divides N."""
    n_rows = max(1, _SCORES_AT_ONCE // shares[0].numel() // together) * together
    return [slice(first, min(first + n_rows, len(shares))) for first in range(0, len(shares), n_rows)]


class PieceAttention(torch.autograd.Function):
    """`attend`, for a block that cannot be a FastBlock: weights @ value [B, H, T, K] from three of that shape."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Tensor) -> Tensor:
        """Return what `attend` mixes."""
        projected = torch.stack((query, key, value)).flatten(1, 2)
        mixed, shares = attend(projected, scale, hidden)
        ctx.save_for_backward(projected, shares)
        ctx.scale = scale
        return mixed.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return the gradients of query, key and value."""
        projected, shares = ctx.saved_tensors
        found = attend_backward(gradient.reshape(projected.shape[1:]), projected, shares, ctx.scale)
        return (*found.view(3, *gradient.shape), None, None)
