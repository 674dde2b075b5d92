"""Run directories: each its own, found again."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from training.checkpoint import save_checkpoint
from training.run_dir import (
    claim,
    clear_left_overs,
    create_run,
    differences,
    environment,
    find_run,
    find_runs,
    read_json,
    write_json,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_eight_starts_at_once_get_eight_directories() -> None:
    made: list[Path] = []

    def start() -> None:
        path, claimed = create_run(None)
        made.append(path)
        claimed.close()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8 and all(path.is_dir() for path in made)
    assert not any(":" in str(path) for path in made)  # Windows forbids it


def test_a_directory_that_holds_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    path, claimed = create_run(str(tmp_path / "mine"))
    assert path == tmp_path / "mine"
    claimed.close()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="is not empty"):
        create_run(str(tmp_path / "mine"))


def test_a_directory_that_is_claimed_is_refused_and_one_whose_process_has_ended_is_not(tmp_path: Path) -> None:
    claimed = claim(tmp_path)
    with pytest.raises(BlockingIOError, match=f"is being written by process {os.getpid()} on "):
        claim(tmp_path)
    with pytest.raises(BlockingIOError):
        create_run(str(tmp_path))
    assert (tmp_path / ".lock").read_text().count("process") == 1
    claimed.close()
    create_run(str(tmp_path))[1].close()


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock"):
        claim(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_directory_is_claimed_even_where_there_is_no_room_to_say_by_whom(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        claimed = claim(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
    with claimed, pytest.raises(BlockingIOError, match="is being written by another process"):
        claim(tmp_path)


def test_what_differs_is_named_as_deep_as_it_lies() -> None:
    before = {"same": 1, "packages": {"torch": "2.11", "numpy": "2"}, "gone": None, "other": {"a": 1}}
    now = {"same": 1, "packages": {"torch": "2.13", "numpy": "2"}, "new": [1], "other": 3}
    expected = {"new": [None, [1]], "other": [{"a": 1}, 3], "packages.torch": ["2.11", "2.13"]}
    assert differences(before, now) == expected and differences(now, now) == {}


def test_leftovers_of_a_killed_process_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    for name in (".config.json.12", ".lock", "metrics.jsonl", ".hidden", "x.12"):
        (tmp_path / name).write_text("")
    clear_left_overs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "metrics.jsonl", ".hidden", "x.12"}


def test_the_newest_run_with_a_checkpoint_is_found() -> None:
    with pytest.raises(FileNotFoundError, match="python train.py makes one"):
        find_run(None)
    runs = [Path("runs") / name for name in "abc"]
    for run in runs:
        run.mkdir(parents=True)
    for age, run in enumerate(runs[:2]):
        write_json(run / "config.json", {})
        save_checkpoint(run / "checkpoints", {}, 1, best=True)
        os.utime(run / "checkpoints" / "manifest.json", (age, age))
    assert find_run(None) == runs[1]
    assert find_run(str(runs[0])) == runs[0]
    with pytest.raises(FileNotFoundError, match="no config.json"):
        find_run(str(runs[2]))


def test_runs_of_a_multirun_are_found_too() -> None:
    run = Path("runs/multirun/2026-01-01/3")
    run.mkdir(parents=True)
    write_json(run / "config.json", {})
    save_checkpoint(run / "checkpoints", {}, 1, best=True)
    assert find_run(None) == run


def test_a_damaged_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is damaged"):
        read_json(tmp_path / "config.json")


def test_the_environment_names_versions_threads_and_commit() -> None:
    about = environment("cpu", 3)
    assert about["threads"] == 3 and about["packages"]["torch"]
    assert about["commit"] is None or len(about["commit"]) == 40


def test_the_runs_of_a_sweep_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10", "9", "0", "probe"):
        (tmp_path / name).mkdir()
        if name != "probe":
            (tmp_path / name / "config.json").write_text("{}")
    assert [path.name for path in find_runs(str(tmp_path))] == ["0", "9", "10"]
    for wrong, message in (
        (tmp_path / "9", "is a single run"),
        (tmp_path / "no", "there is no directory"),
        (tmp_path / "probe", "no runs"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            find_runs(str(wrong))


# Root may write everywhere, so it becomes nobody first; already inside, for nobody may not pass through root's folders.
_AS_NOBODY = """
import os, sys
from pathlib import Path
from training.run_dir import check_writable
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)
check_writable(Path("."))
"""


@pytest.mark.parametrize(
    ("folder", "mode", "refused"), [(".", 0o555, True), ("probe", 0o555, True), (".", 0o777, False)]
)
def test_a_run_that_cannot_be_written_is_refused_whoever_asks(
    tmp_path: Path, folder: str, mode: int, refused: bool
) -> None:
    run = tmp_path / "run"
    (run / "probe").mkdir(parents=True)
    for one in (run, run / "probe"):
        one.chmod(0o777)
    (run / folder).chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(run)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (run / folder).chmod(0o777)
    said = f"{folder} cannot be written" in done.stderr
    assert (done.returncode != 0, said) == (refused, refused), done.stderr
