"""Checkpoints: whole or not there, and never the only one lost."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from run.checkpoint import KEEP, load_checkpoint, read_manifest, save_checkpoint, write_atomically


def state(step: int) -> dict:
    return {"model": {"w": torch.full((3, 5), float(step))}, "step": step}


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", state(7), 7, best=True)
    loaded, damaged = load_checkpoint(tmp_path / "c")
    assert loaded["step"] == 7 and torch.equal(loaded["model"]["w"], torch.full((3, 5), 7.0))
    assert damaged == []


def test_the_newest_and_the_best_are_kept_and_nothing_else(tmp_path: Path) -> None:
    for step in range(1, 8):
        save_checkpoint(tmp_path / "c", state(step), step, best=step == 3)
    kept = {entry["step"] for entry in read_manifest(tmp_path / "c")}
    assert kept == {3, *range(8 - KEEP, 8)}
    files = {path.name for path in (tmp_path / "c").iterdir()}
    assert files == {"manifest.json", *(entry["file"] for entry in read_manifest(tmp_path / "c"))}
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


@pytest.mark.parametrize("content", ["", "[", '[{"a": 1}]', "{}x", "[3]"])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="manifest.json is damaged"):
        load_checkpoint(tmp_path)


def test_the_hash_is_of_the_file_itself(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1), 1, best=False)
    [entry] = json.loads((tmp_path / "manifest.json").read_text())
    assert hashlib.sha256((tmp_path / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


def test_a_checkpoint_that_holds_code_is_not_loaded(tmp_path: Path) -> None:
    """Even under a matching hash: only tensors and plain Python are read."""

    class Gadget:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model": Gadget()}, tmp_path / "step_00000001.pt")
    content = (tmp_path / "step_00000001.pt").read_bytes()
    entry = {"file": "step_00000001.pt", "step": 1, "sha256": hashlib.sha256(content).hexdigest(), "best": False}
    (tmp_path / "manifest.json").write_text(json.dumps([entry]))
    with pytest.raises(Exception, match="[Ww]eights"):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
