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


def test_every_record_of_a_run_is_read_by_its_split_and_question(run: Path) -> None:
    metrics = load_metrics(run)
    assert [record.step for record in metrics.train] == [1, 2, 3, 4]
    assert [record.step for record in metrics.validation] == [0, 2, 4] and metrics.has_ended
    recorded = next(record for record in read_records(run) if record["split"] == "probe")
    [*_, point] = [point for point in metrics.probe if point.step == recorded["step"]]
    assert point.head_types == recorded["head_types"]
    assert point.questions["number"].recorded() == recorded["number"]
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"whole": true' not in line))
    assert not load_metrics(run).has_ended


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
