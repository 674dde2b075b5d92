"""Files that belong together: killed at any call of the system, or out of room, nothing of two stands as one."""

import io
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.checkpoint import write_set

OLD = {"probe.json": "1", "items.jsonl": "of 1", "report.html": "page of 1", "figures/map.png": "map of 1"}
NEW = {"probe.json": "2", "items.jsonl": "of 2", "report.html": "page of 2"}
OLD_SET, NEW_SET = OLD | {"../tb/events.1": "scalars of 1"}, NEW | {"../tb/events.2": "scalars of 2"}
GONE = ["figures/map.png", "../tb/events.1"]
CALLS = [
    (os, "open"), (os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "rmdir"), (io, "open"),
]  # fmt: skip

# A child of a process that has threads is safe here: it calls the operating system, and nothing that holds a lock.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def run_with(tmp_path: Path, files: dict[str, str], mark: str | None = "probe.json") -> Path:
    folder = tmp_path / "probe"
    write_set(folder, files, mark)
    (folder / "sentences.json").write_text("a person's own")
    return folder


def found(folder: Path) -> dict[str, str]:
    paths = [path for root in (folder, folder.parent / "tb") for path in root.rglob("*") if path.is_file()]
    names = {path: os.path.relpath(path, folder) for path in paths}
    return {name: path.read_text() for path, name in names.items() if name != "sentences.json"}


def in_child(act: Callable[[], None]) -> int:
    """Run `act` in a process of its own; return its exit status, or minus the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying(calls: int, *, after: bool) -> None:
    """End this process, without a word, before or after so many calls of the operating system."""
    left = calls

    def patched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if not left and not after:
                os._exit(9)
            try:
                return real(*arguments, **more)
            finally:
                if not left:
                    os._exit(9)

        return call

    for module, name in CALLS:
        setattr(module, name, patched(getattr(module, name)))


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_there_is_the_old_set_the_new_set_or_none_that_counts(tmp_path: Path, after: bool) -> None:
    states = []
    for calls in range(1, 200):
        folder = run_with(tmp_path / str(calls), OLD_SET)

        def write(folder: Path = folder, calls: int = calls) -> None:
            dying(calls, after=after)
            write_set(folder, NEW_SET, "probe.json", GONE)

        status = in_child(write)
        here = {name: text for name, text in found(folder).items() if ".unfinished" not in name}
        state = "none" if "probe.json" not in here else "old" if here == OLD_SET else "new" if here == NEW_SET else here
        states.append(state)
        assert (folder / "sentences.json").read_text() == "a person's own"
        write_set(folder, NEW_SET, "probe.json", GONE)  # the next one heals it
        assert found(folder) == NEW_SET and not (folder / ".unfinished").exists()
        if status == 0:
            break
        assert status == 9
    assert status == 0 and states == sorted(states, key=["old", "none", "new"].index)
    assert set(states) == {"old", "none", "new"}


def test_a_set_that_finds_no_room_changes_nothing(tmp_path: Path) -> None:
    folder = run_with(tmp_path, OLD_SET)

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with pytest.raises(OSError, match=r"probe/\.unfinished/.*items\.jsonl|File too large"):
            write_set(folder, NEW_SET | {"items.jsonl": "x" * 200_000}, "probe.json", GONE)

    assert in_child(write) == 0
    assert found(folder) == OLD_SET and not (folder / ".unfinished").exists()


def test_a_set_whose_place_is_taken_changes_nothing(tmp_path: Path) -> None:
    folder = run_with(tmp_path, OLD_SET)
    (folder / "items.jsonl").unlink()
    (folder / "items.jsonl").mkdir()
    before = found(folder)
    with pytest.raises(IsADirectoryError, match=r"items\.jsonl is a folder"):
        write_set(folder, NEW_SET, "probe.json", GONE)
    assert found(folder) == before and not (folder / ".unfinished").exists()


@pytest.mark.parametrize("after", [False, True])
def test_files_of_which_none_marks_the_others_are_never_missing(tmp_path: Path, after: bool) -> None:
    for calls in range(1, 200):
        folder = run_with(tmp_path / str(calls), OLD, None)

        def write(folder: Path = folder, calls: int = calls) -> None:
            dying(calls, after=after)
            write_set(folder, NEW)

        status = in_child(write)
        here = found(folder)
        assert all(here[name] in (OLD[name], NEW[name]) for name in NEW)
        if status == 0:
            break
    assert status == 0 and calls > 20 and here == NEW | {"figures/map.png": "map of 1"}
