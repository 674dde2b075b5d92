"""Form before meaning: which information about the author's "she" or "he" do a decision and its head carry?

A score is the decision D of the model towards the person named last, or the part E of it that the edges of the head
carry (`extras.english.whose`). A logistic regression of the author's choice has nested covariates:

    none;  the subject rule;  the log odds of the place rule;  the mean of the score and its versions

A version is the score of the passage with its content words replaced. The cross-entropy that the score saves, given
each set of covariates, in bits per passage, is the information: its decreases are the parts subject, place and form,
and the rest is words. If content words carry none, score and versions are exchangeable, so that the score adds nothing
to their mean. If they do, the mean has some of it, which is counted as form. Fitted on the documents of four fifths,
evaluated on the other fifth. Writes research/results/meaning.{json,md}. The runs of the stories give the step at which
each link appears.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING
from scipy import special

from antecedent_lab.api import open_model
from data.pairs import Items
from data.text import SHIPPED_TEXT, SHIPPED_TRAINING_TEXT, UNSEEN_TEXT, read_documents
from extras.english.passages import Reader, passages_in, sections, with_two
from extras.english.questions import NEXT_PRONOUN, REPLACED, TESTED, WHOSE
from extras.english.source import MANY_HEADS, whose_passages_of
from extras.english.whose import Known, edges_of
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.edits import EditedPairs
from probe.opened_model import OpenedModel
from probe.opened_run import open_run
from probe.questions import STORY_QUESTIONS
from probe.results import Estimate, Head
from probe.rules import preferred
from probe.saved import read_results
from probe.statistics import design_weights
from probe.text_tables import markdown_table
from research.curve import checkpoints_of
from research.measure import listed, start_benchmark, value_cell, write_page
from training.metrics import load_metrics

N_FOLDS = 5
N_BOOTSTRAP = 1000
FEW_PASSAGES = 700  # for a model of more than MANY_HEADS heads, which is slow
PARTS = ("subject", "place", "form", "words")
_NEWTON_STEPS = 12
_RIDGE = 1e-3


@dataclass
class _Options:
    """python -m research.meaning runs=DIR,DIR models=FOLDER,FOLDER stories=DIR,DIR [threads=1].

    - runs: runs of experiment=english with their checkpoints, tested by eval.py
    - models: exported models, for their decision; with a finding of eval.py also for its head
    - stories: default runs, for the order in which their links appear
    """

    runs: str = MISSING
    models: str = ""
    stories: str = ""
    threads: int = 1


@dataclass(frozen=True)
class _Row:
    """The information of one score, in bits per passage."""

    model: str
    n_layer: int
    step: int | None
    score: str  # "decision", or the head whose edges carry it
    n: int
    whole: Estimate
    parts: dict[str, Estimate]

    def cells(self) -> list[str]:
        bits = [value_cell(value, ".3f") for value in (self.whole, *self.parts.values())]
        step = "" if self.step is None else f"{self.step:,}"
        return [self.model, str(self.n_layer), step, self.score, f"{self.n:,}", *bits]


@dataclass(frozen=True)
class _Appears:
    """When the links of one run of the stories appear: the first step with a head of accuracy .9, and this head."""

    run: str
    links: dict[str, tuple[int, str]]

    def cells(self) -> list[str]:
        return [self.run, *(f"{step}, {head}" for step, head in self.links.values())]


@dataclass(frozen=True)
class MeaningResults:
    """The tables of the page."""

    rows: list[_Row]
    appears: list[_Appears]

    def lines(self) -> list[str]:
        header = ["model", "layers", "step", "score", "passages", "information", *PARTS]
        lines = [
            "Information of a score about the author's choice: held-out cross-entropy that it saves, in bits per "
            "passage, beyond the frequency of the nearest person. The parts sum to it and can be below 0.",
            "Some information of words is counted as form: the mean of the score and its versions contains the score.",
            "",
            *markdown_table(header, [row.cells() for row in self.rows]),
        ]
        if self.appears:
            links = list(self.appears[0].links)
            first = "Stories: the first step of the training view at which a head has an accuracy of .9, and the head."
            rows = [row.cells() for row in self.appears]
            lines += ["", first, "", *markdown_table(["run", *links], rows)]
        return lines


def _passages(opened: OpenedModel, config: ProbeConfig) -> Items:
    """Return the passages of the shipped text with two people, and the same with content words replaced."""
    tested = [*sections(read_documents([SHIPPED_TEXT]))]
    tested += [(f"unseen {name}", text) for name, text in sections(read_documents([UNSEEN_TEXT]))]
    training = with_two(passages_in(sections(read_documents([SHIPPED_TRAINING_TEXT]))))
    reader = Reader(opened.tokenizer, opened.bos_id, opened.model.context_length)
    return whose_passages_of(reader, with_two(passages_in(tested)), training, config)


def _log_chance(inputs: np.ndarray, labels: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return log2 of the chance that a logistic regression gives the labels [N], each document's from the others."""
    folds = np.unique(documents, return_inverse=True)[1] % N_FOLDS
    scaled = (inputs - inputs.mean(axis=0)) / np.maximum(inputs.std(axis=0), 1e-9)
    columns = np.column_stack([np.ones(len(labels)), scaled])
    chances = np.empty(len(labels))
    for fold in range(N_FOLDS):
        fitted, told = columns[folds != fold], labels[folds != fold]
        weights = np.zeros(columns.shape[1])
        for _ in range(_NEWTON_STEPS):
            chance = special.expit(fitted @ weights)
            gradient = fitted.T @ (told - chance) - _RIDGE * weights
            curvature = (fitted * (chance * (1 - chance))[:, None]).T @ fitted
            weights += np.linalg.solve(curvature + _RIDGE * np.eye(len(weights)), gradient)
        of_nearest = columns[folds == fold] @ weights
        signs = np.where(labels[folds == fold], 1, -1)
        chances[folds == fold] = special.log_expit(signs * of_nearest)
    return np.asarray(chances / np.log(2))


def parts_of(score: np.ndarray, versions: np.ndarray, subject: np.ndarray, known: Known) -> dict[str, Estimate]:
    """Return the information of a score [N], in bits, "whole" and by PARTS; `versions` [D, N] of the score."""
    of_all = np.vstack([versions, score]).mean(axis=0)
    inputs = np.empty((len(score), 0))
    added = []
    for covariate in (None, subject, known.place, of_all):
        if covariate is not None:
            inputs = np.column_stack([inputs, covariate])
        with_score = _log_chance(np.column_stack([inputs, score]), known.is_nearest, known.documents)
        added.append(with_score - _log_chance(inputs, known.is_nearest, known.documents))
    bits = {"whole": added[0]}
    for name, before, after in zip(PARTS, added, [*added[1:], np.zeros(len(score))], strict=True):
        bits[name] = before - after

    drawn = design_weights([known.documents], N_BOOTSTRAP, 0)
    estimates = {}
    for name, values in bits.items():
        low, high = np.quantile(drawn @ values / drawn.sum(axis=1), (0.025, 0.975))
        estimates[name] = Estimate(float(values.mean()), float(low), float(high))
    return estimates


def _rows(
    name: str, step: int | None, model: ObservableModel, both: tuple[Items, Items], heads: list[Head], per_batch: int
) -> Iterator[_Row]:
    """Yield the rows of the decision and of the edges of `heads`; `both`: passages, and content words replaced."""
    items, replaced = both
    scores = []
    for part in both:
        sites = EditedPairs(model, part, per_batch)
        scores.append([sites.clean.mean(axis=1) * Known.of(part).to_nearest])
        if heads:
            scores[-1].append(edges_of(sites, heads))
    known = Known.of(items)
    subject = preferred("subject", items) * known.to_nearest
    labels = ["decision", " + ".join(map(str, heads))]
    for label, score, of_replaced in zip(labels, *scores, strict=False):
        found = parts_of(score, of_replaced.reshape(-1, len(items)), subject, known)
        whole = found.pop("whole")
        yield _Row(name, model.n_layer, step, label, len(items), whole, found)


def _of_model(opened: OpenedModel, runs_name: str) -> Iterator[_Row]:
    """Yield the rows of a model, of a run those of every checkpoint."""
    config = ProbeConfig()
    items = _passages(opened, config)
    tested, replaced = items.of(WHOSE.name, TESTED), items.of(WHOSE.name, REPLACED)
    if opened.model.n_layer * opened.model.n_head > MANY_HEADS:
        n = len(tested)
        some = np.arange(min(n, FEW_PASSAGES))
        n_versions = len(replaced) // n
        replaced = replaced.take((np.arange(n_versions)[:, None] * n + some).ravel().tolist())
        tested = tested.take(some.tolist())
    results, _ = read_results(opened)
    finding = results.finding(NEXT_PRONOUN.name) if results else None
    heads = finding.judged.heads if finding else []
    models = checkpoints_of(opened) if runs_name else iter([(None, opened.model)])
    for step, model in models:
        yield from _rows(runs_name or opened.name, step, model, (tested, replaced), heads, config.tokens_per_batch)


def _appears(folder: Path) -> _Appears:
    """Return when each link appears in a run of the stories; step -1 if it does not."""
    links = {question.name: (-1, "none") for question in STORY_QUESTIONS}
    for point in load_metrics(folder).probe:
        for name, head in point.questions.items():
            if links[name][0] < 0 and head.values["accuracy"] >= 0.9:
                links[name] = (point.step, f"L{head.layer}H{head.head}")
    return _Appears(folder.name, links)


def main(options: _Options) -> None:
    """Measure every model, and write the page."""
    torch.set_num_threads(options.threads)
    rows: list[_Row] = []
    for folder in map(Path, listed(options.runs)):
        run = open_run(folder, torch.device("cpu"))
        rows += _of_model(run, f"{folder.parent.name} {folder.name}")
        print(" | ".join(rows[-1].cells()), flush=True)
    for source in listed(options.models):
        rows += _of_model(open_model(source, threads=options.threads), "")
        print(" | ".join(rows[-1].cells()), flush=True)
    page = MeaningResults(rows, [_appears(Path(folder)) for folder in listed(options.stories)])
    write_page("meaning", "Form before meaning", page, options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
