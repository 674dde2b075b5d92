"""Run directories: created once, locked, found again; and a lock that is a link."""

import os
from pathlib import Path

import pytest

from training.files import is_locked, lock
from training.run_dir import create_run, find_run, find_runs


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_runs_without_a_name_get_directories_of_their_own() -> None:
    runs = [create_run(None) for _ in range(8)]
    for _, run_lock in runs:
        run_lock.close()
    paths = {path for path, _ in runs}
    assert len(paths) == 8 and all(path.parent == Path("runs") and path.is_dir() for path in paths)


def test_a_locked_directory_is_refused_until_its_lock_is_closed(tmp_path: Path) -> None:
    run_lock = lock(tmp_path)
    for start in (lambda: lock(tmp_path), lambda: create_run(str(tmp_path))):
        with pytest.raises(BlockingIOError, match="another process"):
            start()
    assert is_locked(tmp_path)
    run_lock.close()
    assert not is_locked(tmp_path)
    create_run(str(tmp_path))[1].close()


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError) as error:
        lock(tmp_path / "run")
    assert str(error.value.filename).endswith(".lock") and (tmp_path / "mine").read_text() == "mine"


# Finding


def add_run(path: str) -> Path:
    run = Path(path)
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "checkpoints" / "manifest.json").write_text("{}")
    return run


@pytest.mark.parametrize("newest", ["runs/b", "runs/sweep/0", "runs/multirun/b/0"])
def test_the_newest_run_with_a_checkpoint_is_found_in_sweeps_too(newest: str) -> None:
    for age, path in enumerate(["runs/a", newest]):
        os.utime(add_run(path) / "checkpoints" / "manifest.json", (1000 + age, 1000 + age))
    (add_run("runs/c") / "checkpoints" / "manifest.json").unlink()
    assert find_run(None) == Path(newest)


def test_a_run_that_does_not_exist_is_an_error_and_runs_of_a_sweep_come_in_the_order_of_their_numbers() -> None:
    Path("empty").mkdir()
    for run in (None, "nowhere", "empty"):
        with pytest.raises(FileNotFoundError):
            find_run(run)
    runs = [add_run(f"sweep/{name}") for name in ("0", "2", "10")]
    assert find_runs("sweep") == runs
