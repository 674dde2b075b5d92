"""What ends a run before its time, from outside: signals in an evaluation, a full disk, numbers that are not finite."""

import hashlib
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.transformer import Transformer
from tests.reliability.doors import Doors, Ended
from tests.reliability.faults import limit_file_size
from train import fit
from training.checkpoint import load_checkpoint, read_manifest
from training.command_line import quoted
from training.settings import TrainSettings, resumed, typed_train

ROOT = Path(__file__).parent.parent
QUICK = [
    "threads=1",
    "model=nano", "max_steps=12", "eval_every_steps=5", "log_every_steps=1", "tokens_per_batch=256",
    "validation_tokens=1100", "probe_sequences=40", "sample_tokens=5", "data.n_train_stories=6000",
    "data.n_validation_stories=200", "data.n_test_templates=3", "data.n_test_pairs=2", "model.dropout=0.1",
]  # fmt: skip
SPEEDS = {"seconds", "tokens_per_second"}


def settings(*overrides: str) -> TrainSettings:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return typed_train(compose("train", [quoted(one) for one in overrides]))


def go_on(out: Path, cache: str) -> int:
    """Go on with a run as the command line does; return the exit status."""
    given = [f"out={out}", cache, "resume=true"]
    return fit(resumed(settings(*given), json.loads((out / "config.json").read_text()), given))


@contextmanager
def signal_at(forward: int, number: int) -> Iterator[list[int]]:
    """Send this process a signal in the given forward pass of a model in eval mode; yield how many there were."""
    seen = [0]

    def count(module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, Transformer) and not module.training:
            seen[0] += 1
            if seen[0] == forward:
                signal.raise_signal(number)

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        yield seen
    finally:
        hook.remove()
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.fixture(scope="module")
def unbroken(cache: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run and how many forward passes its evaluations and probes took."""
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    with signal_at(-1, 0) as seen:
        assert fit(settings(f"out={out}", cache, *QUICK)) == 0
    return out, seen[0]


def records(run: Path) -> list[dict]:
    """Return all of metrics.jsonl but how fast it was."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in one.items() if name not in SPEEDS} for one in found if one["split"] != "speed"
    ]


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "tokens_per_second" not in tag and not tag.endswith("/speed")]
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags}


def assert_same(run: Path, other: Path) -> None:
    assert records(run) == records(other)
    assert (run / "attention.jsonl").read_bytes() == (other / "attention.jsonl").read_bytes()
    assert curves(run) == curves(other)
    marks = [[(one["step"], one["best"]) for one in read_manifest(one / "checkpoints")] for one in (run, other)]
    assert marks[0] == marks[1]
    ours, theirs = (load_checkpoint(one / "checkpoints")[0] for one in (run, other))
    assert all(torch.equal(tensor, theirs["model"][name]) for name, tensor in ours["model"].items())
    assert ours["best_loss"] == theirs["best_loss"]


@pytest.mark.slow
def test_a_signal_in_any_evaluation_or_probe_leaves_nothing_of_it_and_who_goes_on_begins_with_it(
    unbroken: tuple[Path, int], cache: str, tmp_path: Path
) -> None:
    whole, n_forward = unbroken
    cut_short = 0
    for forward in range(1, n_forward + 1, 7):
        out, number = tmp_path / str(forward), (signal.SIGTERM, signal.SIGINT)[forward % 2]
        with signal_at(forward, number):
            status = fit(settings(f"out={out}", cache, *QUICK))
        state, _ = load_checkpoint(out / "checkpoints")
        assert status == 128 + number
        step, is_looked = state["step"], state["looked_step"] == state["step"]
        assert all(
            one["step"] < step or (one["step"], one["split"]) == (step, "train") or is_looked for one in records(out)
        )
        assert not [
            *(out / "checkpoints").glob("*_again.pt")
        ]  # an evaluation that was finished has kept its checkpoint
        cut_short += not is_looked
        assert go_on(out, cache) == 0
        assert_same(out, whole)
    assert 0 < cut_short < len(range(1, n_forward + 1, 7))


def test_stopped_twice_in_one_evaluation_nothing_is_saved_again_and_what_a_kill_left_of_it_goes(
    unbroken: tuple[Path, int], cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with signal_at(unbroken[1] - 12, signal.SIGTERM):  # in the evaluation of the last step
        assert fit(settings(f"out={out}", cache, *QUICK)) == 143
    saved = {path: path.stat().st_mtime_ns for path in (out / "checkpoints").glob("*.pt")}
    state, _ = load_checkpoint(out / "checkpoints")
    assert (state["step"], state["looked_step"]) == (12, 11)
    with signal_at(2, signal.SIGINT):
        assert go_on(out, cache) == 130
    assert {path: path.stat().st_mtime_ns for path in (out / "checkpoints").glob("*.pt")} == saved
    for name in ("metrics.jsonl", "attention.jsonl"):  # as of a process killed between its records and its checkpoint
        with (out / name).open("a") as stream:
            stream.write('{"step": 12, "split": "probe"}\n')
    assert go_on(out, cache) == 0
    assert_same(out, unbroken[0])


def train(doors: Doors, out: Path, cache: str, *overrides: str, room: int | None = None) -> Ended:
    """Train in a process of its own that can write no file of more than `room` bytes."""
    before = None if room is None else partial(limit_file_size, room)
    return doors.run("train.py", f"out={out}", cache, *overrides, before=before)


def hashes(run: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (run / "checkpoints").iterdir()}


FULL = [*QUICK, "max_steps=200", "eval_every_steps=200"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["events.out", "metrics.jsonl", "step_"])
def test_a_full_disk_ends_a_run_in_one_line_and_it_goes_on_exactly_once_there_is_room(
    doors: Doors, unbroken: tuple[Path, int], cache: str, tmp_path: Path, what: str
) -> None:
    whole, n_forward = unbroken
    out = tmp_path / "run"
    if what == "events.out":  # its pictures grow faster than anything, and a checkpoint comes at the end only
        ran = train(doors, out, cache, *FULL, room=200_000)
    else:
        with signal_at(n_forward // 2, signal.SIGTERM):
            fit(settings(f"out={out}", cache, *QUICK))
        if what == "metrics.jsonl":
            note = {"step": 0, "split": "note", "of": "x" * 2_000_000}
            with (out / what).open("a") as stream:
                stream.write(json.dumps(note) + "\n")
        before = hashes(out)
        room = (out / what).stat().st_size + 600 if what == "metrics.jsonl" else 200_000
        ran = train(doors, out, cache, "resume=true", room=room)
        assert hashes(out) == before
    assert ran.status == 2, ran.err
    assert ran.err.count("\n") == 1 and what in ran.err and "File too large" in ran.err, ran.err
    assert load_checkpoint(out / "checkpoints")[0]["step"] < 12
    if what != "events.out":
        assert go_on(out, cache) == 0
        if what == "metrics.jsonl":
            text = (out / what).read_text()
            (out / what).write_text("".join(line for line in text.splitlines(True) if '"note"' not in line))
        assert_same(out, whole)


@pytest.mark.slow
def test_a_run_whose_numbers_are_not_finite_ends_in_one_line_and_goes_on_with_what_it_says(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    """The small probe and evaluations fall into the steps that are skipped."""
    out = tmp_path / "run"
    ran = train(doors, out, cache, *QUICK, "max_steps=40", "optim.learning_rate=1e18")
    assert ran.status == 2 and ran.err.count("\n") == 1, ran.err
    for word in ("10 steps in a row, up to step 12,", "optim.learning_rate (now 1e+18)", "resume_with_changes=true"):
        assert word in ran.err
    assert "step     5  validation not finite  skipped 3 steps  no checkpoint is kept" in ran.out
    found = records(out)
    assert [(one["step"], one["loss"]) for one in found if one["split"] == "validation"][1:] == [(5, None), (10, None)]
    assert [one["step"] for one in found if one["split"] == "probe"] == [0, 1]
    assert [one["skipped"] for one in found if one["split"] == "train"] == [0, *range(11)]
    assert [one["step"] for one in read_manifest(out / "checkpoints")] == [0]
    assert "loss/validation" in curves(out) and len(curves(out)["loss/train"]) == 2
    again = train(doors, out, cache, "resume=true", "resume_with_changes=true", "optim.learning_rate=0.01")
    assert again.status == 0, again.err
    last = records(out)[-1]
    assert (last["step"], last["split"]) == (40, "validation") and last["loss"] < 6


def test_a_run_whose_last_step_is_not_finite_ends_in_one_line_too(
    cache: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with signal_at(-1, 0), pytest.raises(SystemExit) as end:
        fit(
            settings(
                f"out={tmp_path / 'run'}",
                cache,
                *QUICK,
                "max_steps=3",
                "optim.learning_rate=1e18",
            )
        )
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1
    assert "the validation loss at the last step is not finite" in said
    assert [one["step"] for one in read_manifest(tmp_path / "run" / "checkpoints")] == [0]
