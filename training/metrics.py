"""The records of metrics.jsonl as dataclasses: training, validation, and the probe during training."""

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from settings.errors import UserError
from settings.typed_json import flattened, from_json, may_be_absent


@dataclass(frozen=True)
class TrainRecord:
    """Loss (nats/token) and gradient norm of one training step, and what else was logged."""

    step: int
    loss: float
    gradient_norm: float
    other: dict[str, Any] = flattened()


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """Validation loss in nats/token; `floor` is its entropy lower bound and `gap` the distance, if they are known."""

    step: int
    loss: float | None  # None: not finite
    bits_per_byte: float | None
    whole: bool  # the whole validation split, not a part
    seconds: float | None = may_be_absent()  # training time up to this step
    floor: float | None = may_be_absent()
    gap: float | None = may_be_absent()
    gap_error: float | None = may_be_absent()


@dataclass(frozen=True)
class HeadPoint:
    """One question at one step: the best head and its values, and a measure of every head by name."""

    layer: int
    head: int
    grids: dict[str, list[list[float]]]  # by layer and head
    values: dict[str, float] = flattened()

    def recorded(self) -> dict[str, Any]:
        return {"layer": self.layer, "head": self.head, "grids": self.grids, **self.values}


@dataclass(frozen=True)
class ProbePoint:
    """The probe at one step, by question."""

    step: int
    questions: dict[str, HeadPoint]


@dataclass(frozen=True)
class WeightHistory:
    """The weights at some steps of training."""

    steps: list[int]
    data: list[str]  # base64 of the weights at each step, as float16


@dataclass(frozen=True)
class Metrics:
    """All records of a run, oldest first."""

    train: list[TrainRecord]
    validation: list[ValidationRecord]
    probe: list[ProbePoint]

    def has_ended(self, max_steps: int) -> bool:
        """Whether the evaluation after the last step has been made."""
        return any(record.step == max_steps for record in self.validation)


def load_metrics(run: str | Path) -> Metrics:
    """Return the records of a run's metrics.jsonl; UserError with one line if it is damaged."""
    run = Path(run)
    metrics = Metrics([], [], [])
    where = str(run / "metrics.jsonl")
    for record in read_records(run):
        split = record.pop("split", None)
        if split == "train":
            metrics.train.append(from_json(TrainRecord, record, where))
        elif split == "validation":
            metrics.validation.append(from_json(ValidationRecord, record, where))
        elif split == "probe":
            step = record.pop("step")
            questions = {name: from_json(HeadPoint, value, f"{where}: {name}") for name, value in record.items()}
            metrics.probe.append(ProbePoint(step, questions))
    return metrics


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return the objects in metrics.jsonl, oldest first, without an incomplete last line; UserError if damaged."""
    lines = lines_of(run / "metrics.jsonl")
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    records = []
    for line in lines:
        if not isfinite(step_of(line)):
            raise UserError(f"{run / 'metrics.jsonl'}: damaged")
        records.append(json.loads(line))
    return records


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file with their ends; the last may be incomplete."""
    return path.read_bytes().decode(errors="replace").splitlines(keepends=True)


def step_of(line: str) -> float:
    """Return the step of a line; infinity if it is damaged or not complete."""
    try:
        step = json.loads(line)["step"] if line.endswith("\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        step = None
    return step if isinstance(step, int) else float("inf")
