"""The loss, outside the model: how surprised it is by the tokens that come."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log p(target) in nats for each position, 0 where the target is negative (nothing to predict).

    Args:
        logits: [B, T, V], any float type; the loss is computed in float32.
        targets: [B, T].

    Returns:
        [B, T] float32.

    """
    flat = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return flat.view_as(targets)


def mean_loss(logits: Tensor, targets: Tensor, n_targets: int | None = None) -> Tensor:
    """Return the mean of `token_losses` over the positions that have a target, in nats per token.

    With `n_targets`, the sum divided by that number: parts of one batch then add up to the mean over the whole.
    """
    flat, wanted = logits.float().flatten(0, 1), targets.flatten()
    if n_targets is None:
        return F.cross_entropy(flat, wanted, ignore_index=-100)
    return F.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum") / n_targets


@torch.no_grad()
def class_losses(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    n_classes: int,
    autocast: AbstractContextManager | None = None,
) -> tuple[Tensor, Tensor]:
    """Add up the losses of a whole split by token class.

    Args:
        model: in eval mode.
        batches: (tokens, targets, classes of the targets), each [B, T]; without classes everything is class 0.
        n_classes: how many classes there are.
        autocast: the precision of the forward pass; None for the weights' own.

    Returns:
        (sums in nats, counts), each [n_classes] float64 on the CPU: sums.sum() / counts.sum() is the mean loss.

    """
    sums, counts = torch.zeros(n_classes, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    device = next(model.parameters()).device
    for tokens, targets, classes in batches:
        with autocast or nullcontext():
            logits = model(tokens.to(device))
        losses = token_losses(logits, targets.to(device)).cpu().double()
        real = targets >= 0
        kinds = torch.zeros_like(targets) if classes is None else classes
        sums.index_add_(0, kinds[real], losses[real])
        counts.index_add_(0, kinds[real], torch.ones_like(losses[real]))
    return sums, counts
