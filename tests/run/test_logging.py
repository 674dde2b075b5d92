"""What is written down: once, and nothing on a log that belongs on a terminal."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from run.logging import Progress, Recorder


def test_every_number_lands_in_both_records(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    recorder.record(3, "validation", {"loss": 1.5, "loss_by_class": {"payoff": 2.5}, "whole": True})
    recorder.text(3, "sample", "<script>alert(1)</script>\n# not a heading")
    recorder.close()
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 3,
        "split": "validation",
        "loss": 1.5,
        "loss_by_class": {"payoff": 2.5},
        "whole": True,
    }
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {"loss/validation", "loss_by_class/payoff"} <= set(events.Tags()["scalars"])
    text = events.Tensors("sample/text_summary")[0].tensor_proto.string_val[0].decode()
    assert all(line.startswith("    ") for line in text.splitlines())  # a code block: no markup


def test_a_resumed_record_holds_each_step_once(tmp_path: Path) -> None:
    first = Recorder(tmp_path, resumed_step=None)
    for step in range(1, 10):
        first.record(step, "train", {"loss": float(step)})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('not a line\n{"step": 10, "spl')  # damaged, and cut off in the middle of a line
    second = Recorder(tmp_path, resumed_step=6)
    for step in range(7, 12):
        second.record(step, "train", {"loss": 100.0 + step})
    second.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 12))
    assert [line["loss"] for line in lines][5:7] == [6.0, 107.0]


def test_progress_stays_off_a_log(capsys: pytest.CaptureFixture) -> None:
    progress = Progress(100, 0)
    progress.show(50)
    progress.say("a line that stays")
    out, err = capsys.readouterr()
    assert (out, err) == ("a line that stays\n", "")
