"""training/metrics.py: metrics.jsonl is read as typed records."""

import json
from pathlib import Path

import pytest

from data.errors import UserError
from training.metrics import load_metrics

RECORDS = [
    {"step": 0, "split": "probe", "head_types": {"first": 0.1},
     "number": {"layer": 0, "head": 1, "accuracy": 0.6, "bar": 0.55, "grids": {"accuracy": [[0.5, 0.6]]}}},
    {"step": 0, "split": "validation", "loss": None, "bits_per_byte": None, "whole": False, "seconds": 0.1},
    {"step": 20, "split": "train", "loss": 2.0, "gradient_norm": 1.5, "skipped": 0},
    {"step": 20, "split": "validation", "loss": 1.0, "bits_per_byte": 0.5, "whole": True, "gap": 0.1,
     "gap_error": 0.01},
]  # fmt: skip


def write(run: Path, records: list[dict]) -> Path:
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_every_record_is_read_by_its_split_and_question(tmp_path: Path) -> None:
    metrics = load_metrics(write(tmp_path, RECORDS))
    assert metrics.train[0].gradient_norm == 1.5
    assert [record.loss for record in metrics.validation] == [None, 1.0]
    [point] = metrics.probe
    assert point.head_types == {"first": 0.1}
    number = point.questions["number"]
    assert (number.layer, number.head, number.values["bar"], number.grids["accuracy"]) == (0, 1, 0.55, [[0.5, 0.6]])
    assert number.recorded() == {name: RECORDS[0]["number"][name] for name in RECORDS[0]["number"]}


def test_a_run_has_ended_once_the_whole_validation_text_was_read(tmp_path: Path) -> None:
    assert load_metrics(write(tmp_path, RECORDS)).has_ended
    assert not load_metrics(write(tmp_path, RECORDS[:-1])).has_ended


def test_a_record_without_its_fields_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics.jsonl: no field gradient_norm"):
        load_metrics(write(tmp_path, [{"step": 20, "split": "train", "loss": 2.0}]))
