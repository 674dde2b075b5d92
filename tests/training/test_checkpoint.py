"""Checkpoints: whole or not there, and never the only one lost."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from training.checkpoint import go_back, load_checkpoint, read_manifest, save_checkpoint, write_atomically


def state(step: int) -> dict:
    return {"model": {"w": torch.full((3, 5), float(step))}, "step": step}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", state(7), 7, best=True)
    loaded, damaged = load_checkpoint(tmp_path / "c")
    assert loaded["step"] == 7 and torch.equal(loaded["model"]["w"], torch.full((3, 5), 7.0))
    assert damaged == []


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_and_the_best_are_kept_and_nothing_else(tmp_path: Path, keep: int) -> None:
    for step in range(1, 8):
        save_checkpoint(tmp_path / "c", state(step), step, best=step == 3, keep=keep)
    kept = {entry["step"] for entry in read_manifest(tmp_path / "c")}
    assert kept == {3, *range(8 - keep, 8)}
    files = {path.name for path in (tmp_path / "c").iterdir()}
    named = {entry["file"] for entry in read_manifest(tmp_path / "c")}
    assert files == {"manifest.json", "manifest_copy.json", *named}
    assert load_checkpoint(tmp_path / "c")[0]["step"] == 7
    assert load_checkpoint(tmp_path / "c", best=True)[0]["step"] == 3


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path, harm: str) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path / "c", state(step), step, best=False)
    newest = tmp_path / "c" / read_manifest(tmp_path / "c")[-1]["file"]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    {
        "flip": lambda: newest.write_bytes(bytes(content)),
        "truncate": lambda: newest.write_bytes(bytes(content[:-9])),
        "remove": newest.unlink,
    }[harm]()
    loaded, damaged = load_checkpoint(tmp_path / "c")
    assert loaded["step"] == 1
    assert len(damaged) == 1 and newest.name in damaged[0]


def test_nothing_saved_and_nothing_whole_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint yet"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, state(1), 1, best=False)
    (tmp_path / read_manifest(tmp_path)[0]["file"]).write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(tmp_path)


MANIFESTS = ("manifest.json", "manifest_copy.json")


@pytest.mark.parametrize("content", ["", "[", '[{"a": 1}]', "{}x", "[3]", '{"sha256": "0", "checkpoints": []}'])
def test_a_damaged_manifest_is_passed_over_for_its_copy_and_both_are_named(tmp_path: Path, content: str) -> None:
    save_checkpoint(tmp_path, state(1), 1, best=True)
    for name in MANIFESTS:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_text(content)
        loaded, damaged = load_checkpoint(tmp_path)
        assert loaded["step"] == 1 and [line.split()[0] for line in damaged] == (
            [str(tmp_path / name)] if name == MANIFESTS[0] else []  # nobody looks at the copy of what is whole
        )
        (tmp_path / name).write_bytes(whole)
    for name in MANIFESTS:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"manifest.json is damaged, and so is its copy"):
        load_checkpoint(tmp_path)


def test_who_can_read_no_manifest_saves_all_the_same(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), 1, best=True)
    for name in MANIFESTS:
        (tmp_path / name).write_text("")
    save_checkpoint(tmp_path, state(2), 2, best=False)
    assert load_checkpoint(tmp_path)[0]["step"] == 2


def test_another_step_or_best_mark_is_found_out_by_the_manifests_own_hash(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, state(step), step, best=step == 1)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("false", "true"))
    assert [one["best"] for one in read_manifest(tmp_path)] == [True, False]
    (tmp_path / "manifest_copy.json").write_text(manifest.read_text())
    with pytest.raises(ValueError, match="damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "forged",
    [
        {"file": "../mine.pt"},
        {"file": "step_1.pt/../../mine.pt"},
        {"step": "1"},
        {"best": 0},
        {"sha256": None},
        {"x": 1},
    ],
)
def test_a_manifest_that_another_has_written_names_no_file_outside(tmp_path: Path, forged: dict) -> None:
    """Whoever can write a manifest can write its hash; a file that it names is deleted once newer ones are kept."""
    (tmp_path / "mine.pt").write_text("mine")
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        save_checkpoint(folder, state(step), step, best=step == 2)
    entries = read_manifest(folder)
    entries[0] |= forged
    own = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    for name in MANIFESTS:
        (folder / name).write_text(json.dumps({"sha256": own, "checkpoints": entries}))
    with pytest.raises(ValueError, match="manifest.json is damaged"):
        load_checkpoint(folder)
    for step in (3, 4, 5):
        save_checkpoint(folder, state(step), step, best=False)
    assert (tmp_path / "mine.pt").read_text() == "mine"


def test_a_step_that_is_saved_again_never_lies_over_the_one_that_counts_and_stays_the_best(tmp_path: Path) -> None:
    seen = []
    for best in (True, False, False):
        save_checkpoint(tmp_path, state(5), 5, best=best)
        [entry] = read_manifest(tmp_path)
        assert entry["best"] and (tmp_path / entry["file"]).exists()
        seen.append(entry["file"])
    assert seen[0] != seen[1] != seen[2]
    assert len(list(tmp_path.glob("step_*"))) == 1


def test_going_back_forgets_what_came_after_and_clears_what_a_kill_has_left(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, state(step), step, best=step == 1)
    for name in ("step_00000009.pt", ".step_00000003.pt.4711", ".manifest.json.12", "notes.txt"):
        (tmp_path / name).write_text("")
    go_back(tmp_path, 2)
    assert [(one["step"], one["best"]) for one in read_manifest(tmp_path)] == [(1, True), (2, False)]
    kept = {"step_00000001.pt", "step_00000002.pt", "notes.txt", *MANIFESTS}
    assert {path.name for path in tmp_path.iterdir()} == kept
    go_back(tmp_path / "none", 2)


def test_the_hash_is_of_the_file_itself(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), 1, best=False)
    [entry] = read_manifest(tmp_path)
    assert hashlib.sha256((tmp_path / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


def test_who_reads_while_a_run_goes_on_gets_its_newest_and_no_false_alarm(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(0), 0, best=True)
    read: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            loaded, damaged = load_checkpoint(tmp_path, best=True)
            assert damaged == [] and torch.equal(loaded["model"]["w"], torch.full((3, 5), float(loaded["step"])))
            read.append(loaded["step"])

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        for step in range(1, 60):
            save_checkpoint(tmp_path, state(step), step, best=True, keep=1)
        done.set()
        looking.result()
    assert read == sorted(read) and len(set(read)) > 5


def test_a_checkpoint_that_holds_code_is_not_loaded(tmp_path: Path) -> None:
    """Even under a matching hash: only tensors and plain Python are read."""

    class Gadget:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model": Gadget()}, tmp_path / "step_00000001.pt")
    content = (tmp_path / "step_00000001.pt").read_bytes()
    entries = [{"file": "step_00000001.pt", "step": 1, "sha256": hashlib.sha256(content).hexdigest(), "best": False}]
    own = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({"sha256": own, "checkpoints": entries}))
    with pytest.raises(ValueError, match="holds more than tensors and plain Python"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
