"""Divide the blocks of a question of the user's own into dev and test, which share no frame and no word."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from data.stories.lexicon import unit_hash

ENOUGH = 8  # frames, and words of each side, of the test part: then a p below 0.01 is possible
MIN_KEPT = 0.45  # share of the blocks that should be in one of the parts
MIN_BLOCKS = 2  # in either part; with few the verdict says that no p can be small enough
_MOST_STEPS = 24  # sizes of dev that are tried, of frames and of words
_HASHED = "own"


class Names(NamedTuple):
    """What a block shares with others."""

    frame: str
    first: str  # word
    second: str  # word


def divided(blocks: Sequence[Names]) -> list[str | None]:
    """Return "dev", "test" or, if it belongs to both, None for each block; the texts alone decide.

    Dev gets two frames and two words of each side if it can, then the test part `ENOUGH`. Of the divisions that then
    keep `MIN_KEPT` of the blocks, or else the most, the one with the most dev blocks is chosen.
    """
    frames = sorted({block.frame for block in blocks}, key=lambda name: unit_hash(_HASHED, name))
    words = _words_by_links(blocks)
    best: list[str | None] = [None] * len(blocks)
    best_rank = (0, 0, 0.0, 0)
    for n_frames in _steps(len(frames)):
        for n_words in _steps(len(words)):
            # A block belongs to a part with its frame and both words.
            of_dev = {*frames[:n_frames]}, {*words[:n_words]}
            parts = [_part(block, *of_dev) for block in blocks]
            dev, tested = ([blocks[i] for i, name in enumerate(parts) if name == part] for part in ("dev", "test"))
            if min(len(dev), len(tested)) < MIN_BLOCKS:
                continue
            kept = min(MIN_KEPT, (len(dev) + len(tested)) / len(blocks))
            rank = (min(2, _fewest(dev)), min(ENOUGH, _fewest(tested)), kept, len(dev))
            if rank > best_rank:
                best_rank = rank
                best = parts
    return best


def _fewest(blocks: Sequence[Names]) -> int:
    """Return the number of different frames, or words of a side, whichever is smallest."""
    return min(len(set(names)) for names in zip(*blocks, strict=True))


def _part(block: Names, frames: set[str], words: set[str]) -> str | None:
    inside = {block.frame in frames, block.first in words, block.second in words}
    if len(inside) > 1:
        return None
    return "dev" if inside.pop() else "test"


def _steps(n: int) -> list[int]:
    """Return the sizes from 1 to n - 1 that are tried."""
    return sorted({round(1 + step * (n - 2) / _MOST_STEPS) for step in range(_MOST_STEPS + 1)}) if n > 1 else []


def _words_by_links(blocks: Sequence[Names]) -> list[str]:
    """Return the words in an order whose beginnings keep many pairs together: next the one with most pairs so far."""
    pairs = {frozenset(block[1:]) for block in blocks}
    rest = sorted({word for pair in pairs for word in pair}, key=lambda name: unit_hash(_HASHED, name))
    linked = Counter[str]()
    ordered = []
    while rest:
        chosen = max(rest, key=lambda word: linked[word])  # the first of equal ones
        rest.remove(chosen)
        ordered.append(chosen)
        for pair in pairs:
            if chosen in pair:
                linked.update(pair - {chosen})
    return ordered
