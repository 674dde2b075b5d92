"""Checkpoints and sets of files survive crashes, damage and full disks."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint import MANIFEST, drop_checkpoints_after, load_checkpoint, read_manifest, save_checkpoint
from training.files import write_files

FILES = {"a.txt": "new a", "sub/b.txt": "new b", "marker.json": "new"}


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"weight": torch.full((500,), float(step))}}


def save(folder: Path, step: int, *, best: bool = False, keep: int = 2) -> None:
    save_checkpoint(folder, state_of(step), best=best, keep=keep)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 1 (best) and 2."""
    save(tmp_path / "checkpoints", 1, best=True)
    save(tmp_path / "checkpoints", 2)
    return tmp_path / "checkpoints"


def in_child(action: Callable[[], None]) -> int:
    """Runs `action` in a forked process; its exit status is 0, 1 for an OSError that names a file, 99 for `exit_at`."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            action()
            status = 0
        except OSError as error:
            status = 1 if str(error.filename).endswith("step_00000003.pt") else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exit_at(call: int, action: Callable[[], None]) -> Callable[[], None]:
    """Returns `action` in a process that ends, as if killed, at the n-th file operation."""

    def run() -> None:
        count = 0
        for name in ("fsync", "replace", "unlink", "rmdir"):
            operation = getattr(os, name)

            def counted(*args: Any, operation: Callable[..., Any] = operation, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == call:
                    os._exit(99)
                return operation(*args, **kwargs)

            setattr(os, name, counted)
        action()

    return run


def with_file_limit(action: Callable[[], None], n_bytes: int) -> Callable[[], None]:
    """Returns `action` in a process whose files can have `n_bytes`, like a disk that is full."""
    resource = pytest.importorskip("resource")

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
        action()

    return run


def test_the_newest_and_the_best_checkpoint_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tmp_path, step, best=step == 2)
    assert [(entry.step, entry.best) for entry in read_manifest(tmp_path)] == [(2, True), (5, False), (6, False)]
    assert {path.name for path in tmp_path.glob("*.pt")} == {f"step_0000000{step}.pt" for step in (2, 5, 6)}
    assert load_checkpoint(tmp_path)["step"] == 6
    assert load_checkpoint(tmp_path, best=True)["step"] == 2


@pytest.mark.parametrize("call", range(1, 12))
def test_a_kill_at_any_file_operation_of_a_save_leaves_a_checkpoint_to_resume_from(folder: Path, call: int) -> None:
    status = in_child(exit_at(call, lambda: save(folder, 3)))
    assert status == (0 if call == 11 else status) and (call != 2 or status == 99)  # all operations were tried
    state = load_checkpoint(folder)
    assert state["step"] == 3 if status == 0 else state["step"] in (2, 3)
    torch.testing.assert_close(state, state_of(state["step"]))
    drop_checkpoints_after(folder, state["step"])
    save(folder, 4)
    assert load_checkpoint(folder)["step"] == 4
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_every_bit_flip_in_a_checkpoint_is_detected_and_the_one_before_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "step_00000002.pt"
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(50):
        bit = rng.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert load_checkpoint(folder)["step"] == 1
        assert f"warning: {path}: damaged" in capsys.readouterr().err


def test_damage_that_leaves_no_checkpoint_is_an_error(folder: Path) -> None:
    manifest, content = folder / MANIFEST, (folder / MANIFEST).read_text()
    for damaged in ("{}", content.replace("true", "false")):  # no checkpoint is the best
        manifest.write_text(damaged)
        with pytest.raises(ValueError, match="manifest.json: damaged"):
            load_checkpoint(folder)
    manifest.unlink()
    with pytest.raises(ValueError, match="missing"):  # not mistaken for a new run
        load_checkpoint(folder)
    manifest.write_text(content)
    for path in folder.glob("*.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="every checkpoint is damaged"):
        load_checkpoint(folder)


def test_on_a_full_disk_the_error_names_the_file_and_the_old_checkpoints_stay(folder: Path) -> None:
    old_files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert in_child(with_file_limit(lambda: save(folder, 3), 1000)) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old_files


@pytest.mark.parametrize("call", range(1, 17))
def test_after_a_kill_a_set_of_files_is_old_or_new_or_has_no_marker(tmp_path: Path, call: int) -> None:
    write_files(tmp_path, {name: "old" for name in FILES}, "marker.json")
    status = in_child(exit_at(call, lambda: write_files(tmp_path, FILES, "marker.json")))
    contents = {name: (tmp_path / name).read_text() if (tmp_path / name).exists() else None for name in FILES}
    if status == 0 or contents["marker.json"] == "new":
        assert contents == {"a.txt": "new a", "sub/b.txt": "new b", "marker.json": "new"}
    elif contents["marker.json"] == "old":
        assert set(contents.values()) == {"old"}
    write_files(tmp_path, FILES, "marker.json")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "sub", "marker.json"}
