"""The sentences everybody asks for, as one head sees them: the cat in all its four cells, and tired beside soft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from model.transformer import Transformer
from probe.sentence import Sentence, next_words, word_rows


@dataclass(frozen=True, slots=True)
class Reader:
    """A model and how it is given a text."""

    model: Transformer  # in eval mode
    cut: Callable[[str], Sentence]
    name: Callable[[int], str | None]  # of a token


def four_cells(reader: Reader, head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the it→cat sentence in its four cells, order x pronoun, as `head` sees it."""
    return [
        cell(reader, f"One sunny day, the {first} sat near the {second}. {pronoun}", pronoun, ("cat", "buses"), head)
        for first, second in (("cat", "buses"), ("buses", "cat"))
        for pronoun in ("It", "They")
    ]


def twins(reader: Reader, head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the tired and the soft sentence, each at "it" and at the word that decides."""
    return [
        cell(reader, f"One sunny day, the cat lay on the mat because it was {adjective}", word, ("cat", "mat"), head)
        for adjective in ("tired", "soft")
        for word in ("it", adjective)
    ]


def cell(reader: Reader, text: str, word: str, candidates: tuple[str, str], head: tuple[int, int]) -> dict[str, Any]:
    """Return what `head` at `word` gives each candidate and, where `word` ends the text, what the model expects."""
    sentence = reader.cut(text)
    names = [name for name, _ in sentence.words]
    span = sentence.words[names.index(word)][1]
    row = word_rows(reader.model, sentence, [span])[0].weights[head]
    likely = next_words(reader.model, sentence.ids, 3) if text.endswith(word) else []
    return {
        "text": text,
        "word": word,
        "weights": {name: round(float(row[1 + names.index(name)]), 4) for name in candidates},
        "next": [(reader.name(token), round(chance, 4)) for token, chance in likely],
    }


SHOWCASE = {
    "V at S1": (
        "it→cat in all four cells (a head that follows position or a taste for one noun is right in two)",
        four_cells,
    ),
    "R at S2": (
        'decided later: at "it" both rows are the same to the last bit; only the adjective tells them apart',
        twins,
    ),
}
