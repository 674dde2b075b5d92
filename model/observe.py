"""The whole model, top to bottom: `forward(tokens) -> logits`, and the same pass observed."""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.transformer import (
    Transformer,
)


def streams(model: Transformer, tokens: Tensor) -> Iterator[Tensor]:
    """Yield the residual stream [B, T, D] before each block and after the last: L + 1 of them."""
    x = model.embed(tokens)
    yield x
    for block in model.layers():
        x = block(x)
        yield x


def observed(
    model: Transformer, tokens: Tensor, query_positions: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield of each layer what it reads and its heads' scores, and compute nothing that these do not need.

    What is projected for the scores carries the stream on; of the last layer there is nothing but its scores.

    Args:
        model: in eval mode, or dropout falls differently on each call.
        tokens: [B, T].
        query_positions: [B, Tq], the only rows wanted; None for all.

    Returns:
        L pairs of the normalised stream [B, T, D] and scores [B, H, Tq, Tk] as `Attention.judge` gives them.

    """
    *below, last = model.layers()
    x = model.embed(tokens)
    for block in below:
        normed = block.norm_1(x)
        query, key, value = block.attention.project(normed)
        yield normed, block.attention.rows(query, key, query_positions)
        x = x + block.attention.merge(block.attention.mix(query, key, value))
        x = x + block.mlp(block.norm_2(x))
    normed = last.norm_1(x)
    yield normed, last.attention.scores(normed, query_positions)


def attention_scores(model: Transformer, tokens: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return every head's scores on `tokens` [B, T], computed beside the fused path and leaving no trace in it.

    Args:
        model: in eval mode, or dropout falls differently on each call.
        tokens: [B, T].
        query_positions: [B, Tq], the only rows wanted; None for all.

    Returns:
        [L, B, H, Tq, Tk] float32, -inf where the key comes after the query. The softmax over the last axis is what
        the fused path uses, to 1e-5 in float32.

    """
    return torch.stack([scores for _, scores in observed(model, tokens, query_positions)])


def attention_maps(model: Transformer, tokens: Tensor, query_positions: Tensor | None = None) -> Tensor:
    """Return every head's weights [L, B, H, Tq, Tk]: rows sum to 1 and are exactly 0 in the future."""
    return attention_scores(model, tokens, query_positions).softmax(dim=-1)
