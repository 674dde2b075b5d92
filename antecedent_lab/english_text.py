"""The English text that the next pronoun is tested on: files of path=, a run's validation text, or the shipped one."""

from dataclasses import dataclass

from data.corpus import Corpus, validation_documents
from data.next_pronoun import Passage, find_all, sections
from data.text import SHIPPED_TEXT, read_documents, text_files


@dataclass(frozen=True)
class EnglishText:
    """The documents of a text, and the places in it where the next word is a pronoun."""

    documents: list[tuple[str, str]]  # name and text; long documents are cut into sections
    passages: dict[str, list[Passage]]  # by question


def english_text(path: str | None, corpus: Corpus | None) -> EnglishText:
    """Return the text of `path`, otherwise the validation text of `corpus`, otherwise the shipped one."""
    if path is None and corpus is not None:
        texts = validation_documents(corpus)
    else:
        texts = read_documents(text_files(path or str(SHIPPED_TEXT), "path"))
    documents = sections(texts)
    return EnglishText(documents, find_all(documents))
