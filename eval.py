"""Probe a run or a model from elsewhere: python eval.py [run=DIR] [model=FOLDER] [text="..."]; --help for the rest."""

from __future__ import annotations

import os
import signal
import sys

from omegaconf import DictConfig, OmegaConf

from probe.config import ProbeConfig
from training.command_line import one_line_errors, printable, run_cli
from training.settings import CONFIGS, EvalConfig, compose_settings, typed


def main(config: DictConfig) -> int:
    """Check the settings, open the run or the model, then look or probe."""
    # Not at import: an error on the command line, or --help, must answer at once.
    from probe.measuring import measure
    from probe.open import Opened, open_run
    from probe.open_model import open_model
    from probe.outside_commands import take
    from probe.probing import paint_of, probe_stories
    from probe.sentence_command import look
    from probe.several import compare_seeds, compare_variants
    from report.reporting import PAGE, show

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half written is taken away
    with one_line_errors():
        values: dict = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        probe = typed(ProbeConfig, values.pop("probe"), "probe.")
        settings = typed(EvalConfig, values)
        if settings.figures:
            from report.figures import check_installed

            check_installed()
    if settings.runs is not None:
        compare_seeds(settings.runs, settings, probe)
        return 0
    if settings.compare is not None:
        with one_line_errors():
            defaults = compose_settings()
        compare_variants(settings.compare, settings, probe, defaults)
        return 0
    opened: Opened
    with one_line_errors():
        if settings.model is not None:
            opened = open_model(settings, settings.model, compose_settings().data)
            said = f"model    {opened.origin.source} ({opened.origin.shape['model_type']}), kept in {opened.run}"
        else:
            opened = open_run(settings)
            said = f"run      {opened.run}, best checkpoint: step {opened.step} of {opened.origin.max_steps}"
    print(printable(f"{said}; {opened.place}, float32"), flush=True)
    for line in opened.resumed:
        print(printable(f"note     {line}"))
    if settings.task is not None and settings.path is not None:
        take(opened, settings, probe, settings.task, settings.path)
        return 0
    if settings.text is not None:
        with one_line_errors():
            has_page = look(opened, settings.text)
    elif opened.is_testable:
        has_page = probe_stories(opened, settings, probe, paint=paint_of(sys.stdout, os.environ))
    else:
        has_page = measure(opened, settings, probe)
    if has_page:
        with one_line_errors():
            newest = "own-1" if settings.text is not None else ""
            show(opened.run / "probe" / PAGE, in_browser=settings.open, sentence=newest)
    return 0


if __name__ == "__main__":
    run_cli(main, {"": [EvalConfig], "probe": [ProbeConfig]}, CONFIGS / "eval", "eval")
