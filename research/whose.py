"""Controls of the finding "whose": heads that follow place must be refused, and planted links found at their size.

The passages, their place rule and the author's choices are those that `eval.py run=RUN` tests; only what the edges
carry is made by hand, so that its relation to the author is known. "permuted": the run's own head with the author's
choice permuted within strata, where nothing is left to find. "a richer rule": a rule of place and form with more
features than the place rule and no content word. Writes research/results/whose.{json,md}.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING
from scipy import optimize, special

from antecedent_lab.loading import load_data, open_run
from antecedent_lab.sources import source_of
from data.corpus import split_documents
from data.tested.english import word_set
from data.tested.pairs import Items
from data.tested.passages import Passage, passages_in, sections, with_two
from data.tested.place import fit_place_rule, nearest, place_features, redrawn
from data.text import UNSEEN_TEXT, read_documents
from data.words import ENGLISH_WORD
from probe.config import ProbeConfig
from probe.edits import Sites
from probe.opened_model import OpenedModel
from probe.outcomes.whose import covariates_of, edge_coefficients, permuted_within, strata_of
from probe.questions import MAX_P, TESTED, WHOSE
from probe.results import Estimate, ProbeResults
from probe.rules import preferred
from report.text_tables import markdown_table
from research.measure import share_range, start_benchmark, value_cell, write_page
from settings.errors import UserError

FORM = (*sorted(word_set("function words")), *".,!?'\"")  # no content words
QUOTES = frozenset('"\u201c\u201d')
PENALTY = 0.02  # chosen once; others were not tried on the tested passages
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
    looks: Estimate
    looks_where_unsure: Estimate
    rules_right: list[float]  # the place rule, the richer rule
    controls: list[_Control]

    def lines(self) -> list[str]:
        header = ["what the edges follow", "passages", "expected", "passed [95 %]"]
        rows = [[each.edges, f"{each.n_passages:,}", each.expected, each.passed_cell] for each in self.controls]
        return [
            f"Passed: p below {MAX_P:g} by {self.n_permutations} permutations, and a coefficient above 0.",
            f"The head of the run, {self.head}: coefficient {self.coefficient:.2f}, p {self.p:.4f}.",
            f"With the author's pronouns inverted: {self.inverted_coefficient:.2f}, p {self.inverted_p:.4f}.",
            f"It looks more at the author's person in {value_cell(self.looks, '.2f')} of the passages, and in "
            f"{value_cell(self.looks_where_unsure, '.2f')} of those where the place rule says .25 to .75.",
            "The place rule is right in {:.2f}, the richer rule in {:.2f}.".format(*self.rules_right),
            "",
            *markdown_table(header, rows),
        ]


def _p_of(edges: np.ndarray, labels: np.ndarray, covariates: np.ndarray, n: int, seed: int) -> tuple[float, float]:
    """Return the coefficient of the edges and its permutation p."""
    permuted = permuted_within(labels, strata_of(covariates[:, 0]), n, np.random.default_rng(seed))
    coefficients = edge_coefficients(np.vstack([labels, permuted]), covariates, edges)
    return float(coefficients[0]), float((coefficients >= coefficients[0] - 1e-9).mean())


def _kinds(
    edges: np.ndarray, labels: np.ndarray, covariates: np.ndarray, richer: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield name, expected outcome, edges, labels and covariates of one draw of each control."""
    place = covariates[:, 0]
    rng = np.random.default_rng(len(edges))
    while True:
        noise = rng.normal(size=len(labels))
        permuted = permuted_within(labels, strata_of(place), 1, rng)[0]
        yield "permuted: the author's choice within strata", "1 %", edges, permuted, covariates
        # The nearest, first and subject name are columns of the regression too: with the same noise, the same result.
        yield "copier by the place rule", "1 %", place / place.std() + noise, labels, covariates
        yield "copier by a richer rule", "more", richer / richer.std() + noise, labels, covariates
        for size in SIZES:
            linked = size * (2.0 * labels - 1) / 2 + noise
            yield f"planted link of {size:g} sd", "found", linked, labels, covariates
            for n in NUMBERS:
                some = rng.permutation(len(labels))[:n]
                yield f"planted link of {size:g} sd", "found", linked[some], labels[some], covariates[some]


def _richer_features(passage: Passage) -> list[float]:
    """Return the features of the place rule, the words of FORM around both people and at the end, and quotations."""
    matches = list(ENGLISH_WORD.finditer(passage.text))
    words = [match.group().lower() for match in matches]
    starts = [match.start() for match in matches]
    quotes = np.cumsum([0, *(word in QUOTES for word in words)])
    values = place_features(passage)
    for side in (nearest(passage), 1 - nearest(passage)):
        first, after = (bisect_left(starts, place) for place in passage.mentions[side][-1])
        for word in (words[first - 1] if first else ".", words[after] if after < len(words) else ""):
            values += [word == each for each in FORM]
        values += [quotes[first] % 2, quotes[-1] > quotes[first], np.log1p(first)]
    for word in words[-2:]:
        values += [word == each for each in FORM]
    return list(map(float, values))


def _richer_log_odds(run: OpenedModel, items: Items, config: ProbeConfig, cache_dir: str) -> np.ndarray:
    """Return the log odds [N] of a rule with `_richer_features`, fitted to training text, that the nearest is meant."""
    # The passages of the training text, and those of the items with the same names
    corpus = load_data(run, cache_dir)
    of_run = [sections(split_documents(corpus, split)) for split in (corpus.train, corpus.validation)]
    unseen = [(f"unseen {name}", text) for name, text in sections(read_documents([UNSEEN_TEXT]))]
    training, validation, others = (with_two(passages_in(documents)) for documents in (*of_run, unseen))

    def n_tokens(word: str) -> int:
        return len(run.tokenizer.encode(f" {word}").ids)

    drawn = redrawn([*validation, *others], fit_place_rule(training), n_tokens, config.seed)
    by_text = {passage.text: passage for passage in drawn}
    rows = [by_text[pair.texts[0]] for pair in items.pairs]

    # A logistic regression with an L2 penalty
    features, of_items = (np.array(list(map(_richer_features, passages))) for passages in (training, rows))
    means, scales = features.mean(axis=0), np.maximum(features.std(axis=0), 0.05)
    inputs, targets = (np.hstack([np.ones((len(each), 1)), (each - means) / scales]) for each in (features, of_items))
    signs = np.array([1.0 if passage.meant == nearest(passage) else -1.0 for passage in training])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (inputs @ weights)
        slope = -signs * special.expit(-margins)
        value = np.logaddexp(0, -margins).mean() + PENALTY / 2 * (weights[1:] ** 2).sum()
        return float(value), inputs.T @ slope / len(inputs) + PENALTY * np.array([0.0, *weights[1:]])

    fitted = optimize.minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B").x
    return np.asarray(targets @ fitted)


def main(options: _WhoseOptions) -> None:
    """Measure the edges of the run's head once, draw every control, and write the page."""
    run = open_run(Path(options.run), torch.device("cpu"))
    results = ProbeResults.from_json(json.loads((Path(options.run) / "probe" / "probe.json").read_text()))
    whose = results.finding(WHOSE.name)
    if whose is None:
        raise UserError(f"run={options.run}: has no finding of whose gender a head copies; run eval.py on it")
    config = ProbeConfig()
    source = source_of(run, config, options.cache_dir)
    items = source.items.of(WHOSE.name, TESTED)

    # What eval.py tests: labels, place rule and the edges of the head.
    sites = Sites(run.model, items, config.tokens_per_batch)
    labels = preferred("nearest", items) > 0
    to_nearest = np.where(labels, 1.0, -1.0)
    covariates = covariates_of(items)
    margins = sites.margins([whose.judged.heads], ["swap"])
    edges = margins.lost("swap")[:, 0] * to_nearest / 2
    own = _p_of(edges, labels, covariates, options.n_permutations, 0)
    inverted = _p_of(edges, ~labels, covariates, options.n_permutations, 0)

    # The draws of each control
    richer = _richer_log_odds(run, items, config, options.cache_dir)
    passed: dict[tuple[str, int, str], int] = {}
    draws = _kinds(edges, labels, covariates, richer)
    n_kinds = 3 + len(SIZES) * (1 + len(NUMBERS))
    for number in range(options.n):
        for _ in range(n_kinds):
            name, expected, drawn, of_draw, other_columns = next(draws)
            coefficient, p = _p_of(drawn, of_draw, other_columns, options.n_permutations, number)
            key = (name, len(of_draw), expected)
            passed[key] = passed.get(key, 0) + (p < MAX_P and coefficient > 0)
    controls = [_Control(name, n, expected, options.n, count) for (name, n, expected), count in passed.items()]
    heads = " + ".join(map(str, whose.judged.heads))
    looks, where_unsure = (whose.judged.values[name] for name in ("looks", "looks_where_unsure"))
    page = WhoseResults(
        head=heads,
        n_permutations=options.n_permutations,
        coefficient=own[0],
        p=own[1],
        inverted_coefficient=inverted[0],
        inverted_p=inverted[1],
        looks=looks,
        looks_where_unsure=where_unsure,
        rules_right=[float(((rule > 0) == labels).mean()) for rule in (covariates[:, 0], richer)],
        controls=sorted(controls, key=lambda row: row.expected),
    )
    write_page("whose", "Whose gender: the errors of the test", page, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _WhoseOptions)
