"""Train and probe the default run for several seeds. Writes docs/results/link_head.{json,md}."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    head_name,
    listed,
    row_from,
    row_table,
    run_script,
    split_records,
    start_benchmark,
    write_page,
)
from probe.results import Estimate
from probe.verdict import SUPPORTED

QUESTIONS = ("number", "gender", "later_cue")


@dataclass
class _LinkHeadOptions:
    """python -m benchmarks.link_head [seeds=1,2,3,4,5]."""

    seeds: str = "1,2,3,4,5"


@dataclass(frozen=True)
class _SeedTraining:
    """Validation losses of one seed in nats per token, and the seconds of both commands."""

    seed: int
    loss: float
    floor: float  # entropy lower bound
    gap: float
    gap_error: float
    gap_by_class: dict[str, float]  # by token class
    train_seconds: float
    train_cpu_seconds: float
    eval_seconds: float
    eval_cpu_seconds: float


@dataclass(frozen=True)
class _SeedHead:
    """The head of one seed and question, on the headline hold-out."""

    seed: int
    question: str
    head: str
    accuracy: Estimate
    block_accuracy: Estimate
    p_corrected: float
    attention_swap: float | None
    verdict: str
    evidence_level: str


@dataclass(frozen=True)
class _QuestionMeans:
    """Means over seeds on the headline hold-out: of the heads, of simple rules and of untrained models."""

    question: str
    supported: int
    n_seeds: int
    accuracy: float
    block_accuracy: float
    nearest: float
    first: float
    subject: float
    most_frequent: float
    untrained: float
    untrained_block: float


@dataclass(frozen=True)
class LinkHeadResults:
    """The tables of the page."""

    means: list[_QuestionMeans]
    heads: list[_SeedHead]
    training: list[_SeedTraining]

    def summary(self) -> list[str]:
        """Return the table of means, which README.md has too."""
        return row_table(
            "question | supported | accuracy | block accuracy | nearest | first | subject | most frequent"
            " | untrained models | their block accuracy",
            "{question} | {supported} of {n_seeds} | {accuracy:.3f} | {block_accuracy:.3f} | {nearest:.3f}"
            " | {first:.3f} | {subject:.3f} | {most_frequent:.3f} | {untrained:.3f} | {untrained_block:.3f}",
            self.means,
        )

    def lines(self) -> list[str]:
        """Return the tables of the page."""
        # One column for each token class of the stories
        seeds = ", ".join(str(row.seed) for row in self.training)
        classes = list(self.training[0].gap_by_class)
        by_class = " | ".join(f"{{gap_by_class[{name}]:.3f}}" for name in classes)
        return [
            f"Default run, seeds {seeds}. Heads are chosen on the dev split and tested once",
            "on the headline hold-out: nouns, names and frames that training never used with a pronoun. Means over"
            " seeds:",
            "",
            *self.summary(),
            "",
            *row_table(
                "seed | question | head | accuracy [95 %] | block accuracy [95 %] | corrected p | attention swap"
                " | verdict",
                "{seed} | {question} | {head} | {accuracy:.3f} | {block_accuracy:.3f} | {p_corrected:.4f}"
                " | {attention_swap:.2f} | {verdict}, {evidence_level}",
                self.heads,
            ),
            "",
            "Validation loss, entropy lower bound and their gap (standard error), by token class too, in nats per"
            " token:",
            "",
            *row_table(
                f"seed | loss | lower bound | gap | {' | '.join(classes)}",
                "{seed} | {loss:.4f} | {floor:.4f} | {gap:.4f} ({gap_error:.4f}) | " + by_class,
                self.training,
            ),
            "",
            "Seconds of the two commands (the first seed also generates the stories):",
            "",
            *row_table(
                "seed | train.py | train.py CPU | eval.py | eval.py CPU",
                "{seed} | {train_seconds:.1f} | {train_cpu_seconds:.1f} | {eval_seconds:.1f} | {eval_cpu_seconds:.1f}",
                self.training,
            ),
        ]


def _question_means(question: str, entries: list[dict[str, Any]]) -> _QuestionMeans:
    """Return the means over the entries of all seeds."""
    tests = [entry["test"]["headline"] for entry in entries]

    def mean(*names: str) -> float:
        values = tests
        for name in names:
            values = [value[name] for value in values]
        return sum(values) / len(values)

    return _QuestionMeans(
        question=question,
        supported=sum(entry["verdict"] == SUPPORTED for entry in entries),
        n_seeds=len(entries),
        accuracy=mean("accuracy"),
        block_accuracy=mean("block_accuracy"),
        nearest=mean("baselines", "nearest", "accuracy"),
        first=mean("baselines", "first", "accuracy"),
        subject=mean("baselines", "subject", "accuracy"),
        most_frequent=mean("baselines", "most frequent", "accuracy"),
        untrained=mean("untrained", "accuracy"),
        untrained_block=mean("untrained", "block_accuracy"),
    )


def _measure_seed(seed: int, folder: Path) -> tuple[_SeedTraining, list[dict[str, Any]]]:
    """Run train.py and eval.py as a user does; return the losses and the entries of the questions."""
    run = folder / f"seed_{seed}"
    # All seeds read the same stories: the first one writes them to the cache
    cache = f"cache_dir={folder / 'cache'}"
    trained = run_script("train", f"seed={seed}", f"out={run}", cache)
    probed = run_script("eval", f"run={run}", cache)
    # The last validation is that of the whole split
    training = row_from(
        _SeedTraining,
        split_records(run, "validation")[-1],
        seed=seed,
        train_seconds=trained.seconds,
        train_cpu_seconds=trained.cpu_seconds,
        eval_seconds=probed.seconds,
        eval_cpu_seconds=probed.cpu_seconds,
    )
    selected = json.loads((run / "probe" / "probe.json").read_text())["selected"]
    return training, [entry for entry in selected if entry["question"] in QUESTIONS]


def _seed_head(seed: int, entry: dict[str, Any]) -> _SeedHead:
    return row_from(
        _SeedHead,
        entry | entry["test"]["headline"],
        seed=seed,
        head=head_name(entry),
        attention_swap=(entry["causal"] or {}).get("attention_swap"),
    )


def main(options: _LinkHeadOptions) -> None:
    """Measure every seed and write the page."""
    training: list[_SeedTraining] = []
    entries: list[dict[str, Any]] = []
    heads: list[_SeedHead] = []
    # The same commands for every seed
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, listed(options.seeds)):
            of_training, of_seed = _measure_seed(seed, Path(folder))
            training.append(of_training)
            entries += of_seed
            heads += [_seed_head(seed, entry) for entry in of_seed]
    # Means over seeds, by question
    means = []
    for question in QUESTIONS:
        means.append(_question_means(question, [entry for entry in entries if entry["question"] == question]))
    write_page("link_head", "The link head over seeds", LinkHeadResults(means, heads, training), threads=2)


if __name__ == "__main__":
    start_benchmark(main, _LinkHeadOptions)
