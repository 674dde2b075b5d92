"""The run that was never broken, to which all others are compared."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reliability.doors import Doors, Ended
from tests.reliability.runs import EVERY, SETTINGS, STEPS, losses, saved_step


@pytest.fixture(scope="session")
def cache(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The setting that names a cache in which the runs' corpus is."""
    assert doors.run("train.py", f"out={tmp_path_factory.mktemp('first')}", cache, *SETTINGS, "max_steps=1").status == 0
    return cache


@pytest.fixture(scope="session")
def timed(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The unbroken run, and how many seconds it took."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    run = doors.start("train.py", f"out={out}", cache, *SETTINGS)
    ended = run.wait()
    assert ended.status == 0 and ended.err == ""
    return out, ended.moment - run.began


@pytest.fixture(scope="session")
def unbroken(timed: tuple[Path, float]) -> Path:
    return timed[0]


@pytest.fixture(scope="session")
def late(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed with its last checkpoint but one kept: what is left of it takes a second."""
    out = tmp_path_factory.mktemp("late") / "run"
    run = doors.start("train.py", f"out={out}", cache, *SETTINGS)
    while not losses(out) or losses(out)[-1][0] <= STEPS - EVERY:
        assert not run.has_ended
        time.sleep(0.005)
    run.send(signal.SIGKILL)
    run.wait()
    assert saved_step(out) == STEPS - EVERY
    return out


@pytest.fixture
def resume(doors: Doors, cache: str) -> Callable[..., Ended]:
    """Go on with a run, as resume(run, before=…)."""
    return lambda run, **how: doors.run("train.py", f"out={run}", "resume=true", cache, **how)


@pytest.fixture
def broken(late: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a copy of the run that was killed late, by name."""
    return lambda name: Path(shutil.copytree(late, tmp_path / name))
