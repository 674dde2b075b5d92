"""What is written down: once, and nothing on a log that belongs on a terminal."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from run.logging import Progress, Recorder, charts, gap_lines, read_records, write_probe_scores


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


def test_what_is_no_number_is_recorded_without_a_curve(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    values = {"V_S1": {"dd": 0.5, "dd_heads": [[0.5, 0.25]], "layer": 1}, "note": "a word", "nothing": None}
    recorder.record(2, "probe", values)
    recorder.close()
    assert read_records(tmp_path) == [{"step": 2, "split": "probe", **values}]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert events.Tags()["scalars"] == ["V_S1/dd"]


def test_damaged_records_are_one_line(tmp_path: Path) -> None:
    for damaged in ("{", '{"step": 1}', "[]\n"):
        (tmp_path / "metrics.jsonl").write_text('{"step": 0, "split": "train"}\n' + damaged)
        with pytest.raises(ValueError, match="is damaged"):
            read_records(tmp_path)


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


def test_the_charts_lay_the_floor_beside_the_loss_and_the_oracles_beside_the_model() -> None:
    found = charts(["loss_by_class/payoff", "floor_by_class/payoff"], ["V_S1"], ["blind", "bayes"])
    assert found["loss by class and floor"] == ["loss_by_class/payoff", "floor_by_class/payoff"]
    assert found["V_S1: payoff loss and oracles"] == ["V_S1_payoff/model", "V_S1_payoff/blind", "V_S1_payoff/bayes"]
    assert set(charts([], [], ["blind"])) == {"loss"}


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


def test_a_probes_scores_stand_in_the_run_and_replace_those_of_an_earlier_probe(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    recorder.record(7, "train", {"loss": 1.5})
    recorder.close()
    write_probe_scores(tmp_path, 5, {"Sel@1 V at S1": 0.25, "T V at S1": 0.5})
    write_probe_scores(tmp_path, 6, {"Sel@1 V at S1": 0.75})
    assert len(list((tmp_path / "tb").iterdir())) == 2
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/train", "probe/Sel@1 V at S1"}
    [seen] = events.Scalars("probe/Sel@1 V at S1")
    assert (seen.step, seen.value) == (6, 0.75)
