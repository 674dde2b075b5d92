"""What the other tests here stand on: a door's process is real, and none outlives the tests; what a figure is."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.reliability.doors import ROOT, Doors


def test_a_door_says_and_returns_what_it_does_from_a_command_line(doors: Doors, tmp_path: Path) -> None:
    mistake = doors.run("train.py", "model.n_haed=3", cwd=tmp_path)
    plain = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "model.n_haed=3"], capture_output=True, text=True, check=False
    )
    assert (mistake.status, mistake.out, mistake.err) == (plain.returncode, plain.stdout, plain.stderr)
    assert plain.returncode == 2 and mistake.cpu_seconds > 0


def test_a_signal_meets_the_run_itself_and_its_end_is_told_to_the_moment(doors: Doors) -> None:
    run = doors.start("train.py", before=partial(time.sleep, 60))
    assert not run.has_ended
    run.send(signal.SIGKILL)
    sent = time.monotonic()
    ended = run.wait(5)
    assert ended.status == -signal.SIGKILL and abs(ended.moment - sent) < 1


def test_what_is_still_running_at_the_end_is_ended(tmp_path: Path) -> None:
    own = Doors(tmp_path)
    run = own.start("train.py", before=partial(time.sleep, 60))
    own.close()
    end = time.monotonic() + 5
    while is_alive(run.pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_figure_that_misses_its_target_fails_its_test_and_stands_in_the_table_all_the_same(tmp_path: Path) -> None:
    """In a pytest of its own, which is told of a folder with two tests and of one that records nothing."""
    (tmp_path / "test_two.py").write_text(
        "def test_met(figure): figure('a', '1', '1', True)\n"
        "def test_missed(figure): figure('b', '1', '2', False)\n"
        "def test_other(): assert False\n"
    )
    options = ["-p", "tests.conftest", "--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--figures={tmp_path / 'table.json'}", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "table.json").read_text())
    assert [(one["row"], one["target"], one["measured"], one["met"]) for one in found["figures"]] == [
        ("a", "1", "1", True),
        ("b", "1", "2", False),
    ]
    assert [one["test"] for one in found["failed"]] == ["test_two.py::test_missed"] and found["cpu_seconds"] >= 0
