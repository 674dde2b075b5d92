"""The directory of a run: created once, locked while a process writes, found again later.

It holds config.json, tokenizer.json, environment.json, metrics.jsonl, weights.jsonl (of a small model), checkpoints/,
tb/ and probe/.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from settings.errors import UserError
from settings.files import LOCK, UNFINISHED, lock, naming
from settings.train import TrainSettings
from training.checkpoint import MANIFEST, read_manifest

RUNS = Path("runs")
PACKAGES = ("torch", "datasets", "tokenizers", "tensorboard", "hydra-core", "numpy")


@contextmanager
def locked_run(out: str | None, *, resume: bool = False) -> Iterator[Path]:
    """Yield `out`, or a directory in runs/ named by the time, which is created and locked in the body.

    OSError if another process has it, or if it is not empty, unless `resume`. An error of the body that names no file,
    as of a full disk, names the directory.
    """
    path = RUNS / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f") if out is None else Path(out)
    path.mkdir(parents=True, exist_ok=True)
    with closing(lock(path)), naming(path):
        if not resume:
            check_out_is_free(str(path))  # another process may have started a run before we got the lock
        yield path


def check_out_is_free(out: str | None) -> None:
    """Raise OSError if `locked_run` would fail: `out` is not empty, or no directory can be created there."""
    path = RUNS if out is None else Path(out)
    if out is not None and path.is_dir():
        for file in path.iterdir():
            # Locks and unfinished files, left by a killed process, do not count.
            if file.name != LOCK and not UNFINISHED.fullmatch(file.name):
                remedy = ", or set resume=true" if (path / "config.json").exists() else ""
                raise FileExistsError(f"out={path}: is not empty; choose another directory{remedy}")

    parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not _is_writable(parent):
        raise PermissionError(f"out={path}: {parent} cannot be written")


def find_run(run: str | None, setting: str = "run") -> Path:
    """Return the directory `run`; if None, the newest in runs/ with a checkpoint. FileNotFoundError names `setting`."""
    if run is not None:
        if not Path(run).is_dir():
            raise FileNotFoundError(f"{setting}={run}: does not exist")
        if not (Path(run) / "config.json").is_file():
            raise FileNotFoundError(f"{setting}={run}: is not the directory of a run: it has no config.json")
        return Path(run)

    manifests = list(RUNS.rglob(f"checkpoints/{MANIFEST}"))  # also of the runs of sweeps
    if not manifests:
        raise FileNotFoundError("runs/: has no run yet; train one with python train.py")
    return max(manifests, key=_last_saved).parents[1]


def _last_saved(manifest: Path) -> str:
    """Return when the newest checkpoint of a manifest was saved: the time of a file is that of its copy.

    Return "" if the manifest is damaged; opening the run reports it.
    """
    with suppress(UserError):
        return max((entry.saved for entry in read_manifest(manifest.parent)), default="")
    return ""


def find_runs(sweep: str) -> list[Path]:
    """Return the directories of the runs of a sweep, by number, then name; FileNotFoundError if there are none."""
    if (Path(sweep) / "config.json").is_file():
        raise FileNotFoundError(f"runs={sweep}: is one run; use model={sweep}")
    runs = [path.parent for path in Path(sweep).glob("*/config.json")] if sweep else []
    if not runs:
        raise FileNotFoundError(f"{sweep or 'runs='}: holds no runs; train a sweep with python train.py -m seed=1,2,3")
    # 2 before 10.
    return sorted(runs, key=lambda path: (int(path.name) if path.name.isdecimal() else 0, path.name))


def first_unwritable(run: Path) -> Path | None:
    """Return the folder of a run that eval.py would have to write to and cannot; None if it can write."""
    for folder in (run, run / "probe"):
        if folder.exists() and not _is_writable(folder):
            return folder
    return None


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def run_config(settings: TrainSettings, tokenizer: bytes, data_fingerprint: str) -> dict[str, Any]:
    """Return the content of config.json: the settings and what identifies the data and tokenizer.json."""
    config = asdict(replace(settings, run=replace(settings.run, resume=False))) | {
        "data_fingerprint": data_fingerprint,
        "tokenizer_sha256": sha256(tokenizer).hexdigest(),
    }
    content: dict[str, Any] = json.loads(json.dumps(config, default=lambda enum: enum.value))
    return content


def environment(device: str, threads: int, processes: int = 1) -> dict[str, Any]:
    """Return what a result depends on besides the settings: versions, machine, threads, processes, git commit."""
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
    """Return what git prints; None if that is nothing, or git fails or is not installed."""
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output(
            ["git", *arguments], cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=5
        )
        return output.strip() or None
    return None
