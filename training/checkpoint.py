"""Checkpoints: files with checksums, listed in a manifest, so that a crash leaves the old ones intact."""

import hashlib
import io
import json
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch

from settings.errors import UserError, damaged_file_error
from settings.files import now, remove_unfinished_files, write_atomically
from settings.typed_json import from_json, to_json
from training.loop import Evaluation, Watcher
from training.trainer import Trainer

MANIFEST = "manifest.json"
CHECKPOINT = re.compile(r"step_\d{8}\.pt")


@dataclass(frozen=True)
class Checkpoint:
    """An entry of the manifest."""

    file: str
    step: int
    sha256: str
    best: bool
    saved: str = ""  # UTC; "": by an earlier version


def save_checkpoint(folder: Path, state: dict[str, Any], *, best: bool, keep: int) -> None:
    """Save `state`, tensors and plain values and among them its "step", and delete older checkpoints.

    The `keep` newest and the best stay; `best`: the validation loss of this one is the lowest so far. Raises OSError if
    it cannot be written; the checkpoints from before are unchanged.
    """
    folder.mkdir(exist_ok=True)
    step = state["step"]

    # Read the manifest before the file is written: without a manifest, a checkpoint is an error.
    entries = []
    for entry in read_manifest(folder):
        if entry.step != step:
            entries.append(replace(entry, best=entry.best and not best))  # one at most is the best
    path = folder / f"step_{step:08d}.pt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    write_atomically(path, content)

    entries.append(Checkpoint(path.name, step, hashlib.sha256(content).hexdigest(), best, now()))
    _keep_only(folder, [entry for entry in entries if entry.best or entry in entries[-keep:]])


class Checkpoints(Watcher):
    """Save a run at its evaluations, and when it is stopped.

    It stands after the log of the run: a checkpoint is saved when the records of its step are on the disk.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """`folder` is that of the checkpoints; `config` is saved with each."""
        self._folder = folder
        self._config = config

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        loss = evaluation.comparable_loss
        if not evaluation.is_due or not isfinite(loss) or trainer.has_diverged:
            return
        # Untrained weights are never the best ones, nor those of another run, which init= begins with.
        is_best = trainer.step > 0 and loss <= trainer.best_loss
        if is_best:
            trainer.best_loss = loss
        self._save(trainer, is_best=is_best)

    def end(self, trainer: Trainer) -> None:
        is_saved = any(entry.step == trainer.step for entry in read_manifest(self._folder))
        if not is_saved and not trainer.has_diverged:
            # Until a loss of trained weights is measured, the newest are the best.
            self._save(trainer, is_best=trainer.best_loss == inf)

    def _save(self, trainer: Trainer, *, is_best: bool) -> None:
        content = trainer.state() | {"config": self._config}
        save_checkpoint(self._folder, content, best=is_best, keep=trainer.settings.run.keep_checkpoints)


def load_checkpoint(folder: Path, wanted: str = "last") -> dict[str, Any]:
    """Return an undamaged state: the "last", the "best" and else the last, or that of a step, such as "350".

    FileNotFoundError without any; UserError if all are damaged, or if that of the step was not kept.
    """
    entries = read_manifest(folder)
    if not entries:
        raise FileNotFoundError(f"{folder}: has no checkpoint yet")
    chosen = entries
    if wanted.isdecimal():
        chosen = [entry for entry in entries if entry.step == int(wanted)]
    if not chosen:
        steps = ", ".join(str(entry.step) for entry in entries)
        raise UserError(f"checkpoint={wanted}: was not kept; {folder} has those of steps {steps}")

    # The newest first, or the best and then the newest: sorting is stable.
    for entry in sorted(reversed(chosen), key=lambda entry: wanted == "best" and not entry.best):
        state = read_checkpoint(folder, entry)
        if state is not None:
            return state

    # A running training may have replaced them meanwhile.
    if read_manifest(folder) != entries:
        return load_checkpoint(folder, wanted)
    raise UserError(f"{folder}: every checkpoint is damaged; copy them from a backup, or train again")


def read_checkpoint(folder: Path, entry: Checkpoint) -> dict[str, Any] | None:
    """Return the state of one checkpoint; None, after a warning, if it is damaged."""
    path = folder / entry.file
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() == entry.sha256:
        return _unpickled(path, content)
    problem = "damaged (sha256 differs from the manifest), and not used"
    print(f"warning: {path}: {problem}", file=sys.stderr)
    return None


def drop_checkpoints_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps, which are damaged, and what a killed process left in `folder`."""
    _keep_only(folder, [entry for entry in read_manifest(folder) if entry.step <= step])
    remove_unfinished_files(folder)


def read_manifest(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints, oldest first; UserError if the manifest is damaged, or checkpoints have none."""
    path = folder / MANIFEST
    remedy = f"copy it from a backup, or delete {folder} to train again"
    if not path.exists():
        # A process can be killed between its first checkpoint and the manifest, but not later.
        for file in folder.glob("step_*[1-9]*"):
            if CHECKPOINT.fullmatch(file.name):
                raise UserError(f"{path}: missing; {remedy}")
        return []

    with damaged_file_error(path, remedy):
        entries: list[Checkpoint] = from_json(list[Checkpoint], json.loads(path.read_text())["checkpoints"], MANIFEST)
        for entry in entries:
            if not CHECKPOINT.fullmatch(entry.file):
                raise ValueError("a name that is none of a checkpoint")
    return entries


def _keep_only(folder: Path, entries: list[Checkpoint]) -> None:
    """Write the manifest, then delete the checkpoints that it does not list."""
    write_atomically(folder / MANIFEST, json.dumps({"checkpoints": to_json(entries)}, indent=1).encode())
    files = {entry.file for entry in entries}
    for path in folder.iterdir():
        if CHECKPOINT.fullmatch(path.name) and path.name not in files:
            path.unlink()


def _unpickled(path: Path, content: bytes) -> dict[str, Any]:
    """Return the state; raises UserError if the file holds anything but tensors and plain values (never run)."""
    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch documents no error types
        state = None
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a checkpoint: torch.load with weights_only=True refuses it")
    return state
