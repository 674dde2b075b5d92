"""Ask models that others trained for the head that decides the next pronoun, as a user asks.

Runs `python eval.py model=...` once for each, on the shipped validation text, alone on the machine. Writes
docs/results/real_models.{json,md}.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from benchmarks.measure import head_name, listed, row_cell, row_from, row_table, run_script, start_benchmark, write_page
from probe.results import Estimate


@dataclass
class _RealModelsOptions:
    """python -m benchmarks.real_models models=DIR,stories260K.bin:tok512.bin [threads=2].

    models are MODEL or MODEL:TOKENIZER.
    """

    models: str = MISSING
    threads: int = 2


@dataclass(frozen=True)
class _ModelAnswer:
    """The answer of one model to one question."""

    model: str
    n_heads: int
    question: str
    head: str
    share: Estimate
    flips: float
    verdict: str
    together: str  # heads of the set
    together_share: Estimate | None
    together_verdict: str
    follows_twin: float
    author_accuracy: float
    nearest_accuracy: float
    n: int
    p: float
    seconds: float
    cpu_seconds: float

    @property
    def head_set(self) -> str:
        return row_cell("{together}: {together_share:.2f}, {together_verdict}", self) if self.together else "-"


@dataclass(frozen=True)
class _ModelRemarks:
    """Criteria that the heads of a model do not meet, and why other questions could not be tested."""

    model: str
    unmet: list[str]
    missing: list[str]


@dataclass(frozen=True)
class RealModelsResults:
    """The table of the page."""

    answers: list[_ModelAnswer]
    remarks: list[_ModelRemarks]

    def lines(self) -> list[str]:
        """Return the table, then what is not met or not tested in each model."""
        lines = row_table(
            "model | heads | question | head | share [95 %] | flips | its verdict | heads together | follows twin"
            " | author's, nearest | n | p | seconds (CPU)",
            "{model} | {n_heads} | {question} | {head} | {share:.2f} | {flips:.2f} | {verdict} | {head_set}"
            " | {follows_twin:.2f} | {author_accuracy:.2f}, {nearest_accuracy:.2f} | {n} | {p:.4f}"
            " | {seconds:.0f} ({cpu_seconds:.0f})",
            self.answers,
        )
        for row in self.remarks:
            lines += ["", f"{row.model}, not met by the head: {'; '.join(row.unmet) or 'nothing'}."]
            lines += [f"{row.model}, not tested: {sentence}" for sentence in row.missing]
        return lines


def _answer(entry: dict[str, Any], **values: Any) -> _ModelAnswer:
    """Return the row of an entry of probe.json."""
    # The head, and the set of heads if there is one
    chosen = entry["details"]["chosen"]
    head_set = entry["head_set"] or {"heads": [], "share": None, "verdict": "", "evidence_level": ""}
    return row_from(
        _ModelAnswer,
        entry,
        question=entry["question"].removeprefix("next_pronoun_"),
        head=head_name(entry),
        share=Estimate(**chosen["share"]),
        flips=chosen["flips"]["value"],
        verdict=f"{chosen['verdict']} ({chosen['evidence_level']})",
        together=" + ".join(f"L{layer}H{head}" for layer, head in head_set["heads"]),
        together_share=Estimate(**head_set["share"]) if entry["head_set"] else None,
        together_verdict=f"{head_set['verdict']} ({head_set['evidence_level']})",
        p=chosen["p"],
        **values,
    )


def _unmet(entry: dict[str, Any]) -> list[str]:
    criteria = entry["details"]["chosen"]["criteria"]
    return [f"{criterion['name']} ({criterion['measured']})" for criterion in criteria if not criterion["is_met"]]


def _ask(model: str, threads: int, results: RealModelsResults) -> None:
    """Add what eval.py finds out about a model, and the seconds it takes."""
    # The command of a user
    path, _, tokenizer = model.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"model={path}", f"out={folder}/out", "device=cpu", f"threads={threads}"]
        settings += [f"tokenizer={tokenizer}"] if tokenizer else []
        timing = run_script("eval", *settings)
        probe = json.loads((Path(folder) / "out" / "probe" / "probe.json").read_text())
    # Answers, and what is missing
    name = Path(path).stem
    n_heads = probe["model"]["n_layer"] * probe["model"]["n_head"]
    times = {"seconds": timing.seconds, "cpu_seconds": timing.cpu_seconds}
    unmet: list[str] = []
    for entry in probe["selected"]:
        if entry["question"].startswith("next_pronoun"):
            results.answers.append(_answer(entry, model=name, n_heads=n_heads, **times))
            unmet += _unmet(entry)
    results.remarks.append(_ModelRemarks(name, unmet, probe["natural"]["missing"]))


def main(options: _RealModelsOptions) -> None:
    """Ask every model and write the page."""
    results = RealModelsResults([], [])
    for model in listed(options.models):
        _ask(model, options.threads, results)
    write_page("real_models", "Models that others trained", results, options.threads)


if __name__ == "__main__":
    start_benchmark(main, _RealModelsOptions)
