"""Texts and stories become token arrays once, in a cache folder named by their content."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.corpus
from data.config import TokenizerKind
from data.corpus import Corpus, load_corpus, load_stories, split_documents
from data.stories import generate_split, language_of
from data.stories.floor import Floor
from data.tokenizer import END, end_id
from data.words import words_of
from tests.data.small_corpora import CONFIG as STORIES
from tests.data.small_corpora import decoded, text_config

CONFIG = replace(STORIES, n_validation_stories=160, n_test_frames=2, n_test_pairs=1)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Corpus]:
    """Returns a function that writes a text file and loads its corpus."""

    def load_text(text: str | None = None, **changes: Any) -> Corpus:
        path = Path(changes.pop("path", tmp_path / "input.txt"))
        if text is not None:
            path.write_bytes(text.encode())
        return load_corpus(text_config(path, **changes), tmp_path / "cache")

    return load_text


def test_one_document_is_split_ninety_to_ten_by_characters(load: Callable[..., Corpus]) -> None:
    text = "".join(chr(97 + i % 23) + ("\n" if i % 17 == 0 else "") for i in range(30_011))
    corpus = load(text)
    cut = int(len(text) * 0.9)
    assert decoded(corpus, "train") == END + text[:cut]
    assert decoded(corpus, "validation") == END + text[cut:]
    assert (corpus.train.n_bytes, corpus.validation.n_bytes) == (cut, len(text) - cut)


def test_a_note_reports_text_that_the_tokenizer_loses(load: Callable[..., Corpus]) -> None:
    text = "common words " * 300 + "rare"
    assert load(text, tokenizer=TokenizerKind.bpe).notes == ()
    assert "bits/byte" in load(text, tokenizer=TokenizerKind.words, vocab_size=3).notes[0]


@pytest.mark.parametrize("kept_hashes", [100, 2**24], ids=["a large file", "a small file"])
def test_a_corpus_is_tokenized_once_unless_text_or_settings_change(
    load: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch, kept_hashes: int
) -> None:
    monkeypatch.setattr(data.corpus, "_KEPT_HASHES", kept_hashes)
    first = load("some text " * 50)
    time = (first.folder / "train.bin").stat().st_mtime_ns
    with monkeypatch.context() as patched:
        if kept_hashes == 100:  # the hash of an unchanged large file is kept
            patched.setattr(data.corpus.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
        again = load()
    assert (again.folder / "train.bin").stat().st_mtime_ns == time and again.fingerprint == first.fingerprint
    others = {load(max_bytes=300).fingerprint, load(validation_fraction=0.2).fingerprint}
    assert len({first.fingerprint, load("other text" * 50).fingerprint, *others}) == 4


@pytest.mark.parametrize(
    ("text", "changes", "problem"),
    [
        ("", {}, "empty"),
        ("a", {}, "no text is left"),
        ("some text " * 50, {"column": "body", "path": "input.jsonl"}, "input.jsonl"),
        ("some text " * 50, {"tokenizer": TokenizerKind.file, "tokenizer_path": "missing.json"}, "tokenizer_path"),
    ],
)
def test_a_text_that_cannot_be_used_is_one_line_and_leaves_no_files(
    load: Callable[..., Corpus], tmp_path: Path, text: str, changes: dict[str, Any], problem: str
) -> None:
    changes = {name: str(tmp_path / value) if "path" in name else value for name, value in changes.items()}
    with pytest.raises((ValueError, OSError), match=problem) as error:
        load(text, **changes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").glob("*text*")) == []


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus(CONFIG, tmp_path_factory.mktemp("cache"))


def test_dev_stories_are_generated_at_their_first_use_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    corpus = load_corpus(CONFIG, tmp_path)
    assert list(corpus.folder.glob("*_links.jsonl")) == []
    rows = load_stories(corpus, "dev")
    assert {row.holdout for row in rows} == {"iid", "headline"} and any(row.links for row in rows)
    assert [path.name for path in corpus.folder.glob("*_links.jsonl")] == ["dev_links.jsonl"]
    assert load_stories(corpus, "dev") == rows
    path = corpus.folder / "dev_links.jsonl"
    path.write_text(path.read_text()[:3000])
    with pytest.raises(ValueError, match=f"{path.name}: damaged"):
        load_stories(corpus, "dev")


def test_the_tokens_of_stories_are_those_of_the_tokenizer_and_decode_to_them(corpus: Corpus) -> None:
    texts = [story.text for story in generate_split(CONFIG, "train")]
    assert split_documents(corpus, corpus.train) == texts
    encodings = corpus.tokenizer.encode_batch(texts)
    end = end_id(corpus.tokenizer)
    tokens = [token for encoding in encodings for token in (end, *encoding.ids)]
    assert corpus.train.tokens.tolist() == [*tokens, end]


def test_the_floor_belongs_to_the_tokens_of_its_story(corpus: Corpus) -> None:
    split = corpus.validation
    floor = Floor(language_of(CONFIG, "dev", "iid"))
    texts = [row.text for row in load_stories(corpus, "validation")]
    assert np.isnan(split.floor[0]) and (split.floor[1:] > -1e-6).all()
    for i in range(0, len(texts), 23):
        targets = slice(split.starts[i] + 1, split.starts[i + 1] + 1)
        words = [corpus.tokenizer.id_to_token(int(token)) for token in split.tokens[targets]]
        assert words == [*words_of(texts[i]), END]
        np.testing.assert_allclose(split.floor[targets], floor.surprisal(texts[i]), rtol=1e-5, atol=1e-6)


def test_too_few_training_stories_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data.n_train_stories=8"):
        load_corpus(replace(CONFIG, n_train_stories=8), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_tokenization_continues_and_gives_the_same_tokens(
    load: Callable[..., Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops in the middle of a shard; the texts of finished shards are not encoded again."""
    text = "\n<|endoftext|>\n".join(f"story {i} of the cat and the dog number {i * 7}" for i in range(2000))
    expected = load(text, path=tmp_path / "whole.txt")
    encode = data.corpus.encode
    n_encoded: list[int] = []

    def stops(tokenizer: Any, texts: list[str]) -> list[list[int]]:
        n_encoded.append(len(texts))
        if len(n_encoded) == 9:
            raise KeyboardInterrupt
        return encode(tokenizer, texts)

    monkeypatch.setattr(data.corpus, "_SHARD", 20_000)
    monkeypatch.setattr(data.corpus, "encode", stops)
    folders = set((tmp_path / "cache").iterdir())
    (tmp_path / "cut.txt").write_text(text + " ")
    with pytest.raises(KeyboardInterrupt):
        load(path=tmp_path / "cut.txt")
    [unfinished] = [path for path in set((tmp_path / "cache").iterdir()) - folders if path.is_dir()]
    assert (unfinished / "progress.json").exists() and (unfinished / "train.bin").stat().st_size > 0

    resumed = load(path=tmp_path / "cut.txt")
    assert sum(n_encoded) < 2000 + 9 * 128 and not unfinished.exists()
    assert resumed.train.tokens.tolist() == expected.train.tokens.tolist()
    same_text = resumed.validation.tokens[:-1]  # the cut file ends with a space
    assert same_text.tolist() == expected.validation.tokens[: len(same_text)].tolist()
    assert not (resumed.folder / "progress.json").exists()
