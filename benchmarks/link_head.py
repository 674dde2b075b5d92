"""Train and probe the default run for several seeds. Writes docs/results/link_head.{json,md}."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import listed, read_probe, row_from, row_table, run_script, start_benchmark, write_page
from probe.results import Estimate, QuestionResult
from probe.verdict import SUPPORTED
from training.metrics import load_metrics

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


def _question_means(question: str, results: list[QuestionResult]) -> _QuestionMeans:
    """Return the means over the results of all seeds."""
    tests = [result.headline for result in results]
    untrained = [test.untrained for test in tests if test.untrained]

    def rule(name: str) -> float:
        return _mean([test.baselines[name].accuracy for test in tests])

    return _QuestionMeans(
        question=question,
        supported=sum(result.verdict == SUPPORTED for result in results),
        n_seeds=len(results),
        accuracy=_mean([test.accuracy for test in tests]),
        block_accuracy=_mean([test.block_accuracy for test in tests]),
        nearest=rule("nearest"),
        first=rule("first"),
        subject=rule("subject"),
        most_frequent=rule("most frequent"),
        untrained=_mean([scores.accuracy for scores in untrained]),
        untrained_block=_mean([scores.block_accuracy for scores in untrained]),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _measure_seed(seed: int, folder: Path) -> tuple[_SeedTraining, list[QuestionResult]]:
    """Run train.py and eval.py as a user does; return the losses and the results of the questions."""
    run = folder / f"seed_{seed}"
    # All seeds read the same stories: the first one writes them to the cache
    cache = f"cache_dir={folder / 'cache'}"
    trained = run_script("train", f"seed={seed}", f"out={run}", cache)
    probed = run_script("eval", f"run={run}", cache)
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
    return training, [result for result in read_probe(run).selected if result.question in QUESTIONS]


def _seed_head(seed: int, result: QuestionResult) -> _SeedHead:
    return row_from(
        _SeedHead,
        result.headline,
        seed=seed,
        question=result.question,
        head=str(result.place),
        attention_swap=result.causal.attention_swap if result.causal else None,
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
            of_training, results = _measure_seed(seed, Path(folder))
            training.append(of_training)
            for result in results:
                heads.append(_seed_head(seed, result))
                by_question[result.question].append(result)
    means = [_question_means(question, results) for question, results in by_question.items()]
    write_page("link_head", "The link head over seeds", LinkHeadResults(means, heads, training), threads=2)


if __name__ == "__main__":
    start_benchmark(main, _LinkHeadOptions)
