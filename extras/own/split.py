"""Divide the blocks of a question of the user's own into dev and test, which share no frame and no word."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from data.stories.lexicon import unit_hash

ENOUGH = 8  # frames, and words of each side, of the test part: then a p below 0.01 is possible
_ENOUGH_DEV = 16  # blocks that choose a head; once dev has them, as much as possible is tested
_STEPS = 101  # sizes of dev that are tried

_Parts = tuple[np.ndarray, np.ndarray]  # [N] bool each: is the block in dev, in test?


def divided(blocks: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return "dev", "test" or, if it belongs to both, "" for each block, a frame and two words.

    The texts alone decide. Dev gets two frames and two words of each side if it can, then the test part `ENOUGH`.
    Then blocks that share nothing are divided without loss, a quarter to dev. Where that is not possible, blocks
    between the parts are left out, and as many as possible are tested.
    """
    best = [""] * len(blocks)
    best_rank: tuple[float, ...] = (0,)
    if not blocks:
        return best
    codes = _codes(blocks)
    for dev, test in _divisions(codes):
        n_dev = int(np.count_nonzero(dev))
        n_test = int(np.count_nonzero(test))
        if not n_dev or not n_test:
            continue
        quarter = len(blocks) / 4
        is_whole = n_dev + n_test == len(blocks) and n_dev >= min(_ENOUGH_DEV, quarter)
        enough_dev = quarter if is_whole else max(_ENOUGH_DEV, len(blocks) / 100)
        clusters = min(2, _fewest(codes[dev])), min(ENOUGH, _fewest(codes[test]))
        rank = (*clusters, is_whole, min(1, n_dev / enough_dev), n_test)
        if rank > best_rank:
            best_rank = rank
            best = np.select([dev, test], ["dev", "test"], "").tolist()
    return best


def _codes(blocks: Sequence[tuple[str, str, str]]) -> np.ndarray:
    """Return a number for the frame and both words of each block [N, 3], in an order that a hash decides."""
    codes = np.empty((len(blocks), 3), dtype=int)
    numbers: dict[tuple[bool, str], int] = {}
    for i in sorted(range(len(blocks)), key=lambda i: unit_hash("own", *blocks[i])):
        for column, name in enumerate(blocks[i]):
            is_word = column > 0
            codes[i, column] = numbers.setdefault((is_word, name), len(numbers))
    return codes


def _fewest(codes: np.ndarray) -> int:
    return min(int(np.count_nonzero(np.bincount(column))) for column in codes.T)


def _divisions(codes: np.ndarray) -> Iterator[_Parts]:
    """Yield divisions of blocks [N, 3]: by whole groups, or with a share of the frames and words of the largest."""
    groups = _groups(codes)
    names = np.concatenate(groups)
    is_frame = np.isin(names, codes[:, 0])
    places = np.empty_like(names)
    places[names] = np.where(is_frame, np.cumsum(is_frame), np.cumsum(~is_frame)) - 1  # among frames, or words
    ends = np.cumsum([0, *map(len, groups)])
    n_frames = np.append(0, np.cumsum(is_frame))[ends]
    n_words = ends - n_frames
    numbers = np.arange(len(ends))
    whole = np.linspace(0, numbers[-1], _STEPS).round()
    for size in np.union1d(whole, np.linspace(numbers[-2], numbers[-1], _STEPS)):
        limits = [np.interp(size, numbers, counts).round() for counts in (n_frames, n_words, n_words)]
        is_early = places[codes] < limits
        yield is_early.all(axis=1), ~is_early.any(axis=1)


def _groups(codes: np.ndarray) -> list[np.ndarray]:
    """Return frames and words in groups without a common block, the smallest first.

    In a group the next one is that with most links so far, so the beginnings keep many blocks together.
    """
    partners = defaultdict[int, list[int]](list)
    for block in codes.tolist():
        for name in block:
            partners[name] += block
    n_linked = np.zeros(len(partners))
    groups = list[list[int]]()
    for _ in partners:
        name = int(n_linked.argmax())
        if n_linked[name] == 0:
            groups.append([])
        groups[-1].append(name)
        n_linked[partners[name]] += 1 / len(partners[name])
        n_linked[name] = -np.inf
    return list(map(np.array, sorted(groups, key=len)))
