"""Documents come out of files unchanged, become token arrays once, and batches that are a function of (seed, step)."""

import gzip
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from data.corpus import load_corpus, load_stories, split_documents
from data.loader import IGNORE, BatchLoader, Split, StorySplit, training_batches
from data.stories import generate_split, language_of
from data.stories.floor import Floor
from data.text import Piece, file_texts, first_bytes, hub_texts, read_documents, read_files, text_files
from data.tokenizer import END
from data.words import words_of
from settings.data import HubConfig, TokenizerKind
from settings.train import compose_settings
from tests.data.small_corpora import CONFIG as STORIES
from tests.data.small_corpora import decoded, text_config
from tests.program import ROOT, run_python

SMALL = replace(STORIES, n_validation_stories=160, n_test_frames=2, n_test_pairs=1)


def load(folder, text, **changes):
    (folder / "input.txt").write_text(text)
    return load_corpus(text_config(folder / "input.txt", **changes), folder / "cache")


def test_one_document_is_split_ninety_to_ten_by_characters(tmp_path):
    text = "".join(chr(97 + i % 23) + ("\n" if i % 17 == 0 else "") for i in range(30_011))
    corpus = load(tmp_path, text)
    cut = int(len(text) * 0.9)
    assert decoded(corpus, "train") == END + text[:cut]
    assert decoded(corpus, "validation") == END + text[cut:]
    assert (corpus.train.n_bytes, corpus.validation.n_bytes) == (cut, len(text) - cut)


def test_a_note_reports_text_that_the_tokenizer_loses(tmp_path):
    text = "common words " * 300 + "rare"
    assert load(tmp_path, text, tokenizer=TokenizerKind.bpe).notes == ()
    [note] = load(tmp_path, text, tokenizer=TokenizerKind.words, vocab_size=3).notes
    assert re.search(r"unknown tokens: [1-9].*bits/byte", note)


def test_a_corpus_is_tokenized_once(tmp_path):
    text = "some text " * 50
    first = load(tmp_path, text)
    time = (first.folder / "train.bin").stat().st_mtime_ns
    again = load_corpus(text_config(tmp_path / "input.txt"), tmp_path / "cache")
    assert (again.folder / "train.bin").stat().st_mtime_ns == time and again.fingerprint == first.fingerprint
    others = [load(tmp_path, text, max_bytes=300), load(tmp_path, text, validation_fraction=0.2)]
    others.append(load(tmp_path, "other text" * 50))
    assert len({corpus.fingerprint for corpus in (first, *others)}) == 4


def test_an_unusable_corpus_leaves_no_files(tmp_path):
    for text, problem in (("", "empty"), ("a", "no text is left")):
        with pytest.raises(ValueError, match=problem):
            load(tmp_path, text)
    (tmp_path / "input.jsonl").write_text("no JSON")
    for config, problem in (
        (text_config(tmp_path / "input.jsonl"), "input.jsonl"),
        (replace(SMALL, n_train_stories=8), "data.n_train_stories=8"),
    ):
        with pytest.raises(ValueError, match=problem):
            load_corpus(config, tmp_path / "cache")
    assert list(tmp_path.glob("cache/*")) == []


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return load_corpus(SMALL, tmp_path_factory.mktemp("cache"))


def test_the_tokens_of_stories_are_their_words_and_each_has_its_floor(corpus):
    split = corpus.validation
    texts = [story.text for story in load_stories(corpus, "validation")]
    assert load_stories(corpus, "dev") == load_stories(corpus, "dev") == generate_split(SMALL, "dev")  # made, then read
    assert (corpus.folder / "dev_stories.json").exists()
    assert split_documents(corpus, split) == texts
    floor = Floor(language_of(SMALL, "dev", "iid"))
    assert np.isnan(split.floor[0]) and (split.floor[1:] > -1e-6).all()
    for i in range(0, len(texts), 23):
        targets = slice(split.starts[i] + 1, split.starts[i + 1] + 1)
        words = list(map(corpus.tokenizer.id_to_token, split.tokens[targets].tolist()))
        assert words == [*words_of(texts[i]), END]
        np.testing.assert_allclose(split.floor[targets], floor.surprisal(texts[i]), rtol=1e-5, atol=1e-6)


def test_a_killed_tokenization_starts_again(tmp_path):
    expected = load(tmp_path, "some text " * 50)
    cache = tmp_path / "again"
    unfinished = cache / f".unfinished-{expected.folder.name}"  # as a killed process leaves it
    unfinished.mkdir(parents=True)
    (unfinished / "train.bin").write_bytes(b"half")
    folder = load_corpus(text_config(tmp_path / "input.txt"), cache).folder
    assert [path.name for path in cache.iterdir()] == [folder.name]
    assert (folder / "train.bin").read_bytes() == (expected.folder / "train.bin").read_bytes()


def documents(path):
    return read_documents(text_files(str(path)))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet", "characters_of_a_glob[1]*.jsonl"])
def test_each_row_with_text_is_a_document(tmp_path, name):
    texts = ["One.", f"Two {END} still two.\n\nYes.", "naïve 🙂", "NA", "007", "2021-01-01 x", "", None, "last"]
    table = Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
    write = {"jsonl": table.to_json, "csv": table.to_csv, "parquet": table.to_parquet}
    write[name.rpartition(".")[2]](tmp_path / name)
    assert documents(tmp_path / name) == [text for text in texts if text]
    with pytest.raises(ValueError, match="data.column=body.*id, text"):
        next(read_files([tmp_path / name], "body"))


def test_end_tokens_separate_documents_and_line_ends_become_newlines(tmp_path):
    (tmp_path / "a.txt").write_text(f"{END}\nOne.\n{END}\n\nTwo {END} still two.\n  {END}  \n{END}\nThree.")
    assert documents(tmp_path / "a.txt") == ["One.\n", f"\nTwo {END} still two.\n", "Three."]
    # Without a byte order mark
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\x00d")
    assert documents(tmp_path / "a.txt") == ["a\nb\nc\n\x00d"]
    (tmp_path / "a.jsonl").write_text('{"text": "a\\r\\nb\\rc"}')
    assert documents(tmp_path / "a.jsonl") == ["a\nb\nc"]


@pytest.mark.parametrize("end", ["\n", " ", "x"])
def test_pieces_are_short_and_join_to_the_document(tmp_path, end):
    text = "".join(f"word {i} é{end}" for i in range(20_000))
    (tmp_path / "long.txt").write_text(text)
    pieces = list(read_files([tmp_path / "long.txt"], "text"))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.starts_document for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert max(len(piece.text) for piece in pieces) < 20_000


def test_a_folder_a_glob_and_a_list_stand_for_files(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", "sub/d.txt", ".hidden/e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    a, b, d = (tmp_path / name for name in ("a.txt", "b.txt", "sub/d.txt"))
    assert text_files(str(tmp_path)) == [a, b, d]
    assert text_files(f"{tmp_path}/*.txt") == [a, b] == text_files(f"{a}, {b},{a}")
    assert text_files(f"{tmp_path}/**/d.txt") == [d]


def test_a_shipped_text_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Path("data/tinystories/train.txt.gz")
    assert text_files(str(own))[0].samefile(ROOT / own)
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    assert text_files(str(own)) == [own]
    with pytest.raises(FileNotFoundError, match="setup.txt"):
        text_files("data/tinystories/setup.txt")


def test_a_path_that_cannot_be_read_names_the_setting(tmp_path):
    for name in ("a.txt", "c.md"):
        (tmp_path / name).write_text("x")
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "folder").mkdir()
    for name in ("missing.txt", "c.md", "folder"):
        with pytest.raises((FileNotFoundError, ValueError), match=f"data.path=.*{name}"):
            text_files(str(tmp_path / name))
    with pytest.raises(ValueError, match="data.path=: .*empty"):
        text_files("")
    with pytest.raises(ValueError, match="data.validation_path"):  # a file in both splits
        file_texts(text_config(tmp_path / "a.txt", validation_path=str(tmp_path / "link.txt")))


@pytest.mark.parametrize(("name", "content"), [
    ("a.txt", b"The cat ran. " * 300 + b"\xed\xa0\x80"),
    ("a.txt.gz", gzip.compress(b"some text " * 999, mtime=0)[:-9]),
    ("a.jsonl", b'{"text": "a"}\n{"te'),
    ("a.jsonl", b'{"text": "\\ud800"}\n'),
    ("a.jsonl", b'{"text": 1}\n'),
    ("a.csv", b'text\n"never closed\n'),
    ("a.parquet", b"PAR1"),
])  # fmt: skip
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: "):
        documents(tmp_path / name)


def test_max_bytes_keeps_whole_pieces_up_to_the_limit():
    pieces = [Piece("aé", True), Piece("bc", True), Piece("d", True)]
    assert list(first_bytes(pieces, None)) == pieces
    assert list(first_bytes(pieces, 5)) == list(first_bytes(pieces, 5)) == pieces[:2]
    assert list(first_bytes(pieces, 4)) == pieces[:1]
    assert list(first_bytes(pieces, 2)) == [Piece("a", True)]  # é has two bytes


@pytest.fixture
def hub_config(tmp_path):
    """Returns the config of a dataset folder in the layout of the hub."""
    folder = tmp_path / "dataset" / "data"
    folder.mkdir(parents=True)
    Dataset.from_dict({"text": [f"train {i}" for i in range(30)]}).to_parquet(folder / "train-00000-of-00001.parquet")
    Dataset.from_dict({"text": ["held out"]}).to_parquet(folder / "validation-00000-of-00001.parquet")
    changes = {"name": str(tmp_path / "dataset"), "validation_split": "validation", "validation_fraction": 0.5}
    return replace(compose_settings(["data=hub", "data.name=x"]).data, **changes)


@pytest.mark.parametrize("n", [None, 3])
def test_the_splits_of_a_dataset_are_kept(hub_config, tmp_path, n):
    max_bytes = n and len("train 0") * n
    corpus = load_corpus(replace(hub_config, max_bytes=max_bytes), tmp_path / "cache")
    assert decoded(corpus, "train").split(END)[1:] == [f"train {i}" for i in range(n or 30)]
    assert decoded(corpus, "validation") == END + "held out"
    assert isinstance(corpus.config, HubConfig) and corpus.config.revision


@pytest.mark.parametrize(("setting", "value"), [("split", "test"), ("subset", "small"), ("validation_split", "train")])
def test_a_split_that_does_not_exist_is_named(hub_config, tmp_path, setting, value):
    with pytest.raises(ValueError, match="data.*" + re.escape(value)):
        hub_texts(replace(hub_config, **{setting: value}), tmp_path)


@pytest.mark.slow
def test_without_network_the_hub_is_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    command = [str(ROOT / "train.py"), "data=tinystories", f"cache_dir={tmp_path}", "max_steps=1"]
    result = run_python(*command, cwd=tmp_path)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: data.name=roneneldan/TinyStories")
    assert not list(tmp_path.glob("hub-*"))


LENGTHS = np.random.default_rng(0).integers(3, 19, size=101)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
PLACES = np.arange(STARTS[-1] + 1)  # the token at position i is i
PACKED = StorySplit(PLACES.astype(np.uint16), 1, STARTS, PLACES.astype(np.float32))
STREAM = Split(tokens=np.arange(1009).astype(np.uint16), n_bytes=1)


@pytest.mark.parametrize("split", [PACKED, STREAM])
def test_a_batch_depends_on_seed_and_step_alone(split):
    def tokens(steps, seed=7):
        batches = training_batches(split, tokens_per_batch=64, context_length=19, seed=seed)
        return [batches.at(step).tokens.tolist() for step in steps]

    assert tokens(range(59, -1, -1)) == tokens(range(60))[::-1]
    assert tokens([0]) != tokens([1]) and tokens(range(5)) != tokens(range(5), seed=8)


def test_rows_hold_whole_stories_each_once_an_epoch_and_in_another_order_in_the_next():
    batches = training_batches(PACKED, tokens_per_batch=64, context_length=19, seed=1)
    epochs, n_places, step = [], 0, 0
    for _ in range(2):
        stories: list[list[int]] = []
        while len(stories) < len(LENGTHS):
            batch = batches.at(step)
            assert batch.document_ids is not None and batch.tokens.shape[1] == 19
            for tokens, targets, documents in zip(batch.tokens, batch.targets, batch.document_ids, strict=True):
                assert ((targets == IGNORE) == (documents == -1)).all()
                for document in range(int(documents.max()) + 1):
                    stories.append(tokens[documents == document].tolist())
                    assert targets[documents == document].tolist() == [token + 1 for token in stories[-1]]
            n_places += batch.tokens.numel()
            step += 1
        epochs.append(stories)
    assert 2 * STARTS[-1] > 0.85 * n_places  # best-fit rows; in the order of the shuffle .73
    whole = [list(range(start, end)) for start, end in pairwise(STARTS.tolist())]
    assert sorted(epochs[0]) == sorted(epochs[1]) == whole and epochs[0] != epochs[1]


@pytest.mark.parametrize(("split", "context_length"), [(PACKED, 17), (STREAM, 1009)])
def test_a_context_that_does_not_fit_the_text_is_refused(split, context_length):
    with pytest.raises(ValueError, match=f"model.context_length={context_length}"):
        training_batches(split, tokens_per_batch=64, context_length=context_length, seed=0)


@pytest.mark.parametrize("n_ranks", [2, 3, 50])
@pytest.mark.parametrize("split", [PACKED, STREAM])
@pytest.mark.parametrize("pad", [False, True])
def test_ranks_share_rows_which_padding_completes_and_count_all_targets(split, n_ranks, pad):
    batches = training_batches(split, tokens_per_batch=100, context_length=20, seed=1)  # 5 rows, or fewer
    load = partial(BatchLoader, batches, torch.device("cpu"))
    ranks = [load(rows=slice(rank, None, n_ranks), pad=pad) for rank in range(n_ranks)]
    for step in range(30):
        batch, shards = load()(step), [rank(step) for rank in ranks]
        assert {int(load.n_targets) for load in (batch, *shards)} == {int((batch.targets != IGNORE).sum())}
        for rank, shard in enumerate(shards):
            n_rows = max(1, len(range(5)[rank::n_ranks]))  # a rank without rows gets an ignored row
            assert len(shard.targets) == n_rows if pad else 1 <= len(shard.targets) <= n_rows
            assert split is STREAM or (shard.inputs[1][shard.targets == IGNORE] == -1).all()
        targets = torch.cat([shard.targets for shard in shards])
        rows = {tuple(row) for row in targets.tolist() if set(row) != {IGNORE}}
        assert rows == {tuple(row) for row in batch.targets.tolist() if set(row) != {IGNORE}}
