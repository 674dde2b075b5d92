"""model.generate from outside: it opens a run as eval.py does, and refuses what eval.py refuses."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from tests.reliability.calls import call, told
from tests.reliability.doors import Doors
from training.checkpoint import load_checkpoint, save_checkpoint
from training.settings import ExportConfig, GenerateConfig


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of a text, called sound."""
    here = tmp_path_factory.mktemp("generate")
    (here / "text.txt").write_text("Tom ran. He sat.\n" * 60)
    settings = (
        "data=text", "data.path=text.txt", "data.tokenizer=characters", "data.validation_fraction=0.3", "model=nano",
        "threads=1", "max_steps=2", "tokens_per_batch=64", "validation_tokens=50", "sample_tokens=0", "cache_dir=cache",
    )  # fmt: skip
    made = call(doors, here, "train.py", *settings, "out=sound")
    assert made.status == 0, made.err
    return here


def another_tokenizer(run: Path) -> None:
    """Write the same tokenizer in other bytes."""
    (run / "tokenizer.json").write_text((run / "tokenizer.json").read_text() + "\n")


def another_model(run: Path) -> None:
    """Change a setting that no weight's shape betrays."""
    config = json.loads((run / "config.json").read_text())
    config["model"]["rope_theta"] = 77.0
    (run / "config.json").write_text(json.dumps(config))


def a_wrong_kind(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["model"]["n_layer"] = "many"
    (run / "config.json").write_text(json.dumps(config))


def not_finite(run: Path) -> None:
    """Save the checkpoint again, whole, with a weight that is no number."""
    state, _ = load_checkpoint(run / "checkpoints", best=True)
    next(iter(state["model"].values())).view(-1)[0] = float("nan")
    save_checkpoint(run / "checkpoints", state, state["step"], best=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (another_tokenizer, "tokenizer.json is damaged (its sha256 is not the one recorded)"),
        (another_model, "config.json has been changed: model.rope_theta is 77.0"),
        (a_wrong_kind, "config.json: model.n_layer"),
        (not_finite, "has weights that are not finite"),
    ],
)
def test_what_eval_refuses_of_a_run_generate_refuses_in_the_same_line(
    doors: Doors, place: Path, change: Callable[[Path], None], said: str
) -> None:
    run = place / "changed"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(place / "sound", run)
    change(run)
    lines = [
        told(call(doors, place, "model/generate.py", "run=changed", "n_tokens=2")),
        told(call(doors, place, "eval.py", "run=changed", "text=He sat.", "threads=1", "cache_dir=cache")),
    ]
    assert lines[0] == lines[1] and said in lines[0]


def test_a_run_that_nobody_changed_is_read_by_both(doors: Doors, place: Path) -> None:
    for door, *arguments in (
        ("model/generate.py", "n_tokens=2"),
        ("eval.py", "text=He sat.", "threads=1", "cache_dir=cache"),
    ):
        called = call(doors, place, door, "run=sound", *arguments)
        assert called.status == 0 and called.err == "", called.err


@pytest.mark.parametrize("door", ["model/generate.py", "model/export.py"])
def test_a_door_says_every_setting_that_it_takes(doors: Doors, tmp_path: Path, door: str) -> None:
    schema = {"model/generate.py": GenerateConfig, "model/export.py": ExportConfig}[door]
    for flag in ("--help", "-h"):
        called = call(doors, tmp_path, door, flag)
        assert called.status == 0 and called.err == "", called.err
        assert {field.name for field in fields(schema)} <= {line.split(" ")[0] for line in called.out.splitlines()}
