"""Power: how much must heads carry until the bar of `carries` sees it, and with how many nouns and frames?

Heads of known strength are made from the heads that carry: a part of their outputs (the dose, .05 to 1) changes places
with that in the other text of the pair. The true share is what follows of the answer over all sentences of a run. The
bar (lower end of the interval at least one half) is applied to random subsets of nouns and frames. With all of them a
share below one half cannot pass, as both are measured on the same sentences. Writes research/results/power.{json,md}.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from data.pairs import Items
from model.observe import Change, SiteEdit
from probe.config import ProbeConfig
from probe.edits import Batch, EditedPairs
from probe.opened_model import OpenedModel
from probe.opened_run import open_run
from probe.questions import HEADLINE
from probe.results import MIN_CARRIED, Finding, Head
from probe.saved import read_results
from probe.statistics import estimate_ratios
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, write_page
from settings.errors import UserError

DOSES = np.arange(1, 21) / 20
CONFIG = ProbeConfig(n_bootstrap=500)
N_SUBSETS = 5  # of each size and run
KEPT = (1, 2, 4)  # every cluster, one in two, one in four
EDGES = np.array([0, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 1.1])  # of the true shares; 1.1: a share may be a little above 1


@dataclass
class _Options:
    """python -m research.power runs=DIR,DIR, default runs that eval.py has tested."""

    runs: str = MISSING
    cache: str = ".cache"


@dataclass(frozen=True)
class _Asked:
    """One subset of the clusters of one run."""

    sizes: tuple[int, int, int]  # frames, nouns, pairs
    truth: np.ndarray  # the shares of DOSES over all sentences
    is_passed: np.ndarray  # whether the bar is passed with each


@dataclass(frozen=True)
class Row:
    """How often the bar is passed, over runs, subsets and doses, by the true share."""

    question: str
    n_frames: int  # medians over the subsets
    n_nouns: int
    n_pairs: int
    passed: list[int]  # by range of the true share
    asked: list[int]

    def cells(self) -> list[str]:
        counts = [f"{n:,} of {of:,}" if of else "-" for n, of in zip(self.passed, self.asked, strict=True)]
        return [self.question, str(self.n_frames), str(self.n_nouns), str(self.n_pairs), *counts]


@dataclass(frozen=True)
class PowerResults:
    """The table of the page."""

    n_runs: int
    rows: list[Row]

    def lines(self) -> list[str]:
        ranges = [f"{low:g} to {high:g}" for low, high in zip(EDGES, EDGES[1:], strict=False)]
        return [
            f"{self.n_runs} runs, {len(DOSES)} doses, {N_SUBSETS} random subsets of each size. How often the bar is "
            "passed, by the share that follows over all sentences of a run.",
            "",
            *markdown_table(["question", "frames", "nouns", "pairs", *ranges], [row.cells() for row in self.rows]),
        ]


def _dosed(outputs: torch.Tensor, exchange: Change, dose: float) -> torch.Tensor:
    """Return the outputs [B, K] after a part of them, 0 to 1, has been exchanged."""
    return outputs.lerp(exchange(outputs), dose)


def lost_by_dose(pairs: EditedPairs, heads: list[Head]) -> np.ndarray:
    """Return what the answers lose with each of DOSES, mean of both texts, [N, doses] in nats."""

    def lists_of(batch: Batch) -> list[list[SiteEdit]]:
        whole = batch.site_edits("carries", heads)
        lists: list[list[SiteEdit]] = [[] for _ in DOSES]
        for of_dose, dose in zip(lists, DOSES.tolist(), strict=True):
            for edit in whole:
                assert edit.output is not None
                of_dose.append(replace(edit, output=partial(_dosed, exchange=edit.output, dose=dose)))
        return lists

    lost: np.ndarray = (pairs.clean - pairs.edited(lists_of)).mean(axis=2).T
    return lost


def subsets(items: Items, one_in: int) -> Iterator[np.ndarray]:
    """Yield the pairs [n] of random subsets of frames and nouns, those whose frame and nouns are all chosen.

    With `one_in` 1 there is one subset: all pairs.
    """
    names = np.array([pair.clusters for pair in items.pairs], dtype=object)
    frames, nouns = np.unique(names[:, 0]), np.unique(names[:, 1:])
    for seed in range(N_SUBSETS if one_in > 1 else 1):
        rng = np.random.default_rng([seed, one_in])
        some_frames = rng.choice(frames, max(2, len(frames) // one_in), replace=False)
        some_nouns = rng.choice(nouns, max(4, len(nouns) // one_in), replace=False)
        index = np.flatnonzero(np.isin(names[:, 0], some_frames) & np.isin(names[:, 1:], some_nouns).all(axis=1))
        if len(np.unique(names[index, 0])) > 1:  # else there is no interval
            yield index


def _asked(opened: OpenedModel, finding: Finding, all_items: Items) -> Iterator[tuple[int, _Asked]]:
    """Yield 1 over the share of the clusters, and what the bar says, of each subset."""
    if finding.carrier is None:
        return
    items = all_items.of(finding.question, HEADLINE).comparable()
    pairs = EditedPairs(opened.model, items, CONFIG.tokens_per_batch)
    lost, total = lost_by_dose(pairs, finding.carrier.heads), pairs.clean.sum(axis=1)
    truth = lost.sum(axis=0) / total.sum()
    for one_in in KEPT:
        for index in subsets(items, one_in):
            some = items.take(index)
            by_dose = dict(zip(map(str, DOSES), lost[index].T, strict=True))
            values = estimate_ratios(by_dose, total[index], some, CONFIG).values()
            is_passed = np.array([(value.low or 0.0) >= MIN_CARRIED for value in values])
            clusters = [pair.clusters for pair in some.pairs]
            frames = {frame for frame, *_ in clusters}
            nouns = {noun for _, *of_pair in clusters for noun in of_pair}
            yield one_in, _Asked((len(frames), len(nouns), len(some)), truth, is_passed)


def _row(question: str, asked: Sequence[_Asked]) -> Row:
    sizes = np.median([each.sizes for each in asked], axis=0).astype(int).tolist()
    truth = np.concatenate([each.truth for each in asked])
    is_passed = np.concatenate([each.is_passed for each in asked])
    counts = [np.histogram(shares, EDGES)[0].tolist() for shares in (truth[is_passed], truth)]
    return Row(question, *sizes, *counts)


def main(options: _Options) -> None:
    """Measure every run, and write the page."""
    asked: dict[tuple[str, int], list[_Asked]] = defaultdict(list)
    folders = listed(options.runs)
    for folder in folders:
        opened = open_run(Path(folder), torch.device("cpu"))
        results, _ = read_results(opened)
        if results is None:
            raise UserError(f"runs={folder}: has not been tested; give it to eval.py first")
        all_items = source_of(opened, CONFIG, options.cache).items
        for finding in results.findings:
            for one_in, found in _asked(opened, finding, all_items):
                asked[finding.question, one_in].append(found)
        print(folder, flush=True)
    rows = [_row(question, of_size) for (question, _), of_size in asked.items()]
    write_page("power", "Power", PowerResults(len(folders), rows))


if __name__ == "__main__":
    start_benchmark(main, _Options)
