"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE], --help for what there is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from training.command_line import door
from training.distributed import ALONE, World, end, one_voice, together, world_of
from training.evaluate import announce, evaluate, leave, probe, probe_it, show_whole
from training.settings import TrainSettings, one_line_errors, resumed, typed_train
from training.setup import Run, follow, prepare
from training.sweeps import check_sweep, jobs

if TYPE_CHECKING:
    from training.signals import StopRequest
    from training.trainer import Training


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(config: DictConfig) -> None:
    """Check the settings, then train."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    job = HydraConfig.get()
    several = job.mode is RunMode.MULTIRUN
    label = f"[{job.job.num}] " if several else ""  # runs may be going on side by side
    with no_trace(Path(job.runtime.output_dir), Path(job.sweep.dir)) if several else nullcontext():
        with one_line_errors():
            world = world_of(os.environ)
            if several and world.size > 1:
                raise ValueError("-m makes several runs and torchrun one of several processes: start them one by one")
        with one_line_errors(label=label):
            settings = typed_train(config)
            if several:
                settings = in_sweep(settings, job.job.num, job.runtime.output_dir)
        status = fit(settings, label, world, list(job.overrides.task))
    if status:
        sys.exit(status)


def in_sweep(settings: TrainSettings, number: int, output: str) -> TrainSettings:
    """Give a run of a sweep a directory of its own: under `out`, or where that is not given `output`.

    A sweep that was cut short, or put back into its queue, begins those runs that had not begun.
    """
    own = output if settings.run.out is None else f"{settings.run.out}/{number}"
    changed = replace(settings.run, out=own)
    if settings.run.resume and not (Path(own) / "config.json").is_file():
        changed = replace(changed, resume=False, resume_with_changes=False)
    return replace(settings, run=changed)


def check_runs(arguments: list[str]) -> None:
    """Refuse a sweep one of whose runs cannot be, or can neither begin nor go on where it would, before the first."""
    with one_line_errors(ValueError):
        found = check_sweep(arguments)
    if not found:
        return
    from training.run_dir import check_new

    for number, (settings, overrides) in enumerate(found):
        if settings.run.out is None:  # each has a new folder
            continue
        with one_line_errors(label=f"[{number}] "):
            settings = in_sweep(settings, number, "")
            if settings.run.resume:
                gone_on(settings, overrides)
            else:
                check_new(settings.run.out)


@contextmanager
def no_trace(output: Path, sweep: Path) -> Iterator[None]:
    """Remove what Hydra has made for a run of a sweep where that is refused: empty folders, and its own note of it."""
    try:
        yield
    except SystemExit:
        with suppress(OSError):  # a folder that holds anything stays
            output.rmdir()
            if [path.name for path in sweep.iterdir()] == ["multirun.yaml"]:
                (sweep / "multirun.yaml").unlink()
            for folder in (sweep, *sweep.parents):
                folder.rmdir()
        raise


def fit(settings: TrainSettings, label: str = "", world: World = ALONE, overrides: Sequence[str] | None = None) -> int:
    """Train from start, or from the newest checkpoint, to `max_steps`; return the exit status.

    Args:
        settings: of the run; of several processes rank 0's count.
        label: stands before every line that is said, and in an error's.
        world: this process's place among those that train together.
        overrides: of the command line: a run that is gone on with keeps what they do not name; None: `settings` are
            what it goes on with.

    """
    from training.settings import Device
    from training.signals import StopRequest, is_orphan

    if is_orphan():  # a run that was waiting for its turn, of a sweep that was ended
        return 128 + SIGTERM
    with together(world, cuda=settings.run.device is not Device.cpu):
        with one_line_errors(label=label):
            if settings.run.resume and overrides is not None and world.is_first:  # who tells the others, a refusal too
                settings = gone_on(settings, overrides)
            run = prepare(settings, label, world) if world.is_first else None
            training = run.training if run else follow(world)
        from training.trainer import enough_memory

        stop = StopRequest(is_shared=world.size > 1)
        with (
            closing(stop),
            one_line_errors(MemoryError, OSError, FloatingPointError, label=label),
            records(run),
            enough_memory(training),
        ):
            steps(training, run, stop)
            if is_asked_to_stop(training, stop):
                training.gather()
                if run:
                    leave(run)
    stop.pass_on()
    status = stop.exit_status if stop.signal is not None else 0
    if world.size > 1:
        end(status)
    return status


def gone_on(settings: TrainSettings, overrides: Sequence[str]) -> TrainSettings:
    """Return the settings of the run that is gone on with, as `resumed` has them; OSError where there is none."""
    from training.run_dir import find_run, read_json

    return resumed(settings, read_json(find_run(settings.run.out) / "config.json"), list(overrides))


@contextmanager
def records(run: Run | None) -> Iterator[None]:
    """Keep what a run writes open, and claimed; None: another process writes."""
    with ExitStack() as stack:
        if run:
            stack.enter_context(closing(run.claim))
            stack.enter_context(closing(run.recorder))
            announce(run)
        yield


def steps(training: Training, run: Run | None, stop: StopRequest) -> None:
    """Take every step that is left, and look at what was learned where that is due, until asked to stop."""
    from training.trainer import advance

    if run and training.step == training.looked_step == training.own.max_steps:
        run.progress.say(f"ended   nothing is left to train; {probe_it(run)}")
    look(training, run, stop)
    while training.step < training.own.max_steps and not is_asked_to_stop(training, stop):
        advance(training, run.recorder if run else None)
        if run:
            run.progress.show(training.step)
        look(training, run, stop)


def is_asked_to_stop(training: Training, stop: StopRequest) -> bool:
    """Whether any process has heard a signal by now, so that all of them stop after the same step.

    What this one hears once they have agreed is of the next step.
    """
    heard = training.world.agree(stop.signal or 0)
    stop.hear(heard)
    return heard > 0


def look(training: Training, run: Run | None, stop: StopRequest) -> None:
    """Evaluate or probe after this step, where that is due and not yet behind us; None: another process does.

    Where a signal is heard nothing of it is written down: who goes on begins with it.
    """
    from training.optim import is_probe_step
    from training.signals import Stopped

    if training.looked_step == training.step:
        return
    is_due = training.evaluates or is_probe_step(training.step, training.own.max_steps)
    if is_due:
        training.gather()
    with suppress(Stopped):
        if run and is_due:
            show_whole(run)
            (evaluate if training.evaluates else probe)(run, stop)
        training.looked_step = training.step


if __name__ == "__main__":
    with one_line_errors():
        voice = one_voice(world_of(os.environ))
    with voice, door("train", HydraException), jobs():
        check_runs(sys.argv[1:])
        main()
