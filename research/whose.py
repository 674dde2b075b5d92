"""Controls of the finding "whose": heads that follow place must be refused, and planted links found at their size.

The passages, their place rule and the author's choices are those that `eval.py run=RUN` tests; only what the edges
carry is made by hand, so that its relation to the author is known. "permuted": the run's own head with the author's
choice permuted within strata, where nothing is left to find. Writes research/results/whose.{json,md}.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.opened import open_run
from antecedent_lab.sources import source_of
from data.errors import UserError
from data.text_tables import markdown_table
from probe.config import ProbeConfig
from probe.edits import Sites
from probe.questions import MAX_P, WHOSE, WHOSE_QUESTIONS
from probe.results import ProbeResults
from probe.rules import FIXED_RULES, preferred
from probe.whose import covariates_of, edge_coefficients, permuted_within, strata_of
from research.measure import share_range, start_benchmark, write_page

SIZES = (0.1, 0.2, 0.3, 0.5)  # standard deviations between the means of the edges where nearest is meant and is not
NUMBERS = (350, 700)  # passages, besides all


@dataclass
class _WhoseOptions:
    """python -m research.whose run=DIR [n=100] [n_permutations=500], a run of experiment=english that was tested."""

    run: str = MISSING
    n: int = 100
    n_permutations: int = 500
    cache_dir: str = ".cache"


@dataclass(frozen=True)
class _Control:
    """How often edges of one kind passed the bar."""

    edges: str
    n_passages: int
    expected: str
    n: int
    passed: int

    @property
    def passed_cell(self) -> str:
        return f"{self.passed} of {self.n} {share_range(self.passed, self.n)}"


@dataclass(frozen=True)
class WhoseResults:
    """The table of the page."""

    head: str
    n_permutations: int
    coefficient: float
    p: float
    inverted_coefficient: float
    inverted_p: float
    controls: list[_Control]

    def lines(self) -> list[str]:
        header = ["what the edges follow", "passages", "expected", "passed [95 %]"]
        rows = [[each.edges, f"{each.n_passages:,}", each.expected, each.passed_cell] for each in self.controls]
        return [
            f"Passed: p below {MAX_P:g} by {self.n_permutations} permutations, and a coefficient above 0.",
            f"The head of the run, {self.head}: coefficient {self.coefficient:.2f}, p {self.p:.4f}.",
            f"With the author's pronouns inverted: {self.inverted_coefficient:.2f}, p {self.inverted_p:.4f}.",
            "",
            *markdown_table(header, rows),
        ]


def _p_of(edges: np.ndarray, labels: np.ndarray, covariates: np.ndarray, n: int, seed: int) -> tuple[float, float]:
    """Return the coefficient of the edges and its permutation p."""
    permuted = permuted_within(labels, strata_of(covariates[:, 0]), n, np.random.default_rng(seed))
    coefficients = edge_coefficients(np.vstack([labels, permuted]), covariates, edges)
    return float(coefficients[0]), float((coefficients >= coefficients[0] - 1e-9).mean())


def _kinds(
    edges: np.ndarray, labels: np.ndarray, covariates: np.ndarray, rules: dict[str, np.ndarray]
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield name, expected outcome, edges, labels and covariates of one draw of each control."""
    place = covariates[:, 0]
    rng = np.random.default_rng(len(edges))
    while True:
        noise = rng.normal(size=len(labels))
        permuted = permuted_within(labels, strata_of(place), 1, rng)[0]
        yield "permuted: the author's choice within strata", "1 %", edges, permuted, covariates
        yield "copier: the nearest name", "1 %", 1 + noise, labels, covariates
        for name, prefers in rules.items():
            yield f"copier: the {name} name", "1 %", prefers + noise, labels, covariates
        yield "the place rule", "1 %", place / place.std() + noise, labels, covariates
        for size in SIZES:
            linked = size * (2.0 * labels - 1) / 2 + noise
            yield f"planted link of {size:g} sd", "found", linked, labels, covariates
            for n in NUMBERS:
                some = rng.permutation(len(labels))[:n]
                yield f"planted link of {size:g} sd", "found", linked[some], labels[some], covariates[some]


def main(options: _WhoseOptions) -> None:
    """Measure the edges of the run's head once, draw every control, and write the page."""
    run = open_run(Path(options.run), torch.device("cpu"))
    results = ProbeResults.from_json(json.loads((Path(options.run) / "probe" / "probe.json").read_text()))
    whose = results.finding(next(iter(WHOSE_QUESTIONS.values())).name)
    if whose is None:
        raise UserError(f"run={options.run}: has no finding of whose gender a head copies; run eval.py on it")
    config = ProbeConfig()
    source = source_of(run, config, options.cache_dir)
    items = source.items.of(next(iter(WHOSE_QUESTIONS)), WHOSE)

    # What eval.py tests: labels, place rule and the edges of the head.
    sites = Sites(run.model, items, config.tokens_per_batch)
    prefers = {name: preferred(name, items) for name in FIXED_RULES}
    labels = prefers["nearest"] > 0
    to_nearest = np.where(labels, 1.0, -1.0)
    covariates = covariates_of(items)
    margins = sites.margins([whose.judged.heads], ["swap"])
    edges = margins.lost("swap")[:, 0] * to_nearest / 2
    own = _p_of(edges, labels, covariates, options.n_permutations, 0)
    inverted = _p_of(edges, ~labels, covariates, options.n_permutations, 0)

    # The draws of each control; a rule's preference is turned towards the nearest.
    rules = {name: prefers[name] * to_nearest for name in ("first", "subject")}
    passed: dict[tuple[str, int, str], int] = {}
    draws = _kinds(edges, labels, covariates, rules)
    n_kinds = 3 + len(rules) + len(SIZES) * (1 + len(NUMBERS))
    for number in range(options.n):
        for _ in range(n_kinds):
            name, expected, drawn, of_draw, other_columns = next(draws)
            coefficient, p = _p_of(drawn, of_draw, other_columns, options.n_permutations, number)
            key = (name, len(of_draw), expected)
            passed[key] = passed.get(key, 0) + (p < MAX_P and coefficient > 0)
    controls = [_Control(name, n, expected, options.n, count) for (name, n, expected), count in passed.items()]
    heads = " + ".join(map(str, whose.judged.heads))
    page = WhoseResults(heads, options.n_permutations, *own, *inverted, sorted(controls, key=lambda row: row.expected))
    write_page("whose", "Whose gender: the errors of the test", page, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _WhoseOptions)
