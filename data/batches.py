"""Which tokens a training step reads: a pure function of (seed, step), so that a resumed run needs only its step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

IGNORE = -100  # a target that is not predicted, as torch's cross_entropy takes it
_BUCKET = 8  # tokens; stories whose lengths round up to the same multiple share a batch


@dataclass(frozen=True, slots=True)
class Split:
    """One part of a corpus: a flat stream of token ids."""

    tokens: np.ndarray  # [N] uint16 or uint32
    n_bytes: int  # of UTF-8 text that the tokens stand for


@dataclass(frozen=True, slots=True)
class StorySplit(Split):
    """Stories end to end: story i is tokens[starts[i] : starts[i + 1]], and the token after it closes it."""

    starts: np.ndarray  # [n_stories + 1] int64
    classes: np.ndarray | None  # [N] uint8, indices into corpus.CLASSES, where they are known
    floor: np.ndarray | None  # [N] float32, -log p of each token in nats by the best possible reader, where it is known


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward pass reads and must predict."""

    tokens: torch.Tensor  # [B, T] int64
    targets: torch.Tensor  # [B, T] int64, IGNORE where there is nothing to predict
    classes: torch.Tensor | None = None  # [B, T] int64, of the targets


class StreamBatches:
    """Crops of `context_length` tokens at places drawn anew for each step, as nanoGPT draws them."""

    def __init__(self, split: Split, *, tokens_per_batch: int, context_length: int, seed: int) -> None:
        """Raise ValueError if the text is shorter than one crop."""
        if len(split.tokens) <= context_length:
            raise ValueError(
                f"the training text has {len(split.tokens)} tokens, too few for model.context_length={context_length}"
            )
        self.split, self.context_length, self.seed = split, context_length, seed
        self.n_rows = max(1, tokens_per_batch // context_length)

    def at(self, step: int) -> Batch:
        """Return the batch of `step` (0 or more)."""
        rng = np.random.default_rng([self.seed, step])
        offsets = rng.integers(len(self.split.tokens) - self.context_length, size=self.n_rows)
        rows = self.split.tokens[offsets[:, None] + np.arange(self.context_length + 1)]
        return _shifted(rows)


class StoryBatches:
    """Whole stories, each once an epoch, padded to a common length with stories of about the same length."""

    def __init__(self, split: StorySplit, *, tokens_per_batch: int, context_length: int, seed: int) -> None:
        """Raise ValueError if a story is longer than the context."""
        _check_lengths(split, context_length)
        self.split, self.seed = split, seed
        self.buckets = _buckets(split, tokens_per_batch)
        self.batches_per_epoch = sum(-(-len(stories) // n_rows) for stories, n_rows in self.buckets)
        self._epoch = -1  # whose plan is at hand; it is derived from (seed, epoch) alone
        self._plan: list[np.ndarray] = []

    def at(self, step: int) -> Batch:
        """Return the batch of `step` (0 or more)."""
        epoch, index = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._plan_of(epoch)
        return _story_batch(self.split, self._plan[index])

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, epoch])
        plan: list[np.ndarray] = []
        for stories, n_rows in self.buckets:
            shuffled = rng.permutation(stories)
            plan += [shuffled[i : i + n_rows] for i in range(0, len(shuffled), n_rows)]
        return [plan[i] for i in rng.permutation(len(plan))]


def training_batches(
    split: Split, *, tokens_per_batch: int, context_length: int, seed: int
) -> StreamBatches | StoryBatches:
    """Return the batches that fit the split: stories whole, a stream in crops."""
    if isinstance(split, StorySplit):
        return StoryBatches(split, tokens_per_batch=tokens_per_batch, context_length=context_length, seed=seed)
    return StreamBatches(split, tokens_per_batch=tokens_per_batch, context_length=context_length, seed=seed)


def validation_batches(
    split: Split, *, tokens_per_batch: int, context_length: int, n_tokens: int | None
) -> Iterator[Batch]:
    """Yield a split in order, every token predicted exactly once, or about the first `n_tokens` of it.

    A stream is read in windows that do not overlap; its very first token, which nothing precedes, is not predicted.
    """
    if isinstance(split, StorySplit):
        _check_lengths(split, context_length)
        n_stories = len(split.starts) - 1
        if n_tokens is not None:
            n_stories = max(1, min(n_stories, int(np.searchsorted(split.starts, n_tokens))))
        for stories, n_rows in _buckets(split, tokens_per_batch, n_stories):
            for i in range(0, len(stories), n_rows):
                yield _story_batch(split, stories[i : i + n_rows])
        return
    end = len(split.tokens) if n_tokens is None else min(n_tokens + 1, len(split.tokens))
    n_rows = max(1, tokens_per_batch // context_length)
    whole = (end - 1) // context_length
    windows = np.arange(whole)[:, None] * context_length + np.arange(context_length + 1)
    for i in range(0, whole, n_rows):
        yield _shifted(split.tokens[windows[i : i + n_rows]])
    if (end - 1) % context_length:
        yield _shifted(split.tokens[None, whole * context_length : end])


def _check_lengths(split: StorySplit, context_length: int) -> None:
    longest = int(np.diff(split.starts).max())
    if longest > context_length:
        raise ValueError(
            f"the longest story has {longest} tokens: model.context_length={context_length} cannot hold it"
        )


def _buckets(split: StorySplit, tokens_per_batch: int, n_stories: int | None = None) -> list[tuple[np.ndarray, int]]:
    """Return (story indices, rows per batch) for each length, lengths rounded up."""
    lengths = np.diff(split.starts[: n_stories + 1] if n_stories else split.starts)
    rounded = -(-lengths // _BUCKET) * _BUCKET
    return [(np.flatnonzero(rounded == size), max(1, tokens_per_batch // int(size))) for size in np.unique(rounded)]


def _story_batch(split: StorySplit, stories: np.ndarray) -> Batch:
    first, last = split.starts[stories], split.starts[stories + 1]
    columns = np.arange(int((last - first).max()) + 1)
    positions = first[:, None] + columns  # the story and the END that opens the next one
    real = columns <= (last - first)[:, None]
    rows = np.where(real, split.tokens[np.minimum(positions, len(split.tokens) - 1)], 0)
    batch = _shifted(rows)
    batch.targets[torch.from_numpy(~real[:, 1:])] = IGNORE
    if split.classes is None:
        return batch
    classes = torch.from_numpy(split.classes[np.minimum(positions, len(split.tokens) - 1)][:, 1:].astype(np.int64))
    return Batch(batch.tokens, batch.targets, classes)


def _shifted(rows: np.ndarray) -> Batch:
    whole = torch.from_numpy(rows.astype(np.int64))
    return Batch(whole[:, :-1].contiguous(), whole[:, 1:].contiguous())
