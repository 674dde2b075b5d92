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


@dataclass(frozen=True, slots=True)
class Asked:
    """A sentence, the word at which a head is read, and the two it may look at there."""

    text: str
    word: str
    candidates: tuple[str, str]
    meant: int  # which of them the word, or the pronoun it decides about, stands for

    @property
    def antecedent(self) -> str:
        """The candidate that is meant."""
        return self.candidates[self.meant]

    @property
    def distractor(self) -> str:
        """The other one."""
        return self.candidates[1 - self.meant]


FOUR_CELLS = [
    Asked(f"One sunny day, the {first} sat near the {second}. {pronoun}", pronoun, ("cat", "buses"), meant)
    for first, second in (("cat", "buses"), ("buses", "cat"))
    for meant, pronoun in enumerate(("It", "They"))
]
TWINS = [
    Asked(f"One sunny day, the cat lay on the mat because it was {adjective}", word, ("cat", "mat"), meant)
    for meant, adjective in enumerate(("tired", "soft"))
    for word in ("it", adjective)
]
SHOWCASE = {
    "V at S1": (
        "it→cat in all four cells (a head that follows position or a taste for one noun is right in two)",
        FOUR_CELLS,
    ),
    "R at S2": (
        'decided later: at "it" both rows are the same to the last bit; only the adjective tells them apart',
        TWINS,
    ),
}


def cells(reader: Reader, asked: list[Asked], head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return of each sentence what `head` at its word gives each candidate, and what the model expects next.

    The last only where the word ends the text.
    """
    found = []
    for one in asked:
        sentence = reader.cut(one.text)
        names = [name for name, _ in sentence.words]
        span = sentence.words[names.index(one.word)][1]
        row = word_rows(reader.model, sentence, [span])[0].weights[head]
        likely = next_words(reader.model, sentence.ids, 3) if one.text.endswith(one.word) else []
        weights = {name: round(float(row[1 + names.index(name)]), 4) for name in one.candidates}
        following = [(reader.name(token), round(chance, 4)) for token, chance in likely]
        found.append({"text": one.text, "word": one.word, "weights": weights, "next": following})
    return found
