"""One model trained by several processes: the same run, and an end together however it comes."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from training.signals import StopRequest

from tests.ranks import start_ranks, torchrun, wait_for_step
from tests.reliability.doors import Doors, Ended
from tests.test_train import lines, losses
from tests.training.test_training import make_training, settings
from train import is_asked_to_stop
from training.checkpoint import go_back, load_checkpoint, read_manifest
from training.distributed import LOST, World

TINY = [
    "model=nano", "threads=1", "max_steps=24", "eval_every_steps=8", "log_every_steps=1", "tokens_per_batch=256",
    "validation_tokens=500", "probe_sequences=40", "sample_tokens=5", "keep_checkpoints=9", "precision=float32",
    "data.n_train_stories=6000", "data.n_validation_stories=200", "data.n_test_templates=3", "data.n_test_pairs=2",
    "optim=adamw",
]  # fmt: skip
LONG = [*TINY, "max_steps=4000", "eval_every_steps=20", "keep_checkpoints=2"]
OURS = 'train.py", line'  # in a traceback; torchrun has one of its own
CLOSE = 1e-6  # nats/token: what float32 leaves of losses that are added up in another order


@pytest.fixture(scope="module")
def alone(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "alone"
    assert doors.run("train.py", f"out={out}", cache, *TINY).status == 0
    return out


@pytest.fixture(scope="module")
def two(cache: str, alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by two processes of torchrun."""
    folder = tmp_path_factory.mktemp("two")
    status, said = torchrun(folder / "said", 2, f"out={folder / 'run'}", cache, *TINY).wait()
    assert status == 0 and said.count("done in") == said.count("ranks   2 processes, the whole model in each") == 1, (
        said
    )
    return folder / "run"


def ended(doors: Doors, size: int, *arguments: str) -> list[Ended]:
    return [one.wait(120) for one in start_ranks(doors, size, *arguments)]


def same(one: Path, other: Path, within: float = CLOSE) -> None:
    mine, theirs = losses(one), losses(other)
    assert [step for step, _ in mine] == [step for step, _ in theirs]
    assert [loss for _, loss in mine] == pytest.approx([loss for _, loss in theirs], abs=within)


def test_two_processes_train_the_run_of_one(alone: Path, two: Path) -> None:
    same(two, alone)
    assert {path.name for path in two.iterdir()} == {path.name for path in alone.iterdir()}
    for split in ("validation", "probe"):
        here, there = lines(two, split), lines(alone, split)
        assert [line["step"] for line in here] == [line["step"] for line in there]
    assert lines(two, "validation")[-1]["loss"] == pytest.approx(lines(alone, "validation")[-1]["loss"], abs=CLOSE)
    config, its = (json.loads((run / "config.json").read_text()) for run in (two, alone))
    assert config | {"run": config["run"] | {"out": str(alone)}} == its
    assert json.loads((two / "environment.json").read_text())["processes"] == 2
    ours, theirs = (load_checkpoint(run / "checkpoints")[0] for run in (two, alone))
    assert ours.keys() == theirs.keys() and ours["model"].keys() == theirs["model"].keys()


@pytest.mark.parametrize("optim", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_sharded_model_is_the_replicated_one_and_leaves_the_same_checkpoint(
    doors: Doors, cache: str, tmp_path: Path, optim: str
) -> None:
    found = {}
    for sharding in ("none", "fsdp"):
        out = tmp_path / sharding
        asked = [
            f"out={out}",
            cache,
            *TINY,
            f"optim={optim}",
            f"sharding={sharding}",
            "max_steps=8",
            "gradient_accumulation_steps=2",
        ]
        first, second = ended(doors, 2, f"out={out}", cache, *TINY, *asked)
        assert (first.status, second.status) == (0, 0), first.err + second.err
        assert ("a share of every weight in each" in first.out) is (sharding == "fsdp") and not second.out
        found[sharding] = load_checkpoint(out / "checkpoints")[0]
    same(tmp_path / "fsdp", tmp_path / "none", CLOSE if optim == "adamw" else 1e-3)  # Muon rounds to bfloat16
    ours, theirs = found["fsdp"], found["none"]
    assert {name: one.shape for name, one in ours["model"].items()} == {
        name: one.shape for name, one in theirs["model"].items()
    }
    for mine, its in zip(ours["optimizers"], theirs["optimizers"], strict=True):
        assert mine["param_groups"] == its["param_groups"] and mine["state"].keys() == its["state"].keys()
        for place, state in its["state"].items():
            assert {name: one.shape for name, one in mine["state"][place].items()} == {
                name: one.shape for name, one in state.items()
            }


def test_a_run_goes_on_with_another_number_of_processes(
    doors: Doors, alone: Path, two: Path, cache: str, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(two, tmp_path / "run"))
    go_back(out / "checkpoints", 8)
    [ran] = [doors.run("train.py", f"out={out}", "resume=true", cache)]
    assert ran.status == 0 and "(from step 8 of 24)" in ran.out, ran.err
    assert "losses may differ in their last bits: processes is 1, not 2" in ran.err
    go_back(out / "checkpoints", 16)
    first, second = ended(doors, 2, f"out={out}", "resume=true", "sharding=fsdp", cache)
    assert (first.status, second.status) == (0, 0) and "(from step 16 of 24)" in first.out, first.err + second.err
    assert (second.out, second.err) == ("", "")
    same(out, alone)


@pytest.mark.slow
def test_a_signal_to_one_of_torchruns_processes_stops_all_after_the_same_step_with_a_checkpoint(
    cache: str, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    launched = torchrun(tmp_path / "said", 2, f"out={out}", cache, *LONG)
    wait_for_step(out, 30)
    os.kill(launched.ranks()[1], signal.SIGTERM)
    status, said = launched.wait(30)
    assert status == 1 and "exitcode  : 143" in said and OURS not in said, said
    step = read_manifest(out / "checkpoints")[-1]["step"]
    assert said.count(f"stopped at step {step}; go on with: python train.py resume=true out={out}") == 1, said
    assert losses(out)[-1][0] == step


@pytest.mark.parametrize("told", [[1], [0, 1, 1, 0]])
def test_every_process_ends_as_the_one_that_heard_the_signal(
    doors: Doors, cache: str, tmp_path: Path, told: list[int]
) -> None:
    """And so where who means the whole job has told each of them, and torchrun has passed on what it was told."""
    out = tmp_path / "run"
    ranks = start_ranks(doors, 2, f"out={out}", cache, *LONG)
    wait_for_step(out, 5)
    for rank in told:
        ranks[rank].send(signal.SIGTERM)
        time.sleep(0.005)
    assert [one.wait(30).status for one in ranks] == [143, 143]
    assert read_manifest(out / "checkpoints")[-1]["step"] == losses(out)[-1][0]


@pytest.mark.slow
def test_where_one_is_killed_the_others_leave_with_one_line_and_the_run_goes_on(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    launched = torchrun(tmp_path / "said", 3, f"out={out}", cache, *LONG)
    wait_for_step(out, 30)
    ranks = launched.ranks()
    os.kill(ranks[1], signal.SIGKILL)
    began = time.monotonic()
    while launched.ranks():
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    status, said = launched.wait(30)
    assert status == 1 and f"exitcode  : {LOST}" in said and OURS not in said, said
    [line] = [line for line in said.splitlines() if line.startswith("error: ")]
    assert line == (
        f"error: rank 1 (process {ranks[1]}) is gone, and the others end with it; the last checkpoint goes on, with as "
        f"many processes as you like: python train.py resume=true out={out}"
    )
    ran = doors.run("train.py", f"out={out}", "resume=true", "max_steps=60", "resume_with_changes=true", cache)
    assert ran.status == 0 and losses(out)[-1][0] == 60, ran.err


def test_where_the_first_is_killed_the_other_says_so(doors: Doors, cache: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first, second = start_ranks(doors, 2, f"out={out}", cache, *LONG)
    wait_for_step(out, 5)
    first.send(signal.SIGKILL)
    left = second.wait(30)
    assert left.status == LOST and left.err.startswith(f"error: rank 0 (process {first.pid}) is gone"), left.err
    assert left.err.count("\n") == 1 and f"out={out}" in left.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("max_steps=-1", "max_steps must be 1 or more"),
        ("compile=graphs", "compile=graphs"),
        ("tokens_per_batch=64", "2 processes to share them"),
        ("data.n_train_stories=10", "unseen: raise it"),
        ("nonsense=1", "nonsense is not a setting"),
    ],
)
def test_bad_settings_are_one_line_of_the_first_and_the_end_of_all(
    doors: Doors, cache: str, tmp_path: Path, given: str, words: str
) -> None:
    first, second = ended(doors, 2, f"out={tmp_path / 'run'}", cache, *TINY, given)
    assert first.status == 2 and words in first.err and first.err.count("\n") == 1, first.err
    assert (second.status, second.out, second.err) == (2, "", "")
    assert not (tmp_path / "run").exists()


def test_a_sweep_is_no_work_for_several_processes(doors: Doors, cache: str, tmp_path: Path) -> None:
    first, second = ended(doors, 2, "-m", "seed=1,2", f"hydra.sweep.dir={tmp_path / 'sweep'}", cache, *TINY)
    assert first.status == 2 and "-m makes several runs and torchrun one" in first.err and first.err.count("\n") == 1
    assert (second.status, second.err) == (2, "") and not (tmp_path / "sweep").exists()


def test_what_goes_wrong_for_one_is_said_by_it_and_ends_all(doors: Doors, cache: str, tmp_path: Path) -> None:
    """Rank 0 loses its run's folder: it alone writes there."""
    out = tmp_path / "run"
    first, second = start_ranks(doors, 2, f"out={out}", cache, *LONG)
    wait_for_step(out, 5)
    shutil.rmtree(out / "checkpoints")
    (out / "checkpoints").write_text("")
    one, other = first.wait(30), second.wait(30)
    assert one.status == 2 and one.err.startswith("error: ") and one.err.count("\n") == 1, one.err
    assert (other.status, other.err) == (2, "")


def test_under_torchrun_a_wrong_setting_is_always_said(cache: str, tmp_path: Path) -> None:
    """Whichever of its processes is the first to find out."""
    for attempt in range(3):
        status, said = torchrun(tmp_path / f"said{attempt}", 2, cache, "max_steps=-1").wait(60)
        assert status == 1 and said.count("error: max_steps must be 1 or more") == 1, said


def test_a_run_that_is_not_there_is_refused_by_the_first_and_the_others_end_without_a_word(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    first, second = ended(doors, 2, "resume=true", f"out={tmp_path / 'run'}", cache)
    assert first.status == 2 and "is not a run's directory" in first.err and first.err.count("\n") == 1, first.err
    assert (second.status, second.out, second.err) == (2, "", "")


class Late(World):
    """The others agree, and only then a signal comes to this process."""

    def agree(self, number: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return number


def test_a_signal_that_comes_once_all_have_agreed_is_one_of_the_next_step() -> None:
    """Or one process would leave while the others take the step, each waiting for what the other does not send."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    training, stop = make_training(settings(), stories=False), StopRequest()
    try:
        training.world = Late()
        assert not is_asked_to_stop(training, stop) and stop.signal == signal.SIGTERM
        training.world = World()
        assert is_asked_to_stop(training, stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
