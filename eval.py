"""Test which attention head links a pronoun to its antecedent: python eval.py [run=DIR] [text="..."]; see --help."""

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from antecedent_lab.eval_settings import EvalSettings
from probe.config import ProbeConfig
from settings.command_line import Groups, run_cli
from settings.errors import printable
from settings.train import CONFIGS, to_settings

GROUPS: Groups = {"": [EvalSettings], "probe": [ProbeConfig]}


def eval_settings(config: DictConfig) -> tuple[EvalSettings, ProbeConfig]:
    """Return the settings in Hydra's config; raises UserError with a one-line message."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    probe = to_settings(ProbeConfig, values.pop("probe"), "probe.")
    return to_settings(EvalSettings, values), probe


def main(config: DictConfig) -> int:
    """Run the mode that the settings select; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits through finally blocks, so no file is half written
    settings, probe = eval_settings(config)

    # Imports that take a second, or with torch several; --help and a typo need not wait for them.
    if settings.check:
        from extras.own.file import load_question

        question = load_question(Path(str(settings.own_file)))
        print(printable("\n".join(question.check_lines(probe.n_bootstrap))))
        if name := settings.model or settings.run:
            from extras.others.loading import open_reader
            from extras.own.source import check_words

            check_words(question, *open_reader(name, settings.tokenizer))
            print(printable(f"every word has tokens for itself in {name}"))
        return 0
    # numpy's matrix products here are small: with a thread for each they take up to 20 times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from antecedent_lab.modes import evaluate

    gc.set_threshold(100_000)  # items are many small objects without cycles: a twentieth of the time
    evaluate(settings, probe)
    return 0


def command() -> None:
    """Run `main` with the settings of the command line."""
    run_cli(main, GROUPS, CONFIGS / "eval", "eval")


if __name__ == "__main__":
    command()
