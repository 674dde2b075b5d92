"""Batches of texts of similar length, so that little of a batch is padding."""

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

Progress = Callable[[str, float], None]  # called with the stage and its finished share


def length_batches(lengths: Sequence[int], tokens_per_batch: int, n_texts: int = 1) -> Iterator[list[int]]:
    """Yield the indices of all items in batches of similar length, the longest first, each in ascending length.

    An item is `n_texts` texts of up to its length. A batch has up to `tokens_per_batch` tokens, or one item.
    """
    remaining = sorted(range(len(lengths)), key=lengths.__getitem__)
    while remaining:
        longest = lengths[remaining[-1]]
        n_items = max(1, tokens_per_batch // (n_texts * longest))
        yield remaining[-n_items:]
        del remaining[-n_items:]


def progress_bar(total: int, unit: str) -> "tqdm[NoReturn]":
    """Return a bar that shows on a terminal, after two seconds, how long `total` steps will still take."""
    return tqdm(total=total, unit=unit, leave=False, delay=2, disable=None)


def text_batches(
    texts: Sequence[tuple[int, ...]], tokens_per_batch: int
) -> Iterator[tuple[list[int], list[int], Tensor, Tensor]]:
    """Yield N texts at once: their indices [N], the row of each [N], tokens [B, T], and the last position [B] of a row.

    Equal texts share a row. Rows are padded on the right.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for i, text in enumerate(texts):
        members.setdefault(text, []).append(i)
    different = list(members)
    lengths = [len(text) for text in different]
    with progress_bar(len(lengths), "text") as bar:
        for chosen in length_batches(lengths, tokens_per_batch):
            batch = [different[i] for i in chosen]
            indices = list[int]()
            rows = list[int]()
            for row, text in enumerate(batch):
                indices += members[text]
                rows += [row] * len(members[text])
            yield indices, rows, pad_rows(batch), torch.tensor(list(map(len, batch))) - 1
            bar.update(len(chosen))


def pad_rows(rows: Sequence[Sequence[int]], padding: int = 0) -> Tensor:
    """Return rows of token ids as one tensor [B, T], padded on the right."""
    padded = np.full((len(rows), max(map(len, rows))), padding)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)
