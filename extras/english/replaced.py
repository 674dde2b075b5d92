"""Passages with every content word replaced, so that of the sentence only its form is left.

A content word is a word in small letters that is neither a function word nor a person. Another one of the training text
stands in its place, with the same ending and the same number of tokens, as often as it occurs there. It may be of
another part of speech.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np

from data.pairs import Items, Pair, Span
from data.tokenizer import encode_text
from data.words import ENGLISH_WORD, with_words
from extras.english.lexicon import NOUN_CLASSES, word_set
from extras.english.passages import Reader
from settings.errors import UserError

N_DRAWS = 3  # versions of each passage
_ENDINGS = ("ing", "ed", "ly", "s")
_NOT_REPLACED = word_set("function words") | word_set("further function words") | NOUN_CLASSES.keys()


class ContentWords:
    """The content words of a text, to draw from."""

    def __init__(self, texts: Iterable[str], n_tokens: Callable[[str], int]) -> None:
        """Collect the words; `n_tokens` counts the tokens of a word after a space."""
        self._n_tokens = cache(n_tokens)
        self._words = defaultdict[tuple[str, int], list[str]](list)
        for text in texts:
            for start, end in _content_spans(text):
                word = text[start:end]
                self._words[self._form(word)].append(word)

    def _form(self, word: str) -> tuple[str, int]:
        n_tokens = self._n_tokens(word)
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) > len(ending) + 2:
                return ending, n_tokens
        return "", n_tokens

    def replaced(self, texts: tuple[str, str], rng: np.random.Generator) -> tuple[str, str]:
        """Return a passage and its twin, each with the same words in place of the same content words."""
        words = []
        for start, end in _content_spans(texts[0]):
            word = texts[0][start:end]
            alike = self._words.get(self._form(word), [word])
            words.append(alike[int(rng.integers(len(alike)))])
        first, second = (with_words(text, dict(zip(_content_spans(text), words, strict=True))) for text in texts)
        return first, second


def with_replaced(items: Items, words: ContentWords, reader: Reader, seed: int) -> tuple[Items, Items]:
    """Return the passages `items`, and N_DRAWS times the same with content words replaced, one draw after the other.

    A passage is left out, and counted, if a model reads a replaced text as more or fewer tokens.
    """
    rng = np.random.default_rng(seed)
    kept = list[Pair]()
    versions = list[list[Pair]]()
    left_out = Counter[tuple[str, str]]()
    for pair in items.pairs:
        try:
            versions.append([_read(pair, words.replaced(pair.texts, rng), reader) for _ in range(N_DRAWS)])
            kept.append(pair)
        except UserError as reason:
            left_out[pair.question, str(reason)] += 1
    return Items(kept, items.left_out + left_out), Items(list(chain(*zip(*versions, strict=True))))


def _content_spans(text: str) -> list[Span]:
    spans = []
    for match in ENGLISH_WORD.finditer(text):
        word = match.group()
        is_free = text[: match.start()].endswith(" ")  # else its tokens depend on the mark before it
        if is_free and len(word) > 2 and word.isalpha() and word.islower() and word not in _NOT_REPLACED:
            spans.append(match.span())
    return spans


def _read(pair: Pair, texts: tuple[str, str], reader: Reader) -> Pair:
    """Return a pair with other texts of the same form; UserError if their tokens are not at the same places."""
    cells = []
    for cell, text in zip(pair.cells, texts, strict=True):
        tokens = (reader.bos_id, *encode_text(reader.tokenizer, text + pair.forms[0]).ids[:-1])
        mentions = list(chain(*cell.meant, *cell.other))
        if len(tokens) != len(cell.tokens) or any(tokens[i] != cell.tokens[i] for i in mentions):
            raise UserError("replaced words have other tokens")
        cells.append(replace(cell, tokens=tokens))
    return replace(pair, cells=(cells[0], cells[1]), texts=texts)
