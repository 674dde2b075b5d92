"""Probe a run or a model from elsewhere: python eval.py [run=DIR] [model=FOLDER] [text="..."]; --help for the rest."""

from __future__ import annotations

import os
import signal
import sys

import hydra
from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig

from training.command_line import door
from training.settings import one_line_errors, printable, typed_eval, typed_train


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
def main(config: DictConfig) -> None:
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
        settings, probe = typed_eval(config)
        if settings.figures:
            from report.figures import check_installed

            check_installed()
    if settings.runs is not None:
        compare_seeds(settings.runs, settings, probe)
        return
    if settings.compare is not None:
        with one_line_errors():
            defaults = typed_train(compose("train"))
        compare_variants(settings.compare, settings, probe, defaults)
        return
    opened: Opened
    with one_line_errors():
        if settings.model is not None:
            opened = open_model(settings, settings.model, typed_train(compose("train")).data)
            said = f"model    {opened.origin.source} ({opened.origin.shape['model_type']}), kept in {opened.run}"
        else:
            opened = open_run(settings)
            said = f"run      {opened.run}, best checkpoint: step {opened.step} of {opened.origin.max_steps}"
    print(printable(f"{said}; {opened.place}, float32"), flush=True)
    for line in opened.resumed:
        print(printable(f"note     {line}"))
    if settings.task is not None and settings.path is not None:
        take(opened, settings, probe, settings.task, settings.path)
        return
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


if __name__ == "__main__":
    with door("eval", HydraException):
        main()
