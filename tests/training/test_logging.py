"""metrics.jsonl, weights.jsonl and TensorBoard hold each step once, and are read as typed records."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.errors import UserError
from tests.tiny_models import random_model
from training.logging import RunLog, read_records
from training.metrics import load_metrics
from training.weight_history import HISTORY_FILE, load_weight_history, pack_parameters


def record_steps(run: Path, resumed_step: int, steps: range) -> None:
    log = RunLog(run, resumed_step)
    for step in steps:
        log.record(step, "train", {"loss": step + 0.5, "nested": {"inner": step}})
    log.close()


def events_of(run: Path) -> EventAccumulator:
    events = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    return events.Reload()


# (step of the checkpoint, -1: none; first step that was not recorded) of each part of a run that was killed
@pytest.mark.parametrize("parts", [[(-1, 8), (4, 10), (6, 12)], [(-1, 3), (-1, 2)]])
def test_each_step_is_recorded_once_after_kills(parts: list[tuple[int, int]], tmp_path: Path) -> None:
    for resumed_step, end in parts:
        record_steps(tmp_path, resumed_step, range(resumed_step + 1, end))
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "spl')  # a line that the kill cut off
    assert [record["step"] for record in read_records(tmp_path)] == list(range(end))
    for tag in ("loss/train", "nested/inner"):
        assert [point.step for point in events_of(tmp_path).Scalars(tag)] == list(range(end))


def test_numbers_that_are_not_finite_are_null_and_no_point_in_tensorboard(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.record(1, "train", {"loss": float("nan"), "norms": [1.0, float("inf")], "rate": 0.5})
    log.close()
    (record,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (record["loss"], record["norms"], record["rate"]) == (None, [1.0, None], 0.5)
    assert events_of(tmp_path).Tags()["scalars"] == ["rate/train"]


def test_images_and_texts_are_shown(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.images(3, {"head_map/number": np.zeros((4, 5, 3), np.uint8)})
    log.text(3, "sample", "# no heading\n<script>")
    log.close()
    events = events_of(tmp_path)
    (image,) = events.Images("head_map/number")
    assert (image.step, image.width, image.height) == (3, 5, 4)
    (text,) = events.Tensors("sample/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "    # no heading\n    <script>"


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
    assert number.recorded() == RECORDS[0]["number"]
    assert metrics.has_ended
    assert not load_metrics(write(tmp_path, RECORDS[:-1])).has_ended


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 0}\n{"st\n{"step": 2}\n', "damaged"),
        ('{"step": 20, "split": "train", "loss": 2.0}\n', "no field gradient_norm"),
    ],
)
def test_a_damaged_record_names_the_problem(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=f"metrics.jsonl: {message}"):
        load_metrics(tmp_path)


MODEL = random_model()
N_WEIGHTS = sum(parameter.numel() for parameter in MODEL.parameters())


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A file that was recorded up to step 5 and resumed from step 1."""
    for resumed_step, recorded in ((-1, (0, 1, 5)), (1, (4,))):
        log = RunLog(tmp_path, resumed_step)
        for step in recorded:
            log.weights(step, pack_parameters(MODEL, torch.float16))
        log.close()
    return tmp_path / HISTORY_FILE


def test_a_history_is_read_back_without_an_incomplete_line(history: Path) -> None:
    with history.open("a") as stream:
        stream.write('{"step": 5, "we')
    weights = load_weight_history(history, N_WEIGHTS)
    assert weights is not None and weights.steps == [0, 1, 4]
    assert weights.data == [pack_parameters(MODEL, torch.float16)] * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"step": 4', '"step": 1'), ('"step": 4', '"step": 4.5'), ('"weights": "', '"weights": "AAAA'),
        ('"weights": "', '"weights": "!!!!'), ('"weights"', '"other"'), ("{", "["),
    ],
)  # fmt: skip
def test_a_damaged_history_is_an_error_in_one_line(history: Path, old: str, new: str) -> None:
    text = history.read_text()
    assert old in text
    history.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=HISTORY_FILE) as error:
        load_weight_history(history, N_WEIGHTS)
    assert "\n" not in str(error.value)
