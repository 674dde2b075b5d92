"""python eval.py of a model whose heads cannot be tested: its loss, and why there is no more."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from probe.open import Opened, load_data
from report.reporting import claim_or_note, write_page
from training.command_line import one_line_errors, printable

if TYPE_CHECKING:
    from probe.config import ProbeConfig
    from training.settings import EvalConfig


def measure(opened: Opened, settings: EvalConfig, config: ProbeConfig) -> bool:
    """Print the loss over the whole validation split, of a model whose heads cannot be tested, and why they cannot.

    Returns whether there is a page of it.
    """
    from data.corpus import CLASSES
    from data.loader import StorySplit, validation_batches
    from training.evaluate import row_losses, summarise
    from training.logging import gap_lines

    with one_line_errors():
        corpus = load_data(opened, settings)
    split, causal = corpus.validation, opened.model.config.is_causal
    batches = validation_batches(
        split,
        tokens_per_batch=config.tokens_per_batch,
        context_length=opened.model.config.context_length,
        n_tokens=None,
    )
    rows = row_losses(opened.model, batches, len(CLASSES), single_document=causal)
    found = summarise(rows, CLASSES if isinstance(split, StorySplit) else ())
    n_tokens, bits = int(rows.counts.sum()), split.bits_per_byte(found["loss"])
    print(f"loss     {found['loss']:.4f} nats/token, {bits:.4f} bits/byte over all {n_tokens:,} validation tokens")
    for note in corpus.notes:
        print(printable(f"note     {note}"))
    for line in gap_lines(found, is_causal=causal):
        print(line)
    for asked in ("open", "figures"):
        if not causal and getattr(settings, asked):
            print(f"note     {asked}=true: a model that reads what it must predict has no page")
    has_page = False
    if causal:
        with one_line_errors():
            claimed = claim_or_note(opened, opened.run / "probe")
            has_page = claimed is not None
            with claimed or nullcontext():
                if has_page:
                    write_page(opened, figures=settings.figures)
        print('next     this text has no gold links; look at a sentence: python eval.py text="...", or take tests of')
        print("         others: python eval.py task=minimal_pairs path=FOLDER (docs/english.md)")
    return has_page
