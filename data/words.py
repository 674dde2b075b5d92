"""How a text is split into words: as the tokenizers do it, and as the lists of English words need it."""

import re
from collections.abc import Mapping
from pathlib import Path

# As pre_tokenizers.Whitespace: a run of letters, digits and underscores, or a run of marks.
_WORD = re.compile(r"\w+|[^\w\s]+")
# Letters, digits and every mark apart, so that "_Tom_" has the word "Tom".
ENGLISH_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return the words and the runs of punctuation marks of `text`, in order."""
    return _WORD.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters [start, end) of each of the words of `words_of`."""
    return [match.span() for match in _WORD.finditer(text)]


def with_words(text: str, changes: Mapping[tuple[int, int], str]) -> str:
    """Return `text` with other words at some places, by the characters [start, end) of each."""
    for start, end in sorted(changes, reverse=True):  # the last first, so that the places of the others stay
        text = text[:start] + changes[start, end] + text[end:]
    return text


def word_lists(path: Path) -> dict[str, str]:
    """Return the text of each section of a file, by the name "[name]" before it; lines with # are comments."""
    text = re.sub("^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(re.findall(r"\[(.+)\]\s+([^\[]*[^\[\s])", text))  # up to the last character before the next name
