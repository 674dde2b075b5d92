"""Documents come out of files unchanged, become token arrays once, and batches that are a function of (seed, step)."""

import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

import data.corpus
from data.config import HubConfig, TokenizerKind
from data.corpus import Corpus, load_corpus, load_stories, split_documents
from data.loader import IGNORE, BatchLoader, Split, StorySplit, training_batches, validation_batches
from data.stories import generate_split, language_of
from data.stories.floor import Floor
from data.text import Piece, file_texts, first_bytes, hub_texts, read_documents, read_files, text_files
from data.tokenizer import END, end_id
from data.words import words_of
from tests.data.small_corpora import CONFIG as STORIES
from tests.data.small_corpora import decoded, text_config
from tests.program import ROOT, run_python
from training.settings import compose_settings

Load = Callable[..., Corpus]
SMALL = replace(STORIES, n_validation_stories=160, n_test_frames=2, n_test_pairs=1)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Returns a function that writes a text file and loads its corpus."""

    def load_text(text: str | None = None, **changes: Any) -> Corpus:
        path = Path(changes.pop("path", tmp_path / "input.txt"))
        if text is not None:
            path.write_bytes(text.encode())
        return load_corpus(text_config(path, **changes), tmp_path / "cache")

    return load_text


def test_one_document_is_split_ninety_to_ten_by_characters(load: Load) -> None:
    text = "".join(chr(97 + i % 23) + ("\n" if i % 17 == 0 else "") for i in range(30_011))
    corpus = load(text)
    cut = int(len(text) * 0.9)
    assert decoded(corpus, "train") == END + text[:cut]
    assert decoded(corpus, "validation") == END + text[cut:]
    assert (corpus.train.n_bytes, corpus.validation.n_bytes) == (cut, len(text) - cut)


def test_a_note_reports_text_that_the_tokenizer_loses(load: Load) -> None:
    text = "common words " * 300 + "rare"
    assert load(text, tokenizer=TokenizerKind.bpe).notes == ()
    assert "bits/byte" in load(text, tokenizer=TokenizerKind.words, vocab_size=3).notes[0]


@pytest.mark.parametrize("kept_hashes", [100, 2**24], ids=["a large file", "a small file"])
def test_a_corpus_is_tokenized_once(load: Load, monkeypatch: pytest.MonkeyPatch, kept_hashes: int) -> None:
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
    ],
)
def test_an_unusable_text_leaves_no_files(load: Load, tmp_path: Path, text: str, changes: dict, problem: str) -> None:
    changes = {name: str(tmp_path / value) if "path" in name else value for name, value in changes.items()}
    with pytest.raises((ValueError, OSError), match=problem):
        load(text, **changes)
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").glob("*text*")) == []


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus(SMALL, tmp_path_factory.mktemp("cache"))


def test_dev_stories_are_generated_once_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    corpus = load_corpus(SMALL, tmp_path)
    assert list(corpus.folder.glob("*_links.jsonl")) == []
    rows = load_stories(corpus, "dev")
    assert {row.holdout for row in rows} == {"iid", "headline"} and any(row.links for row in rows)
    assert [path.name for path in corpus.folder.glob("*_links.jsonl")] == ["dev_links.jsonl"]
    assert load_stories(corpus, "dev") == rows
    path = corpus.folder / "dev_links.jsonl"
    path.write_text(path.read_text()[:3000])
    with pytest.raises(ValueError, match=f"{path.name}: damaged"):
        load_stories(corpus, "dev")


def test_the_tokens_of_stories_are_those_of_the_tokenizer(corpus: Corpus) -> None:
    texts = [story.text for story in generate_split(SMALL, "train")]
    assert split_documents(corpus, corpus.train) == texts
    encodings = corpus.tokenizer.encode_batch(texts)
    end = end_id(corpus.tokenizer)
    tokens = [token for encoding in encodings for token in (end, *encoding.ids)]
    assert corpus.train.tokens.tolist() == [*tokens, end]


def test_the_floor_belongs_to_the_tokens_of_its_story(corpus: Corpus) -> None:
    split = corpus.validation
    floor = Floor(language_of(SMALL, "dev", "iid"))
    texts = [row.text for row in load_stories(corpus, "validation")]
    assert np.isnan(split.floor[0]) and (split.floor[1:] > -1e-6).all()
    for i in range(0, len(texts), 23):
        targets = slice(split.starts[i] + 1, split.starts[i + 1] + 1)
        words = [corpus.tokenizer.id_to_token(int(token)) for token in split.tokens[targets]]
        assert words == [*words_of(texts[i]), END]
        np.testing.assert_allclose(split.floor[targets], floor.surprisal(texts[i]), rtol=1e-5, atol=1e-6)


def test_too_few_training_stories_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data.n_train_stories=8"):
        load_corpus(replace(SMALL, n_train_stories=8), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_tokenization_continues(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert (unfinished / "tokenized.json").exists() and (unfinished / "train.bin").stat().st_size > 0

    resumed = load(path=tmp_path / "cut.txt")
    assert sum(n_encoded) < 2000 + 9 * 128 and not unfinished.exists()
    assert resumed.train.tokens.tolist() == expected.train.tokens.tolist()
    same_text = resumed.validation.tokens[:-1]  # the cut file ends with a space
    assert same_text.tolist() == expected.validation.tokens[: len(same_text)].tolist()
    assert not (resumed.folder / "tokenized.json").exists()


DOCUMENTS = ["One.", "Two <|endoftext|> still two.\n\nYes.", "naïve 🙂", "NA", "007", "2021-01-01 x"]


def documents(path: Path | str, column: str = "text") -> list[str]:
    return read_documents(text_files(str(path)), column)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "characters_of_a_glob[1]*.jsonl"])
def test_each_row_with_text_is_a_document(tmp_path: Path, name: str) -> None:
    texts = [*DOCUMENTS, "", None, "last"]
    table = Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
    write = {"jsonl": table.to_json, "csv": table.to_csv, "parquet": table.to_parquet}
    write[name.rpartition(".")[2]](tmp_path / name)
    assert documents(tmp_path / name) == [*DOCUMENTS, "last"]
    with pytest.raises(ValueError, match="data.column=body.*id, text"):
        documents(tmp_path / name, "body")


def test_end_tokens_separate_documents_and_line_ends_become_newlines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{END}\nOne.\n{END}\n\nTwo {END} still two.\n  {END}  \n{END}\nThree.")
    assert documents(tmp_path / "a.txt") == ["One.\n", f"\nTwo {END} still two.\n", "Three."]
    # Without a byte order mark
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
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: "):
        documents(tmp_path / name)


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
    changes = {"name": str(tmp_path / "dataset"), "validation_split": "validation", "validation_fraction": 0.5}
    return replace(compose_settings(["data=hub", "data.name=x"]).data, **changes)


@pytest.mark.parametrize("n", [None, 3])
def test_the_splits_of_a_dataset_are_kept(hub_config: HubConfig, tmp_path: Path, n: int) -> None:
    max_bytes = n and len("train 0") * n
    corpus = load_corpus(replace(hub_config, max_bytes=max_bytes), tmp_path / "cache")
    assert decoded(corpus, "train").split(END)[1:] == [f"train {i}" for i in range(n or 30)]
    assert decoded(corpus, "validation") == END + "held out"
    assert isinstance(corpus.config, HubConfig) and corpus.config.revision


@pytest.mark.parametrize(("setting", "value"), [("split", "test"), ("subset", "small"), ("validation_split", "train")])
def test_a_split_that_does_not_exist_is_named(hub_config: HubConfig, tmp_path: Path, setting: str, value: str) -> None:
    changes: dict[str, Any] = {"validation_split": None} if setting != "validation_split" else {}
    with pytest.raises(ValueError, match="data.*" + re.escape(value)):
        hub_texts(replace(hub_config, **changes | {setting: value}), tmp_path)


@pytest.mark.slow
def test_without_network_the_hub_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    command = [str(ROOT / "train.py"), "data=tinystories", f"cache_dir={tmp_path}", "max_steps=1"]
    result = run_python(*command, cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: data.name=roneneldan/TinyStories")
    assert not list(tmp_path.glob("hub-*"))


CPU = torch.device("cpu")
LENGTHS = np.random.default_rng(0).integers(3, 19, size=101)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
PACKED = StorySplit(
    tokens=np.arange(STARTS[-1] + 1).astype(np.uint16),  # the token at position i is i
    n_bytes=1,
    starts=STARTS,
    floor=np.arange(STARTS[-1] + 1).astype(np.float32) / 8,
)
STREAM = Split(tokens=np.arange(1009).astype(np.uint16), n_bytes=1)


@pytest.mark.parametrize("split", [PACKED, STREAM])
def test_a_batch_depends_on_seed_and_step_alone(split: Split) -> None:
    forwards, backwards, other_seed = (
        training_batches(split, tokens_per_batch=64, context_length=19, seed=seed) for seed in (7, 7, 8)
    )
    batches = [forwards.at(step) for step in range(60)]
    for step in reversed(range(60)):
        batch = backwards.at(step)
        assert torch.equal(batches[step].tokens, batch.tokens) and torch.equal(batches[step].targets, batch.targets)
    assert not all(torch.equal(batches[step].tokens, other_seed.at(step).tokens) for step in range(5))


def test_an_epoch_has_every_story_once_and_the_next_epoch_has_another_order() -> None:
    batches, epochs, step = training_batches(PACKED, tokens_per_batch=64, context_length=19, seed=1), [], 0
    n_places = 0
    for _ in range(2):
        targets: list[int] = []
        while len(targets) < STARTS[-1]:
            batch = batches.at(step)
            targets += batch.targets[batch.targets != IGNORE].tolist()
            n_places += batch.targets.numel()
            step += 1
        epochs.append(targets)
    assert sum(map(len, epochs)) > 0.85 * n_places  # best-fit rows; in the order of the shuffle .73
    assert all(sorted(targets) == list(range(1, int(STARTS[-1]) + 1)) for targets in epochs)
    assert epochs[0] != epochs[1]


def test_rows_hold_whole_stories_numbered_by_document_id() -> None:
    batches = training_batches(PACKED, tokens_per_batch=100, context_length=23, seed=1)
    n_stories = 0
    for step in range(9):
        batch = batches.at(step)
        assert batch.document_ids is not None and batch.tokens.shape == (100 // 23, 23)
        for tokens, targets, documents in zip(batch.tokens, batch.targets, batch.document_ids, strict=True):
            assert ((targets == IGNORE) == (documents == -1)).all()
            for document in range(int(documents.max()) + 1):
                story = tokens[documents == document].tolist()
                index = int(np.searchsorted(STARTS, story[0]))
                assert story == list(range(int(STARTS[index]), int(STARTS[index + 1])))
                assert targets[documents == document].tolist() == [token + 1 for token in story]
                n_stories += 1
    assert n_stories > 9 * (100 // 23)  # more than one story per row


@pytest.mark.parametrize("split", [PACKED, STREAM])
@pytest.mark.parametrize("tokens_per_batch", [1, 64, 10**6])
def test_validation_predicts_every_token_once_or_about_n(split: Split, tokens_per_batch: int) -> None:
    batches = validation_batches(split, tokens_per_batch=tokens_per_batch, context_length=19, n_tokens=None)
    targets = torch.cat([batch.targets[batch.targets != IGNORE] for batch in batches])
    assert sorted(targets.tolist()) == list(range(1, len(split.tokens)))
    few = validation_batches(split, tokens_per_batch=tokens_per_batch, context_length=19, n_tokens=200)
    assert 180 <= sum(int((batch.targets != IGNORE).sum()) for batch in few) <= 220


@pytest.mark.parametrize(("split", "context_length"), [(PACKED, 17), (STREAM, 1009)])
def test_a_context_that_does_not_fit_the_text_is_refused(split: Split, context_length: int) -> None:
    with pytest.raises(ValueError, match=f"model.context_length={context_length}"):
        training_batches(split, tokens_per_batch=64, context_length=context_length, seed=0)


@pytest.mark.parametrize("n_ranks", [2, 3, 50])
@pytest.mark.parametrize("split", [PACKED, STREAM])
@pytest.mark.parametrize("pad", [False, True])
def test_ranks_share_rows_which_padding_completes_and_count_all_targets(split: Split, n_ranks: int, pad: bool) -> None:
    batches = training_batches(split, tokens_per_batch=100, context_length=20, seed=1)  # 5 rows, or fewer
    ranks = [BatchLoader(batches, CPU, rows=slice(rank, None, n_ranks), pad=pad) for rank in range(n_ranks)]
    for step in range(30):
        batch, shards = BatchLoader(batches, CPU)(step), [rank(step) for rank in ranks]
        assert {shard.n_targets for shard in shards} == {batch.n_targets} == {int((batch.targets != IGNORE).sum())}
        for rank, shard in enumerate(shards):
            n_rows = max(1, len(range(5)[rank::n_ranks]))  # a rank without rows gets an ignored row
            assert len(shard.targets) == n_rows if pad else 1 <= len(shard.targets) <= n_rows
            assert split is STREAM or (shard.inputs[1][shard.targets == IGNORE] == -1).all()
        targets = torch.cat([shard.targets for shard in shards])
        rows = {tuple(row) for row in targets.tolist() if set(row) != {IGNORE}}
        assert rows == {tuple(row) for row in batch.targets.tolist() if set(row) != {IGNORE}}
