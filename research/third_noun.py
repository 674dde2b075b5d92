"""Sentences of `verb` with a third animal, which no pronoun means: where it stands, and constructions never trained.

All nouns are held out: no pronoun referred to one of them in training. In a frame of the stories the third animal
stands at one of six places, in either voice: twelve cells. Nine more constructions are in no story of training. An
answer is right if the verbs of the animal that the pronoun means are likelier than those of each other one. Writes
research/results/third_noun.{json,md}.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from omegaconf import MISSING

from data.stories.frames import ACTIVE_THIRD_FRAMES, PASSIVE_THIRD_FRAMES, TEXTS
from data.stories.language import ONE_VOICE
from data.stories.lexicon import NOUNS, REFERENTS
from probe.opened_model import OpenedModel
from probe.opened_run import open_run
from probe.results import NOT_KNOWN, Estimate, Finding, Head
from probe.saved import read_results
from probe.sentences import word_attention
from probe.statistics import mean_and_range
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, value_cell, write_page
from settings.errors import UserError

N_DRAWS = 100  # for each form and cause
_SIZE = 0.4  # of the nouns, as in the stories
# A word of each group stands for all of them in the name of a cell.
_GROUPS = {"NEAR": "near", "SIGHT": "saw", "PLACE": "in the garden"}
UNSEEN = (
    "the {A} that the {C} saw {CAUSE} the {B} because",
    "the {A} that the {C} saw was {CAUSED} by the {B} because",
    "the {A} {CAUSE} the {B} that the {C} saw because",
    "the {C} saw the {D} . The {A} {CAUSE} the {B} because",
    "the {C} and the {D} were in the garden . The {A} {CAUSE} the {B} because",
    "near the {C} the {A} {CAUSE} the {B} behind the {D} because",
    "the {A} near the {C} was {CAUSED} by the {B} near the {D} because",
    "the {C} was in the garden . The sky was blue . The {A} was {CAUSED} by the {B} because",
    "the {C.plural} were in the garden . The {A} {CAUSE} the {B} because",
)


@dataclass
class _Options:
    """python -m research.third_noun runs=DIR,DIR, default runs that eval.py has tested."""

    runs: str = MISSING


@dataclass(frozen=True)
class _Row:
    """One form of sentence with one cause: means and ranges over runs of shares of the sentences."""

    form: str
    cause: str  # A or B
    shares: dict[str, Estimate]  # by "looks" or "answer", and the cause, the "other" noun of the verb, or a "third" one

    def cells(self) -> list[str]:
        names = [f"{what} {noun}" for what in ("looks", "answer") for noun in ("cause", "other", "third")]
        return [self.form, self.cause, *(value_cell(self.shares.get(name), ".2f") for name in names)]


@dataclass(frozen=True)
class _Run:
    """One run: the share of right answers, and what carries them on the items of its test."""

    run: str
    heads: list[str]  # of the verdict
    lowest_cell: float  # of the twelve
    cell: str
    unseen: float  # mean of the nine
    lowest_unseen: float
    voice: Estimate  # verbs in the passive, known in the active voice alone
    carries: Estimate
    same_answer: Estimate
    carriers: list[str]
    feeds: list[str]

    def cells(self) -> list[str]:
        shares = [f"{share:.3f}" for share in (self.lowest_cell, self.unseen, self.lowest_unseen)]
        values = [value_cell(value, ".3f") for value in (self.voice, self.carries, self.same_answer)]
        return [self.run, " + ".join(self.heads), *shares, *values, " + ".join(self.carriers), "; ".join(self.feeds)]


@dataclass(frozen=True)
class ThirdNounResults:
    """The tables of the page."""

    n_draws: int
    runs: list[_Run]
    rows: list[_Row]  # the twelve cells, then the nine constructions

    def lines(self) -> list[str]:
        header = ["run", "heads", "lowest cell", "nine: mean", "lowest", "voice [95 %]", "carries [95 %]"]
        header += ["same answer [95 %]", "carried by", "fed by"]
        lines = [
            f"{len(self.runs)} runs. Shares of the sentences in which the answer is right, {self.n_draws} for each "
            "form and cause; what carries is measured on the items of `eval.py`.",
            "",
            *markdown_table(header, [run.cells() for run in self.runs]),
        ]
        header = ["One sunny day, ... it", "cause", "looks: cause", "other", "third", "answer: cause", "other", "third"]
        texts = [
            "Shares of the sentences in which the heads of the verdict look most at a noun, and in which its verbs are "
            "the likeliest: mean over runs [smallest, largest]. Where the third animal stands, in both voices:",
            "Constructions that training never has:",
        ]
        n_cells = len(self.rows) - 2 * len(UNSEEN)
        for text, rows in zip(texts, (self.rows[:n_cells], self.rows[n_cells:]), strict=True):
            lines += ["", text, "", *markdown_table(header, [row.cells() for row in rows])]
        return lines


def forms() -> dict[str, list[str]]:
    """Return the frames of each of the twelve cells, then the nine constructions, by name."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for frame in (*ACTIVE_THIRD_FRAMES, *PASSIVE_THIRD_FRAMES):
        name = frame.replace("{SIZED} ", "")
        for group, word in _GROUPS.items():
            longest_first = sorted(TEXTS[group], key=len, reverse=True)
            name = re.sub(rf"\b({'|'.join(longest_first)})\b", word, name)
        by_name[name].append(frame)
    return by_name | {text: [text] for text in UNSEEN}


def sentence(frame: str, cause: str, rng: np.random.Generator) -> tuple[str, dict[str, str]]:
    """Return a sentence up to the pronoun, and its nouns by slot; all are held out, and none share a verb."""
    words = [noun for noun, _ in NOUNS if noun.kind == "animal" and noun.held_out == "test"]
    by_verbs = {noun.verbs: noun for noun in rng.permutation(np.array(words, dtype=object))}
    chosen = rng.permutation(np.array([noun.word for noun in by_verbs.values()])).tolist()
    nouns = dict(zip("ABCD", chosen, strict=False))
    text = frame
    for _ in range(frame.count("{SIZED} ")):
        size = f"{rng.choice(TEXTS['SIZE'])} " if rng.random() < _SIZE else ""
        text = text.replace("{SIZED} ", size, 1)
    # In the passive the second noun is the agent.
    by_first = (cause == "A") != ("{CAUSED}" in frame)
    verbs = [verb for verb in TEXTS["BY_FIRST" if by_first else "BY_SECOND"] if verb not in ONE_VOICE]
    verb = str(rng.choice(verbs))
    if "{C.plural}" in text:
        nouns["C"] = next(plural.word for noun, plural in NOUNS if noun.word == nouns["C"])
        text = text.replace("{C.plural}", nouns["C"])
    text = text.format(**nouns, CAUSE=verb, CAUSED=verb)
    return f"One sunny day , {text} it", {slot: noun for slot, noun in nouns.items() if noun in text.split()}


def _shares(
    opened: OpenedModel, heads: list[Head], frames: list[str], cause: str, rng: np.random.Generator
) -> dict[str, float]:
    """Return the shares of the sentences by "looks" or "answer" and noun, as in `_Row`."""
    vocabulary = opened.tokenizer.get_vocab()
    names = defaultdict(lambda: "third", {cause: "cause", "AB".replace(cause, ""): "other"})
    counts: dict[str, float] = {}
    for _ in range(N_DRAWS):
        text, nouns = sentence(str(rng.choice(frames)), cause, rng)
        read = opened.tokenize(text)
        attention = word_attention(opened.model, read)
        logits = opened.model.logits(torch.tensor([read.tokens]))[0, -1]
        looked_at = {}
        expected = {}
        for slot, noun in nouns.items():
            place = read.words.index(noun)
            looked_at[slot] = sum(float(attention[head.layer, head.head, -1, place]) for head in heads)
            ids = [vocabulary[word] for word in REFERENTS[noun].verbs]
            expected[slot] = float(logits[ids].logsumexp(0))
            for what in ("looks", "answer"):
                counts.setdefault(f"{what} {names[slot]}", 0.0)
        for what, by_slot in (("looks", looked_at), ("answer", expected)):
            counts[f"{what} {names[max(by_slot, key=by_slot.__getitem__)]}"] += 1 / N_DRAWS
    return counts


def _run_of(folder: Path, finding: Finding, shares: dict[tuple[str, str], dict[str, float]]) -> _Run:
    right: dict[str, float] = {}
    for form in forms():
        right[form] = fmean(shares[form, cause]["answer cause"] for cause in "AB")
    of_cells = {form: share for form, share in right.items() if form not in UNSEEN}
    unseen = [right[form] for form in UNSEEN]
    lowest = min(of_cells, key=of_cells.__getitem__)
    voice = finding.parts["voice"].values["answer_accuracy"] if "voice" in finding.parts else NOT_KNOWN
    carrier = finding.carrier
    feeds = []
    for feed in carrier.feeds if carrier else ():
        feeds.append(f"{feed.head} at {feed.place} {feed.share.value:.2f}")
    return _Run(
        run=folder.name,
        heads=list(map(str, finding.judged.heads)),
        lowest_cell=of_cells[lowest],
        cell=lowest,
        unseen=fmean(unseen),
        lowest_unseen=min(unseen),
        voice=voice,
        carries=carrier.values["carries"] if carrier else NOT_KNOWN,
        same_answer=carrier.values.get("same_answer", NOT_KNOWN) if carrier else NOT_KNOWN,
        carriers=list(map(str, carrier.heads)) if carrier else [],
        feeds=feeds,
    )


def main(options: _Options) -> None:
    """Measure every run, and write the page."""
    runs = []
    by_form: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for folder in map(Path, listed(options.runs)):
        opened = open_run(folder, torch.device("cpu"))
        results, _ = read_results(opened)
        finding = results.finding("verb") if results else None
        if finding is None:
            raise UserError(f"runs={folder}: has not been tested; give it to eval.py first")
        shares = {}
        for form, frames in forms().items():
            for cause in "AB":
                shares[form, cause] = _shares(opened, finding.judged.heads, frames, cause, np.random.default_rng(0))
                by_form[form, cause].append(shares[form, cause])
        runs.append(_run_of(folder, finding, shares))
        print(" | ".join(runs[-1].cells()), flush=True)
    rows = []
    for (form, cause), found in by_form.items():
        rows.append(_Row(form, cause, {name: mean_and_range([each[name] for each in found]) for name in found[0]}))
    write_page("third_noun", "A third animal", ThirdNounResults(N_DRAWS, runs, rows))


if __name__ == "__main__":
    start_benchmark(main, _Options)
