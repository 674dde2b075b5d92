"""Which tokens a training step reads: a pure function of (seed, step), so that a resumed run needs only its step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IGNORE = -100  # a target that is not predicted, as torch's cross_entropy takes it


WHOLE = slice(None)  # all rows of a batch


_BUCKET = 8  # tokens; stories whose lengths round up to the same multiple share a batch


@dataclass(frozen=True, slots=True)
class Split:
    """One part of a corpus: a flat stream of token ids."""

    tokens: np.ndarray  # [N] uint16 or uint32
    n_bytes: int  # of UTF-8 text that the tokens stand for

    def bits_per_byte(self, loss: float) -> float:
        """Return a mean loss in nats per token as bits per byte of this text: the same whatever the tokenizer."""
        return loss / math.log(2) * (len(self.tokens) - 1) / self.n_bytes  # nothing predicts the first token


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
    texts: torch.Tensor | None = None  # [B, T] int64, which of a row's stories, -1 for none; None: a row is one text
    classes: torch.Tensor | None = None  # [B, T] int64, of the targets
    floor: torch.Tensor | None = None  # [B, T] float32, of the targets, in nats

    def read(self, *, alone: bool = False) -> tuple[torch.Tensor, ...]:
        """Return what a model is given: tokens and, unless every row is to be read as one text, `texts`."""
        return (self.tokens,) if alone or self.texts is None else (self.tokens, self.texts)


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

    def at(self, step: int, share: slice = WHOLE) -> Batch:
        """Return the batch of `step` (0 or more), or of its rows those of `share`."""
        return _shifted(self.split.tokens[self.offsets(step)[share, None] + np.arange(self.context_length + 1)])

    def n_targets(self, step: int) -> int:
        """Return how many targets the whole batch of `step` has."""
        return self.n_rows * self.context_length

    def offsets(self, step: int) -> np.ndarray:
        """Return [B] int64, the place in the text at which each row of `step` begins."""
        rng = np.random.default_rng([self.seed, step])
        return rng.integers(len(self.split.tokens) - self.context_length, size=self.n_rows)


class StoryBatches:
    """Whole stories, each once an epoch in a new order, packed end to end into rows of at most `context_length`.

    Packed rather than padded beside others of their length: stories of one length all end equally soon, and gradients
    that lean one way left the model misjudging where a sentence stops (pronouns off by -0.11 to +0.16 nats in six runs,
    packed by -0.03 to +0.04 in four).
    """

    def __init__(self, split: StorySplit, *, tokens_per_batch: int, context_length: int, seed: int) -> None:
        """Raise ValueError if a story is longer than the context."""
        _check_lengths(split, context_length)
        self.split, self.seed, self.context_length = split, seed, context_length
        self.n_rows = max(1, tokens_per_batch // context_length)
        self._first = [0]  # the step with which each epoch begins, as far as is known
        self._epoch = -1  # whose plan is at hand; it is derived from (seed, epoch) alone
        self._plan: list[np.ndarray] = []

    def at(self, step: int, share: slice = WHOLE) -> Batch:
        """Return the batch of `step` (0 or more), or of its rows those of `share`: none where it has none of these."""
        return self._packed(self._rows_of(step)[share])

    def n_targets(self, step: int) -> int:
        """Return how many targets the whole batch of `step` has: one for each token of its stories."""
        stories = np.concatenate(self._rows_of(step))
        return int((self.split.starts[stories + 1] - self.split.starts[stories]).sum())

    def _rows_of(self, step: int) -> list[np.ndarray]:
        """Return the stories of each row of a step."""
        while self._first[-1] <= step:
            rows = self._rows(len(self._first) - 1)
            self._first.append(self._first[-1] - (-len(rows) // self.n_rows))
        epoch = int(np.searchsorted(self._first, step, side="right")) - 1
        first = (step - self._first[epoch]) * self.n_rows
        return self._rows(epoch)[first : first + self.n_rows]

    def _rows(self, epoch: int) -> list[np.ndarray]:
        """Return the stories of each row of an epoch: in random order, a row closed when the next does not fit."""
        if epoch != self._epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.split.starts) - 1)
            cuts, room = [], self.context_length
            for place, length in enumerate(np.diff(self.split.starts)[order].tolist()):
                if length > room:
                    cuts.append(place)
                    room = self.context_length
                room -= length
            self._epoch, self._plan = epoch, np.split(order, cuts)
        return self._plan

    def _packed(self, rows: list[np.ndarray]) -> Batch:
        """Lay stories end to end; the last token of each has for its target the END that opens the next."""
        shape = (len(rows), self.context_length)
        tokens, targets, texts = np.zeros(shape, np.int64), np.full(shape, IGNORE), np.full(shape, -1)
        counts = np.array([len(one) for one in rows], np.int64)
        stories = np.concatenate(rows) if rows else np.empty(0, np.int64)
        begun, row = counts.cumsum() - counts, np.repeat(np.arange(len(rows)), counts)  # of each row, of each story
        first, last = self.split.starts[stories], self.split.starts[stories + 1]
        lengths = last - first
        before = lengths.cumsum() - lengths  # tokens of the stories before, from the batch's first row on
        column = before - before[begun][row]
        within = np.arange(lengths.sum()) - np.repeat(before, lengths)
        places = np.repeat(first, lengths) + within
        there = np.repeat(row * self.context_length + column, lengths) + within
        tokens.reshape(-1)[there] = self.split.tokens[places]
        targets.reshape(-1)[there] = self.split.tokens[places + 1]
        texts.reshape(-1)[there] = np.repeat(np.arange(len(stories)) - begun[row], lengths)
        return Batch(*(torch.from_numpy(part) for part in (tokens, targets, texts)))


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
    columns = np.arange(context_length + 1)
    for i in range(0, whole, n_rows):
        starts = np.arange(i, min(i + n_rows, whole)) * context_length
        yield _shifted(split.tokens[starts[:, None] + columns])
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
    of_targets = np.minimum(positions, len(split.tokens) - 1)[:, 1:]
    classes = None if split.classes is None else torch.from_numpy(split.classes[of_targets].astype(np.int64))
    floor = None if split.floor is None else torch.from_numpy(split.floor[of_targets])
    texts = torch.from_numpy(np.where(real[:, 1:], 0, -1))
    return Batch(batch.tokens, batch.targets, texts, classes, floor)


def _shifted(rows: np.ndarray) -> Batch:
    whole = torch.from_numpy(rows.astype(np.int64))
    return Batch(whole[:, :-1].contiguous(), whole[:, 1:].contiguous())


_PIECE = 2**24  # tokens brought to the device at a time, so that a text on disk is never whole in memory


class ResidentText:
    """A stream's tokens in a device's memory, two or four bytes each."""

    def __init__(self, split: Split, device: torch.device) -> None:
        """Bring all of `split` there."""
        kept = np.int16 if split.tokens.itemsize == 2 else np.int32  # torch indexes no unsigned tensor on a GPU
        self._mask = 2 ** (8 * split.tokens.itemsize) - 1
        self._tokens = torch.empty(
            len(split.tokens), dtype=torch.int16 if kept is np.int16 else torch.int32, device=device
        )
        for first in range(0, len(split.tokens), _PIECE):
            piece = np.array(split.tokens[first : first + _PIECE]).view(kept)
            self._tokens[first : first + _PIECE] = torch.from_numpy(piece).to(device)

    def crops(self, offsets: Tensor, length: int) -> Batch:
        """Return the batch whose rows begin at `offsets` [B], on the device as the text is: tokens [B, length]."""
        places = offsets[:, None] + torch.arange(length + 1, device=offsets.device)
        rows = self._tokens[places].long() & self._mask  # what was unsigned is so again
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


class Supply:
    """The batches of `batches`, each a function of its number alone, with the number of targets known on the host."""

    def __init__(
        self,
        batches: StreamBatches | StoryBatches,
        device: torch.device,
        *,
        full: bool = False,
        room: int = 0,
        share: slice = WHOLE,
    ) -> None:
        """Bring a stream's text to the device where it takes no more than `room` bytes there.

        Args:
            batches: what is read, and in which order.
            device: where the step computes.
            full: fill a batch of fewer rows than others up with rows that ask nothing, so that all have one shape.
            room: 0: batches are made on the host. They are the same bit for bit.
            share: of each batch's rows, the only ones wanted; where a batch has none of them, a row that asks nothing.

        """
        self.batches, self._device, self._full, self._share = batches, device, full, share
        self._text: ResidentText | None = None
        if isinstance(batches, StreamBatches) and batches.split.tokens.nbytes <= room:
            self._text = ResidentText(batches.split, device)

    @property
    def is_resident(self) -> bool:
        """Whether the text lies on the device."""
        return self._text is not None

    def __call__(self, number: int) -> tuple[tuple[Tensor, ...], Tensor, int]:
        """Return what the model reads, tokens [B, T] first, the targets [B, T] and how many the whole batch has."""
        n_targets = self.batches.n_targets(number)
        if self._text is not None and isinstance(self.batches, StreamBatches):
            offsets = self._brought(torch.from_numpy(self.batches.offsets(number)[self._share]))
            batch = self._text.crops(offsets, self.batches.context_length)
            return batch.read(), batch.targets, n_targets
        batch = self.batches.at(number, self._share)
        read, targets = batch.read(), batch.targets
        n_rows = max(1, len(range(self.batches.n_rows)[self._share])) if self._full else 1
        missing = n_rows - len(targets)
        if missing > 0:  # tokens 0, and the texts of these rows -1 as after a row's last
            fills = (0, -1)[: len(read)]
            read = tuple(_longer(one, missing, fill) for one, fill in zip(read, fills, strict=True))
            targets = _longer(targets, missing, IGNORE)
        return tuple(self._brought(one) for one in read), self._brought(targets), n_targets

    def _brought(self, one: Tensor) -> Tensor:
        """Return `one` on the device; to a GPU from pinned memory, for which the host need not wait."""
        return one if self._device.type == "cpu" else one.pin_memory().to(self._device, non_blocking=True)


def _longer(one: Tensor, n_rows: int, fill: int) -> Tensor:
    return torch.cat([one, one.new_full((n_rows, one.shape[1]), fill)])
