"""python eval.py task=: a run takes a test that nobody here wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from probe.open import Opened
from report.reporting import claim_or_note
from training.command_line import one_line_errors, printable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from data.links import Span
    from probe.config import ProbeConfig
    from probe.subject import Report, Subject
    from training.settings import EvalConfig, Task


def take(opened: Opened, settings: EvalConfig, config: ProbeConfig, task: Task, path: str) -> None:
    """Take a test that nobody here wrote, print its table and write the run's probe/outside/."""
    from probe.subject import heads_csv
    from training.checkpoint import write_set

    with one_line_errors():
        if not opened.model.config.is_causal:
            raise ValueError("a model trained with model.mask=none reads what it must predict: no test of it is one")
        report = tasks()[task](tested(opened, settings, config), path)
        shown = [printable(line) for line in report.markdown]  # names and words of others
        about = {"task": task.value, "path": path, "run": opened.origin.source, "step": opened.step}
        found = about | {"settings": asdict(config)} | report.results
        files = {
            f"{task.value}.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
            f"{task.value}.md": "\n".join(shown) + "\n",
        }
        if report.heads:
            files[f"{task.value}_heads.csv"] = heads_csv(report.heads)
        gone = () if report.heads else (f"{task.value}_heads.csv",)
    print("\n".join(shown))
    with one_line_errors():
        folder = opened.run / "probe" / "outside"
        claimed = claim_or_note(opened, folder)
        with claimed or nullcontext():
            if claimed is not None:
                write_set(folder, files, f"{task.value}.json", gone)
                print(printable(f"\nwrote    {', '.join(files)} to {folder}"))


def tested(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> Subject:
    """Return the model as the tests of others see it; nothing is tokenized anew for it."""
    from data.config import StoriesConfig
    from data.corpus import corpus_folder
    from data.documents import local_sources, read_pieces
    from data.links import encoded
    from data.loader import Split, validation_batches
    from data.tokenizer import training_words, unknown_id
    from probe.subject import Subject

    def encode(text: str) -> tuple[list[int], list[Span]]:
        encoding = encoded(opened.tokenizer, text)
        return encoding.ids, encoding.offsets

    def windows(tokens: np.ndarray, n_bytes: int) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        length = opened.model.config.context_length
        split = Split(tokens, n_bytes)
        for batch in validation_batches(
            split, tokens_per_batch=config.tokens_per_batch, context_length=length, n_tokens=None
        ):
            yield batch.model_inputs(), batch.targets

    column = "text" if isinstance(opened.data, StoriesConfig) else opened.data.column

    def texts(path: str) -> Iterator[tuple[str, Iterator[tuple[str, bool]]]]:
        for source in local_sources(path, "path"):
            yield source.place, read_pieces([source], column)

    known, known_from = None, "the training text is no longer in the cache"
    if opened.is_from_elsewhere:
        known_from = "what it was trained on is not known here"
    else:
        folder = corpus_folder(opened.data.source, opened.data_fingerprint, Path(settings.cache_dir))
        known, known_from = training_words(opened.tokenizer, folder) or (known, known_from)
    return Subject(
        model=opened.model,
        encode=encode,
        decode=lambda ids: opened.tokenizer.decode(ids, skip_special_tokens=False),
        end=opened.end,
        unknown=unknown_id(opened.tokenizer),
        known=known,
        known_from=known_from,
        windows=windows,
        texts=texts,
        untrained=lambda i: opened.untrained(config.seed + i),
        config=config,
    )


def tasks() -> dict[Task, Callable[[Subject, str], Report]]:
    """Return what each task calls."""
    from probe.gold import links
    from probe.minimal_pairs import minimal_pairs
    from probe.text_measure import measure_text
    from probe.winobias import winobias
    from training.settings import Task

    return {
        Task.minimal_pairs: minimal_pairs,
        Task.links: links,
        Task.winobias: winobias,
        Task.text: measure_text,
    }
