"""Text from the hub, asked of a stand-in on loopback by train.py itself: what comes, and what is said if none does."""

import gzip
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer

from data.documents import read_pieces
from data.download import within
from data.hub import hub_texts, is_known_whole
from tests.data.door import ROOT, Door
from tests.data.hub_stand_in import COMMIT, Faults, Hub, wait_until
from training.settings import typed_train

OTHER_COMMIT = "f" * 40
SHORT = ("data=hub", "data.name=own/stories", "data.vocab_size=300", "model=nano", "max_steps=2", "threads=1")


def parquet(rows: list[str], column: str = "text", row_group: int = 200) -> bytes:
    stream = io.BytesIO()
    table = pyarrow.table({column: rows, "number": list(range(len(rows)))})
    pyarrow.parquet.write_table(table, stream, row_group_size=row_group, compression="none", use_dictionary=False)
    return stream.getvalue()


def story(i: int) -> str:
    return (
        f"Story {i}. Once upon a time there was a cat, and it was hungry. {'So it sat by the door. ' * (i % 9)}\n\nEnd."
    )


TRAIN = [story(i) for i in range(3000)]
VALIDATION = [story(i) for i in range(5000, 5200)]
STORIES = {
    "README.md": b"# Stories, and no metadata\n",
    "TinyStories-train.txt": b"the same once more, as one big file\n" * 20000,
    "archive.tar.gz": bytes(500_000),
    "data/train-00000-of-00002-2d5a.parquet": parquet(TRAIN[:1500]),
    "data/train-00001-of-00002-5852.parquet": parquet(TRAIN[1500:]),
    "data/validation-00000-of-00001-869c.parquet": parquet(VALIDATION),
}
TRAIN_FILES = [name for name in STORIES if name.startswith("data/train")]
N_TRAIN_BYTES = sum(len(STORIES[name]) for name in TRAIN_FILES)
LINES = [
    f" = Title {i // 5} = \n" if i % 5 == 0 else "" if i % 5 == 1 else f" A line, number {i} . \n" for i in range(400)
]
CARD = """---
configs:
- config_name: raw
  data_files:
  - split: train
    path: raw/train-*
  - split: validation
    path: raw/validation-*
- config_name: clean
  data_files:
  - split: train
    path: clean/*.txt
---
"""
DATASETS = {
    "own/stories": STORIES,
    "own/lines": {
        "README.md": CARD.encode(),
        "raw/train-00000-of-00001.parquet": parquet(LINES),
        "raw/validation-00000-of-00001.parquet": parquet(LINES[:50]),
        "clean/a.txt": "".join(LINES).encode(),
    },
    "own/json": {
        "train.jsonl.gz": gzip.compress("".join(json.dumps({"story": one}) + "\n" for one in TRAIN[:300]).encode()),
        "test.jsonl": "".join(json.dumps({"story": one}) + "\n" for one in VALIDATION).encode(),
    },
    "own/text": {"train.txt": "\n<|endoftext|>\n".join(TRAIN[:300]).encode()},
    "own/old": {  # as data sets were described before their cards were
        "dataset_infos.json": json.dumps(
            {"default": {"splits": {"train": {"name": "train", "num_bytes": 9}}}}
        ).encode(),
        "train.jsonl": "".join(json.dumps({"text": one}) + "\n" for one in TRAIN[:50]).encode(),
    },
    "own/script": {"README.md": b"# Old", "script.py": b"import datasets"},
    "own/pictures": {"README.md": b"# Pictures", "train/a.png": b"\x89PNG", "train/b.png": b"\x89PNG"},
    "own/cut_rows": {"train.jsonl.gz": gzip.compress(json.dumps({"text": "a"}).encode())[:-6]},
    "own/empty": {"train.jsonl": b'{"text": ""}\n', "test.jsonl": b'{"text": "a"}\n'},
    "own/cut": {"train.parquet": parquet(TRAIN)[:-5000]},
    "own/large": {f"train-0000{i}-of-00002.parquet": parquet(TRAIN * 2, row_group=500) for i in range(2)},
    "own/outside": {"../../train.txt": b"out of its folder"},
}


N_LARGE_BYTES = sum(map(len, DATASETS["own/large"].values()))


@pytest.fixture(scope="module")
def running() -> Iterator[Hub]:
    with Hub(DATASETS) as hub:
        yield hub


@pytest.fixture
def hub(running: Hub) -> Iterator[Hub]:
    running.commit = COMMIT
    running.faults = Faults()
    running.forget()
    yield running
    running.faults = Faults()


def environment(hub: Hub, home: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("proxy") and name[:3] != "HF_"
    }
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "TOKENIZERS_PARALLELISM": "false"}
    return kept | own | {"HF_TOKEN": "hf_not_a_real_one", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def door(running: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    door = Door(folder, environment(running, folder / "home"))
    yield door
    door.close()


def told(door: Door, cwd: Path, *arguments: str, **constants: float) -> str:
    """Return the one line in which a command is refused, which leaves nothing of a corpus or a run."""
    status, out, error = door.start(cwd, *SHORT, *arguments, **constants).wait()
    lines = [line for line in error.splitlines() if not line.startswith("fetch   ")]
    assert (status, out, len(lines)) == (2, "", 1), (status, out, error)
    assert not (cwd / "runs").exists() and corpora(cwd) == [] and len(lines[0]) < 480
    return lines[0]


def trained(door: Door, cwd: Path, *arguments: str, **constants: float) -> Path:
    """Return the folder of the corpus that a command has trained on."""
    before = corpora(cwd)
    status, out, error = door.start(cwd, *SHORT, *arguments, **constants).wait()
    assert status == 0, error
    [folder] = set(corpora(cwd)) - set(before)
    return folder


def corpora(cwd: Path) -> list[Path]:
    return sorted([*cwd.glob(".cache/hub-*"), *cwd.glob(".cache/.part*")])


def decoded(folder: Path, split: str) -> list[str]:
    """Return the documents of a split."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = tokenizer.decode(np.load(folder / f"{split}.npy").tolist(), skip_special_tokens=False)
    return text.split("<|endoftext|>")[1:]


def settings(cwd: Path) -> dict:
    [path] = cwd.glob("runs/*/config.json")
    return json.loads(path.read_text())


def test_only_the_files_of_the_splits_are_fetched_and_the_commit_is_kept(door: Door, hub: Hub, tmp_path: Path) -> None:
    folder = trained(door, tmp_path, "data.validation_split=validation")
    assert decoded(folder, "train") == TRAIN and decoded(folder, "validation") == VALIDATION
    files = {path.split(f"{COMMIT}/")[1] for path in hub.paths() if "resolve" in path}
    assert files == {"README.md", *(name for name in STORIES if name.startswith("data/"))}
    assert hub.n_bytes == sum(len(STORIES[name]) for name in files)
    assert settings(tmp_path)["data"]["revision"] == COMMIT
    assert json.loads((folder / "meta.json").read_text())["revision"] == COMMIT


def test_what_will_be_fetched_is_said_in_one_line_before(door: Door, hub: Hub, tmp_path: Path) -> None:
    status, _, error = door.start(tmp_path, *SHORT).wait()
    assert status == 0
    [line] = error.splitlines()
    assert line.startswith(f"fetch   own/stories@{COMMIT[:7]}: 2 files, {N_TRAIN_BYTES / 1e3:.3g} kB to fetch, about ")
    assert line.endswith("GB free") and "of tokens" in line


def test_a_pinned_revision_in_the_cache_asks_nothing_of_the_network(door: Door, hub: Hub, tmp_path: Path) -> None:
    pin = f"data.revision={COMMIT}"
    trained(door, tmp_path, pin)
    hub.forget()
    assert door.start(tmp_path, *SHORT, pin).wait()[0] == 0
    trained(door, tmp_path, pin, "data.vocab_size=310")  # the files are here, only the tokens are not
    assert hub.asked == []


@pytest.mark.slow
def test_the_newest_revision_is_asked_for_and_a_run_goes_on_with_its_own(door: Door, hub: Hub, tmp_path: Path) -> None:
    trained(door, tmp_path, "out=run")
    hub.commit = OTHER_COMMIT
    hub.forget()
    status, _, error = door.start(tmp_path, *SHORT, "out=run", "resume=true").wait()
    assert status == 0, error
    assert hub.asked == []
    trained(door, tmp_path)
    assert settings(tmp_path)["data"]["revision"] == OTHER_COMMIT


def test_a_taste_fetches_little_more_than_it_holds(door: Door, hub: Hub, tmp_path: Path) -> None:
    folder = trained(door, tmp_path, "data.max_bytes=40_000", "data.validation_split=validation")
    train, validation = decoded(folder, "train"), decoded(folder, "validation")
    assert train == TRAIN[: len(train)] and 39_000 < len("".join(train).encode()) <= 40_000
    assert validation == VALIDATION[: len(validation)] and 4_000 < len("".join(validation).encode()) < 5_000
    assert all(name not in path for path in hub.paths() for name in (TRAIN_FILES[1], "archive", ".txt"))
    hub.forget()
    large = trained(door, tmp_path, "data.name=own/large", "data.max_bytes=100_000")
    text = "".join([*decoded(large, "train"), *decoded(large, "validation")])
    assert 99_000 < len(text.encode()) <= 100_000
    assert hub.n_bytes < 500_000 < N_LARGE_BYTES / 4


@pytest.mark.slow
def test_a_taste_is_the_same_text_whether_or_not_the_files_are_here(door: Door, hub: Hub, tmp_path: Path) -> None:
    afar = trained(door, tmp_path / "afar", "data.max_bytes=90_000")
    trained(door, tmp_path / "here")
    hub.forget()
    here = trained(door, tmp_path / "here", "data.max_bytes=90_000")
    assert hub.n_bytes == 0
    for name in ("train.npy", "validation.npy", "tokenizer.json"):
        assert (afar / name).read_bytes() == (here / name).read_bytes()


def test_a_taste_that_is_here_is_not_announced_and_one_that_was_killed_is_begun_anew(
    door: Door, hub: Hub, tmp_path: Path
) -> None:
    arguments = ("data.max_bytes=40_000", "data.validation_split=validation")
    first = trained(door, tmp_path, *arguments)
    status, _, error = door.start(tmp_path, *SHORT, *arguments, "data.vocab_size=301").wait()
    assert (status, error) == (0, "")
    tastes = sorted(tmp_path.glob(".cache/hub/**/taste-*.jsonl"))
    for path in tastes:
        path.with_name(f"{path.name}.part").write_bytes(path.read_bytes()[:1000])
        path.unlink()
    again = trained(door, tmp_path, *arguments, "data.vocab_size=302")
    assert decoded(again, "train") == decoded(first, "train")
    assert decoded(again, "validation") == decoded(first, "validation")
    assert sorted(tmp_path.glob(".cache/hub/**/taste-*")) == tastes
    assert not list(tmp_path.glob(".cache/hub/**/.*"))


def taste(cache: Path, files: dict[str, bytes], max_bytes: int) -> list[str]:
    """Return the documents of a taste of files that are in the cache, with nothing asked of any network."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        given = ["data=hub", "data.name=own/here", "data.files='*'", f"data.revision={COMMIT}"]
        config = typed_train(compose("train", [*given, f"data.max_bytes={max_bytes}"])).data
    folder = cache / "hub" / "own--here" / COMMIT
    (folder / "files").mkdir(parents=True)
    listing = {name: {"name": name, "size": len(content), "sha256": None} for name, content in files.items()}
    (folder / "listing.json").write_text(json.dumps(listing))
    for name, content in files.items():
        (folder / "files" / name).write_bytes(content)
    documents: list[str] = []
    for text, begins in read_pieces(hub_texts(config, cache).train, "text"):
        documents += [text] if begins else [documents.pop() + text]
    return documents


def test_a_taste_holds_any_text_and_no_document_that_could_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = 'say "\\no\\" \x00\x1f\u2028\x85é🙂\n'
    text = odd * 2_000
    documents = taste(tmp_path / "whole", {"a.txt": text.encode(), "b.txt": b"another", "c.txt": b"c"}, len(text) * 4)
    assert documents == [text, "another", "c"]
    row = len(json.dumps({"text": text}, ensure_ascii=False))
    for module in ("documents", "hub"):
        monkeypatch.setattr(f"data.{module}.ROW_CHARACTERS", row)
    assert taste(tmp_path / "fits", {"a.txt": text.encode()}, len(text) * 4) == [text]
    for module in ("documents", "hub"):
        monkeypatch.setattr(f"data.{module}.ROW_CHARACTERS", row - 1)
    with pytest.raises(ValueError, match=f"a document of own/here is longer than {row - 1} characters"):
        taste(tmp_path / "long", {"a.txt": text.encode()}, len(text) * 4)


@pytest.mark.parametrize("most", [(), ("data.max_bytes=20_000",)])
def test_text_and_json_lines_are_read_too_compressed_or_not(door: Door, hub: Hub, tmp_path: Path, most: tuple) -> None:
    folder = trained(door, tmp_path, "data.name=own/json", "data.column=story", "data.validation_split=test", *most)
    some = decoded(folder, "train")
    assert some == TRAIN[: len(some)] and decoded(folder, "validation")[0] == VALIDATION[0]
    assert len(some) == 300 or most
    folder = trained(door, tmp_path, "data.name=own/text", *most)
    some = [one.strip("\n") for one in decoded(folder, "train") + decoded(folder, "validation")]
    assert some[:50] == TRAIN[:50]


def test_a_split_that_is_named_twice_is_read_once(door: Door, hub: Hub, tmp_path: Path) -> None:
    folder = trained(door, tmp_path, "data.split=validation+validation")
    assert decoded(folder, "train") + decoded(folder, "validation") == VALIDATION


def test_a_data_set_described_as_they_were_before_cards_is_read(door: Door, hub: Hub, tmp_path: Path) -> None:
    folder = trained(door, tmp_path, "data.name=own/old")
    assert decoded(folder, "train") + decoded(folder, "validation") == TRAIN[:50]


def test_joined_rows_are_one_text(door: Door, hub: Hub, tmp_path: Path) -> None:
    lines = ("data.name=own/lines", "data.subset=raw", "data.validation_split=validation")
    assert len(decoded(trained(door, tmp_path, *lines), "train")) == sum(map(bool, LINES))
    folder = trained(door, tmp_path, *lines, "data.rows=joined")
    assert decoded(folder, "train") == ["".join(LINES)] and decoded(folder, "validation") == ["".join(LINES[:50])]


def test_a_glob_of_files_takes_the_place_of_a_split(door: Door, hub: Hub, tmp_path: Path) -> None:
    folder = trained(door, tmp_path, "data.files=data/train-00001*")
    assert decoded(folder, "train") + decoded(folder, "validation") == TRAIN[1500:]
    assert hub.n_bytes == len(STORIES[TRAIN_FILES[1]])


# The layout of the four repositories at the revisions that are pinned.
TINY = {
    f"data/{split}-00000-of-00001.parquet": parquet([text])
    for split, text in (("train", "To be, or not"), ("validation", " to be: "), ("test", "that is the question\n"))
}
WIKI_CARD = "---\nconfigs:\n" + "".join(
    f"- config_name: {name}\n  data_files:\n"
    + "".join(f"  - split: {split}\n    path: {name}/{split}-*\n" for split in ("test", "train", "validation"))
    for name in ("wikitext-103-raw-v1", "wikitext-2-raw-v1", "wikitext-2-v1")
)
WIKI = {"README.md": (WIKI_CARD + "---\n").encode()} | {
    f"{name}/{split}-00000-of-00001.parquet": parquet([f" = {name} {split} = \n", "", " It is . \n"])
    for name in ("wikitext-103-raw-v1", "wikitext-2-raw-v1", "wikitext-2-v1")
    for split in ("test", "train", "validation")
}
PRESETS = [
    ("tinystories", "roneneldan/TinyStories", STORIES, TRAIN, VALIDATION),
    ("wikitext2", "Salesforce/wikitext", WIKI, [" = wikitext-2-raw-v1 train = \n It is . \n"], None),
    ("wikitext103", "Salesforce/wikitext", WIKI, [" = wikitext-103-raw-v1 train = \n It is . \n"], None),
    ("tiny_shakespeare", "karpathy/tiny_shakespeare", TINY, ["To be, or not"], [" to be: that is the question\n"]),
]


@pytest.mark.parametrize("preset, name, files, train, validation", PRESETS)
def test_each_preset_reads_its_dataset(
    door: Door, hub: Hub, tmp_path: Path, preset: str, name: str, files: dict, train: list, validation: list | None
) -> None:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        pinned = typed_train(compose("train", [f"data={preset}"])).data
    assert pinned.name == name
    hub.datasets[name], hub.commit = files, pinned.revision
    folder = trained(door, tmp_path, f"data={preset}", f"data.name={name}", "model.context_length=4")
    assert decoded(folder, "train") == train
    assert validation is None or decoded(folder, "validation") == validation


REFUSED = [
    (["data.name=own/none"], "data.name=own/none is not a dataset of http://127.0.0.1"),
    (["data.name=no/such/name"], "no/such/name"),
    (["data.revision=v9"], "data.revision=v9 is not a revision of own/stories"),
    (["data.split=tain"], "data.split=tain is not a split of own/stories: it has train, validation"),
    (["data.split=train[:10%]"], "data.split=train[:10%] is not a split of own/stories: it has train, validation"),
    (["data.validation_split=test"], "data.validation_split=test is not a split of own/stories: it has train, valid"),
    (["data.subset=raw"], "data.subset=raw is not a subset of own/stories: it has none"),
    (["data.name=own/lines"], "own/lines has several subsets: choose data.subset from raw, clean"),
    (["data.name=own/lines", "data.subset=rwa"], "data.subset=rwa is not a subset of own/lines: it has raw, clean"),
    (["data.column=txet"], "data.column=txet is not in it, only text, number"),
    (["data.column=number"], "data.column=number holds int, not text"),
    (["data.column=txet", "data.max_bytes=1000"], "data.column=txet is not in it, only text, number"),
    (["data.files=*.pq"], "data.files=*.pq matches no file of own/stories, which has README.md, TinyStories-train.txt"),
    (["data.files=archive*"], "archive.tar.gz is not one of .txt .jsonl .csv"),
    (["data.files=*", "data.validation_split=train"], "data.files takes the place of splits"),
    (["data.files=*", "data.subset=raw"], "data.files takes the place of splits"),
    (["data.split=train+validation", "data.validation_split=validation"], "validation-00000-of-00001-869c.parquet of"),
    (["data.validation_split=train", "data.max_bytes=1000"], "it would be learned and measured on"),
    (["data.name=own/script"], "own/script is a script (script.py) without files of data, and scripts of datasets are"),
    (["data.name=own/pictures"], "own/pictures is made of imagefolder, not of text, json, parquet, csv"),
    (["data.name=own/cut"], "train.parquet cannot be read as parquet"),
    (["data.name=own/cut", "data.max_bytes=1000"], "train.parquet cannot be read as parquet"),
    (["data.name=own/cut_rows"], "train.jsonl.gz cannot be read as json: Truncated"),
    (["data.name=own/cut_rows", "data.max_bytes=1000"], "train.jsonl.gz cannot be read as json: Truncated"),
    (["data.name=own/empty"], "data.split: there is no text in it"),
    (["data.name=own/empty", "data.split=test", "data.validation_split=train"], "data.validation_split: there is no "),
    (["data.name=own/empty", "data.files=train*"], "data.files: there is no text in it"),
    (["data.name=own/outside"], "data.name=own/outside names a file outside itself: ../../train.txt"),
]


@pytest.mark.parametrize("arguments, message", REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_what_is_not_there_is_said_in_one_line(
    door: Door, hub: Hub, tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in told(door, tmp_path / "own", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


GATED = "http://127.0.0.1:"
FAULTS = [
    ({"gated": True}, "own/stories is gated: accept its terms at http://127.0.0.1:"),
    ({"gated": True, "only_files": True}, "/datasets/own/stories and log in with `hf auth login`"),
    ({"forbidden": True}, "the hub refuses own/stories to you (403): accept its terms at http://127.0.0.1:"),
    ({"busy": -1, "retry_after": "300"}, "asked too often from here (429): run the same command in 300 seconds"),
    ({"busy": -1, "retry_after": "300", "only_files": True}, "run the same command in 300 seconds"),
    ({"busy": -1, "retry_after": None, "rate_limit": '"api";r=0;t=280'}, "run the same command in 280 seconds"),
    ({"no_sizes": True}, "data.name=own/stories lists README.md without its size"),
    ({"web_page": True}, "does not answer as a hub does"),
    ({"stated_size": 10**15}, "2 files, 2,000,000 GB to fetch and about 2,666,667 GB of tokens do not fit the "),
]


@pytest.mark.parametrize("faults, message", FAULTS, ids=[" ".join(faults) for faults, _ in FAULTS])
def test_what_the_hub_refuses_is_said_in_one_line(
    door: Door, hub: Hub, tmp_path: Path, faults: dict, message: str
) -> None:
    hub.faults = Faults(**faults)
    began = time.monotonic()
    assert message in told(door, tmp_path)
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_a_busy_hub_is_waited_for_and_not_for_long(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults = Faults(busy=1, broken=1, retry_after="1")
    assert decoded(trained(door, tmp_path / "later"), "train") == TRAIN[:2700]
    hub.faults = Faults(busy=-1, retry_after=None)
    began = time.monotonic()
    assert "asked too often from here (429): run the same command later" in told(door, tmp_path / "never", _PATIENCE=2)
    assert time.monotonic() - began < 10
    hub.faults = Faults(broken=-1)
    assert "the hub has a fault (503): run the same command later" in told(door, tmp_path / "never", _PATIENCE=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults, message",
    [
        ({"stop_after": 100_000, "in_all": 350_000}, "no answer came in time. The same command goes on from there"),
        ({"cut_after": 100_000, "in_all": 350_000}, "The same command goes on from there"),
    ],
    ids=["silent", "truncated"],
)
def test_a_body_that_ends_early_is_gone_on_from(
    door: Door, hub: Hub, tmp_path: Path, faults: dict, message: str
) -> None:
    """Each answer brings 100 kB; with one more try after none has come, that is how far it gets."""
    arguments = ("data.name=own/large", "data.validation_fraction=0.01", "data.tokenizer=characters")
    hub.faults = Faults(**faults)
    line = told(door, tmp_path, *arguments, SILENCE=0.5)
    assert message in line and "train-00000-of-00002.parquet of own/large came to" in line
    [part] = tmp_path.glob(".cache/hub/**/*.part")
    came = part.stat().st_size
    assert came > 300_000
    hub.faults = Faults()
    hub.forget()
    trained(door, tmp_path, *arguments)
    assert hub.n_bytes == N_LARGE_BYTES - came
    ranges = [of.split("-")[0] for _, path, of in hub.asked if path.endswith(".parquet")]
    assert ranges == [f"bytes={came}", "bytes=0"]
    assert not list(tmp_path.glob(".cache/hub/**/*.part"))


def test_a_killed_download_goes_on_where_it_was(door: Door, hub: Hub, tmp_path: Path) -> None:
    arguments = ("data.name=own/large", "data.validation_fraction=0.01", "data.tokenizer=characters")
    hub.faults.seconds_per_chunk = 0.02
    command = door.start(tmp_path, *SHORT, *arguments)
    wait_until(lambda: any(part.stat().st_size > 400_000 for part in tmp_path.glob(".cache/hub/**/*.part")))
    command.kill()
    assert corpora(tmp_path) == []
    came = sum(path.stat().st_size for path in tmp_path.glob(".cache/hub/**/train*"))
    hub.faults = Faults()
    wait_until(lambda: hub.n_bytes > 0)
    time.sleep(0.1)  # what was on its way when it died
    hub.forget()
    interrupted = trained(door, tmp_path, *arguments)
    assert hub.n_bytes == N_LARGE_BYTES - came and 400_000 < came < N_LARGE_BYTES
    undisturbed = trained(door, tmp_path / "other", *arguments)
    assert (interrupted / "train.npy").read_bytes() == (undisturbed / "train.npy").read_bytes()


def test_two_runs_at_once_fetch_a_file_once(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults.seconds_per_chunk = 0.05
    commands = [door.start(tmp_path, *SHORT, f"data.vocab_size={size}") for size in (300, 301)]
    assert [command.wait()[0] for command in commands] == [0, 0]
    assert hub.n_bytes - N_TRAIN_BYTES <= 2 * len(STORIES["README.md"])


def test_bytes_that_are_not_those_listed_are_fetched_again(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults.spoiled = True
    assert "is not what the hub's listing says (sha256 " in told(door, tmp_path)
    hub.faults = Faults()
    trained(door, tmp_path)


def test_a_server_without_ranges_serves_whole_files_and_no_taste(door: Door, hub: Hub, tmp_path: Path) -> None:
    large = "data.name=own/large"
    hub.faults.no_ranges = True
    assert "is served only whole: leave data.max_bytes out" in told(door, tmp_path, large, "data.max_bytes=1000")
    hub.faults.cut_after = 100_000
    assert "came to 100 kB of " in told(door, tmp_path)
    hub.faults.cut_after = None
    trained(door, tmp_path)  # from the start: what is there cannot be gone on from


def test_a_server_without_ranges_whose_line_breaks_anywhere_is_given_up(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults = Faults(no_ranges=True, cut_in_turn=(50_000, 100_000, 80_000))
    assert "train-00000-of-00002-2d5a.parquet of own/stories came to " in told(door, tmp_path)


def test_who_waits_for_a_file_that_proves_wrong_fetches_it_again(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults = Faults(spoiled=True, seconds_per_chunk=0.1)
    commands = [door.start(tmp_path, *SHORT) for _ in range(2)]
    for status, _, error in [command.wait() for command in commands]:
        assert status == 2 and "is not what the hub's listing says (sha256 " in error.splitlines()[-1]
    hub.faults = Faults()
    trained(door, tmp_path)


def test_a_file_may_come_from_another_host_which_is_not_told_the_token(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults = Faults(redirects=True, cut_after=100_000)
    trained(door, tmp_path)
    stored = [path for path in hub.paths() if "/stored/" in path]
    assert len(stored) == 1 + 3 + 3 and hub.n_bytes == N_TRAIN_BYTES + len(STORIES["README.md"])
    assert not [path for path in hub.authorized if "/stored/" in path] and len(hub.authorized) > len(stored)


def test_a_taste_that_stops_midway_is_said_in_one_line(door: Door, hub: Hub, tmp_path: Path) -> None:
    arguments = ("data.name=own/large", "data.max_bytes=200_000")
    hub.faults.stop_after = 10_000  # much less than one range
    assert "could not be read on: no answer came in time" in told(door, tmp_path, *arguments, SILENCE=0.3)
    assert not list(tmp_path.glob(".cache/hub/**/taste-*.jsonl"))
    hub.faults = Faults()
    trained(door, tmp_path, *arguments)
    assert not list(tmp_path.glob(".cache/hub/**/*.part"))


WAYS_OUT = ("python train.py", "data=text data.path=FILE", "HF_HUB_OFFLINE=1", "HF_ENDPOINT=URL")


def test_a_silent_hub_names_the_ways_out_in_seconds(door: Door, hub: Hub, tmp_path: Path) -> None:
    hub.faults.silent = True
    began = time.monotonic()
    line = told(door, tmp_path)
    assert time.monotonic() - began < 8 and "cannot be asked (no answer came in time)" in line
    assert all(way in line for way in WAYS_OUT)


# What the hub may do, beside what is asked of it and what is said then.
SIX_ANSWERS: dict[str, tuple[dict, list[str], str]] = {
    "404": ({}, ["data.revision=v9"], "data.revision=v9 is not a revision of own/stories"),
    "401": ({"gated": True}, [], "own/stories is gated: accept its terms at http://127.0.0.1:"),
    "429": ({"busy": -1}, [], "asked too often from here (429): run the same command in 1 seconds"),
    "500": ({"broken": -1, "broken_as": 500}, [], "the hub has a fault (500): run the same command later"),
    "half a file": ({"cut_after": 100_000, "in_all": 150_000}, [], "The same command goes on from there"),
    "silence": ({"silent": True}, [], "cannot be asked (no answer came in time)"),
}


@pytest.mark.slow
def test_each_of_six_answers_of_the_hub_has_its_message_in_under_ten_seconds(
    door: Door, hub: Hub, tmp_path: Path, figure: Callable[[str, str, str, bool], None]
) -> None:
    """With the patience that a user meets: no constant is made shorter."""
    seconds = {}
    for name, (faults, arguments, message) in SIX_ANSWERS.items():
        hub.faults = Faults(**faults)
        began = time.monotonic()
        line = told(door, tmp_path / name, *arguments)
        seconds[name] = time.monotonic() - began
        assert message in line, (name, line)
    slowest = max(seconds, key=seconds.__getitem__)
    measured = f"6 of 6 in one line; the longest, {slowest}, {seconds[slowest]:.1f} s"
    figure("hub answers 404, 401, 429, 500, half a file, silence", "the right message in < 10 s", measured,
           seconds[slowest] < 10)  # fmt: skip


def test_a_question_that_never_ends_is_not_waited_for() -> None:
    """As looking up a name is, where the name server does not answer."""
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.2, threading.Event().wait)
    assert time.monotonic() - began < 1


def alone(cwd: Path, variables: dict[str, str], *arguments: str) -> tuple[subprocess.CompletedProcess, float]:
    """Run train.py in a process of its own, and say how long it took."""
    cwd.mkdir(exist_ok=True)
    command, began = [sys.executable, str(ROOT / "train.py"), *SHORT, *arguments], time.monotonic()
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120)
    return done, time.monotonic() - began


UNREACHABLE = [
    ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be asked ("),
    ({"HF_ENDPOINT": "http://hub.invalid"}, "http://hub.invalid cannot be asked ("),
    ({"HTTP_PROXY": "http://127.0.0.1:9", "HF_ENDPOINT": "http://hub.invalid"}, "http://hub.invalid cannot be asked ("),
    ({"HF_HUB_OFFLINE": "1"}, "cannot be asked (HF_HUB_OFFLINE is set)"),
]


@pytest.mark.slow
@pytest.mark.parametrize("variables, message", UNREACHABLE, ids=["refused", "no such name", "dead proxy", "offline"])
def test_who_is_offline_reads_the_ways_out_in_under_ten_seconds(
    hub: Hub, tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    done, seconds = alone(tmp_path, environment(hub, tmp_path / "home") | variables)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and seconds < 10 and message in line and all(way in line for way in WAYS_OUT)
    assert hub.asked == [] and corpora(tmp_path) == []


@pytest.mark.slow
def test_a_hub_silent_midway_is_given_up_in_well_under_a_minute(hub: Hub, tmp_path: Path) -> None:
    hub.faults.stop_after = 0
    done, seconds = alone(tmp_path, environment(hub, tmp_path / "home"), "data.files=data/train*")
    assert done.returncode == 2 and 10 < seconds < 35
    assert "came to 0 kB of 269 kB, then no answer came in time" in done.stderr


def test_a_series_of_numbered_files_is_known_to_be_whole_and_others_are_not() -> None:
    series = ["data/train-00000-of-00002-2d5a.parquet", "data/train-00001-of-00002-5852.parquet"]
    assert is_known_whole(series) and is_known_whole([*series, "data/test-00000-of-00001.parquet"])
    for names in (series[:1], [series[0], series[1].replace("data", "more")], ["train.jsonl"], [*series, "more.jsonl"]):
        assert not is_known_whole(names)


@pytest.mark.slow
def test_offline_a_split_is_not_guessed_without_the_card(hub: Hub, tmp_path: Path) -> None:
    variables = environment(hub, tmp_path / "home")
    program = "from huggingface_hub import hf_hub_download as get; import sys;"
    program += "[get('own/stories', name, repo_type='dataset') for name in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", program, *TRAIN_FILES], env=variables, check=True)
    done, _ = alone(tmp_path, variables | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2 and "lacks README.md, which says what is a split of own/stories" in done.stderr


@pytest.mark.slow
def test_offline_the_cache_of_the_library_is_enough_when_all_of_the_split_is_in_it(hub: Hub, tmp_path: Path) -> None:
    variables = environment(hub, tmp_path / "home")
    program = "from huggingface_hub import hf_hub_download; import sys;"
    program += "[hf_hub_download('own/stories', name, repo_type='dataset') for name in sys.argv[1:]]"
    offline = variables | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", program, "README.md", TRAIN_FILES[0]], env=variables, check=True)
    done, _ = alone(tmp_path, offline)
    assert done.returncode == 2 and "may hold only a part of data.split=train of own/stories" in done.stderr
    done, _ = alone(tmp_path / "one", offline, f"data.files={TRAIN_FILES[0]}")
    assert done.returncode == 0, done.stderr
    subprocess.run([sys.executable, "-c", program, TRAIN_FILES[1]], env=variables, check=True)
    hub.forget()
    done, _ = alone(tmp_path, offline)
    assert (done.returncode, done.stderr, hub.asked) == (0, "", [])
    [folder] = corpora(tmp_path)
    assert decoded(folder, "train") + decoded(folder, "validation") == TRAIN
    assert settings(tmp_path)["data"]["revision"] == COMMIT
