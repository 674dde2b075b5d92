"""Words to pieces: which tokens of a tokenizer make up each word of a text."""

from collections.abc import Sequence
from itertools import pairwise

from data.links import Span


def word_pieces(text: str, offsets: Sequence[Span], spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """Return, for each word, the indices of the tokens that overlap it.

    A token of byte-level BPE may begin with the space before its word; it belongs to the word all the same. A character
    of several bytes may be several tokens with the same characters; all of them belong to its word.

    Args:
        text: what was cut into tokens.
        offsets: the characters [start, end) of each token; empty for one that stands for none.
        spans: the characters [start, end) of the words asked for, in any order, none overlapping another.

    Returns:
        for each of `spans` the indices of its tokens, ascending.

    Raises:
        ValueError: a word has no tokens, or they hold more than it and the space around it, as where a token belongs
            to two words.

    """
    real = [(index, start, end) for index, (start, end) in enumerate(offsets) if start < end]
    order = sorted(range(len(spans)), key=lambda i: spans[i])
    for before, after in pairwise(order):
        if spans[before][1] > spans[after][0]:
            raise ValueError(f"the words {text[slice(*spans[before])]!r} and {text[slice(*spans[after])]!r} overlap")
    found: list[tuple[int, ...]] = [()] * len(spans)
    first = 0
    for i in order:
        begin, finish = spans[i]
        while first < len(real) and real[first][2] <= begin:
            first += 1
        last = first
        while last < len(real) and real[last][1] < finish:
            last += 1
        some = real[first:last]
        word = text[begin:finish]
        if not some or text[min(one[1] for one in some) : max(one[2] for one in some)].strip() != word.strip():
            raise ValueError(f"{word!r} has no tokens of its own in {text[max(0, begin - 20) : finish + 20]!r}")
        found[i] = tuple(index for index, _, _ in some)
    return found
