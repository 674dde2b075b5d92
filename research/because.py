"""Does a model of English read the verb before "because", and does one head link it? docs/questions/because.jsonl.

The bias of a verb is half the difference of log p(she) - log p(he) after "One day, Anna VERB Tom because" and after
"One day, Tom VERB Anna because", the mean of six pairs of names, in nats: positive towards the first person. The verbs
are those of the stories; people continue the first ten with the first person and the others with the second (Ferstl,
Garnham & Manouilidou 2011). The heads are those that `eval.py model=FOLDER items=docs/questions/because.jsonl` tests.
Writes research/results/because.{json,md}.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from antecedent_lab import open_model, probe_model
from data.stories.frames import TEXTS
from extras.english.whose import area_under_curve
from probe.questions import HEADLINE
from probe.results import Estimate
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, value_cell, write_page

WOMEN = ("Anna", "Lily", "Sara", "Emma", "Lucy", "Mia")
MEN = ("Tom", "Ben", "Sam", "Max", "Leo", "Jack")
VERBS = {"first": TEXTS["BY_FIRST"], "second": TEXTS["BY_SECOND"]}


@dataclass
class _Options:
    """python -m research.because models=FOLDER,FOLDER [threads=1]."""

    models: str = MISSING
    threads: int = 1


@dataclass(frozen=True)
class _Row:
    """One model."""

    model: str
    bias: dict[str, float]  # nats, by verb
    auc: float  # a verb about the first person has a larger bias than one about the second
    head: str
    accuracy: Estimate
    p: float
    answers: Estimate
    verdict: str
    reason: str

    def cells(self) -> list[str]:
        means = []
        for verbs in VERBS.values():
            means.append(f"{np.mean([self.bias[verb] for verb in verbs]):.2f}")
        tested = [value_cell(self.accuracy, ".3f"), f"{self.p:.4f}", value_cell(self.answers, ".3f"), self.verdict]
        return [self.model, *means, f"{self.auc:.2f}", self.head, *tested]


@dataclass(frozen=True)
class BecauseResults:
    """The table of the page."""

    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["model", "bias, first", "bias, second", "AUC", "head", "accuracy", "p", "answers right", "verdict"]
        lines = [*markdown_table(header, [row.cells() for row in self.rows]), ""]
        for row in self.rows:
            by_verb = ", ".join(f"{verb} {bias:.2f}" for verb, bias in row.bias.items())
            lines += [f"{row.model}: {by_verb}.", "", f"{row.model}, why no more is claimed: {row.reason}", ""]
        return lines[:-1]


def _measured(folder: str) -> _Row:
    opened = open_model(folder, device="cpu")
    bias = {}
    for verb in (*VERBS["first"], *VERBS["second"]):
        pairs = list(zip(WOMEN, MEN, strict=True))
        texts = [f"One day, {woman} {verb} {man} because" for woman, man in pairs]
        texts += [f"One day, {man} {verb} {woman} because" for woman, man in pairs]
        values = np.array(opened.log_probs(texts, " she", " he"))
        margins = (values[:, 0] - values[:, 1]).reshape(2, -1)
        bias[verb] = float((margins[0] - margins[1]).mean() / 2)
    is_first = np.array([verb in VERBS["first"] for verb in bias])
    [finding] = probe_model(opened, items="docs/questions/because.jsonl").findings.values()
    values_of_head = finding.judged.values
    return _Row(
        model=Path(folder).name,
        bias=bias,
        auc=area_under_curve(np.array(list(bias.values())), is_first),
        head=" + ".join(map(str, finding.judged.heads)),
        accuracy=values_of_head["accuracy"],
        p=values_of_head["p"].value,
        answers=finding.parts[HEADLINE].values["answer_accuracy"],
        verdict=finding.verdict,
        reason="; ".join(finding.judged.reasons),
    )


def main(options: _Options) -> None:
    """Ask every model, and write the page."""
    torch.set_num_threads(options.threads)
    rows = [_measured(folder) for folder in listed(options.models)]
    write_page("because", "The verb before “because”", BecauseResults(rows), options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
