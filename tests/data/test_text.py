"""Documents come out of text files, tables and dataset folders unchanged, and problems are one line."""

import gzip
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from data.config import HubConfig, RowsKind, TokenizerKind
from data.corpus import load_corpus
from data.text import Piece, file_texts, first_bytes, hub_texts, read_documents, read_files, text_files
from data.tokenizer import END
from tests.data.small_corpora import decoded, text_config

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["One.", "Two <|endoftext|> still two.\n\nYes.", "naïve 🙂", "NA", "007", "2021-01-01 x"]


def documents(path: Path | str, column: str = "text") -> list[str]:
    return read_documents(text_files(str(path)), column)


def write_table(path: Path, texts: list[str | None]) -> None:
    table = Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
    write = {"jsonl": table.to_json, "csv": table.to_csv, "parquet": table.to_parquet}
    write[path.suffix[1:]](path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "characters_of_a_glob[1]*.jsonl"])
def test_each_row_with_text_is_a_document(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, [*DOCUMENTS, "", None, "last"])
    assert documents(tmp_path / name) == [*DOCUMENTS, "last"]
    with pytest.raises(ValueError, match="data.column=body.*id, text"):
        documents(tmp_path / name, "body")


def test_lines_with_the_end_token_alone_separate_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{END}\nOne.\n{END}\n\nTwo {END} still two.\n  {END}  \n{END}\nThree.")
    assert documents(tmp_path / "a.txt") == ["One.\n", f"\nTwo {END} still two.\n", "Three."]


def test_line_ends_become_newlines_and_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\x00d")
    assert documents(tmp_path / "a.txt") == ["a\nb\nc\n\x00d"]
    (tmp_path / "a.jsonl").write_text('{"text": "a\\r\\nb\\rc"}')
    assert documents(tmp_path / "a.jsonl") == ["a\nb\nc"]


@pytest.mark.parametrize("end", ["\n", " ", "x"])
def test_pieces_are_short_and_join_to_the_document(tmp_path: Path, end: str) -> None:
    text = "".join(f"word {i} é{end}" for i in range(20_000))
    (tmp_path / "long.txt").write_text(text)
    pieces = list(read_files([tmp_path / "long.txt"], "text"))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.starts_document for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece.text) for piece in pieces) < 20_000


def test_a_folder_a_glob_and_a_list_stand_for_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "sub/d.txt", ".hidden/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    a, b, d = (tmp_path / name for name in ("a.txt", "b.txt", "sub/d.txt"))
    assert text_files(str(tmp_path)) == [a, b, d]
    assert text_files(f"{tmp_path}/*.txt") == [a, b] == text_files(f"{a}, {b},{a}")
    assert text_files(f"{tmp_path}/**/d.txt") == [d]


@pytest.mark.parametrize("name", ["missing.txt", "c.md", "folder"])
def test_a_path_without_readable_files_names_the_setting(tmp_path: Path, name: str) -> None:
    (tmp_path / "c.md").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises((FileNotFoundError, ValueError), match=f"data.path=.*{name}"):
        text_files(str(tmp_path / name))
    with pytest.raises(ValueError, match="data.path=: .*empty"):
        text_files("")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"abc \xff\xfe"),
        ("a.txt", b"The cat ran. " * 300 + b"\xed\xa0\x80"),
        ("a.txt.gz", gzip.compress(b"some text " * 999, mtime=0)[:-9]),
        ("a.jsonl", b'{"text": "a"}\n{"te'),
        ("a.jsonl", b'{"text": "\\ud800"}\n'),
        ("a.jsonl", b'{"text": 1}\n'),
        ("a.csv", b'text\n"never closed\n'),
        ("a.parquet", b"PAR1"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: ") as error:
        documents(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_file_in_both_splits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to("a.txt")
    with pytest.raises(ValueError, match="data.validation_path"):
        file_texts(text_config(tmp_path / "a.txt", validation_path=str(tmp_path / "link.txt")))


def test_max_bytes_keeps_whole_pieces_up_to_the_limit() -> None:
    pieces = [Piece("aé", True), Piece("bc", True), Piece("d", True)]
    assert list(first_bytes(pieces, None)) == pieces
    assert list(first_bytes(pieces, 5)) == list(first_bytes(pieces, 5)) == pieces[:2]
    assert list(first_bytes(pieces, 4)) == pieces[:1]
    assert list(first_bytes(pieces, 2)) == [Piece("a", True)]  # é has two bytes


@pytest.fixture
def hub_config(tmp_path: Path) -> HubConfig:
    """Returns the config of a dataset folder in the layout of the hub."""
    folder = tmp_path / "dataset" / "data"
    folder.mkdir(parents=True)
    Dataset.from_dict({"text": [f"train {i}" for i in range(30)]}).to_parquet(folder / "train-00000-of-00001.parquet")
    Dataset.from_dict({"text": ["held out"]}).to_parquet(folder / "validation-00000-of-00001.parquet")
    return HubConfig(
        source="hub", name=str(tmp_path / "dataset"), subset=None, revision=None, split="train",
        validation_split="validation", validation_fraction=0.5, files=None, column="text", rows=RowsKind.documents,
        max_bytes=None, tokenizer=TokenizerKind.bpe, vocab_size=300, tokenizer_path=None,
    )  # fmt: skip


@pytest.mark.parametrize("n", [None, 3])
def test_the_splits_of_a_dataset_are_the_splits_of_the_corpus(hub_config: HubConfig, tmp_path: Path, n: int) -> None:
    max_bytes = n and len("train 0") * n
    corpus = load_corpus(replace(hub_config, max_bytes=max_bytes), tmp_path / "cache")
    assert decoded(corpus, "train").split(END)[1:] == [f"train {i}" for i in range(n or 30)]
    assert decoded(corpus, "validation") == END + "held out"
    assert isinstance(corpus.config, HubConfig) and corpus.config.revision


@pytest.mark.parametrize(
    ("setting", "value"), [("split", "test"), ("subset", "small"), ("files", "*.csv"), ("validation_split", "train")]
)
def test_a_split_that_does_not_exist_is_one_line_with_its_setting(
    hub_config: HubConfig, tmp_path: Path, setting: str, value: str
) -> None:
    changes: dict[str, Any] = {"validation_split": None} if setting != "validation_split" else {}
    with pytest.raises(ValueError, match="data.*" + re.escape(value)) as error:
        hub_texts(replace(hub_config, **changes | {setting: value}), tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_without_network_the_hub_is_an_error_of_one_line_with_status_two(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), "data=tinystories", f"cache_dir={tmp_path}", "max_steps=1"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: data.name=roneneldan/TinyStories")
    assert not list(tmp_path.glob("hub-*"))
