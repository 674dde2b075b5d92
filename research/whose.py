"""Controls of the finding "whose": what follows place and form must be refused, and planted links found at their size.

The passages, their place rule, the edges and the decision are those that `eval.py run=RUN` tests. In some worlds the
authors choose again, by a rule of place and form; in others the edges are made, from such a rule or from the author's
choice. "Before": without the prediction of the edges by place and form. Writes research/results/whose.{json,md}.

The rules have no content words. "words of form": a ridge regression on the features of the place rule, the function
words around both people and at the end, and quotations, fitted to the training text. "place and form": the mean of the
place rule, and of it and of "words of form" fitted to the tested documents of the other four fifths too.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING
from scipy import special

from antecedent_lab.sources import source_of
from data.corpus import split_documents
from data.pairs import Items
from data.text import UNSEEN_TEXT, read_documents
from data.words import ENGLISH_WORD
from extras.english.lexicon import word_set
from extras.english.passages import Passage, passages_in, sections, with_two
from extras.english.place import fit_place_rule, nearest, place_features, redrawn
from extras.english.questions import REPLACED, TESTED, WHOSE
from extras.english.whose import (
    Known,
    area_under_curve,
    edges_by_form,
    edges_of,
    found_beyond,
    permuted_within,
    share_of_choice,
    split_as_alike,
    strata_of,
)
from probe.config import ProbeConfig
from probe.edits import EditedPairs
from probe.opened_model import OpenedModel
from probe.opened_run import load_data, open_run
from probe.outcome import Measured
from probe.questions import MAX_P
from probe.results import SUPPORTED, Estimate, ProbeResults
from probe.statistics import design_weights
from probe.text_tables import markdown_table
from probe.verdict import judged
from research.measure import share_range, start_benchmark, value_cell, write_page
from settings.errors import UserError

FORM = (*sorted(word_set("function words")), *".,!?'\"")  # no content words
QUOTES = frozenset('"\u201c\u201d')
PENALTY = 0.1  # ridge penalty per fitted row; chosen once, others were not tried on the tested passages
N_FOLDS = 5
NOISES = (0.0, 0.5, 1.0)  # standard deviations of the noise added to a rule of standard deviation 1
SIZES = (0.2, 0.3, 0.5)  # standard deviations between the means of the edges where nearest is meant and is not
N_BOOTSTRAP = 200
FOUND = ("before", "passed", "supported", "words")
OWN = ("permuted: the author's choice within strata", "authors by")  # worlds with the edges and decision of the head


@dataclass
class _WhoseOptions:
    """python -m research.whose run=DIR [n=200] [n_permutations=200], a run of experiment=english that was tested."""

    run: str = MISSING
    n: int = 200
    n_permutations: int = 200
    cache_dir: str = ".cache"


@dataclass(frozen=True)
class _World:
    """Edges and authors of draws, [draws, N] each."""

    name: str
    edges: np.ndarray
    is_nearest: np.ndarray
    known: Known


@dataclass(frozen=True)
class _Row:
    """In how many of `n` draws of a world each of FOUND was found."""

    world: str
    n_passages: int
    n: int
    counts: dict[str, int]

    def cells(self) -> list[str]:
        shown = [self.world, f"{self.n_passages:,}", str(self.n)]
        for name in FOUND:
            count = self.counts.get(name)
            shown.append("-" if count is None else f"{count} {share_range(count, self.n)}")
        return shown


@dataclass(frozen=True)
class WhoseResults:
    """The table of the page."""

    head: str
    n_permutations: int
    values: dict[str, Estimate]  # measures of the finding
    areas: dict[str, float]  # AUC of each rule
    rows: list[_Row]

    def lines(self) -> list[str]:
        shown = {name: value_cell(value, ".4f" if name[0] == "p" else ".2f") for name, value in self.values.items()}
        areas = ", ".join(f"{name} {area:.3f}" for name, area in self.areas.items())
        return [
            f"Passed: p below {MAX_P:g} by {self.n_permutations} permutations, and a coefficient above 0. Before: the "
            "same without what place and form predict of the edges. Words: p of words below the same bar. But for "
            "planted links, 1 % is expected.",
            f"The head of the run, {self.head}: coefficient {shown['beyond_place']}, p {shown['p_beyond_place']}; with "
            f"words replaced {shown['form']}, p {shown['p_form']}; words {shown['words']}, p {shown['p_words']}.",
            f"It looks more at the author's person in {shown['looks']} of the passages, and in "
            f"{shown['looks_where_unsure']} of those where the place rule says .25 to .75.",
            f"Area under the ROC curve of the rules: {areas}.",
            "",
            *markdown_table(["world", "passages", "draws", *FOUND], [row.cells() for row in self.rows]),
        ]


def _worlds(known: Known, edges: np.ndarray, rules: dict[str, np.ndarray], n: int) -> Iterator[_World]:
    """Yield every world, with `n` draws, of known passages and the edges [N] of the head."""
    rng = np.random.default_rng(len(edges))
    shape = (n, len(edges))
    own = np.broadcast_to(edges, shape)
    authors = np.broadcast_to(known.is_nearest, shape)
    yield _World(OWN[0], own, permuted_within(known.is_nearest, strata_of(known.place), n, rng), known)
    for name in ("place rule", "place and form"):
        drawn = rng.random(shape) < special.expit(rules[name])
        yield _World(f"{OWN[1]} {name}", own, drawn, known)
    for name in ("place rule", "words of form"):
        for noise in NOISES:
            copied = rules[name] / rules[name].std() + noise * rng.normal(size=shape)
            draws = slice(None) if noise else slice(1)  # without noise all are the same
            yield _World(f"copier by {name}, noise {noise:g}", copied[draws], authors[draws], known)
    for size in SIZES:
        for n_passages in (700, len(edges)):
            some = rng.permutation(len(edges))[:n_passages]
            of_some = Known(known.is_nearest[some], known.place[some], known.form[some], known.documents[some])
            linked = size * of_some.to_nearest / 2 + rng.normal(size=(n, len(some)))
            yield _World(f"planted link of {size:g} sd", linked, authors[:, some], of_some)


def _row_of(world: _World, decisions: np.ndarray, versions: np.ndarray, n_permutations: int) -> _Row:
    """Return the results in a world; `decisions` [2, N] and `versions` [D, N] belong to the edges of the head."""
    known = world.known
    by_form = edges_by_form(world.edges, known.form, known.documents)
    strata = strata_of(known.place)
    drawn = design_weights([known.documents], N_BOOTSTRAP, 0)
    resampled = np.vstack([np.ones(len(strata)), drawn])
    has_own_edges = world.name.startswith(OWN)
    counts = dict.fromkeys(FOUND if has_own_edges else FOUND[:2], 0)
    for seed, (edges, is_nearest, predicted) in enumerate(zip(world.edges, world.is_nearest, by_form, strict=True)):
        covariates = np.stack([known.place, predicted], axis=1)
        before, p_before = found_beyond(edges, covariates[:, :1], is_nearest, seed, n_permutations)
        beyond, p = found_beyond(edges, covariates, is_nearest, seed, n_permutations)
        counts["before"] += int(p_before < MAX_P and before > 0)
        counts["passed"] += int(p < MAX_P and beyond > 0)
        if has_own_edges:
            share = share_of_choice(decisions, is_nearest, strata, resampled)
            values = {"beyond_place": Estimate(beyond), "p_beyond_place": Estimate(p), "choice_share": share}
            counts["supported"] += int(judged([], Measured(values), WHOSE).verdict == SUPPORTED)
            of_all = np.vstack([versions, edges]).mean(axis=0)
            with_form = np.column_stack([covariates, of_all])
            _, p_words = found_beyond(edges, with_form, is_nearest, seed, n_permutations)
            counts["words"] += int(p_words < MAX_P)
    return _Row(world.name, len(strata), len(world.edges), counts)


def _words_of_form(passage: Passage) -> list[float]:
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


def _words_rule(fitted: list[Passage], tested: list[Passage]) -> np.ndarray:
    """Return how far a ridge regression of whom the author means is for the nearest, [N], of standard deviation 1."""
    features, of_tested = (np.array(list(map(_words_of_form, passages))) for passages in (fitted, tested))
    means, scales = features.mean(axis=0), np.maximum(features.std(axis=0), 0.05)
    inputs = (features - means) / scales
    targets = np.array([1.0 if passage.meant == nearest(passage) else -1.0 for passage in fitted])
    penalty = PENALTY * len(fitted) * np.eye(inputs.shape[1])
    scores = (of_tested - means) / scales @ np.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ targets)
    return np.asarray(scores / scores.std())


def _rules(run: OpenedModel, items: Items, config: ProbeConfig, cache_dir: str) -> dict[str, np.ndarray]:
    """Return the log odds [N] of the rules of the worlds."""
    # The passages of the training text, and those of the items with the same names
    corpus = load_data(run, cache_dir)
    of_run = [sections(split_documents(corpus, split)) for split in (corpus.train, corpus.validation)]
    unseen = [(f"unseen {name}", text) for name, text in sections(read_documents([UNSEEN_TEXT]))]
    training, validation, others = (with_two(passages_in(documents)) for documents in (*of_run, unseen))
    place_rule = fit_place_rule(training)
    drawn = redrawn(
        [*validation, *others], place_rule, lambda word: len(run.tokenizer.encode(f" {word}").ids), config.seed
    )
    by_text = {passage.text: passage for passage in drawn}
    rows = [by_text[pair.texts[0]] for pair in items.pairs]

    # The authors' rule: each fifth of the documents by the others and the training text
    place = place_rule(list(map(place_features, rows)))
    folds = np.unique([passage.doc for passage in rows], return_inverse=True)[1] % N_FOLDS
    crossed = np.empty((2, len(rows)))
    for fold in range(N_FOLDS):
        tested = [row for row, own in zip(rows, folds, strict=True) if own == fold]
        fitted = [*training, *(row for row, own in zip(rows, folds, strict=True) if own != fold)]
        by_words = place.std() * _words_rule(fitted, tested)
        by_place = fit_place_rule(fitted)(list(map(place_features, tested)))
        crossed[:, folds == fold] = by_place, by_words
    authors = np.vstack([place, crossed]).mean(axis=0)
    return {"place rule": place, "words of form": _words_rule(training, rows), "place and form": authors}


def main(options: _WhoseOptions) -> None:
    """Measure the edges of the run's head once, draw every world, and write the page."""
    run = open_run(Path(options.run), torch.device("cpu"))
    results = ProbeResults.from_json(json.loads((Path(options.run) / "probe" / "probe.json").read_text()))
    whose = results.finding(WHOSE.name)
    if whose is None:
        raise UserError(f"run={options.run}: has no finding of whose gender a head copies; run eval.py on it")
    heads = whose.judged.heads
    config = ProbeConfig()
    all_items = source_of(run, config, options.cache_dir).items
    items = all_items.of(WHOSE.name, TESTED)

    # The inputs of the test in eval.py: the edges of the head, and the decision
    sites = EditedPairs(run.model, items, config.tokens_per_batch)
    known = Known.of(items)
    edges = edges_of(sites, heads)
    replaced = all_items.of(WHOSE.name, REPLACED)
    versions = edges_of(EditedPairs(run.model, replaced, config.tokens_per_batch), heads).reshape(-1, len(items))
    decisions = np.stack([sites.clean.mean(axis=1) * known.to_nearest, split_as_alike(sites, heads, known)])

    # The draws of each world
    rules = _rules(run, items, config, options.cache_dir)
    rows = []
    for world in _worlds(known, edges, rules, options.n):
        rows.append(_row_of(world, decisions, versions, options.n_permutations))
        print(" | ".join(rows[-1].cells()), flush=True)
    page = WhoseResults(
        head=" + ".join(map(str, heads)),
        n_permutations=options.n_permutations,
        values=whose.judged.values,
        areas={name: area_under_curve(rule, known.is_nearest) for name, rule in rules.items()},
        rows=rows,
    )
    write_page("whose", "Whose gender: the errors of the test", page, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _WhoseOptions)
