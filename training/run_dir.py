"""A run's directory: never another's, found again by time, with everything needed to read it later.

config.json, tokenizer.json, environment.json, metrics.jsonl, attention.jsonl (of stories), checkpoints/, tb/, probe/
and, where it was gone on with, resumes.jsonl.
"""

import fcntl
import itertools
import json
import os
import platform
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Any

from training.checkpoint import UNFINISHED, write_atomically

RUNS = Path("runs")


RESUMES = "resumes.jsonl"


_LOCK = ".lock"


_PACKAGES = ("torch", "datasets", "tokenizers", "tensorboard", "hydra-core", "numpy")


def claim(folder: Path) -> FileIO:
    """Keep every other process from writing to `folder` until what is returned is closed, or this process ends.

    Raises:
        BlockingIOError: in one line, that another process has claimed it.
        OSError: it cannot be written.

    """
    # A link there would be of whoever sent the run, to a file that is not ours to empty.
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    stream = FileIO(descriptor, "r+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = stream.read(200).decode(errors="replace").strip() or "another process"
        stream.close()
        raise BlockingIOError(f"{folder} is being written by {holder}: wait for its end, or end it") from None
    except OSError:  # a file system that knows no locks: nobody can be kept out there
        return stream
    with suppress(OSError):  # on a full disk: who holds it is for others to read, that it is held is not
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return stream


def check_new(out: str | None) -> None:
    """Raise OSError where no run can begin in `out`; None: a folder of its own in runs/.

    FileExistsError where it holds anything but what a process that was killed at its start has left.
    """
    path = Path(out) if out is not None else RUNS
    if (
        out is not None
        and path.is_dir()
        and any(one.name != _LOCK and not UNFINISHED.fullmatch(one.name) for one in path.iterdir())
    ):
        raise FileExistsError(f"out={path} is not empty: choose another, or go on with its run by resume=true")
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    trial = there / f".{path.name}.{os.getpid()}"
    try:  # whoever may make this folder may make the run's
        trial.mkdir(exist_ok=True)
        trial.rmdir()
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def create_run(out: str | None) -> tuple[Path, FileIO]:
    """Make a new run's directory and claim it; return both.

    Raises:
        FileExistsError: `out` already holds something.
        BlockingIOError: another process has just begun a run in it.

    """
    if out is None:
        for count in itertools.count():
            now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
            path = RUNS / (f"{now}_{count}" if count else now)  # counted, for a clock may stand still or go back
            try:
                path.mkdir(parents=True)
                return path, claim(path)
            except FileExistsError:  # another run began in the same microsecond
                continue
    path = Path(out or "")
    path.mkdir(parents=True, exist_ok=True)
    check_new(out)
    claimed = claim(path)
    check_new(out)  # whoever held it may have begun a run meanwhile
    return path, claimed


def clear_left_overs(folder: Path) -> None:
    """Remove the files that a killed process was just writing into `folder`, which must be claimed."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name):
            path.rmdir() if path.is_dir() else path.unlink()


def find_run(run: str | None) -> Path:
    """Return the directory of a run that can be read: `run`, or the newest in runs/ that has a checkpoint.

    Raises FileNotFoundError where there is none.
    """
    if run is not None:
        if not (Path(run) / "config.json").is_file():
            raise FileNotFoundError(f"{run} is not a run's directory: it has no config.json")
        return Path(run)
    manifests = [*RUNS.glob("*/checkpoints/manifest.json"), *RUNS.glob("*/*/*/checkpoints/manifest.json")]
    if not manifests:
        raise FileNotFoundError("there is no run in runs/ yet: python train.py makes one")
    return max(manifests, key=lambda path: path.stat().st_mtime).parent.parent


def find_runs(runs: str) -> list[Path]:
    """Return the directories of the runs of one sweep, by number or name; FileNotFoundError where there are none."""
    if (Path(runs) / "config.json").is_file():
        raise FileNotFoundError(f"{runs} is a single run: run={runs} probes it")
    if not runs or not Path(runs).is_dir():
        raise FileNotFoundError(f"there is no directory {runs or 'of that name'}")
    found = [path.parent for path in Path(runs).glob("*/config.json")]
    if not found:
        raise FileNotFoundError(f"{runs} holds no runs: python train.py -m seed=1,2,3,4,5 makes some")
    return sorted(found, key=lambda path: (int(path.name) if path.name.isdecimal() else 0, path.name))


def check_writable(run: Path) -> None:
    """Raise PermissionError in one line where a probe could not write into a run's directory."""
    if folder := unwritable(run):
        raise PermissionError(f"{folder} cannot be written: nothing has been looked at")


def unwritable(run: Path) -> Path | None:
    """Return the folder of a run in which a probe would have to write and cannot; None where it can."""
    folders = (run, run / "probe", run / "tb")
    return next((one for one in folders if one.exists() and not os.access(one, os.W_OK | os.X_OK)), None)


def read_json(path: Path) -> Any:
    """Read a JSON file of a run; raise ValueError in one line where it is damaged."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def environment(device: str, threads: int, processes: int = 1) -> dict[str, Any]:
    """Return what a result depends on besides its config: versions, machine, threads, processes, commit."""
    commit = _git("rev-parse", "HEAD")
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "machine": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
        "threads": threads,
        "processes": processes,
        "commit": commit,
        "uncommitted_changes": bool(_git("status", "--porcelain", "-uno")) if commit else None,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return [before, now] of every value in which two JSON objects differ, by name; of a nested one as outer.inner."""
    found: dict[str, list[Any]] = {}
    for name in sorted(before.keys() | now.keys()):
        one, other = before.get(name), now.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found |= {f"{name}.{inner}": both for inner, both in differences(one, other).items()}
        elif one != other:
            found[name] = [one, other]
    return found


def add_resume(run: Path, line: Mapping[str, Any]) -> None:
    """Add a line to resumes.jsonl, whole or not at all: from where a run was gone on with, and what was changed."""
    path = run / RESUMES
    before = path.read_bytes() if path.exists() else b""
    write_atomically(path, before + json.dumps(line).encode() + b"\n")


def _git(*arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here, or no time for it
        return None
    return ran.stdout.strip() or None
