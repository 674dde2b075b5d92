"""Run directories: created once, locked, found again."""

import os
import threading
from pathlib import Path

import pytest

from training.files import FolderLock, lock
from training.run_dir import (
    create_run,
    find_run,
    find_runs,
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Creating and locking


def test_eight_starts_at_once_get_eight_directories() -> None:
    runs: list[tuple[Path, FolderLock]] = []
    threads = [threading.Thread(target=lambda: runs.append(create_run(None))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [path for path, _ in runs]
    for _, run_lock in runs:
        run_lock.close()
    assert len(set(paths)) == 8 and all(path.parent == Path("runs") and path.is_dir() for path in paths)


def test_an_empty_directory_is_used_and_one_with_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path, run_lock = create_run("out")
    run_lock.close()
    assert path == Path("out")
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="out=out"):
        create_run("out")


def test_a_locked_directory_is_refused_until_its_lock_is_closed(tmp_path: Path) -> None:
    run_lock = lock(tmp_path)
    with pytest.raises(BlockingIOError, match="another process"):
        lock(tmp_path)
    with pytest.raises(BlockingIOError):
        create_run(str(tmp_path))
    run_lock.close()
    create_run(str(tmp_path))[1].close()


# Finding


def add_run(path: str, *, checkpoint: bool = True) -> Path:
    run = Path(path)
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    if checkpoint:
        (run / "checkpoints" / "manifest.json").write_text("{}")
    return run


@pytest.mark.parametrize("newest", ["runs/b", "runs/sweep/0", "runs/multirun/b/0"])
def test_the_newest_run_with_a_checkpoint_is_found_in_sweeps_too(newest: str) -> None:
    runs = [add_run("runs/a"), add_run(newest), add_run("runs/c", checkpoint=False)]
    for age, run in enumerate(runs[:2]):
        os.utime(run / "checkpoints" / "manifest.json", (1000 + age, 1000 + age))
    assert find_run(None) == runs[1]


@pytest.mark.parametrize("run", [None, "nowhere", "empty"])
def test_a_run_that_does_not_exist_is_an_error(run: str | None) -> None:
    Path("empty").mkdir()
    with pytest.raises(FileNotFoundError):
        find_run(run)


def test_runs_of_a_sweep_come_in_the_order_of_their_numbers() -> None:
    runs = [add_run(f"sweep/{name}") for name in ("0", "2", "10")]
    assert find_runs("sweep") == runs
