"""Measurements during training: validation loss by token class, its gap to the entropy lower bound, probe records."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from data.corpus import TOKEN_CLASSES, Corpus
from data.loader import IGNORE, Batch, Split, StorySplit, validation_batches
from data.tokenizer import encode_with_bos
from model.sampling import sample
from model.transformer import Transformer
from training.settings import TrainSettings


@dataclass(frozen=True)
class ProbeRecord:
    """Result of the probe at one step."""

    values: dict[str, Any]  # recorded in metrics.jsonl with split "probe"
    images: dict[str, np.ndarray]  # TensorBoard tag -> [height, width, 3] uint8
    summary: list[str]  # per question: "number L1H0 accuracy 0.98 (bar 0.61)"


Probe = Callable[[Transformer, int], ProbeRecord | None]  # model in eval mode, step
MakeProbe = Callable[[Corpus, TrainSettings], Probe | None]  # None: there is nothing to ask about


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy [B, T] float32 of `targets` [B, T] in nats, 0 for IGNORE; `logits` are [B, T, V]."""
    flat_logits = logits.float().flatten(0, 1)  # [B * T, V]
    losses = F.cross_entropy(flat_logits, targets.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view_as(targets)


class SummedLoss(nn.Module):
    """The training loss: a model with its loss in one module, so that DDP and torch.compile see both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, targets: Tensor, *inputs: Tensor) -> Tensor:
        """Return the summed cross-entropy of the targets [B, T] in nats, a scalar; `inputs` are those of the model."""
        return self.model(*inputs, targets=targets)


@dataclass(frozen=True, slots=True)
class RowLosses:
    """Sum over the tokens of each row. R rows, each a story or a window of text; C token classes."""

    losses: Tensor  # [R, C] float64, nats
    counts: Tensor  # [R, C] float64, tokens
    # [R, C] float64, nats, of the Bayes-optimal predictor on the same tokens; None if unknown.
    floors: Tensor | None


@torch.no_grad()
def row_losses(
    model: nn.Module,
    batches: Iterable[Batch],
    n_classes: int,
    autocast: AbstractContextManager | None = None,
    *,
    single_document: bool = True,
) -> RowLosses:
    """Return the losses of `batches` summed by row and token class, on the CPU; `model` is in eval mode.

    Tokens without a class are in class 0. With `single_document` no row holds several, so that a causal model needs no
    document ids. `autocast` is the context of the forward pass (default: float32).
    """
    device = next(model.parameters()).device
    losses, counts, floors = [], [], []
    for batch in batches:
        inputs = batch.model_inputs(single_document=single_document)
        with autocast or nullcontext():
            logits = model(*(tensor.to(device) for tensor in inputs))
        loss = token_losses(logits, batch.targets.to(device)).cpu().double()  # [B, T]

        # Sum the tokens of each row by their class, [B, C].
        classes = torch.zeros_like(batch.targets) if batch.classes is None else batch.classes
        is_target = (batch.targets != IGNORE).double()
        zeros = torch.zeros(len(classes), n_classes, dtype=torch.float64)
        losses.append(zeros.scatter_add(1, classes, loss))
        counts.append(zeros.scatter_add(1, classes, is_target))
        if batch.floor is not None:
            floors.append(zeros.scatter_add(1, classes, batch.floor.double() * is_target))
    return RowLosses(torch.cat(losses), torch.cat(counts), torch.cat(floors) if floors else None)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean per token and its standard error, both [...], with rows as independent clusters.

    `sums` [R, ...] and `counts` [R, ...] are over the tokens of each row. The standard error is that of a ratio
    estimator (Cochran 1977, Sampling Techniques, eq. 6.13). nan without tokens, and a nan error for a single row.
    """
    n_rows = len(sums)
    total = counts.sum(0)
    mean = sums.sum(0) / total
    residuals = sums - mean * counts
    return mean, (residuals.square().sum(0) * n_rows / (n_rows - 1 or float("nan"))).sqrt() / total


@dataclass(frozen=True, slots=True)
class LossSummary:
    """Mean loss in nats per token, by class for the classes that have tokens; None: not known."""

    loss: float
    loss_by_class: dict[str, float] | None = None
    floor: float | None = None  # the entropy lower bound
    floor_by_class: dict[str, float] | None = None
    gap: float | None = None  # loss minus bound
    gap_error: float | None = None  # its standard error
    gap_by_class: dict[str, float] | None = None
    gap_error_by_class: dict[str, float] | None = None
    bits_per_byte: float | None = None

    def known(self) -> dict[str, Any]:
        """Return the values that are known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def summarise(rows: RowLosses, classes: Sequence[str]) -> LossSummary:
    """Return the mean loss and, if the entropy lower bound is known, the gap to it; by class for those of `classes`."""
    sums = {"loss": rows.losses}  # [R, C]
    if rows.floors is not None:
        sums |= {"floor": rows.floors, "gap": rows.losses - rows.floors}
    columns = {name: i for i, name in enumerate(classes) if rows.counts[:, i].any()}
    values: dict[str, Any] = {}
    for name, losses in sums.items():
        # Over all tokens, and over those of each class, [C].
        mean, error = mean_and_error(losses.sum(1), rows.counts.sum(1))
        means, errors = mean_and_error(losses, rows.counts)
        values[name] = mean.item()
        by_class = {f"{name}_by_class": means}
        if name == "gap":
            values |= {"gap_error": error.item()}
            by_class |= {"gap_error_by_class": errors}
        if columns:
            for key, numbers in by_class.items():
                values[key] = {cls: numbers[i].item() for cls, i in columns.items()}
    return LossSummary(**values)


def validation_loss(
    model: Transformer,
    split: Split,
    tokens_per_batch: int,
    n_tokens: int | None = None,
    autocast: AbstractContextManager | None = None,
) -> LossSummary:
    """Return `summarise` of about the first `n_tokens` of a split, or of all, and bits_per_byte; `model` in eval mode.

    `tokens_per_batch` limits a forward pass; `autocast` is its context (default: float32).
    """
    batches = validation_batches(
        split, tokens_per_batch=tokens_per_batch, context_length=model.config.context_length, n_tokens=n_tokens
    )
    is_causal = model.config.is_causal
    rows = row_losses(model, batches, len(TOKEN_CLASSES), autocast, single_document=is_causal)

    # Only stories have classes.
    has_classes = isinstance(split, StorySplit) and split.classes is not None
    summary = summarise(rows, TOKEN_CLASSES if has_classes else ())
    return replace(summary, bits_per_byte=split.bits_per_byte(summary.loss))


def sample_text(model: Transformer, tokenizer: Tokenizer, prompt: str, n_tokens: int, seed: int) -> str:
    """Return `prompt` with the continuation that `model` (in eval mode) samples."""
    start, _ = encode_with_bos(tokenizer, prompt)
    tokens = torch.tensor(start, device=next(model.parameters()).device)
    sampled = sample(model, tokens, n_tokens, seed=seed)
    return tokenizer.decode(sampled[1:].tolist(), skip_special_tokens=False)
