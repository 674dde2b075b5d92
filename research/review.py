"""Questions of a reviewer: how firm each choice and effect is, and 28 criteria for claims about components of a model.

The first table has the rows without a bar of the findings of tested models, of a planted head and of an untrained
model. The second goes through the criteria of Mechanistic Validity (github.com/mechanistic-validity): whether a claim
of this program meets each of them, by our own reading, with the numbers of the first finding of the first model.
backup: how much more the other heads carry if those that carry are removed (the hydra effect, McGrath et al. 2023). The
last norm makes what is left larger, so a part of it is no other head's work.
Writes research/results/review.{json,md}.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab.sources import source_of
from model.observe import SiteEdit, TransformerView
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.edits import Batch, EditedPairs, all_heads
from probe.opened_run import open_run
from probe.questions import HEADLINE, STORY_QUESTIONS
from probe.results import Estimate, Finding, Head, ProbeResults
from probe.study import study
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, value_cell, write_page
from settings.files import read_json
from settings.typed_json import from_json
from tests.planted import plant

MEASURES = ("chosen_again", "swap_25", "swap_50", "swap_75", "swap", "carries")

# Name, whether a claim meets it (yes, part, no), and where; {measure} is a value of the finding.
CRITERIA = [
    ("C1 falsifiability", "yes", "bars were fixed before; predictions are registered (preregistration.md)"),
    ("C2 structural plausibility", "yes", "one layer sets a mark, the next reads it: predicted; here {feeds}"),
    ("C3 task specificity", "part", "previous-token and induction heads get no claim; one head may serve two"),
    ("C4 minimality", "yes", "heads that carry are added one by one, each for .02 or more; others: {others}"),
    ("C5 convergent validity", "yes", "attention {accuracy}, swap {swap}, edge cut {cut_meant}, outputs {carries}"),
    ("I1 necessity", "part", "edge to the antecedent cut: {cut_meant} of the answer lost; output removed: only {zero}"),
    ("I2 sufficiency", "yes", "outputs of all other heads exchanged: the heads that carry keep {keeps}"),
    ("I3 specificity", "yes", "edge to the other mention cut: {cut_other}; specificity {specificity}"),
    ("I4 consistency", "yes", "clusters resampled; 20 seeds; swap, cut and removal"),
    ("I5 confound control", "yes", "rules, untrained models, words shuffled ({answer_shuffled} of the answers right)"),
    ("I6 rival mechanism exclusion", "yes", "all other heads carry {others}, {backup} more without these; MLPs: V4"),
    ("E1 intervention reach", "yes", "exchanged weights move the answer to the other mention: {swap} of {answer} nats"),
    ("E2 graded response", "yes", "a quarter, half, three quarters, all: {swap_25}, {swap_50}, {swap_75}, {swap}"),
    ("E3 selectivity", "part", "outputs of the same answer: {same_answer}; no other task"),
    ("E4 effect magnitude", "yes", "{swap} of an answer of {answer} nats changes sides; the bar is .2"),
    ("E5 robustness", "yes", "nouns, frames, six places of a third animal; nine new constructions (third_noun.md)"),
    ("E6 cross-architecture generalization", "part", "variants of attention, other models; one family at a time"),
    ("M1 reliability", "yes", "chosen again {chosen_again} (others: above); intervals; every seed is shown"),
    ("M2 invariance", "part", "the same items in every variant; no common scale over sizes"),
    ("M3 baseline separation", "yes", "untrained {untrained_accuracy}, best rule {best_rule}"),
    ("M4 sensitivity", "yes", "planted and absent heads, a planted circuit; carries is seen from .55 on (power.md)"),
    ("M5 calibration", "yes", "known ends: a planted head (number, gender), an untrained model, a coin (worlds.md)"),
    ("M6 construct coverage", "part", "whether a table of words is enough is said; attention is not the construct"),
    ("V1 level declaration", "yes", "E0 to E3, in the claim"),
    ("V2 level-evidence match", "yes", "the level is computed from the bars"),
    ("V3 narrative coherence", "yes", "the claim is made from the values alone"),
    ("V4 alternative exclusion", "part", "rules, head types and value-weighted attention; MLPs are not tested"),
    ("V5 scope honesty", "yes", "each claim says what it does not show and what it assumes"),
]  # fmt: skip


@dataclass
class _Options:
    """python -m research.review run=DIR [others=FOLDER,FOLDER]: a tested run of the stories, other tested models."""

    run: str = MISSING
    others: str = ""
    cache: str = ".cache"


@dataclass(frozen=True)
class _Row:
    """One finding of one model."""

    model: str
    question: str
    head: str
    verdict: str
    values: dict[str, Estimate]


@dataclass(frozen=True)
class _Criterion:
    """One criterion, our reading, and the evidence."""

    name: str
    is_met: str
    evidence: str


@dataclass(frozen=True)
class ReviewResults:
    """Both tables."""

    rows: list[_Row]
    criteria: list[_Criterion]

    def lines(self) -> list[str]:
        header = ["model", "question", "head", *(name.replace("_", " ") for name in MEASURES), "verdict"]
        rows = []
        for row in self.rows:
            values = [value_cell(row.values.get(name), ".3f") for name in MEASURES]
            rows.append([row.model, row.question, row.head, *values, row.verdict])
        counts = [sum(each.is_met == met for each in self.criteria) for met in ("yes", "part", "no")]
        summary = f"By our reading {counts[0]} of {len(self.criteria)} are met, {counts[1]} in part, {counts[2]} not."
        criteria = [[each.name, each.is_met, each.evidence] for each in self.criteria]
        return [
            *markdown_table(header, rows),
            "",
            "Heads of an untrained model differ in fact: one is chosen again more often than one of n equal heads. In "
            "`verb` a planted table of words and an untrained model have equal heads: 1/8.",
            "",
            f"{summary} The numbers are those of {self.rows[0].model}, {self.rows[0].question}.",
            "",
            *markdown_table(["criterion", "met", "by"], criteria),
        ]


def _row(model: str, finding: Finding) -> _Row:
    head = finding.head
    values = {name: head.values[name] for name in MEASURES if name in head.values}
    of_set = f" as {' + '.join(map(str, finding.judged.heads))}" if finding.unit == "set" else ""
    return _Row(model, finding.question, str(finding.place), f"{finding.verdict}{of_set}", values)


def _results(folder: str) -> ProbeResults:
    path = Path(folder, "probe/probe.json")
    results: ProbeResults = from_json(ProbeResults, read_json(path), str(path))
    return results


def _made(run: str, cache: str) -> list[_Row]:
    """Return the rows of a planted head and of an untrained model, both of the shape of a run."""
    opened = open_run(Path(run), torch.device("cpu"))
    assert opened.transformer is not None
    config = opened.transformer.config
    vocabulary = opened.tokenizer.get_vocab()
    planted = plant(config, vocabulary, "coreference", layer=1, head=2, strength=2.0, seed=0)
    untrained = Transformer(config, opened.transformer.vocab_size, 0).eval()
    items = source_of(opened, ProbeConfig(), cache).items
    rows = []
    for name, model in (("planted, L1H2", planted), ("untrained", untrained)):
        found = study(TransformerView(model), opened.untrained, items, STORY_QUESTIONS, ProbeConfig(n_untrained=2))
        rows += [_row(name, finding) for finding in found.findings]
    return rows


def lost_by_others(pairs: EditedPairs, chosen: Sequence[Head], others: Sequence[Head]) -> np.ndarray:
    """Return the loss of margin [3, N]: outputs of `others` exchanged, outputs of `chosen` set to zero, and both."""

    def lists_of(batch: Batch) -> list[list[SiteEdit]]:
        exchanged = batch.site_edits("carries", others)
        removed = [SiteEdit(*head, output=torch.zeros_like) for head in chosen]
        return [exchanged, removed, exchanged + removed]

    lost: np.ndarray = (pairs.clean - pairs.edited(lists_of)).mean(axis=2)
    return lost


def _backup(run: str, cache: str, finding: Finding) -> float:
    """Return the share of the answer that all other heads carry more if the heads that carry are removed."""
    opened = open_run(Path(run), torch.device("cpu"))
    items = source_of(opened, ProbeConfig(), cache).items.of(finding.question, HEADLINE)
    pairs = EditedPairs(opened.model, items.comparable(), ProbeConfig().tokens_per_batch)
    assert finding.carrier is not None
    chosen = finding.carrier.heads
    others = [head for head in all_heads(opened.model) if head not in chosen]
    of_others, without, of_others_without = lost_by_others(pairs, chosen, others).sum(axis=1)
    return float((of_others_without - without - of_others) / pairs.clean.sum())


def _evidence(finding: Finding, backup: float) -> list[_Criterion]:
    values = {name: estimate.value for name, estimate in finding.head.values.items()}
    for part in finding.parts.values():
        values |= {name: estimate.value for name, estimate in part.values.items() if name.startswith("answer_")}
    carrier = finding.carrier
    assert carrier is not None
    values |= {name: carrier.values[name].value for name in ("keeps", "same_answer")}
    values["backup"] = backup
    values["others"] = 1 - values["keeps"]
    values["untrained_accuracy"] = finding.untrained["accuracy"].value
    values["best_rule"] = max(finding.rules.values())
    texts = {name: f"{value:.2f}" for name, value in values.items()}
    texts["feeds"] = ", ".join(f"{feed.head} at {feed.place} {feed.share.value:.2f}" for feed in carrier.feeds)
    return [_Criterion(name, is_met, text.format_map(texts)) for name, is_met, text in CRITERIA]


def main(options: _Options) -> None:
    """Read the results of all models, probe the made ones, write the page."""
    first = _results(options.run)
    rows = [_row("default run", finding) for finding in first.findings]
    for folder in listed(options.others):
        rows += [_row(Path(folder).name, finding) for finding in _results(folder).findings]
    evidence = _evidence(first.findings[0], _backup(options.run, options.cache, first.findings[0]))
    results = ReviewResults([*rows, *_made(options.run, options.cache)], evidence)
    write_page("review", "What a reviewer asks", results)


if __name__ == "__main__":
    start_benchmark(main, _Options)
