"""Where the link of `verb` ends: sentences with a third animal, or with another word in the place of "it".

All tested sentences have two nouns, and the subject is the first. So two rules give the same answers there: verb and
voice choose subject or object, or they choose the first or the last animal. With a third animal the rules differ. The
animals stand in stories with a pronoun in training; the sentences with three are of other forms than these. Writes
research/results/third_noun.{json,md}.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from data.stories.frames import TEXTS
from data.stories.lexicon import REFERENTS
from probe.opened_model import OpenedModel
from probe.opened_run import open_run
from probe.results import Estimate, Head
from probe.saved import read_results
from probe.sentences import word_attention
from probe.statistics import mean_and_range
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, value_cell, write_page
from settings.errors import UserError

# Animals of one group share their verbs, so one of each is used.
ANIMALS = ("cat", "dog", "cow", "duck", "bee", "hen")
PLURALS = {"cat": "cats", "dog": "dogs", "cow": "cows", "duck": "ducks", "bee": "bees", "hen": "hens"}
N_DRAWS = 50  # for each text and cause
FORMS = (
    "the {A} {V} the {B} because it",
    "the {A} was {V} by the {B} because it",
    "the {A} {V} the {B} because the",
    "the {C} was in the garden. The {A} {V} the {B} because it",
    "the {C} was in the garden. The {A} was {V} by the {B} because it",
    "the {Cs} were in the garden. The {A} {V} the {B} because it",
    "near the {C} the {A} {V} the {B} because it",
    "the {A} {V} the {B} in the garden near the {C} because it",
)


@dataclass
class _Options:
    """python -m research.third_noun runs=DIR,DIR, default runs that eval.py has tested."""

    runs: str = MISSING


@dataclass(frozen=True)
class _Row:
    """One form of sentence with one cause: means and ranges over runs of shares of the sentences."""

    text: str
    cause: str  # A or B
    shares: dict[str, Estimate]  # "head", "answer" and the noun: A, B, C

    def cells(self) -> list[str]:
        other = "B" if self.cause == "A" else "A"
        cells = [self.text, self.cause]
        for what in ("head", "answer"):
            for noun in (self.cause, other, "C"):
                cells.append(value_cell(self.shares.get(f"{what} {noun}"), ".2f"))
        return cells


@dataclass(frozen=True)
class ThirdNounResults:
    """The table of the page."""

    n_runs: int
    n_draws: int
    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["One sunny day, ...", "cause", "head: cause", "other", "C", "answer: cause", "other", "C"]
        return [
            f"{self.n_runs} runs, each with the head of its question `verb`; {self.n_draws} sentences of each row. "
            "Shares of the sentences in which a noun gets most of the weight, and in which its verbs are the likeliest "
            "of the nouns; mean over runs [smallest, largest].",
            "",
            *markdown_table(header, [row.cells() for row in self.rows]),
        ]


def _shares(opened: OpenedModel, head: Head, form: str, cause: str, rng: np.random.Generator) -> dict[str, float]:
    """Return the shares of the sentences by "head" or "answer" and noun."""
    vocabulary = opened.tokenizer.get_vocab()
    counts: dict[str, float] = defaultdict(float)
    for _ in range(N_DRAWS):
        nouns = dict(zip("ABC", rng.choice(ANIMALS, 3, replace=False).tolist(), strict=True))
        # In the passive the second noun is the agent.
        by_first = (cause == "A") != ("was {V} by" in form)
        verb = rng.choice(TEXTS["BY_FIRST" if by_first else "BY_SECOND"])
        text = opened.tokenize("One sunny day, " + form.format(**nouns, Cs=PLURALS[nouns["C"]], V=verb))
        weights = word_attention(opened.model, text)[head.layer, head.head, -1]
        logits = opened.model.logits(torch.tensor([text.tokens]))[0, -1]
        attended = {}
        expected = {}
        for name, noun in nouns.items():
            places = [place for place, word in enumerate(text.words) if word in (noun, PLURALS[noun])]
            if places:
                attended[name] = float(weights[places].sum())
                ids = [vocabulary[word] for word in REFERENTS[noun].verbs]
                expected[name] = float(logits[ids].logsumexp(0))
        for name in attended:
            counts[f"head {name}"] += (name == max(attended, key=attended.__getitem__)) / N_DRAWS
            counts[f"answer {name}"] += (name == max(expected, key=expected.__getitem__)) / N_DRAWS
    return dict(counts)


def main(options: _Options) -> None:
    """Measure every run, and write the page."""
    runs = []
    for folder in map(Path, listed(options.runs)):
        opened = open_run(folder, torch.device("cpu"))
        results, _ = read_results(opened)
        finding = results.finding("verb") if results else None
        if finding is None:
            raise UserError(f"runs={folder}: has not been tested; give it to eval.py first")
        runs.append((opened, finding.head.heads[0]))
    rows = []
    for form in FORMS:
        for cause in "AB":
            by_run = []
            for opened, head in runs:
                by_run.append(_shares(opened, head, form, cause, np.random.default_rng(0)))
            shares = {name: mean_and_range([found[name] for found in by_run]) for name in by_run[0]}
            rows.append(_Row(form, cause, shares))
            print(" | ".join(rows[-1].cells()), flush=True)
    write_page("third_noun", "Where the link of verb ends", ThirdNounResults(len(runs), N_DRAWS, rows))


if __name__ == "__main__":
    start_benchmark(main, _Options)
