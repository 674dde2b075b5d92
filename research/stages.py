"""How a model learns `verb`: its answers at every checkpoint of some runs, in the active and in the passive voice.

A table of verbs with the order of the nouns answers the active voice and is always wrong in the passive; only verb and
voice together answer both. Writes research/results/stages.{json,md}. The runs keep their checkpoints:

    python train.py seed=451 eval_every_steps=25 keep_checkpoints=100 out=RUN [variant=one_layer]
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from data.pairs import Items
from model.observe import TransformerView
from probe.attention import best_head, measure_heads
from probe.behaviour import measure_payoffs
from probe.config import ProbeConfig
from probe.opened_run import open_run
from probe.questions import HEADLINE
from probe.text_tables import markdown_table
from research.curve import checkpoints_of
from research.measure import listed, start_benchmark, value_cell, write_page


@dataclass
class _Options:
    """python -m research.stages runs=DIR,DIR, runs of the stories with their checkpoints."""

    runs: str = MISSING
    cache_dir: str = ".cache"


@dataclass(frozen=True)
class _Point:
    """One checkpoint: shares of the tested texts."""

    n_layer: int
    seed: int
    step: int
    active: float  # the answer is right
    passive: float
    passive_first: float  # the answer fits the first noun; 0 or 1: whatever the verb
    head: str  # the one of highest block accuracy at this checkpoint, on the same texts
    accuracy: float  # that of this head

    def cells(self) -> list[str]:
        shares = [value_cell(share, ".3f") for share in (self.active, self.passive, self.passive_first, self.accuracy)]
        return [str(self.n_layer), str(self.seed), str(self.step), *shares[:3], self.head, shares[3]]


@dataclass(frozen=True)
class StagesResults:
    """The table of the page."""

    n_active: int
    n_passive: int
    points: list[_Point]

    def lines(self) -> list[str]:
        header = [
            "layers",
            "seed",
            "step",
            "right, active",
            "right, passive",
            "first noun, passive",
            "best head",
            "its accuracy",
        ]
        return [
            f"{self.n_active} texts in the active voice and {self.n_passive} in the passive, "
            "with held-out nouns and frames. The head is chosen on the same texts, so its accuracy is not a test.",
            "",
            *markdown_table(header, [point.cells() for point in self.points]),
        ]


def _points_of(folder: Path, cache_dir: str) -> tuple[list[_Point], np.ndarray]:
    """Return the points of a run, and which pairs [N] are in the passive voice."""
    run = open_run(folder, torch.device("cpu"))
    assert run.settings
    config = run.settings.model
    items = source_of(run, ProbeConfig(), cache_dir).items.of("verb", HEADLINE)
    is_passive = np.array(["CAUSED" in pair.clusters[0] for pair in items.pairs])
    points = []
    for step, model in checkpoints_of(run):
        points.append(_Point(config.n_layer, run.settings.run.seed, step, *_measured(model, items, is_passive)))
        print(" ".join(points[-1].cells()), flush=True)
    return points, is_passive


def _measured(model: TransformerView, items: Items, is_passive: np.ndarray) -> tuple[float, float, float, str, float]:
    """Return the fields of `_Point` from `active` on."""
    tokens = ProbeConfig().tokens_per_batch
    margins, _ = measure_payoffs(model, items.cells, tokens)
    right = np.heaviside(margins, 0.5).reshape(-1, 2)  # [pairs, meant]
    orders = np.array([pair.order for pair in items.pairs])
    first_is_meant = orders[:, None] == np.arange(2)
    takes_first = np.where(first_is_meant, right, 1 - right)
    scores = measure_heads(model, items, tokens).scores()
    head = best_head(scores)
    active, passive = (float(right[chosen].mean()) for chosen in (~is_passive, is_passive))
    accuracy = float(scores.accuracy[:, *head].mean())
    return active, passive, float(takes_first[is_passive].mean()), str(head), accuracy


def main(options: _Options) -> None:
    """Measure every checkpoint of every run, and write the page."""
    points: list[_Point] = []
    for run in listed(options.runs):
        of_run, is_passive = _points_of(Path(run), options.cache_dir)
        points += of_run
    n_passive = 2 * int(is_passive.sum())
    page = StagesResults(2 * len(is_passive) - n_passive, n_passive, points)
    write_page("stages", "How the verb is learned", page)


if __name__ == "__main__":
    start_benchmark(main, _Options)
