"""What is written down: once, and nothing on a log that belongs on a terminal."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from run.logging import (
    Progress,
    Recorder,
    charts,
    earlier_scores,
    gap_lines,
    measures,
    probe_scores,
    read_records,
    write_embedding,
)
from tests.board import Board


def make_older(run: Path) -> None:
    """Rename the one event file: names begin with the second, and files are read in the order of their names."""
    [events] = (run / "tb").iterdir()
    events.rename(events.with_name(re.sub(r"(?<=tfevents\.)\d+", "1700000000", events.name)))


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


def test_the_charts_lay_the_floor_beside_the_loss_and_the_oracles_beside_the_model() -> None:
    found = charts(["payoff"], ["V_S1"], ["blind", "bayes"], floor=True)
    assert list(found) == ["head", "behaviour", "loss gap"]
    assert found["loss gap"]["loss by class and floor"] == ["loss_by_class/payoff", "floor_by_class/payoff"]
    assert found["behaviour"]["V_S1: payoff loss and oracles"] == [
        "V_S1_payoff/model", "V_S1_payoff/blind", "V_S1_payoff/bayes",
    ]  # fmt: skip
    unknown = charts(["payoff"], ["V_S1"], ["blind"], floor=False)
    assert "floor" not in str(unknown) and "gap/" not in str(unknown)
    assert charts([], [], ["blind"], floor=False) == {"loss gap": {"loss": ["loss/train", "loss/validation"]}}


def test_the_table_of_runs_shows_every_score_of_a_few_questions_and_one_of_each_of_many() -> None:
    few = measures({"V_S1": "V at S1"}, floor=True)
    assert few == [
        "loss/validation", "gap/validation", "V_S1/sel1", "V_S1/f4", "V_S1/dd", "V_S1/rho",
        "probe/Sel@1 V at S1", "probe/F4 V at S1", "probe/T V at S1",
    ]  # fmt: skip
    many = measures({name: f"{name} at S1" for name in "ABCD"}, floor=True)
    assert many[2:4] == ["A/sel1", "B/sel1"] and many[6:8] == ["probe/Sel@1 A at S1", "probe/Sel@1 B at S1"]
    assert measures({}, floor=False) == ["loss/validation", "bits_per_byte/validation"]


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


def test_labels_of_vectors_keep_to_their_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "tb").mkdir()
    hostile = "a\tb\nc\x00\x85\u2028<script>"
    write_embedding(tmp_path, np.array([[1.23456, 0], [-2e-9, 3]]), {"word": [hostile, "cat"], "kind": ["x", "y"]})
    lines = (tmp_path / "tb" / "embedding_labels.tsv").read_text().splitlines()
    assert lines == ["word\tkind", "a?b?c???<script>\tx", "cat\ty"]
    assert (tmp_path / "tb" / "embedding.tsv").read_text() == "1.235\t0\n-2e-09\t3\n"


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
    make_older(tmp_path)
    for step, scores in ((5, {"Sel@1 V at S1": 0.25, "T V at S1": 0.5}), (6, {"Sel@1 V at S1": 0.75})):
        name, content = probe_scores(step, scores)
        for earlier in earlier_scores(tmp_path):
            (tmp_path / "tb" / earlier).unlink()
        (tmp_path / "tb" / name).write_bytes(content)
    assert len(list((tmp_path / "tb").iterdir())) == 2
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/train", "probe/Sel@1 V at S1"}
    [seen] = events.Scalars("probe/Sel@1 V at S1")
    assert (seen.step, seen.value) == (6, 0.75)


@pytest.mark.parametrize("loading", ["true", "false"])
def test_what_is_written_again_after_a_kill_replaces_what_was_seen_before(tmp_path: Path, loading: str) -> None:
    (tmp_path / "run").mkdir()
    first = Recorder(tmp_path / "run", resumed_step=None)
    first.settings({"seed": 1}, ["loss/train"])
    for step in range(10):
        first.record(step, "train", {"loss": float(step)})
    first.close()
    make_older(tmp_path / "run")
    second = Recorder(tmp_path / "run", resumed_step=6)
    second.settings({"seed": 1}, ["loss/train"])
    for step in range(7, 12):
        second.record(step, "train", {"loss": 100.0 + step})
    second.close()
    board = Board(tmp_path, f"--load_fast={loading}")
    try:
        board.wait(lambda: "loss/train" in board.ask("plugin/scalars/tags").get("run/tb", {}))
        board.wait(lambda: board.scalars("run/tb", "loss/train")[-1][0] == 11)
        expected = [(step, step + (100.0 if step > 6 else 0)) for step in range(12)]
        assert board.scalars("run/tb", "loss/train") == expected
        [one] = board.session_groups()
        assert one["sessions"][0]["status"] == "STATUS_UNKNOWN"  # not ended
    finally:
        board.end()
