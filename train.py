"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE], --help for what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from shutil import which
from signal import SIGTERM
from typing import TYPE_CHECKING

import hydra
from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig

from configs import TrainSettings, one_line_errors, resumed, typed_train
from configs.command_line import door, jobs
from run.commands.looking import announce, evaluate, leave, probe
from run.commands.preparing import Run, prepare

if TYPE_CHECKING:
    from run.signals import StopRequest


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(config: DictConfig) -> None:
    """Check the settings, then train."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    job, label = HydraConfig.get(), ""
    several = job.mode is RunMode.MULTIRUN
    with no_trace(Path(job.runtime.output_dir), Path(job.sweep.dir)) if several else nullcontext():
        with one_line_errors():
            settings = typed_train(config)
            if several:  # each run in a directory of its own: of the sweep's, or under out
                own = job.runtime.output_dir if settings.run.out is None else f"{settings.run.out}/{job.job.num}"
                settings = replace(settings, run=replace(settings.run, out=own))
                label = f"[{job.job.num}] "  # runs may be going on side by side
            if settings.run.resume and several and not (Path(own) / "config.json").is_file():
                # A sweep that was cut short, or put back into its queue, begins those runs that had not begun.
                settings = replace(settings, run=replace(settings.run, resume=False, resume_with_changes=False))
            if settings.run.resume:
                from run.directory import find_run, read_json

                saved = read_json(find_run(settings.run.out) / "config.json")
                settings = resumed(settings, saved, list(job.overrides.task))
        status = fit(settings, label)
    if status:
        sys.exit(status)


def check_sweep(arguments: list[str]) -> None:
    """Refuse a sweep that asks for a run which cannot be, before anything of it is made or sent to a cluster.

    Args:
        arguments: of the command line, as Hydra takes them.

    Raises:
        ValueError: in one line, what is wrong with the settings of the first such run.
        HydraException: it cannot be composed.

    """
    from hydra import initialize_config_dir
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not {"-m", "--multirun"} & set(arguments):
        return
    if "hydra/launcher=submitit_slurm" in arguments and which("srun") is None:
        raise ValueError("hydra/launcher=submitit_slurm needs a machine that can send jobs to SLURM: here is no srun")
    asked = OverridesParser.create().parse_overrides([one for one in arguments if not one.startswith("-")])
    with initialize_config_dir(str(Path(__file__).parent.absolute() / "configs"), version_base="1.3"):
        for settings in BasicSweeper.split_arguments(asked, None)[0]:
            typed_train(compose("train", settings))


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


def fit(settings: TrainSettings, label: str = "") -> int:
    """Train from start, or from the newest checkpoint, to `max_steps`; return the exit status.

    `label` stands before every line that is said.
    """
    from run.signals import StopRequest, is_orphan
    from run.training import enough_memory

    if is_orphan():  # a run that was waiting for its turn, of a sweep that was ended
        return 128 + SIGTERM
    with one_line_errors():
        run = prepare(settings, label)
    stop = StopRequest()
    announce(run)
    with (
        closing(stop),
        one_line_errors(MemoryError, OSError, FloatingPointError),
        closing(run.claim),
        closing(run.recorder),
        enough_memory(run.training),
    ):
        steps(run, stop)
        if stop.signal is not None:
            leave(run)
    stop.pass_on()
    return stop.exit_status if stop.signal is not None else 0


def steps(run: Run, stop: StopRequest) -> None:
    """Take every step that is left, and look at what was learned where that is due, until asked to stop."""
    from run.signals import Stopped
    from run.training import advance

    training = run.training
    try:
        look(run, stop)
        while training.step < run.settings.run.max_steps and stop.signal is None:
            advance(training, run.recorder)
            run.progress.show(training.step)
            look(run, stop)
    except Stopped:  # nothing of this look is written down: who goes on begins with it
        pass


def look(run: Run, stop: StopRequest) -> None:
    """Evaluate or probe after this step, where that is due and not yet behind us; Stopped where a signal is heard."""
    from run.schedule import is_probe_step

    training = run.training
    if training.looked_step == training.step:
        return
    if training.evaluates:
        evaluate(run, stop)
    elif is_probe_step(training.step, run.settings.run.max_steps):
        probe(run, stop)
    training.looked_step = training.step


if __name__ == "__main__":
    with door("train", HydraException), jobs():
        with one_line_errors(ValueError):
            check_sweep(sys.argv[1:])
        main()
