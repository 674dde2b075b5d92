"""The records of metrics.jsonl as dataclasses: training, validation, and the probe during training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.typed_json import flattened, from_json, may_be_absent
from training.logging import read_records

Grid = list[list[float]]  # by layer and head


@dataclass(frozen=True, slots=True)
class TrainRecord:
    """Loss (nats/token) and gradient norm of one training step, and what else was logged."""

    step: int
    loss: float
    gradient_norm: float
    other: dict[str, Any] = flattened()


@dataclass(frozen=True, slots=True, kw_only=True)
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
    gap_by_class: dict[str, float] | None = may_be_absent()
    other: dict[str, Any] = flattened()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPoint:
    """One question of the stories at one step; the head named is the best one."""

    layer: int
    head: int
    accuracy: float
    block_accuracy: float
    pronoun_contrast: float
    chance_level: float
    answer_accuracy: float | None = may_be_absent()
    resolved_share: float | None = may_be_absent()
    accuracy_heads: Grid
    pronoun_contrast_heads: Grid


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """The next pronoun at one step: share of the decision that each head exchanges."""

    layer: int
    head: int
    share: float
    margin: float
    follows_twin: float
    share_heads: Grid


@dataclass(frozen=True, slots=True)
class AnswerLoss:
    """Losses of the model and, if known, of both oracles at the payoffs, in nats."""

    model: float
    blind: float | None = may_be_absent()
    bayes: float | None = may_be_absent()


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """The probe at one step, by question."""

    step: int
    questions: dict[str, QuestionPoint]
    answers: dict[str, AnswerLoss]
    next_pronoun: dict[str, DecisionPoint]
    head_types: dict[str, float] = field(default_factory=dict)  # the largest score of a head


@dataclass(frozen=True, slots=True)
class Metrics:
    """All records of a run, oldest first."""

    train: list[TrainRecord]
    validation: list[ValidationRecord]
    probe: list[ProbePoint]

    @property
    def has_ended(self) -> bool:
        """Whether the last evaluation has been made, which reads the whole validation split."""
        return any(record.whole for record in self.validation)


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
            metrics.probe.append(_probe_point(record, where))
    return metrics


def _probe_point(record: dict[str, Any], where: str) -> ProbePoint:
    """Return a record of the probe; its keys are names of questions, with a prefix or an ending for their kind."""
    types = from_json(dict[str, float], record.pop("head_types", {}), where)
    point = ProbePoint(record.pop("step"), {}, {}, {}, types)
    for name, value in record.items():
        place = f"{where}: {name}"
        if name.endswith("_answer"):
            point.answers[name.removesuffix("_answer")] = from_json(AnswerLoss, value, place)
        elif name.startswith("next_pronoun_"):
            point.next_pronoun[name] = from_json(DecisionPoint, value, place)
        elif isinstance(value, dict) and "accuracy_heads" in value:
            point.questions[name] = from_json(QuestionPoint, value, place)
    return point
