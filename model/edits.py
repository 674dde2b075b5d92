"""Edits of one head's attention weights: links cut or exchanged at a query, and edits of the same token by hand.

Axes: B texts, T tokens.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from model.observe import HeadEdit
from settings.errors import UserError

_ROUNDING = 1e-5  # the sum of a row without a sink may differ from 1 by so much


def cut_weights(weights: Tensor, mask: Tensor) -> Tensor:
    """Return the weights [B, T] with those on `mask` [B, T] set to 0 and the others, a sink too, scaled to a sum of 1.

    This equals scores of -inf before the softmax (Geva et al. 2023, "attention knockout").
    """
    remaining = weights.masked_fill(mask, 0)
    of_sink = 1 - weights.sum(-1, keepdim=True)
    total = remaining.sum(-1, keepdim=True) + of_sink.where(of_sink > _ROUNDING, 0.0)
    return remaining / total.clamp(min=torch.finfo(weights.dtype).tiny)


def exchange_weights(weights: Tensor, left: Tensor, right: Tensor, share: float = 1.0) -> Tensor:
    """Exchange a share (0 to 1) of the total weight of two disjoint sets of tokens; the others are [B, T].

    Within each set the new total is distributed in proportion to the old weights, evenly if they are all 0. Exchanging
    all of them twice restores the weights.
    """
    left_total, left_shares = _total_and_shares(weights, left)
    right_total, right_shares = _total_and_shares(weights, right)
    exchanged = weights.masked_fill(left | right, 0) + right_total * left_shares + left_total * right_shares
    return exchanged if share == 1 else weights.lerp(exchanged, share)


def split_weights(weights: Tensor, left: Tensor, right: Tensor, log_odds: Tensor) -> Tensor:
    """Split the total weight of two disjoint sets of tokens so that left / right is exp(`log_odds`) [B, 1].

    The others are [B, T]; within each set the new total is distributed as by `exchange_weights`.
    """
    left_total, left_shares = _total_and_shares(weights, left)
    right_total, right_shares = _total_and_shares(weights, right)
    total = left_total + right_total
    new_left = total * torch.sigmoid(log_odds) * left_shares
    return weights.masked_fill(left | right, 0) + new_left + total * torch.sigmoid(-log_odds) * right_shares


def _total_and_shares(weights: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the total weight [B, 1] of some tokens, and each one's share of it [B, T]."""
    masked = weights.masked_fill(~inside, 0)
    total = masked.sum(-1, keepdim=True)
    even = inside.float() / inside.sum(-1, keepdim=True)
    return total, torch.where(total > 0, masked / total.where(total > 0, 1.0), even)


def remove_head(layer: int, head: int) -> HeadEdit:
    """Return the edit that sets the output of a head to 0 at every token."""
    return HeadEdit(layer, head, output=torch.zeros_like)


def cut_link(layer: int, head: int, token: int, targets: Sequence[int]) -> HeadEdit:
    """Return the edit that cuts the links of a head from one token to others, as `cut_weights`, in every text.

    Positions count from 0, the start token. Raise UserError for a link that no text can have.
    """
    _check_links(token, targets)
    return _edit_token(layer, head, token, lambda row: cut_weights(row, _mask(row, targets)))


def exchange_links(
    layer: int, head: int, token: int, left: Sequence[int], right: Sequence[int], share: float = 1.0
) -> HeadEdit:
    """Return the edit by which two sets of tokens exchange a share of a head's weights at one token, 0 to 1.

    Positions count from 0, the start token. Raise UserError for links that no text can have, or sets that overlap.
    """
    _check_links(token, left)
    _check_links(token, right)
    if not set(left).isdisjoint(right):
        raise UserError(f"exchange_links: {list(left)} and {list(right)} must not share a token")
    return _edit_token(
        layer, head, token, lambda row: exchange_weights(row, _mask(row, left), _mask(row, right), share)
    )


def _check_links(token: int, targets: Sequence[int]) -> None:
    """Raise UserError unless `targets` are one or more tokens that a head can attend to from `token`."""
    if type(token) is not int or token < 0:
        raise UserError(f"no link from token {token}: give its position, from 0")
    if not isinstance(targets, Sequence) or not targets or not all(0 <= target <= token for target in targets):
        raise UserError(f"no link from token {token} to {targets}: give a list of tokens from 0 to {token}")


def _edit_token(layer: int, head: int, token: int, change: Callable[[Tensor], Tensor]) -> HeadEdit:
    """Return an edit that applies `change` ([B, T] -> [B, T]) to a head's weights at the same token of every text."""

    def weights(attention: Tensor) -> Tensor:
        if token >= attention.shape[1]:
            raise UserError(f"no link from token {token}: the text has tokens 0 to {attention.shape[1] - 1}")
        edited = attention.clone()
        edited[:, token] = change(attention[:, token])
        return edited

    return HeadEdit(layer, head, weights=weights, token=token)


def _mask(row: Tensor, tokens: Sequence[int]) -> Tensor:
    mask = torch.zeros_like(row, dtype=torch.bool)
    mask[:, list(tokens)] = True
    return mask
