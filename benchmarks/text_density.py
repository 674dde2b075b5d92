"""How many places of a text can be used for the question about the next pronoun: with two genders, per 10,000 words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import MISSING
from probe.gold import load_passages
from probe.natural import sections

from antecedent_lab.english_text import TextKind, files_of_path
from benchmarks.measure import listed, row_table, start_benchmark, write_page
from data.next_pronoun import Passage, find_all
from data.text import read_documents
from data.words import words_of


@dataclass
class _TextDensityOptions:
    """python -m benchmarks.text_density paths=FILE,FILE."""

    paths: str = MISSING
    max_characters: int = 6_000_000  # of each text, from its beginning


@dataclass(frozen=True)
class _Density:
    """Places in one text per 10,000 of its words."""

    text: str
    n_words: int
    two_genders: float  # a woman and a man before "she" or "he", no earlier pronoun
    one_person: float
    one_and_several: float  # one thing and several things before "it" or "they"


@dataclass(frozen=True)
class TextDensityResults:
    """The table of the page."""

    texts: list[_Density]

    def lines(self) -> list[str]:
        return row_table(
            "text | words read | two genders | one person | one thing and several",
            "{text} | {n_words:,} | {two_genders:.1f} | {one_person:.1f} | {one_and_several:.1f}",
            self.texts,
        )


def _density(path: str, max_characters: int) -> _Density:
    """Return the places in the beginning of a text; UserError if it cannot be read."""
    kind, files = files_of_path(path)
    if kind is TextKind.passages:
        documents = [text for file in files for text in load_passages(file)]
    else:
        documents = read_documents(files)

    # Whole documents until enough is read; the last one is cut.
    read: list[str] = []
    remaining = max_characters
    for document in documents:
        if remaining <= 0:
            break
        read.append(document[:remaining])
        remaining -= len(document)
    n_words = sum(len(words_of(document)) for document in read)
    found = find_all(sections(read, only_long=True))

    per_10_000 = partial(_rate, found, n_words)
    return _Density(
        text="/".join(Path(path).parts[-2:]),
        n_words=n_words,
        two_genders=per_10_000("gender", "two"),
        one_person=per_10_000("gender", "one"),
        one_and_several=per_10_000("number", "two"),
    )


def _rate(found: Mapping[str, Sequence[Passage]], n_words: int, question: str, kind: str) -> float:
    """Return the places of a question and kind, without an earlier pronoun, per 10,000 words."""
    return 10_000 * sum(_is_usable(passage, kind) for passage in found[question]) / n_words


def _is_usable(passage: Passage, kind: str) -> bool:
    return passage.kind == kind and not passage.pronouns


def main(options: _TextDensityOptions) -> None:
    """Write the page."""
    texts = [_density(path, options.max_characters) for path in listed(options.paths)]
    write_page("text_density", "Places before a pronoun in public texts", TextDensityResults(texts), 1)


if __name__ == "__main__":
    start_benchmark(main, _TextDensityOptions)
