"""Both findings about "she" or "he" at every checkpoint of one run: copies a gender, predicts whom the author means.

The head with the largest edge effect on dev is tested at each checkpoint: its swap on the tested documents, and on all
passages with two people whether its edges predict the author's person beyond the place rule. Writes
research/results/curve.{json,md}. The run keeps its checkpoints:

    python train.py experiment=english seed=346 max_steps=5000 eval_every_steps=250 keep_checkpoints=100 out=RUN
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from data.pairs import Items
from extras.english.edges import Half
from extras.english.questions import NEXT_PRONOUN, TESTED, WHOSE
from extras.english.whose import whose_values
from model.observe import TransformerView
from model.transformer import Transformer, load_weights
from probe.config import ProbeConfig
from probe.edits import EditedPairs, all_heads, alone
from probe.opened_model import OpenedModel
from probe.opened_run import open_run
from probe.questions import DEV
from probe.results import Estimate
from probe.statistics import estimate_ratios
from probe.text_tables import markdown_table
from research.measure import start_benchmark, value_cell, write_page
from training.checkpoint import read_manifest
from training.metrics import load_metrics


@dataclass
class _Options:
    """python -m research.curve run=DIR [threads=1], a run of experiment=english with its checkpoints."""

    run: str = MISSING
    cache_dir: str = ".cache"
    threads: int = 1


@dataclass(frozen=True)
class _Point:
    """One checkpoint."""

    step: int
    loss: float  # validation loss, nats per token
    head: str
    swap: Estimate
    beyond_place: float
    p: float
    choice_share: Estimate
    author_auc: float

    def cells(self) -> list[str]:
        numbers = [f"{self.step:,}", value_cell(self.loss, ".3f"), self.head, value_cell(self.swap, ".2f")]
        beyond = [value_cell(self.beyond_place, ".2f"), value_cell(self.p, ".4f")]
        return [*numbers, *beyond, value_cell(self.choice_share, ".2f"), value_cell(self.author_auc, ".2f")]


@dataclass(frozen=True)
class CurveResults:
    """The table of the page."""

    seed: int
    n_passages: int
    points: list[_Point]

    def lines(self) -> list[str]:
        header = ["step", "loss", "head", "swap", "beyond place", "p", "share of the choice", "AUC"]
        return [
            f"Seed {self.seed}, one run; {self.n_passages:,} passages with two people. Not corrected for the number of "
            "checkpoints. The last loss is that of the whole validation text, the others are of its beginning.",
            "",
            *markdown_table(header, [point.cells() for point in self.points]),
        ]


def _measured(model: TransformerView, items: Items, config: ProbeConfig) -> tuple[Any, ...]:
    """Return the fields of `_Point` from `head` on."""
    heads = all_heads(model)
    dev = Half(model, items.of(NEXT_PRONOUN.name, DEV), config.tokens_per_batch)
    head = heads[int(dev.edge_effects(alone(heads)).values.mean(axis=0).argmax())]
    tested = Half(model, items.of(NEXT_PRONOUN.name, TESTED), config.tokens_per_batch)
    moved, total = tested.two.swaps([[head]])
    (swap,) = estimate_ratios({"swap": moved[:, 0]}, total, tested.two.items, config).values()
    sites = EditedPairs(model, items.of(WHOSE.name, TESTED), config.tokens_per_batch)
    values = whose_values(sites, [head], config, Items([]))
    beyond, p, share, auc = (values[name] for name in ("beyond_place", "p_beyond_place", "choice_share", "author_auc"))
    return str(head), swap, beyond.value, p.value, share, auc.value


def checkpoints_of(run: OpenedModel) -> Iterator[tuple[int, TransformerView]]:
    """Yield the step and the model of every checkpoint of a run."""
    assert run.settings
    folder = Path(run.source) / "checkpoints"
    for checkpoint in read_manifest(folder):
        state = torch.load(folder / checkpoint.file, map_location="cpu", weights_only=True)
        model = Transformer(run.settings.model, run.model.vocab_size, seed=0)
        load_weights(model, state["model"])
        yield checkpoint.step, TransformerView(model.eval())


def main(options: _Options) -> None:
    """Measure every checkpoint, and write the page."""
    torch.set_num_threads(options.threads)
    folder = Path(options.run)
    run = open_run(folder, torch.device("cpu"))
    assert run.settings
    config = ProbeConfig()
    items = source_of(run, config, options.cache_dir).items
    losses = {record.step: record.loss for record in load_metrics(folder).validation}

    points = []
    for step, model in checkpoints_of(run):
        loss = losses.get(step)
        points.append(_Point(step, np.nan if loss is None else loss, *_measured(model, items, config)))
        print(f"step {step}: {' '.join(points[-1].cells()[1:])}", flush=True)
    page = CurveResults(run.settings.run.seed, len(items.of(WHOSE.name, TESTED).pairs), points)
    write_page("curve", "A head that copies, and whose, over one run", page, options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
