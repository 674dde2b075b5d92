"""The English text of the questions: files of path=, a run's validation text, or the shipped one."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from data.corpus import Corpus, validation_documents
from data.errors import UserError
from data.natural import Prefix
from data.next_pronoun import Passage, find_all, passage_of_gold
from data.text import SHIPPED_TEXT, read_documents, text_files
from probe.gold import gold_prefixes, load_gold_rows, load_passages
from probe.natural import describe, prefixes_in, sections


@dataclass(frozen=True)
class EnglishText:
    """What the questions about English need of a text."""

    documents: list[tuple[str, str]]  # name and text; long documents are cut into sections
    passages: dict[str, list[Passage]]  # by question
    prefixes: dict[str, list[Prefix]]
    contents: str  # a description for messages


def english_text(path: str | None, corpus: Corpus | None) -> EnglishText:
    """Return the passages and prefixes of a text.

    It is that of `path` (`files_of_path`), otherwise the validation text of `corpus`, otherwise the one that comes with
    the project.
    """
    # Documents; or rows with gold links, which have no text between them.
    if path is None and corpus is not None:
        texts = validation_documents(corpus)
    else:
        kind, files = files_of_path(path or str(SHIPPED_TEXT))
        if kind is TextKind.gold:
            rows = [row for file in files for row in load_gold_rows(file)]
            gold = gold_prefixes(rows)
            passages = {"gender": [passage_of_gold(prefix) for prefix in gold]}
            return EnglishText([], passages, {"gender": gold}, f"{len(rows):,} rows")
        texts = _texts_of(kind, files)

    # Prefixes are found in whole documents, passages in sections of them.
    documents = sections(texts, only_long=True)
    return EnglishText(documents, find_all(documents), prefixes_in(texts), describe(texts))


class TextKind(Enum):
    """What the files of path= hold."""

    english = "english"
    passages = "passages"  # a .tsv file as GAP has them
    gold = "gold"  # rows with annotated antecedents


def files_of_path(path: str) -> tuple[TextKind, list[Path]]:
    """Return what the files of a path hold, and the files.

    A path names text files (data/text.py), a .tsv file of passages as GAP has them, or .jsonl files with gold links.
    """
    # Tables of passages stand alone.
    patterns = list(map(str.strip, path.split(",")))
    is_table = [pattern.endswith(".tsv") for pattern in patterns]
    if any(is_table) and not all(is_table):
        raise UserError(f"path={path}: a .tsv file of passages is tested by itself; leave the others out")
    if all(is_table):
        tables = list[Path]()
        for pattern in patterns:
            tables += map(Path, sorted(glob.glob(pattern)))
        if not tables:
            raise FileNotFoundError(f"path={path}: no such file")
        return TextKind.passages, tables
    # The first line of a .jsonl file says whether its rows have gold links.
    files = text_files(path, "path")
    with files[0].open(encoding="utf-8", errors="replace") as lines:
        has_links = files[0].suffix == ".jsonl" and '"pron_pos"' in lines.readline()
    return (TextKind.gold if has_links else TextKind.english), files


def _texts_of(kind: TextKind, files: Sequence[Path]) -> list[str]:
    """Return the documents of text files, or the passages of tables."""
    if kind is TextKind.passages:
        return [text for file in files for text in load_passages(file)]
    return read_documents(files)
