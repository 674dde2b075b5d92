"""TensorBoard itself, started and asked over its own HTTP API: what is promised of it is there, each step once."""

import base64
import json
import re
import signal
import time
import urllib.parse
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probe.snapshots import HISTORY_FILE, read_history
from tests.board import Board, write_scores
from tests.reliability.doors import Doors, Running
from training.checkpoint import load_checkpoint
from training.optim import is_probe_step

pytestmark = pytest.mark.slow
STEPS, EVERY = 100, 25
QUICK = [
    "model=nano", "threads=1", f"max_steps={STEPS}", f"eval_every_steps={EVERY}", "log_every_steps=5",
    "tokens_per_batch=512", "validation_tokens=500", "probe_sequences=40", "sample_tokens=5",
    "data.n_train_stories=6000", "data.n_validation_stories=400", "data.n_test_templates=3", "data.n_test_pairs=2",
]  # fmt: skip
PROBES = [step for step in range(STEPS + 1) if is_probe_step(step, STEPS) or step % EVERY == 0]


def train(doors: Doors, out: Path, cache: Path, *overrides: str) -> Running:
    return doors.start("train.py", f"out={out}", f"cache_dir={cache}", *QUICK, *overrides)


def killed(doors: Doors, out: Path, cache: Path, step: int, *overrides: str) -> None:
    """Train until `step` is written down, and no further."""
    run, path = train(doors, out, cache, *overrides), out / "metrics.jsonl"
    while not (path.exists() and f'"step": {step}, "split": "train"' in path.read_text()):
        assert not run.has_ended, "the run ended too early"
        time.sleep(0.005)
    run.send(signal.SIGKILL)
    run.wait()


@pytest.fixture(scope="module")
def logdir(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed before and after the first evaluation but that of step 0, gone on with, and probed."""
    found, cache = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")
    out = found / "story"
    killed(doors, out, cache, 10)
    killed(doors, out, cache, EVERY + 10, "resume=true")
    assert train(doors, out, cache, "resume=true").wait().status == 0
    write_scores(out, STEPS, {"Sel@1 number": 0.25})
    write_scores(out, STEPS, {"Sel@1 number": 0.75, "F4 number": 0.5, "T number": 1.0})
    return found


@pytest.fixture(scope="module")
def board(logdir: Path) -> Iterator[Board]:
    found = Board(logdir, "--samples_per_plugin", "images=1000,scalars=10000", "--reload_interval", "1")
    try:
        found.wait(lambda: "probe/T number" in found.ask("plugin/scalars/tags").get("story/tb", {}))
        yield found
    finally:
        found.end()


def test_the_run_is_one_run(board: Board) -> None:
    assert board.ask("runs") == ["story/tb"]


def test_every_curve_stands_once_at_every_step_though_the_run_was_killed(board: Board) -> None:
    tags = set(board.ask("plugin/scalars/tags")["story/tb"])
    assert {"loss/train", "loss/validation", "floor/validation", "gap/validation", "gap_by_class/payoff"} <= tags
    assert {
        "number/accuracy",
        "number/luck",
        "number/rho",
        "V_S1_payoff/bayes",
        "later_cue/accuracy",
        "probe_gap/payoff",
    } <= tags
    steps = {tag: [step for step, _ in board.scalars("story/tb", tag)] for tag in tags}
    assert steps["loss/train"] == list(range(5, STEPS + 1, 5))
    assert steps["loss/validation"] == list(range(0, STEPS + 1, EVERY))
    assert steps["number/accuracy"] == PROBES


def test_the_custom_layout_names_curves_that_are_there(board: Board) -> None:
    layout = board.ask("plugin/custom_scalars/layout")["category"]
    assert [one["title"] for one in layout] == ["head", "behaviour", "loss gap"]
    charts = {chart["title"]: chart["multiline"]["tag"] for one in layout for chart in one["chart"]}
    assert charts["number: best head and luck"] == ["^number/accuracy$", "^number/luck$"]
    assert "^V_S1_payoff/bayes$" in charts["number: payoff loss and oracles"] and "^number/rho$" in charts["rho"]
    assert charts["loss"] == ["^loss/train$", "^loss/validation$", "^floor/validation$"]
    assert "^floor_by_class/payoff$" in charts["loss by class and floor"]
    assert charts["gap to the floor"][:2] == ["^gap/validation$", "^gap_by_class/function$"]
    assert "^probe_gap/payoff$" in charts["gap to the floor at every probe"]
    tags = board.ask("plugin/scalars/tags")["story/tb"]
    missing = {tag for some in charts.values() for tag in some if not any(re.match(tag, one) for one in tags)}
    assert missing == set()


def pictures(board: Board, tag: str) -> dict[int, np.ndarray]:
    found = {}
    for one in board.ask("plugin/images/images", run="story/tb", tag=tag, sample="0"):
        assert one["step"] not in found
        query = dict(urllib.parse.parse_qsl(one["query"]))
        found[one["step"]] = np.asarray(Image.open(BytesIO(board.fetch("plugin/images/individualImage", **query))))
    return found


def test_the_map_of_heads_is_drawn_at_every_probe_and_the_four_cells_at_every_evaluation(board: Board) -> None:
    assert set(board.ask("plugin/images/tags")["story/tb"]) == {
        "probe/number", "probe/V_S1_pronoun_contrast", "probe/later_cue", "probe/R_S2_pronoun_contrast", "it_to_cat/best_head",
    }  # fmt: skip
    assert sorted(pictures(board, "probe/number")) == PROBES
    cells = pictures(board, "it_to_cat/best_head")
    assert sorted(cells) == list(range(0, STEPS + 1, EVERY))
    assert len({picture.shape for picture in cells.values()}) == 1 and not (cells[0] == cells[STEPS]).all()


def test_the_sample_is_text(board: Board) -> None:
    assert board.ask("plugin/text/tags") == {"story/tb": ["sample/text_summary"]}
    samples = board.ask("plugin/text/text", run="story/tb", tag="sample/text_summary")
    assert [one["step"] for one in samples] == list(range(0, STEPS + 1, EVERY))


def test_settings_and_scores_stand_in_one_row_of_hparams_and_it_has_ended(board: Board, logdir: Path) -> None:
    [one] = board.session_groups()
    assert one["name"] == "story/tb" and [some["status"] for some in one["sessions"]] == ["STATUS_SUCCESS"]
    settings = one["hparams"]
    assert settings["seed"] == 1 and settings["model.n_head"] == 2 and settings["model.tie_query_key"] == "false"
    assert settings["optim.name"] == "muon" and settings["data.source"] == "stories"
    assert not {"out", "cache_dir", "resume", "sample_prompt"} & set(settings)
    found = {some["name"]["tag"]: some["value"] for some in one["metricValues"]}
    last = [json.loads(line) for line in (logdir / "story" / "metrics.jsonl").read_text().splitlines()]
    [validation] = [line for line in last if line.get("whole")]
    probed = [line for line in last if line["split"] == "probe"][-1]["number"]
    expected = {"loss/validation": validation["loss"], "gap/validation": validation["gap"]}
    expected |= {f"number/{name}": probed[name] for name in ("accuracy", "block_accuracy", "pronoun_contrast", "rho")}
    expected |= {"probe/Sel@1 number": 0.75, "probe/F4 number": 0.5, "probe/T number": 1.0}
    assert {tag: found[tag] for tag in expected} == pytest.approx(expected)


def test_a_later_probes_scores_take_the_place_of_the_earlier_ones_while_it_runs(board: Board, logdir: Path) -> None:
    assert board.scalars("story/tb", "probe/Sel@1 number") == [(STEPS, 0.75)]
    write_scores(logdir / "story", STEPS, {"Sel@1 number": 0.875, "F4 number": 0.5, "T number": 1.0})
    board.wait(lambda: board.scalars("story/tb", "probe/Sel@1 number")[-1] == (STEPS, 0.875))


def test_the_projector_has_every_word_with_its_kind(board: Board, logdir: Path) -> None:
    assert board.ask("plugin/projector/runs") == ["story/tb"]
    [info] = board.ask("plugin/projector/info", run="story/tb")["embeddings"]
    name = info["tensorName"]
    weights = load_checkpoint(logdir / "story" / "checkpoints")[0]["model"]["token_embedding.weight"].numpy()
    assert info["tensorShape"] == list(weights.shape)
    shown = board.fetch("plugin/projector/tensor", run="story/tb", name=name)
    np.testing.assert_allclose(np.frombuffer(shown, np.float32).reshape(weights.shape), weights, rtol=1e-3)
    header, *rows = board.fetch("plugin/projector/metadata", run="story/tb", name=name).decode().splitlines()
    assert header == "word\tkind" and len(rows) == len(weights)
    kinds = dict(row.split("\t") for row in rows)
    assert kinds["cat"] == "content" and kinds["It"] == "pronoun"


def test_its_directory_stays_small(logdir: Path) -> None:
    assert sum(path.stat().st_size for path in (logdir / "story" / "tb").iterdir()) < 2_000_000


def test_the_film_holds_each_probe_once_though_the_run_was_killed(logdir: Path) -> None:
    film = read_history(logdir / "story" / HISTORY_FILE)
    assert film is not None and film["steps"] == PROBES and len(film["texts"]) == 6
    assert (film["n_layer"], film["n_head"]) == (1, 2)
    first = [np.frombuffer(base64.b64decode(one), np.uint8) for one in film["data"][0]]
    last = [np.frombuffer(base64.b64decode(one), np.uint8) for one in film["data"][-1]]
    assert any((one != other).any() for one, other in zip(first, last, strict=True))
