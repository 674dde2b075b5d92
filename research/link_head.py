"""Train and probe the default run for several seeds. Writes research/results/NAME.{json,md}.

The seconds of the two commands are comparable only if nothing else runs on the machine.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from probe.results import Estimate, QuestionResult
from probe.verdict import SUPPORTED
from report.tables import head_names
from research.measure import listed, read_probe, row_from, row_table, run_script, start_benchmark, write_page
from training.metrics import load_metrics

QUESTIONS = ("number", "gender", "later_cue")


@dataclass
class _LinkHeadOptions:
    """python -m research.link_head [seeds=1,2,3,4,5] [precision=auto] [threads=2] [name=link_head]."""

    seeds: str = "1,2,3,4,5"
    precision: str = "auto"
    threads: int = 2
    name: str = "link_head"


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
    """The head, or the set of heads, that one seed's verdict is about, on the headline hold-out."""

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
    as_a_set: int  # how many of the supported are sets of heads
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
    precision: str
    heads: list[_SeedHead]
    training: list[_SeedTraining]

    def summary(self) -> list[str]:
        """Return the table of means, which README.md has too."""
        return row_table(
            "question | supported | as a set | accuracy | block accuracy | nearest | first | subject | most frequent"
            " | untrained models | their block accuracy",
            "{question} | {supported} of {n_seeds} | {as_a_set} | {accuracy:.3f} | {block_accuracy:.3f} | {nearest:.3f}"
            " | {first:.3f} | {subject:.3f} | {most_frequent:.3f} | {untrained:.3f} | {untrained_block:.3f}",
            self.means,
        )

    def lines(self) -> list[str]:
        # One column for each token class of the stories
        seeds = ", ".join(str(row.seed) for row in self.training)
        classes = list(self.training[0].gap_by_class)
        by_class = " | ".join(f"{{gap_by_class[{name}]:.3f}}" for name in classes)
        return [
            f"Default run in {self.precision}, seeds {seeds}. Heads are chosen on the dev split and tested once on the",
            "headline hold-out: nouns, names and frames that training never used with a pronoun. As a set: heads that",
            "share the work, judged together. Means over seeds:",
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


def _question_means(question: str, results: list[QuestionResult]) -> _QuestionMeans:
    """Return the means over the results of all seeds."""
    tests = [result.headline for result in results]
    scores = [result.judged_scores for result in results]
    supported = [result for result in results if result.verdict == SUPPORTED]
    untrained = [test.untrained for test in tests if test.untrained]

    def rule(name: str) -> float:
        return _mean([test.baselines[name].accuracy for test in tests])

    return _QuestionMeans(
        question=question,
        supported=len(supported),
        as_a_set=sum(result.unit == "set" for result in supported),
        n_seeds=len(results),
        accuracy=_mean([of_seed.accuracy for of_seed in scores]),
        block_accuracy=_mean([of_seed.block_accuracy for of_seed in scores]),
        nearest=rule("nearest"),
        first=rule("first"),
        subject=rule("subject"),
        most_frequent=rule("most frequent"),
        untrained=_mean([of_seed.accuracy for of_seed in untrained]),
        untrained_block=_mean([of_seed.block_accuracy for of_seed in untrained]),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _measure_seed(
    seed: int, folder: Path, options: _LinkHeadOptions
) -> tuple[_SeedTraining, list[QuestionResult], str]:
    """Run train.py and eval.py as a user does; return the losses, the results of the questions and the precision."""
    run = folder / f"seed_{seed}"
    # All seeds read the same stories: the first one writes them to the cache
    machine = [f"cache_dir={folder / 'cache'}", f"threads={options.threads}"]
    trained = run_script("train", f"seed={seed}", f"out={run}", f"precision={options.precision}", *machine)
    probed = run_script("eval", f"run={run}", *machine)
    device = json.loads((run / "environment.json").read_text())["device"]
    # The last validation is that of the whole split
    training = row_from(
        _SeedTraining,
        load_metrics(run).validation[-1],
        seed=seed,
        train_seconds=trained.seconds,
        train_cpu_seconds=trained.cpu_seconds,
        eval_seconds=probed.seconds,
        eval_cpu_seconds=probed.cpu_seconds,
    )
    results = [result for result in read_probe(run).selected if result.question in QUESTIONS]
    return training, results, device.rpartition(", ")[2]


def _seed_head(seed: int, result: QuestionResult) -> _SeedHead:
    return row_from(
        _SeedHead,
        result.judged_scores,
        seed=seed,
        question=result.question,
        head=head_names(result.judged_heads),
        attention_swap=result.judged_swap,
        verdict=result.verdict,
        evidence_level=result.evidence_level,
    )


def main(options: _LinkHeadOptions) -> None:
    """Measure every seed and write the page."""
    training: list[_SeedTraining] = []
    heads: list[_SeedHead] = []
    by_question: dict[str, list[QuestionResult]] = {question: [] for question in QUESTIONS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, listed(options.seeds)):
            of_training, results, precision = _measure_seed(seed, Path(folder), options)
            training.append(of_training)
            for result in results:
                heads.append(_seed_head(seed, result))
                by_question[result.question].append(result)
                print(f"seed {seed}: {result.question} {result.verdict}, {result.unit}", file=sys.stderr, flush=True)
    means = [_question_means(question, results) for question, results in by_question.items()]
    results_page = LinkHeadResults(means, precision, heads, training)
    write_page("link_head", "The link head over seeds", results_page, options.threads, page=options.name)


if __name__ == "__main__":
    start_benchmark(main, _LinkHeadOptions)
