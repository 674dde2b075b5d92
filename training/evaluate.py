"""Measurements during training: validation loss, its gap to the entropy lower bound, probe records."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.loader import IGNORE, Batch, Corpus, Split, validation_batches
from model.transformer import Transformer
from settings.train import TrainSettings
from training.device import SINGLE_PROCESS, Distributed

# The logits of so many tokens are in memory at a time: training never stores all, and a GPU may have no room for them.
_TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class ProbeRecord:
    """Result of the probe at one step."""

    values: dict[str, Any]  # recorded in metrics.jsonl with split "probe"
    images: dict[str, np.ndarray]  # TensorBoard tag -> [height, width, 3] uint8
    lines: list[str]  # for TensorBoard: texts with the most probable tokens after them
    summary: list[str]  # per question: "number L1H0 accuracy 0.98 (bar 0.61)"


# A model in eval mode, and whether images and lines are made too; None: training has diverged
Probe = Callable[[Transformer, bool], ProbeRecord | None]
MakeProbe = Callable[[Corpus, TrainSettings], Probe | None]  # None: no probe


@torch.no_grad()
def _row_losses(
    model: Transformer, batches: Iterable[Batch], autocast: torch.autocast | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums over the tokens of each of R rows, [R] float64: losses, tokens, and lower bounds (text: none)."""
    device = next(model.parameters()).device
    # Lists, not tensors: small tensors kept between the large ones of each pass fragment the heap.
    losses: list[float] = []
    counts: list[float] = []
    floors: list[float] = []
    for batch in batches:
        # No row holds several documents, and padding is last: the model needs no document ids.
        parts = []
        with autocast or nullcontext():
            stream = model.stream(batch.tokens.to(device)).flatten(0, 1)  # [B * T, D]
            targets = batch.targets.to(device).flatten()
            for rows, of_rows in zip(stream.split(_TOKENS_AT_ONCE), targets.split(_TOKENS_AT_ONCE), strict=True):
                logits = model.unembed(rows).float()
                parts.append(F.cross_entropy(logits, of_rows, ignore_index=IGNORE, reduction="none"))
        loss = torch.cat(parts).cpu().double()

        is_target = (batch.targets != IGNORE).double()
        losses += loss.view_as(is_target).sum(1).tolist()
        counts += is_target.sum(1).tolist()
        if batch.floor is not None:
            floors += (batch.floor.double() * is_target).sum(1).tolist()
    as_tensor = partial(torch.tensor, dtype=torch.float64)
    return as_tensor(losses), as_tensor(counts), as_tensor(floors)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return the mean per token and its standard error, with rows as independent clusters.

    `sums` [R] and `counts` [R] are over the tokens of each row. The standard error is that of a ratio estimator
    (Cochran 1977, Sampling Techniques, eq. 6.13), nan for a single row.
    """
    n_rows = len(sums)
    total = counts.sum()
    mean = sums.sum() / total
    variance = (sums - mean * counts).square().sum() * n_rows / (n_rows - 1 or float("nan"))
    return mean.item(), (variance.sqrt() / total).item()


@dataclass(frozen=True)
class LossSummary:
    """Mean loss in nats per token; None: not known."""

    loss: float
    bits_per_byte: float
    whole: bool  # the whole split, not a part
    floor: float | None = None  # the entropy lower bound
    gap: float | None = None  # loss minus bound
    gap_error: float | None = None  # its standard error

    def known(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def validation_loss(
    model: Transformer,
    split: Split,
    tokens_per_batch: int,
    n_tokens: int | None = None,
    autocast: torch.autocast | None = None,
    distributed: Distributed = SINGLE_PROCESS,
) -> LossSummary:
    """Return the loss on about the first `n_tokens` of a split (None: all); the ranks share the batches."""
    context_length = model.config.context_length
    batches = validation_batches(
        split, tokens_per_batch=tokens_per_batch, context_length=context_length, n_tokens=n_tokens
    )
    own_batches = islice(batches, distributed.rank, None, distributed.world_size)
    parts = distributed.gather(_row_losses(model, own_batches, autocast))
    losses, counts, floors = map(torch.cat, zip(*parts, strict=True))  # each [R]
    loss, _ = mean_and_error(losses, counts)
    whole = n_tokens is None or n_tokens >= len(split.tokens)
    summary = LossSummary(loss, split.bits_per_byte(loss), whole)
    if not len(floors):  # only stories have a lower bound
        return summary
    floor, _ = mean_and_error(floors, counts)
    gap, error = mean_and_error(losses - floors, counts)
    return replace(summary, floor=floor, gap=gap, gap_error=error)
