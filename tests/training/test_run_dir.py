"""Run directories: created once, locked, found again; and the request to stop."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from tests.program import ROOT
from training.checkpoint import remove_unfinished_files
from training.run_dir import (
    StopRequest,
    check_new,
    create_run,
    find_run,
    find_runs,
    lock,
    read_json,
    write_json,
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Creating and locking


def test_eight_starts_at_once_get_eight_directories() -> None:
    runs: list[tuple[Path, FileIO]] = []
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


def test_files_of_a_process_killed_at_its_start_do_not_make_a_directory_count_as_used(tmp_path: Path) -> None:
    (tmp_path / ".config.json.1234").touch()
    (tmp_path / ".lock").touch()
    check_new(str(tmp_path))


def test_a_locked_directory_is_refused_until_its_lock_is_closed(tmp_path: Path) -> None:
    run_lock = lock(tmp_path)
    with pytest.raises(BlockingIOError, match=str(os.getpid())):
        lock(tmp_path)
    with pytest.raises(BlockingIOError):
        create_run(str(tmp_path))
    run_lock.close()
    create_run(str(tmp_path))[1].close()


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock"):
        lock(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


def test_only_unfinished_files_are_removed(tmp_path: Path) -> None:
    for name in (".step_00000001.pt.77", "metrics.jsonl", ".lock", ".hidden"):
        (tmp_path / name).touch()
    remove_unfinished_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", ".lock", "metrics.jsonl"]


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


@pytest.mark.parametrize("sweep", ["", "nowhere", "runs/single"])
def test_a_directory_that_is_no_sweep_is_an_error(sweep: str) -> None:
    add_run("runs/single")
    with pytest.raises(FileNotFoundError):
        find_runs(sweep)


# Files


def test_json_comes_back_and_damaged_json_is_an_error_that_names_the_file() -> None:
    write_json(Path("a.json"), {"a": [1, None, "é"]})
    assert read_json(Path("a.json")) == {"a": [1, None, "é"]}
    for content in ("{", "[" * 100_000):
        Path("b.json").write_text(content)
        with pytest.raises(ValueError, match=r"b\.json"):
            read_json(Path("b.json"))


# Stopping


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of the signals after the test."""
    old_handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in old_handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_gives_the_exit_status_of_a_shell(number: int, handlers: None) -> None:
    signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    stop = StopRequest()
    assert stop.signal is None and stop.exit_status == 0
    signal.raise_signal(number)
    assert stop.signal == number and stop.exit_status == 128 + number


def test_the_signal_of_another_process_counts(handlers: None) -> None:
    stop = StopRequest()
    stop.receive(0)
    assert stop.signal is None
    stop.receive(signal.SIGTERM)
    assert stop.signal == signal.SIGTERM


def test_an_ignored_signal_and_a_handler_of_another_library_stay(handlers: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
    stop = StopRequest()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    assert stop.signal is None and calls == [signal.SIGTERM]


def test_the_handlers_from_before_come_back() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    StopRequest().close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


WAIT = (
    "import signal, time\nfor number in (2, 15): signal.signal(number, signal.SIG_DFL)\n"
    "from training.run_dir import StopRequest\nstop = StopRequest()\nprint('ready', flush=True)\n"
    "while True: time.sleep(0.01)"
)


@pytest.mark.slow
def test_a_second_signal_ends_the_process_unless_it_is_an_echo_of_the_first() -> None:
    """torchrun passes Ctrl-C on to processes that got it from the terminal too."""
    with subprocess.Popen([sys.executable, "-c", WAIT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        statuses = []
        for seconds in (0.2, 2.2, 0.5):
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds)
            statuses.append(process.poll())
        process.kill()
    assert statuses == [None, None, -signal.SIGTERM]
