"""What TensorBoard is told of a run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training.board import charts, measures, write_embedding

from tests.board import Board, write_scores
from training.logging import Recorder

ROOT = Path(__file__).parent.parent.parent


def test_the_charts_lay_the_floor_beside_the_loss_and_the_oracles_beside_the_model() -> None:
    found = charts(["payoff"], ["number"], ["blind", "bayes"], floor=True)
    assert list(found) == ["head", "behaviour", "loss gap"]
    assert found["loss gap"]["loss by class and floor"] == ["loss_by_class/payoff", "floor_by_class/payoff"]
    assert found["behaviour"]["number: payoff loss and oracles"] == [
        "V_S1_payoff/model", "V_S1_payoff/blind", "V_S1_payoff/bayes",
    ]  # fmt: skip
    unknown = charts(["payoff"], ["number"], ["blind"], floor=False)
    assert "floor" not in str(unknown) and "gap/" not in str(unknown)
    assert charts([], [], ["blind"], floor=False) == {"loss gap": {"loss": ["loss/train", "loss/validation"]}}


def test_the_table_of_runs_shows_every_score_of_a_few_questions_and_one_of_each_of_many() -> None:
    few = measures({"number": "number"}, floor=True)
    assert few == [
        "loss/validation", "gap/validation", "number/accuracy", "number/block_accuracy", "number/pronoun_contrast", "number/rho",
        "probe/Sel@1 number", "probe/F4 number", "probe/T number",
    ]  # fmt: skip
    many = measures({name: f"{name} at S1" for name in "ABCD"}, floor=True)
    assert many[2:4] == ["A/accuracy", "B/accuracy"] and many[6:8] == [
        "probe/Sel@1 ambiguous_at_pronoun",
        "probe/Sel@1 B at S1",
    ]
    assert measures({}, floor=False) == ["loss/validation", "bits_per_byte/validation"]


def test_labels_of_vectors_keep_to_their_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "tb").mkdir()
    hostile = "a\tb\nc\x00\x85\u2028<script>"
    write_embedding(tmp_path, np.array([[1.23456, 0], [-2e-9, 3]]), {"word": [hostile, "cat"], "kind": ["x", "y"]})
    lines = (tmp_path / "tb" / "embedding_labels.tsv").read_text().splitlines()
    assert lines == ["word\tkind", "a?b?c???<script>\tx", "cat\ty"]
    assert (tmp_path / "tb" / "embedding.tsv").read_text() == "1.235\t0\n-2e-09\t3\n"


def test_a_probes_scores_stand_in_the_run_and_replace_those_of_an_earlier_probe(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, resumed_step=None)
    recorder.record(7, "train", {"loss": 1.5})
    recorder.close()
    write_scores(tmp_path, 5, {"Sel@1 number": 0.25, "T number": 0.5})
    write_scores(tmp_path, 6, {"Sel@1 number": 0.75})
    assert len(list((tmp_path / "tb").iterdir())) == 2
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss/train", "probe/Sel@1 number"}
    [seen] = events.Scalars("probe/Sel@1 number")
    assert (seen.step, seen.value) == (6, 0.75)


@pytest.mark.parametrize("loading", ["true", "false"])
@pytest.mark.parametrize("clock", [0, -86400])
def test_what_is_written_again_after_a_kill_replaces_what_was_seen_before_on_any_clock(
    tmp_path: Path, loading: str, clock: int
) -> None:
    """Within one second, and on a clock that was set back by a day; a probe came in between."""
    (tmp_path / "run").mkdir()
    first = Recorder(tmp_path / "run", resumed_step=None)
    first.board.settings({"seed": 1}, ["loss/train"])
    for step in range(10):
        first.record(step, "train", {"loss": float(step)})
    first.close()
    write_scores(tmp_path / "run", 5, {"Sel@1 number": 0.25})
    again = f"""
import time
from pathlib import Path
now = time.time
time.time = lambda: now() + {clock}
from tests.board import write_scores
from training.logging import Recorder
second = Recorder(Path({str(tmp_path / "run")!r}), resumed_step=6)
second.board.settings({{"seed": 1}}, ["loss/train"])
for step in range(7, 12):
    second.record(step, "train", {{"loss": 100.0 + step}})
second.close()
write_scores(Path({str(tmp_path / "run")!r}), 11, {{"Sel@1 number": 0.75}})
"""
    subprocess.run([sys.executable, "-c", again], cwd=ROOT, check=True)
    board = Board(tmp_path, f"--load_fast={loading}")
    try:
        board.wait(lambda: "probe/Sel@1 number" in board.ask("plugin/scalars/tags").get("run/tb", {}))
        expected = [(step, step + (100.0 if step > 6 else 0)) for step in range(12)]
        assert board.scalars("run/tb", "loss/train") == expected
        assert board.scalars("run/tb", "probe/Sel@1 number") == [(11, 0.75)]
        [one] = board.session_groups()
        assert one["sessions"][0]["status"] == "STATUS_UNKNOWN"  # not ended
    finally:
        board.end()
