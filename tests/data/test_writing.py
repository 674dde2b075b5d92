"""The writing of a text's tokens: killed, shared, bounded."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tokenizing import read, write_text
from data import writing
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
from data.documents import local_sources
from data.tokenizer import END, UNKNOWN, bpe_tokenizer
from data.writing import Texts, write_once, write_texts
from tests.data.test_corpus import decoded, text_config

ROOT = Path(__file__).parent.parent.parent
# A process that makes a corpus, its journal written after every batch.
MAKE = """
import json, sys
from pathlib import Path
from data import writing
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
writing._JOURNAL_SECONDS, writing._BATCH_CHARACTERS = 0.0, 1 << 14
config = json.loads(sys.argv[1])
print(load_corpus(TextConfig(**config | {"tokenizer": TokenizerKind(config["tokenizer"])}), Path(sys.argv[2])).folder)
"""


def make(config: TextConfig, cache: Path) -> subprocess.Popen[str]:
    given = json.dumps(asdict(config) | {"tokenizer": config.tokenizer.value})
    command = [sys.executable, "-c", MAKE, given, str(cache)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def several(tmp_path: Path) -> TextConfig:
    """Three files of two kinds, about 1 MB: a text long enough to be killed in."""
    folder = tmp_path / "texts"
    folder.mkdir()
    write_text(folder / "a.txt", 600_000, seed=1)
    write_text(folder / "b.txt", 200_000, seed=2)
    rows = (folder / "b.txt").read_text().split(f"\n{END}\n")
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (folder / "b.txt").unlink()
    write_text(folder / "c.txt", 400_000, seed=3)
    return text_config(folder, tokenizer=TokenizerKind.bpe, vocab_size=400, validation_fraction=0.2)


@pytest.mark.slow
def test_a_killed_process_is_gone_on_with_to_the_same_bytes_and_does_nothing_twice(
    several: TextConfig, tmp_path: Path
) -> None:
    whole = load_corpus(several, tmp_path / "whole").folder
    part = tmp_path / "cache" / f".part-{whole.name}"
    known: list[int] = []
    for share in (0.1, 0.4, 0.9):  # of the bytes written when it is killed, the last within the held-out part
        process = make(several, tmp_path / "cache")
        size = share * sum((whole / f"{split}.npy").stat().st_size for split in ("train", "validation"))
        while sum(path.stat().st_size for path in part.glob("*.npy")) < size:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        journal = json.loads((part / "journal.json").read_text())
        known.append(sum(journal["n_tokens"].values()))
        assert (journal["n_tokens"]["validation"] > 0) == (share == 0.9)
    assert 0 < known[0] < known[1] < known[2]
    assert not (tmp_path / "cache" / whole.name).exists()
    with (part / "train.npy").open("r+b") as stream:  # a mark where the journal says that all is done
        stream.seek(128 + 2 * 77)
        was = stream.read(2)
        stream.seek(128 + 2 * 77)
        stream.write(b"\xff\xff")
    with (part / "validation.npy").open("ab") as stream:  # and something that no journal knows
        stream.write(b"half a batch")
    said, errors = make(several, tmp_path / "cache").communicate()
    assert errors == "" and said.strip() == str(tmp_path / "cache" / whole.name)
    found = files(tmp_path / "cache" / whole.name)
    at = slice(128 + 2 * 77, 128 + 2 * 78)
    assert found["train.npy"][at] == b"\xff\xff" and was != b"\xff\xff"
    found["train.npy"] = found["train.npy"][: at.start] + was + found["train.npy"][at.stop :]
    assert found == files(whole)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [whole.name]


def test_two_processes_at_once_make_one_corpus_and_the_second_waits(several: TextConfig, tmp_path: Path) -> None:
    both = [make(several, tmp_path / "cache") for _ in range(2)]
    ended = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert ended[0][0] == ended[1][0]
    assert sorted("waiting for another process" in errors for _, errors in ended) == [False, True]
    assert files(Path(ended[0][0].strip())) == files(load_corpus(several, tmp_path / "alone").folder)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_arrays_written_bit_by_bit_are_what_numpy_saves(several: TextConfig, tmp_path: Path) -> None:
    folder = load_corpus(several, tmp_path / "cache").folder
    for split in ("train", "validation"):
        np.save(tmp_path / "saved.npy", np.load(folder / f"{split}.npy"))
        assert (tmp_path / "saved.npy").read_bytes() == (folder / f"{split}.npy").read_bytes()
    assert sorted(files(folder)) == ["meta.json", "tokenizer.json", "train.npy", "validation.npy"]


def test_documents_of_several_files_are_parted_once_and_all_there(several: TextConfig, tmp_path: Path) -> None:
    corpus = load_corpus(several, tmp_path / "cache")
    train, validation = (decoded(corpus, split).split(END) for split in ("train", "validation"))
    assert train.pop(0) == validation.pop(0) == ""
    folder = Path(several.path)
    rows = [json.loads(line)["text"] for line in (folder / "b.jsonl").read_text().splitlines()]
    written = {name: (folder / f"{name}.txt").read_text().split(f"{END}\n") for name in "ac"}
    assert train + validation == [one for one in [*written["a"], *rows, *written["c"]] if one]
    length = sum(map(len, train + validation))
    assert 0 <= sum(map(len, train)) - int(0.8 * length) <= max(map(len, train))
    assert corpus.train.n_bytes + corpus.validation.n_bytes == length


@pytest.mark.parametrize("kind", list(TokenizerKind))
@pytest.mark.parametrize("seed", range(3))
def test_no_text_whatever_becomes_an_end_and_bytes_come_back(tmp_path: Path, kind: TokenizerKind, seed: int) -> None:
    draw = random.Random(seed)
    odd = [END, UNKNOWN, "<s>", "[CLS]", "\x00", "\x1b", "é", "🙂", "\ufdfa", " ", "a", "\u202e", "\ufeff", "<|", "|>"]
    texts = ["x" + "".join(draw.choices(odd + ["\n"] * (seed > 0), k=200)) for _ in range(40)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = {}
    if kind is TokenizerKind.file:
        trained = bpe_tokenizer(["the cat"], 300)
        trained.add_special_tokens(["<s>", "[CLS]"])
        trained.save(str(tmp_path / "tokenizer.json"))
        given = {"tokenizer_path": str(tmp_path / "tokenizer.json")}
    corpus = load_corpus(text_config(path, tokenizer=kind, **given), tmp_path / "cache")
    tokens = [np.asarray(split.tokens) for split in (corpus.train, corpus.validation)]
    assert sum(int((some == corpus.tokenizer.token_to_id(END)).sum()) for some in tokens) == len(texts)
    special = [corpus.tokenizer.token_to_id(one) for one in ("<s>", "[CLS]")]
    assert not any((some == one).any() for some in tokens for one in special if one is not None)
    if kind is not TokenizerKind.words:
        end = corpus.tokenizer.token_to_id(END)
        runs = [run for some in tokens for run in np.split(some, np.flatnonzero(some == end))[1:]]
        assert [corpus.tokenizer.decode(run[1:].tolist(), skip_special_tokens=False) for run in runs] == texts
        assert not any("bits/byte" in note for note in corpus.notes)


def test_a_taste_reads_no_more_than_it_was_allowed_and_never_half_a_short_document(tmp_path: Path) -> None:
    texts = [f"story {i} " + "é" * (i % 7) for i in range(300)]
    for name, some in (("a", texts[:200]), ("b", texts[200:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    for allowed in (50, 1000, 3500):
        corpus = load_corpus(
            text_config(tmp_path, tokenizer=TokenizerKind.bpe, max_bytes=allowed), tmp_path / f"cache{allowed}"
        )
        found = (decoded(corpus, "train") + decoded(corpus, "validation")).replace(END, "")
        sums = np.cumsum([len(text.encode()) for text in texts])
        assert found == "".join(texts[: int(np.searchsorted(sums, allowed, side="right"))])
    with (tmp_path / "a.jsonl").open("a") as stream:
        stream.write("what lies behind a taste is not read")
    load_corpus(text_config(tmp_path, tokenizer=TokenizerKind.bpe, max_bytes=1000), tmp_path / "cache")
    (tmp_path / "long.txt").write_text("é" * 1000)
    corpus = load_corpus(text_config(tmp_path / "long.txt", max_bytes=101), tmp_path / "cache")
    assert decoded(corpus, "train") + decoded(corpus, "validation") == f"{END}{'é' * 45}{END}{'é' * 5}"


def test_the_tokenizer_learns_from_training_text_alone_spread_over_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"w{i:04} " * 20 for i in range(500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = text_config(tmp_path / "a.jsonl", tokenizer=TokenizerKind.words, vocab_size=10_000)
    whole = load_corpus(config, tmp_path / "whole").tokenizer.get_vocab()
    assert {f"w{i:04}" for i in range(450)} == {word for word in whole if word[0] == "w"}
    monkeypatch.setattr(writing, "_SAMPLE_CHARACTERS", 6_000)  # a tenth
    sampled = load_corpus(config, tmp_path / "sampled").tokenizer.get_vocab()
    kept = sorted(int(word[1:]) for word in sampled if word[0] == "w")
    assert 45 <= len(kept) <= 55 and np.diff([-1, *kept, 450]).max() <= 15


def test_what_is_written_stays_where_the_disk_fails_and_goes_where_the_text_is_at_fault(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    config, texts = text_config(tmp_path / "a.txt"), Texts(local_sources(str(tmp_path / "a.txt")), None)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError) as raised:
        write_once(tmp_path / "corpus", partial(write_texts, texts, config))
    assert raised.value.filename == str(tmp_path / "a.txt") and (tmp_path / ".part-corpus").is_dir()
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="is not UTF-8"):
        write_once(tmp_path / "corpus", partial(write_texts, texts, config))
    assert not (tmp_path / ".part-corpus").exists()


def test_a_held_out_file_without_text_is_said_before_anything_is_tokenized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("some text")
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n')
    monkeypatch.setattr(writing, "_write_tokens", None)
    with pytest.raises(ValueError, match=r"data\.validation_path: there is no text in it"):
        load_corpus(text_config(tmp_path / "a.txt", validation_path=str(tmp_path / "b.jsonl")), tmp_path / "cache")


def test_a_disk_that_cannot_hold_the_tokens_is_said_before_any_is_written(
    several: TextConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = namedtuple("disk", "total used free")
    needed = sum(path.stat().st_size for path in load_corpus(several, tmp_path / "first").folder.glob("*.npy"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk(0, 0, int(0.9 * needed)))
    with pytest.raises(OSError, match=r"the tokens need about .* GB and .*cache has .* GB free: set cache_dir"):
        load_corpus(several, tmp_path / "cache")
    assert [path.stat().st_size for path in (tmp_path / "cache").rglob("*.npy")] == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk(0, 0, int(1.1 * needed)))
    assert load_corpus(several, tmp_path / "cache").train.n_bytes > 0  # and goes on with what was prepared


def test_a_file_that_is_learned_from_may_not_be_held_out_too(tmp_path: Path) -> None:
    for name in ("train.txt", "validation.txt"):
        (tmp_path / name).write_text("some text")
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    for same in ("validation.txt", "elsewhere/validation.txt", f"../{tmp_path.name}/validation.txt"):
        config = text_config(tmp_path, validation_path=f"{tmp_path}/{same}")
        with pytest.raises(ValueError, match=r"validation\.txt is in data.path and in data.validation_path"):
            load_corpus(config, tmp_path / "cache")


def test_what_a_tokenizer_loses_is_counted_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat. " * 90 + "A dog ran off. " * 10)
    lossy = load_corpus(text_config(tmp_path / "a.txt", tokenizer=TokenizerKind.words, vocab_size=8), tmp_path / "c")
    meta = json.loads((lossy.folder / "meta.json").read_text())
    unknown = lossy.tokenizer.token_to_id(UNKNOWN)
    for split in ("train", "validation"):
        tokens = np.asarray(getattr(lossy, split).tokens)
        assert meta["n_unknown"][split] == int((tokens == unknown).sum())
    assert 0 < meta["n_unknown"]["train"] < 10 < meta["n_unknown"]["validation"]
    assert not meta["round_trips"]
    [note] = lossy.notes
    assert "has no token for 0." in note and "% of train and " in note and "bits/byte" in note
    exact = load_corpus(text_config(tmp_path / "a.txt", tokenizer=TokenizerKind.bpe), tmp_path / "c")
    assert exact.notes == () and json.loads((exact.folder / "meta.json").read_text())["round_trips"]
    spaced = text_config(tmp_path / "b.txt", tokenizer=TokenizerKind.words, vocab_size=100)
    (tmp_path / "b.txt").write_text("the  cat sat.\n\n" * 90)
    [note] = load_corpus(spaced, tmp_path / "c").notes
    assert "does not give every text back" in note


def test_nothing_is_shown_where_no_person_looks_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some text " * 100)
    load_corpus(text_config(tmp_path / "a.txt"), tmp_path / "cache")
    assert capsys.readouterr() == ("", "")


def test_a_person_sees_how_far_it_is(tmp_path: Path, several: TextConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        load_corpus(several, tmp_path / "cache")
    said = os.read(controller, 1 << 16).decode()
    os.close(controller)
    assert "reading the text" in said and "making the tokenizer" in said
    assert "tokenizing train " in said and "tokenizing validation 100 %" in said and said.endswith("\x1b[K")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (10, 40):
        write_text(tmp_path / "a.txt", megabytes * 10**6, seed=0)
        peaks.append(read(tmp_path / "a.txt", tmp_path / "cache", "bpe", "1000")[2])
    assert peaks[1] - peaks[0] < 15, peaks
