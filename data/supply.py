"""Batches as a training step takes them: counted, of one shape where asked, and on the device without a wait."""

import numpy as np
import torch
from torch import Tensor

from data.batches import IGNORE, WHOLE, Batch, Split, StoryBatches, StreamBatches

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
