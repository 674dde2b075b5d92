"""One small run, and in what two runs of it differ."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.checkpoint import load_checkpoint

STEPS, EVERY = 600, 40
# Nano, with all that a checkpoint must bring back: dropout, two optimizers, order of batches; and every record.
SETTINGS = [
    "model=nano", "threads=1", f"max_steps={STEPS}", f"eval_every_steps={EVERY}", "log_every_steps=1",
    "tokens_per_batch=256", "validation_tokens=500", "probe_sequences=40", "sample_tokens=5", "model.dropout=0.1",
    "data.n_train_stories=6000", "data.n_validation_stories=400", "data.n_test_templates=3", "data.n_test_pairs=2",
]  # fmt: skip
FILES = ("metrics.jsonl", "attention.jsonl")
_OF_TIME = {"seconds", "tokens_per_second"}  # how long steps took is no result


def differences(one: Path, other: Path) -> list[str]:
    """Return in what two ended runs are not bit for bit the same; nothing where they are."""
    found = []
    for file in FILES:
        ours, theirs = lines(one, file), lines(other, file)
        if [entry for entry in ours if is_result(entry)] != [entry for entry in theirs if is_result(entry)]:
            found.append(file)
    if weights(one) != weights(other):
        found.append("weights")
    if state_digest(one) != state_digest(other):
        found.append("state")
    if scalars(one) != scalars(other):
        found.append("TensorBoard")
    return found


def lines(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return a record of a run without what is of time; a last line that was cut off is left out."""
    path = run / file
    whole = (
        [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    )
    return [{name: value for name, value in json.loads(line).items() if name not in _OF_TIME} for line in whole]


def is_result(line: dict[str, Any]) -> bool:
    return line.get("split") != "speed"


def losses(run: Path) -> list[tuple[int, float]]:
    """Return (step, loss) of every step that is written down."""
    return [(line["step"], line["loss"]) for line in lines(run) if line["split"] == "train"]


def weights(run: Path) -> str:
    """Return the sha256 of the newest whole checkpoint's weights."""
    return digest(load_checkpoint(run / "checkpoints")[0]["model"])


def state_digest(run: Path) -> str:
    """Return the sha256 of all that the newest whole checkpoint holds but time and settings."""
    state = load_checkpoint(run / "checkpoints")[0]
    return digest({name: value for name, value in state.items() if name not in {*_OF_TIME, "config"}})


def digest(value: Any) -> str:
    """Return a sha256 over tensors, bit for bit, and what they stand in."""
    total = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            total.update(f"{one.dtype} {tuple(one.shape)}".encode() + one.contiguous().view(-1).numpy().tobytes())
        elif isinstance(one, dict):
            total.update(b"{" + str(len(one)).encode())
            for name, inner in one.items():
                total.update(repr(name).encode())
                add(inner)
        elif isinstance(one, list | tuple):
            total.update(b"[" + str(len(one)).encode())
            for inner in one:
                add(inner)
        else:
            total.update(repr(one).encode())

    add(value)
    return total.hexdigest()


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows of each curve, by TensorBoard's own reader; speed is left out."""
    events = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0, "images": 1, "tensors": 1})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not {*_OF_TIME, "speed"} & set(tag.split("/"))]
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags}


def duplicates(run: Path) -> list[str]:
    """Return every (file, kind, step) of a run that is there more than once."""
    seen = [f"{file} {line.get('split')} {line['step']}" for file in FILES for line in lines(run, file)]
    seen += [f"{tag} {step}" for tag, points in scalars(run).items() for step, _ in points]
    return [name for name, count in Counter(seen).items() if count > 1]


def saved_step(run: Path) -> int:
    """Return the step of the newest whole checkpoint, -1 where there is none."""
    try:
        return load_checkpoint(run / "checkpoints")[0]["step"]
    except FileNotFoundError:
        return -1


def hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below `folder`."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
