"""The table of figures: what a test has measured, against what is promised."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.program import SMALL, run_program
from tests.reliability.doors import ONE_THREAD, Doors

# Tests run side by side, one to a core: more threads than that are in each other's way (measured: twice the CPU-seconds
# for the same tests). Before anything imports torch.
os.environ.update(ONE_THREAD | os.environ)
_BEGAN = pytest.StashKey[float]()
ROOT = Path(__file__).parent
# What takes longest, about the longest first: a long file that begins last leaves a core idle.
LONGEST = (
    "reliability/test_kills.py",
    "probe/commands/test_unbroken.py",
    "benchmarks/test_gpu.py",
    "reliability/test_fuzz.py",
    "reliability/test_gadgets.py",
    "test_train.py",
    "probe/test_causal.py",
    "reliability/test_mutations.py",
    "test_ranks.py",
    "test_resume.py",
    "test_steps.py",
    "test_report.py",
    "test_eval.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="the full counts of the table of figures, not smaller ones")
    parser.addoption("--figures", metavar="FILE", help="run only the tests that record figures; write these to FILE")


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in its background ignores Ctrl-C, and so would every run that these tests start and send one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # or xdist begins with what has most tests, and most of those are short
    if config.getoption("--figures") and not hasattr(config, "workerinput"):  # a worker of xdist leaves it to its chief
        config.pluginmanager.register(Table(Path(config.getoption("--figures"))))


class Table:
    """Collects what tests have recorded, wherever they ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Any] = {"figures": [], "failed": [], "skipped": [], "cpu_seconds": 0.0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.found[report.outcome].append({"test": report.nodeid, "reason": report.longreprtext[-2000:]})
        recorded = report.user_properties
        if report.when == "call":
            self.found["figures"] += [one | {"test": report.nodeid} for name, one in recorded if name == "figure"]
        elif report.when == "teardown":
            self.found["cpu_seconds"] += sum(seconds for name, seconds in recorded if name == "cpu_seconds")

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))  # stable: within a file nothing moves
    if config.getoption("--figures"):
        recording = {item for item in items if "figure" in getattr(item, "fixturenames", ())}
        config.hook.pytest_deselected(items=[item for item in items if item not in recording])
        items[:] = [item for item in items if item in recording]


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether to take the full counts, which cost too much to be taken at every change."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, str, str, bool], None]:
    """Record a row of the table, as figure(row, target, measured, met); a target that is missed fails the test."""

    def record(row: str, target: str, measured: str, met: bool) -> None:
        record_property("figure", {"row": row, "target": target, "measured": measured, "met": bool(met)})
        assert met, f"{row}: {measured}, and the target is {target}"

    return record


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Doors that start in a moment; whatever still runs at the end is ended."""
    found = Doors(tmp_path_factory.mktemp("doors"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """cache_dir=DIR, one folder for all tests and workers of a session, so that each corpus is tokenized once."""
    folder = tmp_path_factory.getbasetemp()
    return f"cache_dir={(folder.parent if 'PYTEST_XDIST_WORKER' in os.environ else folder) / 'cache'}"


@pytest.fixture(scope="session")
def trained_run(cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run on stories. Tests must not change it."""
    out = tmp_path_factory.mktemp("trained") / "run, small"
    result = run_program("train.py", f"out={out}", cache, *SMALL, "probe_sequences=8", "sample_tokens=5")
    assert result.status == 0 and result.err == "", result.err
    (out.parent / "stdout.txt").write_text(result.out)
    return out


def _cpu_seconds() -> float:
    """Return what this process, those that it has waited for and the runs of its doors have used."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + Doors.cpu_seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", round(_cpu_seconds() - item.stash[_BEGAN], 2)))
