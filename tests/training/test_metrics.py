"""training/metrics.py: metrics.jsonl is read as typed records."""

import json
from pathlib import Path

import pytest

from data.errors import UserError
from training.metrics import load_metrics

RECORDS = [
    {"step": 0, "split": "probe", "head_types": {"first": 0.1}, "english_answer": {"model": 7.5},
     "natural_gender": {"layer": 0, "head": 1, "pronoun_contrast": 0.1, "t": 2.0,
                        "pronoun_contrast_heads": [[0.0, 0.1]]},
     "next_pronoun_gender": {"layer": 0, "head": 1, "share": 0.5, "margin": 1.0, "follows_twin": 0.6,
                             "share_heads": [[0.1, 0.5]]},
     "english": {"layer": 0, "head": 1, "accuracy": 0.6, "block_accuracy": 0.1, "pronoun_contrast": 0.7,
                 "chance_level": 0.6, "accuracy_heads": [[0.5, 0.6]], "pronoun_contrast_heads": [[0.1, 0.7]]}},
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
    assert point.questions["english"].accuracy_heads == [[0.5, 0.6]]
    assert point.answers["english"].model == 7.5 and point.answers["english"].bayes is None
    assert point.natural["gender"].t == 2.0
    assert point.next_pronoun["next_pronoun_gender"].share_heads == [[0.1, 0.5]]


def test_a_run_has_ended_once_the_whole_validation_text_was_read(tmp_path: Path) -> None:
    assert load_metrics(write(tmp_path, RECORDS)).has_ended
    assert not load_metrics(write(tmp_path, RECORDS[:-1])).has_ended


def test_a_record_without_its_fields_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics.jsonl: no field gradient_norm"):
        load_metrics(write(tmp_path, [{"step": 20, "split": "train", "loss": 2.0}]))
