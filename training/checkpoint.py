"""Files that a crash cannot damage: atomic writes, checkpoints with checksums, and sets of files under one marker."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

MANIFEST = "manifest.json"
CHECKPOINT = re.compile(r"step_\d{8}\.pt")
UNFINISHED = re.compile(r"\..+\.\d+")  # temporary files of `write_atomically`, left by a killed process
STAGING = ".unfinished"


# Single files


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that readers see the old content or the new content, also after a crash.

    Raises OSError with the path and, if the disk is full, the bytes; the old file is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise with_path(error, path, len(content)) from None
        raise


def with_path(error: OSError, path: Path, n_bytes: int) -> OSError:
    """Returns `error` with the path and, if there was no space, how many bytes were to be written."""
    message = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        message += f" (writing {n_bytes:,} bytes; {shutil.disk_usage(path.parent).free:,} are free)"
    return type(error)(error.errno, message, str(path))


def remove_unfinished_files(folder: Path) -> None:
    """Deletes the temporary files that a killed process left in `folder`."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Flushes the names in `folder` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Checkpoints


def save_checkpoint(folder: Path, state: dict[str, Any], *, best: bool, keep: int) -> None:
    """Saves `state`, tensors and plain values and among them its "step", and deletes older checkpoints.

    The `keep` newest and the best stay; `best`: the validation loss of this one is the lowest so far. Raises OSError if
    it cannot be written; the checkpoints from before are unchanged.
    """
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content, step = buffer.getvalue(), state["step"]
    old_entries = [entry for entry in read_manifest(folder) if entry["step"] != step]
    path = folder / f"step_{step:08d}.pt"
    write_atomically(path, content)
    entries = [entry | {"best": entry["best"] and not best} for entry in old_entries]
    entries.append({"file": path.name, "step": step, "sha256": hashlib.sha256(content).hexdigest(), "best": best})
    _keep_only(folder, [entry for entry in entries if entry["best"] or entry in entries[-keep:]])


def load_checkpoint(folder: Path, *, best: bool = False) -> dict[str, Any]:
    """Returns the newest undamaged state in `folder`, or the best, and warns of each damaged file.

    Raises FileNotFoundError if there is no checkpoint, ValueError if every one is damaged.
    """
    entries = read_manifest(folder)
    if not entries:
        raise FileNotFoundError(f"{folder}: has no checkpoint yet")
    for entry in sorted(reversed(entries), key=lambda entry: best and not entry["best"]):  # stable: newest first
        path = folder / entry["file"]
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() == entry["sha256"]:
            return _unpickled(path, content)
        problem = "damaged (sha256 differs from the manifest); using another checkpoint"
        print(f"warning: {path}: {problem}", file=sys.stderr)
    if read_manifest(folder) != entries:  # a running training has replaced them meanwhile
        return load_checkpoint(folder, best=best)
    raise ValueError(f"{folder}: every checkpoint is damaged; copy them from a backup, or train again")


def load_resumable(run: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the newest undamaged checkpoint of a run; None if it was killed before its first checkpoint.

    Raises ValueError if the run cannot be resumed with `config`, the content that config.json would have now.
    """
    if json.loads((run / "config.json").read_text()).get("data_fingerprint") != config["data_fingerprint"]:
        raise ValueError(f"{run}: the text, or the generator of the stories, has changed; start a new run")
    try:
        state = load_checkpoint(run / "checkpoints")
    except FileNotFoundError:
        metrics = run / "metrics.jsonl"
        if metrics.exists() and b'"split": "train"' in metrics.read_bytes():
            problem = "the checkpoints are missing; copy them from a backup, or start a new run"
            raise ValueError(f"{run}: {problem}") from None
        return None
    if not isinstance(state.get("step"), int) or not isinstance(state.get("config"), dict):
        raise ValueError(f"{run}: the checkpoint was written by another version; start a new run")
    if state["step"] > config["run"]["max_steps"]:
        raise ValueError(f"max_steps={config['run']['max_steps']}: the run has already taken {state['step']} steps")
    return state


def drop_checkpoints_after(folder: Path, step: int) -> None:
    """Deletes the checkpoints of later steps, which are damaged, and what a killed process left in `folder`."""
    _keep_only(folder, [entry for entry in read_manifest(folder) if entry["step"] <= step])
    remove_unfinished_files(folder)


def read_manifest(folder: Path) -> list[dict[str, Any]]:
    """Returns {"file", "step", "sha256", "best"} of each checkpoint, oldest first; [] if there is no checkpoint.

    Raises ValueError if the manifest is damaged, or missing although there are checkpoints.
    """
    path = folder / MANIFEST
    if not path.exists():
        if any(CHECKPOINT.fullmatch(file.name) and file.name != "step_00000000.pt" for file in folder.glob("step_*")):
            raise ValueError(f"{path}: missing; copy it from a backup, or delete {folder} to train again")
        return []
    try:
        content = json.loads(path.read_text())
        entries = content["checkpoints"]
        names = [entry["file"] for entry in entries]
        is_intact = content["sha256"] == _checksum(entries) and all(map(CHECKPOINT.fullmatch, names))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_intact = False
    if not is_intact:
        raise ValueError(f"{path}: damaged; copy it from a backup, or delete {folder} to train again")
    return entries


def _keep_only(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Writes the manifest, then deletes the checkpoints that it does not list."""
    content = {"sha256": _checksum(entries), "checkpoints": entries}
    write_atomically(folder / MANIFEST, json.dumps(content, indent=1).encode())
    files = {entry["file"] for entry in entries}
    for path in folder.iterdir():
        if CHECKPOINT.fullmatch(path.name) and path.name not in files:
            path.unlink()


def _checksum(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _unpickled(path: Path, content: bytes) -> dict[str, Any]:
    """Returns the state; raises ValueError if the file holds anything but tensors and plain values (never run)."""
    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch documents no error types
        state = None
    if not isinstance(state, dict):
        raise ValueError(f"{path}: not a checkpoint: torch.load with weights_only=True refuses it")
    return state


# Sets of files


def write_files(
    folder: Path, files: Mapping[str, str | bytes], marker: str | None = None, obsolete: Iterable[str] = ()
) -> None:
    """Writes `files`, content by path in `folder`, so that `marker` exists only if all of them are from the same call.

    The files are first written to a temporary folder; an error there changes nothing. Then `marker`, the path that
    readers look for, and the `obsolete` paths are deleted, the others are moved into place, and `marker` is moved last.
    Only one process may write to `folder` at a time. Raises OSError if a file cannot be written.
    """
    staging = folder / STAGING
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
        staging.mkdir(parents=True)
        for name, content in files.items():
            for path in (folder / name, staging / name):
                path.parent.mkdir(parents=True, exist_ok=True)
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(folder / name))
            write_atomically(staging / name, content.encode() if isinstance(content, str) else content)
        if marker is not None:
            (folder / marker).unlink(missing_ok=True)
            sync_folder((folder / marker).parent)
        for name in obsolete:
            (folder / name).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: name == marker):
            (staging / name).replace(folder / name)
            sync_folder((folder / name).parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
