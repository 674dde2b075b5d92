"""The loss, outside the model: how surprised it is by the tokens that come."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

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


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of `token_losses` over the positions that have a target, in nats per token."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


class SummedLoss(nn.Module):
    """A model and its loss as one function, so that torch.compile sees both and the logits need not be written out."""

    def __init__(self, model: nn.Module, *, exact: bool = False) -> None:
        """Hold `model`, whose weights these stay.

        `exact`: add up in float64, so that the parts of a batch give its loss however it is parted. In float32 the last
        two bits of a sum of some thousand hang on the order.
        """
        super().__init__()
        self.model, self.exact = model, exact

    def forward(self, targets: Tensor, *read: Tensor) -> Tensor:
        """Return the sum of `token_losses` in nats, a scalar: of parts of one batch they add up.

        Args:
            targets: [B, T].
            read: what the model is called with, tokens [B, T] first.

        """
        logits = self.model(*read)
        if self.exact:
            return token_losses(logits, targets).sum(dtype=torch.float64)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


@dataclass(frozen=True, slots=True)
class RowLosses:
    """Sums over each row of a split, by token class. Axes: R rows, each a story or a window of text; C classes."""

    losses: Tensor  # [R, C] float64, nats
    counts: Tensor  # [R, C] float64, tokens
    floors: Tensor | None  # [R, C] float64, nats that the best possible reader would lose on the very same tokens


@torch.no_grad()
def row_losses(
    model: nn.Module,
    batches: Iterable[tuple[tuple[Tensor, ...], Tensor, Tensor | None, Tensor | None]],
    n_classes: int,
    autocast: AbstractContextManager | None = None,
) -> RowLosses:
    """Add up the losses of a whole split by row and token class, on the CPU.

    Args:
        model: in eval mode.
        batches: (what the model reads, targets, classes of the targets, floor of the targets in nats), each [B, T];
            without classes everything is class 0.
        n_classes: how many classes there are.
        autocast: the precision of the forward pass; None for the weights' own.

    """
    device = next(model.parameters()).device
    losses, counts, floors = [], [], []
    for read, targets, classes, floor in batches:
        with autocast or nullcontext():
            logits = model(*(one.to(device) for one in read))
        kinds = torch.zeros_like(targets) if classes is None else classes
        real = (targets >= 0).double()
        nothing = torch.zeros(len(targets), n_classes, dtype=torch.float64)
        losses.append(nothing.scatter_add(1, kinds, token_losses(logits, targets.to(device)).cpu().double()))
        counts.append(nothing.scatter_add(1, kinds, real))
        if floor is not None:
            floors.append(nothing.scatter_add(1, kinds, floor.double() * real))
    return RowLosses(torch.cat(losses), torch.cat(counts), torch.cat(floors) if floors else None)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean per token and its standard error, rows being independent of each other and tokens of one not.

    The mean is a ratio of two sums over rows, its error that of the ratio (Cochran 1977, Sampling Techniques,
    eq. 6.13): the scatter over rows of what a row's sum has beyond the mean times its count.

    Args:
        sums: [R, ...] over the tokens of each row.
        counts: [R, ...] tokens of each row.

    Returns:
        each [...]; nan where there is no token, and for the error where there is one row only.

    """
    n_rows, total = len(sums), counts.sum(0)
    mean = sums.sum(0) / total
    beyond = sums - mean * counts
    return mean, (beyond.square().sum(0) * n_rows / (n_rows - 1 or float("nan"))).sqrt() / total


def summarise(rows: RowLosses, classes: Sequence[str]) -> dict[str, Any]:
    """Return the mean loss in nats per token, whole and by class and, where it is known, the floor and the gap to it.

    Args:
        rows: of a split.
        classes: their names, none where classes are not known; one that has no token is left out.

    Returns:
        "loss", "floor", "gap" and each with "_by_class"; "gap_error" and "gap_error_by_class", the gap's standard
        error over rows.

    """
    sums = {"loss": rows.losses}
    if rows.floors is not None:
        sums |= {"floor": rows.floors, "gap": rows.losses - rows.floors}
    there = {name: i for i, name in enumerate(classes) if rows.counts[:, i].any()}
    found: dict[str, Any] = {}
    for name, some in sums.items():
        whole = mean_and_error(some.sum(1), rows.counts.sum(1))
        by_class = mean_and_error(some, rows.counts)
        for key, value, values in zip((name, f"{name}_error"), whole, by_class, strict=True):
            found |= {key: value.item(), f"{key}_by_class": {one: values[i].item() for one, i in there.items()}}
    unwanted = ("loss_error", "floor_error")  # of the gap alone: windows of one text are not independent
    return {key: value for key, value in found.items() if value != {} and not key.startswith(unwanted)}
