"""Is the thickest line the one that decides? Every line at the query is cut in texts of the tested questions.

The thickest line is the largest weight of any head on any word, with and without those to (start). A text counts as
decided if one line takes .1 or more from the probability of the likeliest next word. Writes
research/results/deciding.{json,md}.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from data.pairs import Cell, Items
from model.observe import ObservableModel, TransformerView
from probe.config import ProbeConfig
from probe.deciding import deciding
from probe.opened_run import open_run
from probe.questions import HEADLINE
from probe.results import Estimate
from probe.sentences import TokenizedText
from probe.statistics import mean_and_range
from probe.text_tables import markdown_table
from research.curve import checkpoints_of
from research.measure import listed, start_benchmark, value_cell, write_page

N_TEXTS = 40  # of each question, evenly spaced
EVERY = 4  # checkpoints of the run in training
MEASURES = ("decided", "thickest", "without start", "lost")


@dataclass
class _Options:
    """python -m research.deciding runs=DIR,DIR [training=DIR]: finished runs, and one that keeps its checkpoints."""

    runs: str = MISSING
    training: str = ""
    cache: str = ".cache"


@dataclass(frozen=True)
class _Row:
    """One question: means over runs of shares of the texts, and of what the line of largest effect takes."""

    question: str
    models: str
    values: dict[str, Estimate]  # by MEASURES

    def cells(self) -> list[str]:
        return [self.question, self.models, *(value_cell(self.values[name], ".2f") for name in MEASURES)]


@dataclass(frozen=True)
class DecidingResults:
    """The table of the page."""

    n_texts: int
    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["question", "models", "one line decides", "it is the thickest", "but for (start)", "lost at most"]
        return [
            f"{self.n_texts} texts of each question, with held-out words and frames. Mean over runs [smallest, "
            "largest]; the thickest line: of all texts, decided or not, it takes most.",
            "",
            *markdown_table(header, [row.cells() for row in self.rows]),
        ]


def _text_of(cell: Cell) -> TokenizedText:
    """Return the tokens up to the query as a text in which each but the start token is a word."""
    spans = [(i, i + 1) for i in range(cell.query)]
    return TokenizedText("x" * cell.query, list(cell.tokens[: cell.query + 1]), spans, spans)


def measured(model: ObservableModel, cells: list[Cell]) -> dict[str, float]:
    """Return the means of MEASURES over texts."""
    of_texts = []
    for cell in cells:
        found = deciding(model, _text_of(cell), str)
        first = found.lines[0]
        thickest = max(found.lines, key=lambda line: line.weight)
        inside = max((line for line in found.lines if line.place), key=lambda line: line.weight, default=None)
        of_texts.append([found.decides, thickest == first, inside == first, first.lost])
    return dict(zip(MEASURES, np.mean(of_texts, axis=0).tolist(), strict=True))


def _cells(items: Items, question: str) -> list[Cell]:
    cells = items.of(question, HEADLINE).cells
    return [cells[i] for i in np.linspace(0, len(cells) - 1, N_TEXTS).round().astype(int)]


def _models(options: _Options) -> Iterator[tuple[str, TransformerView, Items]]:
    for folder in listed(options.runs):
        opened = open_run(Path(folder), torch.device("cpu"))
        assert isinstance(opened.model, TransformerView)
        yield "", opened.model, source_of(opened, ProbeConfig(), options.cache).items
    for folder in listed(options.training):
        opened = open_run(Path(folder), torch.device("cpu"))
        items = source_of(opened, ProbeConfig(), options.cache).items
        for step, model in list(checkpoints_of(opened))[::EVERY]:
            yield f"step {step}", model, items


def main(options: _Options) -> None:
    """Measure every model, and write the page."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for name, model, items in _models(options):
        for question in ("verb", "number", "gender"):
            found.setdefault((name, question), []).append(measured(model, _cells(items, question)))
        print(name, flush=True)
    rows = []
    for (name, question), of_models in found.items():
        values = {measure: mean_and_range([each[measure] for each in of_models]) for measure in MEASURES}
        if len(of_models) == 1:
            values = {measure: Estimate(value.value) for measure, value in values.items()}
        rows.append(_Row(question, name or f"{len(of_models)} runs", values))
    write_page("deciding", "Which line decides", DecidingResults(N_TEXTS, rows))


if __name__ == "__main__":
    start_benchmark(main, _Options)
