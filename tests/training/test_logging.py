"""What is written down: once, and nothing on a log that belongs on a terminal."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.logging import Progress, Recorder, gap_lines, read_records


def test_every_number_lands_in_both_records(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    recorder.record(3, "validation", {"loss": 1.5, "loss_by_class": {"payoff": 2.5}, "whole": True})
    recorder.board.text(3, "sample", "<script>alert(1)</script>\n# not a heading")
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


def test_what_is_no_number_is_recorded_without_a_curve(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    values = {
        "number": {"pronoun_contrast": 0.5, "pronoun_contrast_heads": [[0.5, 0.25]], "layer": 1},
        "note": "a word",
        "nothing": None,
    }
    recorder.record(2, "probe", values)
    recorder.close()
    assert read_records(tmp_path) == [{"step": 2, "split": "probe", **values}]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Tags()["scalars"] == ["number/pronoun_contrast"]


def test_a_number_that_is_not_finite_is_written_as_null_and_has_no_point(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    recorder.record(1, "train", {"loss": float("nan"), "gradient_norm": float("inf"), "skipped": 1})
    recorder.record(
        2, "probe", {"number": {"pronoun_contrast": float("-inf"), "pronoun_contrast_heads": [[0.5, float("nan")]]}}
    )
    recorder.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    written = [json.loads(one, parse_constant=refuse) for one in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert written == [
        {"step": 1, "split": "train", "loss": None, "gradient_norm": None, "skipped": 1},
        {"step": 2, "split": "probe", "number": {"pronoun_contrast": None, "pronoun_contrast_heads": [[0.5, None]]}},
    ]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Tags()["scalars"] == ["skipped/train"]


def test_a_step_that_was_taken_and_not_yet_looked_at_keeps_its_training_line_and_nothing_else(tmp_path: Path) -> None:
    """As a process leaves it that was killed between the records of an evaluation and its checkpoint."""
    first = Recorder(tmp_path, resumed_step=None)
    first.beside("more.jsonl", {"of": "what"})
    for step in (3, 4, 5):
        first.record(step, "train", {"loss": float(step)})
        first.record(step, "probe", {"accuracy": float(step)})
        first.keep("more.jsonl", step, {"by": "first"})
    first.close()
    second = Recorder(tmp_path, resumed_step=4, looked=False)
    second.beside("more.jsonl", {"of": "what"})
    second.record(4, "probe", {"accuracy": 40.0})
    second.keep("more.jsonl", 4, {"by": "second"})
    second.record(5, "train", {"loss": 50.0})
    second.close()
    seen = [(one["step"], one.get("loss") or one["accuracy"]) for one in read_records(tmp_path)]
    assert seen == [(3, 3), (3, 3), (4, 4), (4, 40), (5, 50)]
    more = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    assert [(one["step"], one.get("by")) for one in more] == [(-1, None), (3, "first"), (4, "second")]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    curves = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert curves == {"loss/train": [(3, 3), (4, 4), (5, 50)], "accuracy/probe": [(3, 3), (4, 40)]}


def test_damaged_records_are_one_line(tmp_path: Path) -> None:
    for damaged in ("{\n", '{"split": "train"}\n', "[]\n", '{"step": 1\n{"step": 2}\n'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "train"}\n' + damaged)
        with pytest.raises(ValueError, match="is damaged"):
            read_records(tmp_path)


@pytest.mark.parametrize("last", ["{", '{"step": 1, "spl', '{"step": 1}'])
def test_a_line_that_a_kill_has_cut_off_is_left_out_of_the_records(tmp_path: Path, last: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "train"}\n' + last)
    assert read_records(tmp_path) == [{"step": 0, "split": "train"}]


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


def test_another_record_begins_with_its_header_and_is_gone_on_with_in_the_same_way(tmp_path: Path) -> None:
    for resumed_step, steps in ((None, range(5)), (2, range(3, 6))):
        recorder = Recorder(tmp_path, resumed_step)
        recorder.beside("more.jsonl", {"of": "what"})
        for step in steps:
            recorder.keep("more.jsonl", step, {"by": resumed_step})
        recorder.close()
    header, *lines = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    assert header == {"step": -1, "of": "what"}
    assert [(line["step"], line["by"]) for line in lines] == [(step, None if step < 3 else 2) for step in range(6)]


def test_a_loss_below_the_floor_by_more_than_three_errors_is_told() -> None:
    """The whole alone is bounded: a class may gain what another loses."""
    measured = {
        "gap": -0.014,
        "gap_error": 0.005,
        "gap_by_class": {"payoff": -0.031},
        "gap_error_by_class": {"payoff": 0.01},
    }
    assert gap_lines(measured) == [
        "gap     to the floor, nats/token: all -0.014  payoff -0.031 (standard error of all 0.005)"
    ]
    _, warning = gap_lines(measured | {"gap": -0.016})
    assert warning == "warning: below the floor by more than 3 standard errors: a bug or a leak"
    assert gap_lines({"loss": 1.0}) == []
    assert [line[:5] for line in gap_lines({"loss": 1.0}, cheats=True)] == ["note:"]
    assert "bug" not in gap_lines(measured | {"gap": -0.5}, cheats=True)[1]
