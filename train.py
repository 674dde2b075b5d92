"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE]; --help lists the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from data.config import SCHEMAS
from model.config import ModelConfig
from training.command_line import run_cli
from training.distributed import ALONE, World, end, one_voice, together, world_of
from training.evaluate import announce, evaluate, leave, probe, probe_it, show_whole
from training.optim import is_probe_step
from training.run_dir import Stopped, StopRequest, find_run, read_json
from training.settings import (
    CONFIGS,
    Device,
    OptimSettings,
    RunSettings,
    TrainSettings,
    resumed_settings,
    saved_settings,
    train_settings,
)
from training.setup import Run, follow, prepare
from training.trainer import Training, advance, enough_memory

GROUPS = {
    "": [RunSettings],
    "model": [ModelConfig],
    "data": list(SCHEMAS.values()),
    "optim": [OptimSettings],
    "experiment": [],
    "variant": [],
}


def main(config: DictConfig) -> int:
    """Trains with the settings in Hydra's config, under -m one run of the sweep; returns the exit status."""
    settings = train_settings(config)
    job = HydraConfig.get()
    label = ""
    if job.mode is RunMode.MULTIRUN:
        label = f"[{job.job.num}] "
        settings = sweep_settings(settings, Path(job.sweep.dir, job.sweep.subdir))
    if settings.run.resume:
        saved = saved_settings(read_json(find_run(settings.run.out) / "config.json"))
        settings = resumed_settings(settings, saved, job.overrides.task)
    return train(settings, label, world_of(os.environ))


def sweep_settings(settings: TrainSettings, out: Path) -> TrainSettings:
    """Returns the settings of one run of a sweep; resume=true resumes the runs that were started."""
    resume = settings.run.resume and (out / "config.json").is_file()
    return replace(settings, run=replace(settings.run, out=str(out), resume=resume))


def train(settings: TrainSettings, label: str = "", world: World = ALONE) -> int:
    """Train from start, or from the newest checkpoint, to `max_steps`; return the exit status."""
    with together(world, cuda=settings.run.device is not Device.cpu):
        run = prepare(settings, label, world) if world.is_first else None
        training = run.training if run else follow(world)
        stop = StopRequest()
        with closing(stop), records(run), enough_memory(training):
            steps(training, run, stop)
            if is_asked_to_stop(training, stop):
                training.gather()
                if run:
                    leave(run)
    if world.size > 1:
        end(stop.exit_status)
    return stop.exit_status


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
    if run and training.step == training.looked_step == training.own.max_steps:
        run.progress.say(f"ended   nothing is left to train; {probe_it(run)}")
    look(training, run, stop)
    while training.step < training.own.max_steps and not is_asked_to_stop(training, stop):
        advance(training, run.recorder if run else None)
        if run:
            run.progress.show(training.step)
        look(training, run, stop)


def is_asked_to_stop(training: Training, stop: StopRequest) -> bool:
    """Whether any process has heard a signal by now, so that all of them stop after the same step."""
    received = training.world.agree(stop.signal or 0)
    stop.receive(received)
    return received > 0


def look(training: Training, run: Run | None, stop: StopRequest) -> None:
    """Evaluate or probe after this step, where that is due and not yet behind us; None: another process does."""
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
    with one_voice(world_of(os.environ)):
        run_cli(main, GROUPS, CONFIGS, "train")
