"""The directory of a run: created once, locked while a process writes, found again later; and the request to stop.

It holds config.json, tokenizer.json, environment.json, metrics.jsonl, attention.jsonl (of stories), checkpoints/, tb/,
probe/ and, after a resume, resumes.jsonl.
"""

import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from io import FileIO
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from tokenizers import Tokenizer

from training.checkpoint import UNFINISHED, remove_unfinished_files, write_atomically
from training.settings import TrainSettings, changed_settings, flat, saved_settings

RUNS = Path("runs")
RESUMES = "resumes.jsonl"
LOCK = ".lock"
PACKAGES = ("torch", "datasets", "tokenizers", "tensorboard", "hydra-core", "numpy")


# Creating and locking


def create_run(out: str | None) -> tuple[Path, FileIO]:
    """Creates the directory of a new run, `out` or else one in runs/ named by the time, and returns its path and lock.

    Raises FileExistsError if `out` is not empty, BlockingIOError if another process is writing to it.
    """
    while out is None:
        path = RUNS / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        with suppress(FileExistsError):  # another run started in the same microsecond
            path.mkdir(parents=True)
            return path, lock(path)
    path = Path(out)
    path.mkdir(parents=True, exist_ok=True)
    check_new(out)
    run_lock = lock(path)
    check_new(out)  # another process may have started a run before we got the lock
    return path, run_lock


def check_new(out: str | None) -> None:
    """Raises OSError if `create_run` would fail: `out` is not empty, or no directory can be created there."""
    path = RUNS if out is None else Path(out)
    names = [file.name for file in path.iterdir()] if out is not None and path.is_dir() else []
    if any(name != LOCK and not UNFINISHED.fullmatch(name) for name in names):
        remedy = ", or set resume=true" if "config.json" in names else ""
        raise FileExistsError(f"out={path}: is not empty; choose another directory{remedy}")
    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def lock(folder: Path) -> FileIO:
    """Locks `folder` for writing by this process until the returned file is closed or the process ends.

    Raises BlockingIOError if another process has the lock, OSError if the folder cannot be written.
    """
    # O_NOFOLLOW: in a run from somebody else the name could be a link to any file of ours.
    file = FileIO(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = file.read(200).decode(errors="replace").strip() or "another process"
        file.close()
        raise BlockingIOError(f"{folder}: {owner} is writing to it; wait until it ends, or stop it") from None
    except OSError:  # a file system without locks
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return file


# Finding


def find_run(run: str | None) -> Path:
    """Returns the directory `run`; if None, the newest in runs/ with a checkpoint. FileNotFoundError: no such run."""
    if run is not None:
        if not (Path(run) / "config.json").is_file():
            problem = "is not the directory of a run: it has no config.json" if Path(run).is_dir() else "does not exist"
            raise FileNotFoundError(f"{run}: {problem}")
        return Path(run)
    depths = ("*", "*/*", "*/*/*")  # a run, and sweeps with and without out=
    manifests = [path for depth in depths for path in RUNS.glob(f"{depth}/checkpoints/manifest.json")]
    if not manifests:
        raise FileNotFoundError("runs/: has no run yet; train one with python train.py")
    return max(manifests, key=lambda path: path.stat().st_mtime).parent.parent


def find_runs(sweep: str) -> list[Path]:
    """Returns the directories of the runs of a sweep, by number, then name; FileNotFoundError if there are none."""
    if (Path(sweep) / "config.json").is_file():
        raise FileNotFoundError(f"{sweep}: is a single run; use run={sweep}")
    runs = [path.parent for path in Path(sweep).glob("*/config.json")] if sweep else []
    if not runs:
        raise FileNotFoundError(f"{sweep or 'runs='}: holds no runs; train a sweep with python train.py -m seed=1,2,3")
    return sorted(runs, key=lambda path: (int(path.name) if path.name.isdecimal() else 0, path.name))


def unwritable(run: Path) -> Path | None:
    """Returns the folder of a run that eval.py would have to write to and cannot; None if it can write."""
    folders = (run, run / "probe")
    return next((folder for folder in folders if folder.exists() and not os.access(folder, os.W_OK | os.X_OK)), None)


# Files


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; raises ValueError if it is damaged."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged JSON: {error}") from None


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def run_config(settings: TrainSettings, tokenizer: Tokenizer, data_fingerprint: str) -> dict[str, Any]:
    """Returns the content of config.json: the settings and what identifies the data."""
    config = asdict(replace(settings, run=replace(settings.run, resume=False))) | {
        "vocab_size": tokenizer.get_vocab_size(),
        "data_fingerprint": data_fingerprint,
        "tokenizer_sha256": sha256(tokenizer.to_str(pretty=True).encode()).hexdigest(),
    }
    return json.loads(json.dumps(config, default=lambda enum: enum.value))


def describe_run(
    run: Path, config: Mapping[str, Any], tokenizer: Tokenizer, environment: Mapping[str, Any], *, is_new: bool
) -> None:
    """Writes config.json and tokenizer.json, for a new run also environment.json."""
    remove_unfinished_files(run)  # the directory is locked
    if is_new or not (run / "environment.json").exists():
        write_json(run / "environment.json", environment)
    write_json(run / "config.json", config)
    write_atomically(run / "tokenizer.json", tokenizer.to_str(pretty=True).encode())


def record_resume(
    run: Path, step: int, old_config: Mapping[str, Any], config: Mapping[str, Any], environment: Mapping[str, Any]
) -> None:
    """Appends a line to resumes.jsonl, and warns of each change of the settings and the environment.

    `old_config` is config.json when the checkpoint of `step` was written; `config` and `environment` are of now.
    """
    settings = changed_settings(flat(saved_settings(old_config)), flat(saved_settings(config)))
    environment_file, resumes = run / "environment.json", run / RESUMES
    old_environment = read_json(environment_file) if environment_file.exists() else environment
    machines = ({**machine, **machine["packages"], "packages": None} for machine in (old_environment, environment))
    machine_changes = changed_settings(*machines)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"step": step, "time": when, "environment": machine_changes, "settings": settings}
    old_lines = resumes.read_bytes() if resumes.exists() else b""
    write_atomically(resumes, old_lines + json.dumps(record).encode() + b"\n")
    if machine_changes:
        names = ", ".join(machine_changes)
        print(f"warning: losses may differ in the last bits: {names} changed", file=sys.stderr)
    for name, (old, new) in settings.items():
        print(f"warning: {name}={new} from step {step} on (before: {old})", file=sys.stderr)


def environment(device: str, threads: int, processes: int = 1) -> dict[str, Any]:
    """Returns what a result depends on besides the settings: versions, machine, threads, processes, git commit."""
    commit = _git("rev-parse", "HEAD")
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "machine": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
        "threads": threads,
        "processes": processes,
        "commit": commit,
        "uncommitted_changes": bool(_git("status", "--porcelain", "-uno")) if commit else None,
    }


def _git(*arguments: str) -> str | None:
    """Returns what git prints; None if that is nothing, or git fails or is not installed."""
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output(
            ["git", *arguments], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=5
        )
        return output.strip() or None
    return None


# Stopping


class StopRequest:
    """Remembers the first SIGINT, SIGTERM or SIGHUP, so that the run can save a checkpoint and exit.

    A second signal ends the process at once, unless it comes within two seconds: Ctrl-C reaches a process of torchrun
    twice, from the terminal and from torchrun. A signal that is ignored (SIGHUP under nohup) or has another
    handler (SIGTERM in jobs of submitit) stays as it is. Must be created in the main thread.
    """

    def __init__(self) -> None:
        """Installs the handlers."""
        self._received: int | None = None
        self._received_at = 0.0
        self._old_handlers: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._old_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._received_at = number, time.monotonic()
        elif time.monotonic() > self._received_at + 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def close(self) -> None:
        """Restores the handlers from before."""
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    @property
    def signal(self) -> int | None:
        """The number of the first signal, None if there was none."""
        parent = parent_process()
        if self._received is None and parent is not None and parent.pid != os.getppid():
            self._received = signal.SIGTERM  # the sweep that started this process (hydra/launcher=joblib) has ended
        return self._received

    def receive(self, number: int) -> None:
        """Takes over the signal that another process of this run received; 0: none."""
        self._received = self._received or number or None

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 0 without a signal, else 128 + its number, as shells expect."""
        return 128 + self.signal if self.signal is not None else 0
