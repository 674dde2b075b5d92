"""Checkpoints that are whole or not there: written beside, synced, renamed, and hashed.

checkpoints/manifest.json names each file with its step and sha256; a file the manifest does not name does not count.
The manifest is replaced only once the new file is on the disk, and old files are deleted only after that.
"""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import torch

KEEP = 2  # newest checkpoints, besides the best


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash at any moment, sees the old file or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def save_checkpoint(folder: Path, state: dict[str, Any], step: int, *, best: bool) -> None:
    """Add the state of `step` to `folder`; `best` marks it the one that evaluation should use.

    Args:
        folder: the run's checkpoints/, made if need be.
        state: tensors and plain Python only, as torch.load's weights_only takes them.
        step: optimizer steps taken.
        best: whether its validation loss is the lowest so far.

    """
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    entry: dict[str, Any] = {
        "file": f"step_{step:08d}.pt",
        "step": step,
        "sha256": hashlib.sha256(content).hexdigest(),
        "best": best,
    }
    write_atomically(folder / entry["file"], content)
    entries = [one for one in read_manifest(folder) if one["file"] != entry["file"]]
    if best:
        entries = [one | {"best": False} for one in entries]
    entries = sorted([*entries, entry], key=lambda one: one["step"])
    kept = [one for one in entries if one["best"] or one in entries[-KEEP:]]
    write_atomically(folder / "manifest.json", json.dumps(kept, indent=1).encode())
    for one in entries:
        if one not in kept:
            (folder / one["file"]).unlink(missing_ok=True)


def read_manifest(folder: Path) -> list[dict[str, Any]]:
    """Return the manifest's entries, oldest first; none where there is no manifest, ValueError where it is damaged."""
    path = folder / "manifest.json"
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text())
        return [{name: one[name] for name in ("file", "step", "sha256", "best")} for one in entries]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged") from None


def load_checkpoint(folder: Path, *, best: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the newest whole state in `folder`, or the best one, and a line for each damaged file passed over.

    Raises:
        FileNotFoundError: nothing has been saved yet.
        ValueError: everything that was saved is damaged.

    """
    entries = read_manifest(folder)[::-1]
    if not entries:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    if best:
        entries.sort(key=lambda one: not one["best"])  # stable: then newest first
    damaged: list[str] = []
    for entry in entries:
        path = folder / entry["file"]
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content).hexdigest() == entry["sha256"]:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True), damaged
        damaged.append(f"{path} is damaged (its sha256 is not the one recorded): passed over")
    raise ValueError(f"every checkpoint in {folder} is damaged: {', '.join(one['file'] for one in entries)}")
