"""python eval.py task=: a run takes a test that nobody here wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from probe.open import Opened
from report.reporting import claim_or_note
from training.command_line import one_line_errors, printable

if TYPE_CHECKING:
    from data.links import Span
    from probe.config import ProbeConfig
    from probe.external import EvaluatedModel, Report
    from training.settings import EvalConfig, Task


def take(opened: Opened, settings: EvalConfig, config: ProbeConfig, task: Task, path: str) -> None:
    """Take a test that nobody here wrote, print its table and write the run's probe/outside/."""
    from training.checkpoint import write_files

    with one_line_errors():
        if not opened.model.config.is_causal:
            raise ValueError("a model trained with model.mask=none reads what it must predict: no test of it is one")
        report = tasks()[task](tested(opened, settings, config), path)
        shown = [printable(line) for line in report.lines]  # names and words of others
        about = {"task": task.value, "path": path, "run": opened.origin.source, "step": opened.step}
        found = about | {"settings": asdict(config)} | report.results
        files = {
            f"{task.value}.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
            f"{task.value}.md": "\n".join(shown) + "\n",
        }
    print("\n".join(shown))
    with one_line_errors():
        folder = opened.run / "probe" / "outside"
        claimed = claim_or_note(opened, folder)
        with claimed or nullcontext():
            if claimed is not None:
                write_files(folder, files, f"{task.value}.json")
                print(printable(f"\nwrote    {', '.join(files)} to {folder}"))


def tested(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> EvaluatedModel:
    """Return the model with its tokenizer and the words of its training text, as the external test sets use it."""
    from data.corpus import corpus_folder
    from data.tokenizer import encode_text, training_words, unknown_id
    from model.observe import TransformerView
    from probe.external import EvaluatedModel

    def encode(text: str) -> tuple[list[int], list[Span]]:
        encoding = encode_text(opened.tokenizer, text)
        return encoding.ids, encoding.offsets

    words, source = None, "the training text is no longer in the cache"
    if opened.is_from_elsewhere:
        source = "the training text of a pretrained model is not known here"
    else:
        folder = corpus_folder(opened.data.source, opened.data_fingerprint, Path(settings.cache_dir))
        words, source = training_words(opened.tokenizer, folder) or (words, source)
    return EvaluatedModel(
        model=TransformerView(opened.model),
        encode=encode,
        start_token=opened.end,
        unknown_token=unknown_id(opened.tokenizer),
        training_words=words,
        training_words_source=source,
        untrained=lambda i: TransformerView(opened.untrained(config.seed + i)),
        config=config,
    )


def tasks() -> dict[Task, Callable[[EvaluatedModel, str], Report]]:
    """Return the function of each task."""
    from probe.gold import links
    from probe.minimal_pairs import minimal_pairs
    from training.settings import Task

    return {Task.minimal_pairs: minimal_pairs, Task.links: links}
