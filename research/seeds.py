"""Train and probe one recipe with several seeds. Writes research/results/NAME.{json,md}.

The seconds of the two commands are comparable only if nothing else runs on the machine.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from extras.sweeps.sweep import measure_of, value_of
from probe.opened_run import load_run_settings
from probe.questions import HEADLINE, QUESTIONS
from probe.results import NOT_KNOWN, SUPPORTED, Estimate, Finding, ProbeResults
from probe.text_tables import markdown_table
from research.measure import Timing, listed, run_script, start_benchmark, value_cell, write_page
from settings.typed_json import may_be_absent
from training.metrics import load_metrics


class _Columns(NamedTuple):
    """The columns of the tables, by name."""

    means: tuple[str, ...]
    heads: tuple[str, ...]
    rules: tuple[str, ...]
    untrained: dict[str, str]  # headings


_ANSWERS = (f"{HEADLINE} answer_accuracy", f"{HEADLINE} answer_shuffled")  # "PART MEASURE"
_LOOKS = ("looks", "looks_where_unsure")
COLUMNS = {  # by the outcome of the questions
    "attention": _Columns(
        means=("accuracy", "block_accuracy", "carries", *_ANSWERS),
        heads=("accuracy", "block_accuracy", "p", "swap", "carries", *_ANSWERS),
        rules=("nearest", "first", "subject", "most frequent"),
        untrained={"accuracy": "untrained models", "block_accuracy": "their block accuracy"},
    ),
    "edge": _Columns(
        means=("swap", "flips", "follows", "author"),
        heads=("swap", "flips", "follows", "author", "author_where_nearest_wrong", "p"),
        rules=("nearest", "first", "subject", "last words"),
        untrained={},
    ),
    "whose": _Columns(
        means=("beyond_place", "form", "words", "choice_share", *_LOOKS, "author", "author_auc"),
        heads=("beyond_place", "p_beyond_place", "form", "p_form", "words", "p_words", "choice_share", *_LOOKS),
        rules=("nearest", "subject", "place rule"),
        untrained={},
    ),
}


@dataclass
class _SeedsOptions:
    """python -m research.seeds name=PAGE [seeds=1,2] [experiment=english] [variant=one_layer] [runs=DIR] [threads=2].

    - precision=auto: precision of training
    - runs: where runs are kept, DIR/SEED; finished ones are not trained again, and tested ones are not tested again
    """

    name: str = "seeds"
    seeds: str = "1,2,3,4,5"
    experiment: str = ""
    variant: str = ""
    precision: str = "auto"
    runs: str = ""
    threads: int = 2


@dataclass(frozen=True)
class _SeedTraining:
    """Validation losses of one seed in nats per token, and the seconds of both commands, of training if it was done."""

    seed: int
    loss: float
    floor: float | None  # entropy lower bound
    gap: float | None
    gap_error: float | None
    gap_by_class: dict[str, float] | None  # by token class
    train_seconds: float | None
    train_cpu_seconds: float | None
    eval_seconds: float | None  # None: the run was tested before
    eval_cpu_seconds: float | None


@dataclass(frozen=True)
class _SeedHead:
    """The head, or the set of heads, that one seed's verdict is about."""

    seed: int
    question: str
    head: str
    values: dict[str, Estimate]
    verdict: str
    level: str


@dataclass(frozen=True)
class _QuestionMeans:
    """Means over seeds for the heads, simple rules and untrained models."""

    question: str
    supported: int
    as_a_set: int  # how many of the supported are sets of heads
    n_seeds: int
    values: dict[str, float]
    rules: dict[str, float]
    untrained: dict[str, float]


@dataclass(frozen=True)
class SeedsResults:
    """The tables of the page."""

    recipe: str
    means: list[_QuestionMeans]
    heads: list[_SeedHead]
    training: list[_SeedTraining]
    not_tested: str | None = may_be_absent()

    def lines(self) -> list[str]:
        # Results of the heads
        seeds = ", ".join(str(row.seed) for row in self.training)
        chosen = "Heads are chosen on one part of the items and tested once on another."
        lines = [
            f"{self.recipe}, seeds {seeds}. {chosen}",
            "As a set: heads that share the work, judged together. Means over seeds:",
            "",
        ]
        outcomes = list(dict.fromkeys(QUESTIONS[row.question].outcome for row in self.means))
        for outcome in outcomes:
            lines += [*self._means_table(outcome), ""]
        lines += ["Each seed, with 95 % intervals:", ""]
        for outcome in outcomes:
            lines += [*self._heads_table(outcome), ""]
        if self.not_tested:
            lines += [self.not_tested, ""]

        # Training
        losses = "Validation loss, entropy lower bound and their gap (standard error)"
        lines += [f"{losses}, by token class too, in nats per token:", "", *self._loss_table()]
        if any(row.train_seconds for row in self.training):
            about = "Seconds of the two commands (the first seed also makes the data):"
            lines += ["", about, "", *self._seconds_table()]
        return lines

    def _means_table(self, outcome: str) -> list[str]:
        """Return the table that README.md has too."""
        shown = COLUMNS[outcome]
        header = ["question", "supported", "as a set", *_labels(shown.means), *shown.rules, *shown.untrained.values()]
        rows = []
        for row in of_outcome(self.means, outcome):
            cells = [row.question, f"{row.supported} of {row.n_seeds}", str(row.as_a_set)]
            cells += _cells(row.values, shown.means)
            cells += [f"{row.rules[name]:.3f}" for name in shown.rules]
            rows.append(cells + _cells(row.untrained, shown.untrained))
        return markdown_table(header, rows)

    def _heads_table(self, outcome: str) -> list[str]:
        shown = COLUMNS[outcome].heads
        rows = []
        for row in of_outcome(self.heads, outcome):
            cells = _cells(row.values, shown)
            rows.append([str(row.seed), row.question, row.head, *cells, f"{row.verdict}, {row.level}"])
        return markdown_table(["seed", "question", "head", *_labels(shown), "verdict"], rows)

    def _loss_table(self) -> list[str]:
        """Return the table of losses, with one column for each token class of stories."""
        rows = []
        for row in self.training:
            loss, floor, gap, error = (value_cell(x, ".4f") for x in (row.loss, row.floor, row.gap, row.gap_error))
            by_class = [f"{value:.3f}" for value in (row.gap_by_class or {}).values()]
            rows.append([str(row.seed), loss, floor, f"{gap} ({error})", *by_class])
        return markdown_table(["seed", "loss", "lower bound", "gap", *(self.training[0].gap_by_class or ())], rows)

    def _seconds_table(self) -> list[str]:
        rows = []
        for row in self.training:
            seconds = (row.train_seconds, row.train_cpu_seconds, row.eval_seconds, row.eval_cpu_seconds)
            rows.append([str(row.seed), *(value_cell(value, ".1f") for value in seconds)])
        return markdown_table(["seed", "train.py", "train.py CPU", "eval.py", "eval.py CPU"], rows)


def of_outcome(rows: Sequence[Any], outcome: str) -> list[Any]:
    """Return the rows about questions of one outcome."""
    return [row for row in rows if QUESTIONS[row.question].outcome == outcome]


def _labels(names: Iterable[str]) -> list[str]:
    return [measure_of(name).label for name in names]


def _cells(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [value_cell(values[name], measure_of(name).form) for name in names]


def question_means(findings: list[Finding], n_seeds: int) -> _QuestionMeans:
    """Return the means over the findings on one question; seeds in which it was not asked do not support it."""
    shown = COLUMNS[findings[0].outcome]
    supported = [finding for finding in findings if finding.verdict == SUPPORTED]
    with_untrained = [finding for finding in findings if finding.untrained]
    return _QuestionMeans(
        question=findings[0].question,
        supported=len(supported),
        as_a_set=sum(finding.unit == "set" for finding in supported),
        n_seeds=n_seeds,
        values=_means(findings, shown.means, value_of),
        rules=_means(findings, shown.rules, lambda finding, name: finding.rules[name]),
        untrained=_means(with_untrained, shown.untrained, lambda finding, name: finding.untrained[name].value),
    )


def _means(
    findings: Sequence[Finding], names: Iterable[str], of_finding: Callable[[Finding, str], float]
) -> dict[str, float]:
    """Return the means over all seeds by name."""
    means = {}
    for name in names:
        means[name] = fmean(of_finding(finding, name) for finding in findings)
    return means


def seed_head(seed: int, finding: Finding) -> _SeedHead:
    """Return what the page shows of one finding."""
    judged = finding.judged
    heads = " + ".join(map(str, judged.heads))
    values = {}
    for name in COLUMNS[finding.outcome].heads:
        part, _, measure = name.rpartition(" ")
        measured = finding.parts[part].values if part else judged.values
        values[name] = measured.get(measure, NOT_KNOWN)
    return _SeedHead(seed, finding.question, heads, values, finding.verdict, judged.level)


def _measure_seed(seed: int, folder: Path, options: _SeedsOptions) -> _SeedTraining:
    """Run train.py, unless the run is finished, and eval.py, unless it has results, as a user does."""
    run = folder / str(seed)
    # All seeds read the same data: the first one writes them to the cache
    machine = [f"cache_dir={folder / 'cache'}", f"threads={options.threads}"]
    trained: Timing | None = None
    has_metrics = (run / "metrics.jsonl").exists()
    if not (has_metrics and load_metrics(run).has_ended(load_run_settings(run)[0].run.max_steps)):
        settings = [f"seed={seed}", f"out={run}", f"precision={options.precision}", *machine]
        settings.append(f"resume={str((run / 'config.json').exists()).lower()}")
        settings += [f"experiment={options.experiment}"] if options.experiment else []
        settings += [f"variant={options.variant}"] if options.variant else []
        trained = run_script("train", *settings)
    probed = None if (run / "probe" / "probe.json").exists() else run_script("eval", f"run={run}", *machine)

    # The last validation is that of the whole split
    last = load_metrics(run).validation[-1]
    assert last.loss is not None
    return _SeedTraining(
        seed=seed,
        loss=last.loss,
        floor=last.floor,
        gap=last.gap,
        gap_error=last.gap_error,
        gap_by_class=None,  # earlier versions measured it
        train_seconds=trained.seconds if trained else None,
        train_cpu_seconds=trained.cpu_seconds if trained else None,
        eval_seconds=probed.seconds if probed else None,
        eval_cpu_seconds=probed.cpu_seconds if probed else None,
    )


def main(options: _SeedsOptions) -> None:
    """Measure every seed and write the page."""
    training: list[_SeedTraining] = []
    heads: list[_SeedHead] = []
    by_question: dict[str, list[Finding]] = {}
    missing: dict[str, None] = {}
    # Train and test each seed
    with ExitStack() as stack:
        folder = Path(options.runs or stack.enter_context(tempfile.TemporaryDirectory()))
        for seed in map(int, listed(options.seeds)):
            training.append(_measure_seed(seed, folder, options))
            run = folder / str(seed)
            results = ProbeResults.from_json(json.loads((run / "probe" / "probe.json").read_text()))
            device = json.loads((run / "environment.json").read_text())["device"]
            missing |= dict.fromkeys(results.missing)
            for finding in results.findings:
                heads.append(seed_head(seed, finding))
                by_question.setdefault(finding.question, []).append(finding)
                print(f"seed {seed}: {finding.question} {finding.verdict}", file=sys.stderr, flush=True)

    # The page
    means = [question_means(findings, len(training)) for findings in by_question.values()]
    name = " ".join([options.experiment or "default run", options.variant]).strip().capitalize()
    recipe = f"{name} in {device.rpartition(', ')[2]}"
    not_tested = "; ".join(missing) or None
    results_page = SeedsResults(recipe, means, heads, training, not_tested)
    write_page(options.name, f"{name} over seeds", results_page, options.threads)


if __name__ == "__main__":
    start_benchmark(main, _SeedsOptions)
