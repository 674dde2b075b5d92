"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE]; --help lists the settings."""

import os
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from settings.command_line import given_arguments, run_cli
from settings.errors import UserError
from settings.files import found
from settings.train import CONFIGS, GROUPS, TrainSettings, resumed_settings, run_settings, train_settings


def main(config: DictConfig) -> int:
    """Train with the settings in Hydra's config, under -m one run of the sweep; returns the exit status."""
    run = run_settings(config)
    job = HydraConfig.get()
    label = ""
    if job.mode is RunMode.MULTIRUN:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("-m: a sweep cannot run under torchrun; start its runs one by one")
        label = f"[{job.job.num}] "
        out = Path(job.sweep.dir, job.sweep.subdir)
        resume = run.resume and (out / "config.json").is_file()  # a run that was not started starts now
        config.out, config.resume = str(out), resume
    settings = None if config.resume else train_settings(config)
    if run.items is not None and not (run.items.endswith(".jsonl") and found(run.items).is_file()):
        raise UserError(f"items={run.items}: no such file; give FILE.jsonl")  # before the data are prepared

    # These import torch: seconds that --help and a typo need not wait for.
    from antecedent_lab.sources import watched
    from data.loader import Corpus
    from extras.gpu.graph import record_step
    from extras.others.loading import open_initial
    from probe.emergence import training_probe
    from settings.files import read_json
    from training.evaluate import Probe
    from training.loop import train
    from training.run_dir import find_run
    from training.start import open_training

    arguments = given_arguments(job.overrides.task)
    initial = None
    if settings is None:
        saved = read_json(find_run(config.out, "out") / "config.json")
        settings = resumed_settings(config, saved, job.overrides.task)
    elif settings.run.init is not None:
        settings, initial = open_initial(settings, arguments)
    if label:
        print(f"{label}{' '.join(arguments)}", flush=True)

    def make_probe(corpus: Corpus, settings: TrainSettings) -> Probe | None:
        items = watched(corpus, settings)
        return training_probe(corpus, settings, items) if settings.run.probe_sequences else None

    with open_training(settings, make_probe, record_step, arguments, label, initial) as training:
        return train(*training)


def command() -> None:
    """Run `main` with the settings of the command line."""
    run_cli(main, GROUPS, CONFIGS, "train")


if __name__ == "__main__":
    command()
