"""metrics.jsonl and TensorBoard hold each step once; the terminal gets a bar, a log file does not."""

import json
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.logging import RunLog, read_records


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
def test_each_step_is_in_metrics_and_tensorboard_once_after_resumes(
    parts: list[tuple[int, int]], tmp_path: Path
) -> None:
    for resumed_step, end in parts:
        record_steps(tmp_path, resumed_step, range(resumed_step + 1, end))
    assert [record["step"] for record in read_records(tmp_path)] == list(range(end))
    for tag in ("loss/train", "nested/inner"):
        assert [point.step for point in events_of(tmp_path).Scalars(tag)] == list(range(end))


def test_a_line_that_a_kill_cut_off_is_dropped(tmp_path: Path) -> None:
    record_steps(tmp_path, -1, range(3))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "spl')
    assert [record["step"] for record in read_records(tmp_path)] == [0, 1, 2]
    record_steps(tmp_path, 2, range(3, 5))
    assert [record["step"] for record in read_records(tmp_path)] == list(range(5))


def test_a_damaged_line_inside_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match="damaged"):
        read_records(tmp_path)


def test_numbers_that_are_not_finite_are_null_in_metrics_and_no_point_in_tensorboard(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.record(1, "train", {"loss": float("nan"), "norms": [1.0, float("inf")], "rate": 0.5})
    log.close()
    (record,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (record["loss"], record["norms"], record["rate"]) == (None, [1.0, None], 0.5)
    assert events_of(tmp_path).Tags()["scalars"] == ["rate/train"]


def test_weights_after_the_resumed_step_are_recorded_again(tmp_path: Path) -> None:
    for resumed_step, recorded in ((-1, (0, 1, 2)), (1, (2, 4))):
        log = RunLog(tmp_path, resumed_step)
        for step in recorded:
            log.weights(step, f"{resumed_step}")
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "weights.jsonl").read_text().splitlines()]
    assert [(line["step"], line["weights"]) for line in lines] == [(0, "-1"), (1, "-1"), (2, "1"), (4, "1")]


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
