"""The follower of docs/loggers.md, taken from the page and run: a logger hears every number of a run once."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.reliability.doors import Doors

ROOT = Path(__file__).parent.parent
SHORT = [
    "model=nano", "threads=1", "max_steps=6", "eval_every_steps=2", "log_every_steps=1", "tokens_per_batch=256",
    "validation_tokens=200", "probe_sequences=8", "sample_tokens=0", "data.n_train_stories=4000",
    "data.n_validation_stories=40", "data.n_test_templates=2", "data.n_test_pairs=2",
]  # fmt: skip
# Has of wandb and trackio what both have, and writes down what it is told.
STAND_IN = """
import json, os
from pathlib import Path

def tell(**what):
    with Path(__file__).with_name("told.jsonl").open("a") as stream:
        stream.write(json.dumps(what) + chr(10))

def init(project=None, name=None, config=None, resume=None):
    tell(begun=name, project=project, resume=resume, id=os.environ["WANDB_RUN_ID"], seed=config["run"]["seed"])

def log(metrics, step=None):
    tell(step=step, metrics=metrics)

def finish():
    tell(ended=True)
"""


@pytest.fixture(scope="module")
def trained(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("of_loggers") / "run"
    ran = doors.run("train.py", f"out={out}", cache, *SHORT)
    assert ran.status == 0, ran.err
    return out


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the page's program and a logger that both are called as a reader would call them."""
    page = (ROOT / "docs" / "loggers.md").read_text()
    (code,) = re.findall(r"<!-- follow.py -->\n```python\n(.*?)```\n<!-- end -->", page, re.DOTALL)
    assert len(code.splitlines()) <= 22
    (tmp_path / "follow.py").write_text(code)
    for name in ("wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text(STAND_IN)
    return tmp_path


@contextmanager
def following(place: Path, logger: str, run: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(place / "follow.py"), logger, str(run)]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(place: Path) -> list[dict[str, Any]]:
    path = place / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(place: Path) -> list[int]:
    return [one["step"] for one in told(place) if "step" in one]


def wait_for(place: Path, expected: list[int]) -> None:
    end = time.monotonic() + 30
    while steps(place) != expected:
        assert time.monotonic() < end, steps(place)
        time.sleep(0.05)


@pytest.mark.parametrize("logger", ["wandb", "trackio"])
def test_a_run_that_has_ended_is_told_once_with_the_names_and_numbers_of_tensorboard(
    logger: str, place: Path, trained: Path
) -> None:
    run = shutil.copytree(trained, place / "runs" / "first")
    for _ in range(2):
        with following(place, logger, run) as process:
            assert process.communicate(timeout=30)[1] == "" and process.returncode == 0
    first, *logged, ended = told(place)[:-2]
    assert first == {"begun": "runs-first", "project": "antecedent", "resume": "allow", "id": "runs-first", "seed": 1}
    assert ended == {"ended": True} and len(told(place)) == len(logged) + 4  # and the second time nothing
    assert [one["step"] for one in logged] == [one["step"] for one in map(json.loads, lines(trained))]
    board = EventAccumulator(str(trained / "tb"), size_guidance={"scalars": 0}).Reload()
    curves = {tag: {one.step: one.value for one in board.Scalars(tag)} for tag in board.Tags()["scalars"]}
    sent = {(name, one["step"]): x for one in logged for name, x in one["metrics"].items()}
    for tag, points in curves.items():
        for step, value in points.items():
            assert sent[tag, step] == pytest.approx(value, rel=1e-6), tag
    assert len(curves) > 20 and all(isfinite(x) for x in sent.values())


def lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines(keepends=True)


def test_a_run_that_trains_is_killed_and_goes_on_is_told_each_step_once_when_it_is_whole(
    place: Path, trained: Path
) -> None:
    """As the run would write: line by line, half a line, the lines after its checkpoint dropped and written again."""
    run, every = shutil.copytree(trained, place / "runs" / "live"), lines(trained)
    path, of = run / "metrics.jsonl", [json.loads(line)["step"] for line in every]
    path.write_text("".join(every[: of.index(4)]) + every[of.index(4)][:20])  # up to step 3
    with following(place, "wandb", run) as process:
        wait_for(place, [step for step in of if step < 3])
        path.write_text("".join(every[: of.index(4) + 1]))  # the first of several records of step 4
        wait_for(place, [step for step in of if step < 4])
    path.write_text("".join(line for line, step in zip(every, of, strict=True) if step <= 2))  # resumed from step 2
    with following(place, "wandb", run) as process:  # and the follower begun again
        time.sleep(1.5)
        assert steps(place) == [step for step in of if step < 4]
        path.write_text("".join(every[: of.index(5) + 1]))
        wait_for(place, [step for step in of if step < 5])
        path.write_text("".join(every))
        assert process.communicate(timeout=30)[1] == "" and process.returncode == 0
    assert steps(place) == of and told(place)[-1] == {"ended": True}
    assert sum(of.count(step) > 1 for step in set(of)) > 2  # there were steps of several records
