"""Train on English text for each seed, and test the heads whose attention turns with the pronoun.

Trains `experiment=english/half_hour`, half an hour on two cores; an unfinished run is continued, a finished run is used
as it is. Its heads are tested on the validation text, and those chosen there again on other texts. Writes
docs/results/english.{json,md}.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import MISSING

from antecedent_lab.commands import test_set_name
from benchmarks.control_texts import permuted_files
from benchmarks.measure import (
    listed,
    place_name,
    read_probe,
    row_from,
    row_table,
    run_script,
    start_benchmark,
    value_cell,
    write_page,
)
from data.text_tables import markdown_table
from data.typed_json import flattened, from_json, may_be_absent
from probe.items import HEADLINE
from probe.minimal_pairs import FileScores
from probe.results import Estimate, NaturalQuestion, ProbeResults
from training.metrics import Metrics, load_metrics

Content = TypeVar("Content")
CURVE_CAPTION = """\
At each validation loss: the head with the largest |t| on 120 prefixes of the validation text, read at the pronoun (not
corrected for the choice of the head, so without p); in 240 sentences of the dev blocks, the block accuracy of the best
head and the share of right answers (-: not recorded by that version); the largest induction score of a head. Bits per
byte are of the first 65,536 tokens of the validation text, in the last row of the whole text."""


@dataclass
class _EnglishOptions:
    """python -m benchmarks.english train=A,B validation=C runs=DIR [texts=PATH,PATH] [seeds=2,3,4].

    - runs: training runs are DIR/seed_N
    - texts: rows with gold links, passages of GAP, or any English
    - permuted=N,...: seeds of control models, trained on a copy of the text in which the gender of every pronoun is
      random. No head should turn with it. The copy is the same for all seeds.
    - pairs=PATH: minimal pairs
    - max_steps=N: a longer training, or a short rehearsal
    - page=english: the results are written to docs/results/PAGE.{json,md}
    """

    train: str = MISSING
    validation: str = MISSING
    runs: str = MISSING
    texts: str = ""
    permuted: str = ""
    pairs: str = ""
    max_steps: str = ""
    seeds: str = "2,3,4"
    page: str = "english"


@dataclass(frozen=True)
class _EdgeEffect:
    """Loss of the next tokens, in nats, when the edge to the target or to another word of the same weight is cut."""

    n: int
    mass: float
    rise: float
    matched_mass: float
    matched_rise: float
    difference: Estimate


@dataclass(frozen=True)
class _TurningHead:
    """The head chosen for one target ("gender, other entity")."""

    model: str
    target: str
    head: str  # and site
    contrast: Estimate
    value_contrast: Estimate
    pair_right: Estimate
    right: Estimate
    p_corrected: float
    t: float
    untrained_t: float
    verdict: str
    cut: _EdgeEffect | None


@dataclass(frozen=True)
class _ConfirmedHead:
    """The same head on another text."""

    model: str
    target: str
    head: str
    n: int
    contrast: Estimate
    p: float
    t: float
    untrained_t: float


@dataclass(frozen=True)
class _BlockAnswers:
    """Loss of a model, and its answers and best head in the blocks of sentences."""

    model: str
    bits_per_byte: float | None
    right: Estimate | None
    head: str | None
    verdict: str


@dataclass(frozen=True)
class _CurvePoint:
    """The probe's record at one validation loss; None: not recorded."""

    step: int
    bits_per_byte: float | None
    induction: float
    gender_head: str | None = may_be_absent()
    gender_contrast: float | None = may_be_absent()
    gender_t: float | None = may_be_absent()
    number_head: str | None = may_be_absent()
    number_contrast: float | None = may_be_absent()
    number_t: float | None = may_be_absent()
    block_accuracy: float | None = may_be_absent()
    right_answers: float | None = may_be_absent()


@dataclass(frozen=True)
class _PathNatural:
    """What eval.py path= writes about natural text."""

    questions: dict[str, NaturalQuestion]
    other: dict[str, Any] = flattened()


@dataclass(frozen=True)
class _PathPairs:
    """What eval.py task=minimal_pairs writes."""

    files: list[FileScores]
    other: dict[str, Any] = flattened()


@dataclass(frozen=True)
class EnglishResults:
    """The tables of the page."""

    heads: list[_TurningHead]
    confirmed: dict[str, list[_ConfirmedHead]]  # by text
    blocks: list[_BlockAnswers]
    pairs: dict[str, dict[str, Estimate | None]]  # right minimal pairs, by file and model
    training: dict[str, list[_CurvePoint]]  # by model

    def lines(self) -> list[str]:
        lines = [
            "## Validation text",
            "",
            "Heads chosen on one half of the documents, tested on the other half.",
            "",
            *row_table(
                "model | question, target | head, site | contrast [95 %] | weighted by value norm | pair | right | p"
                r" | t | largest \|t\| untrained | verdict",
                "{model} | {target} | {head} | {contrast:auto} | {value_contrast:auto} | {pair_right:auto}"
                " | {right:auto} | {p_corrected:.4f} | {t:auto} | {untrained_t:auto} | {verdict}",
                self.heads,
            ),
            "",
            "The loss of the next tokens after the edge is cut:",
            "",
            *row_table(
                "model | question, target | head, site | prefixes | weight on the target | rise, target cut"
                " | weight on another word | rise, other word cut | difference [95 %]",
                "{model} | {target} | {head} | {cut.n:,} | {cut.mass:auto} | {cut.rise:auto}"
                " | {cut.matched_mass:auto} | {cut.matched_rise:auto} | {cut.difference:auto}",
                [head for head in self.heads if head.cut],
            ),
            "",
        ]
        # The same heads elsewhere
        for text, heads in self.confirmed.items():
            confirmed = row_table(
                r"model | question, target | head, site | prefixes | contrast [95 %] | p | t | largest \|t\| untrained",
                "{model} | {target} | {head} | {n:,} | {contrast:auto} | {p:auto} | {t:auto} | {untrained_t:auto}",
                heads,
            )
            lines += [f"## The same heads on {text}", "", *(confirmed if heads else ["Not tested."]), ""]
        # Blocks and minimal pairs
        lines += ["## Blocks of sentences, on the headline hold-out", ""]
        lines += row_table(
            "model | bits/byte | model right [95 %] | head | verdict",
            "{model} | {bits_per_byte:.4f} | {right:.3f} | {head} | {verdict}",
            self.blocks,
        )
        if self.pairs:
            lines += ["", "## Minimal pairs, right in %", "", *self._pair_table()]
        # A table for each model
        lines += ["", "## During training", "", CURVE_CAPTION]
        for model, points in self.training.items():
            curve = row_table(
                "step | bits/byte | gender: head | contrast | t | number: head | contrast | t | blocks: best head"
                " | model right | induction",
                "{step} | {bits_per_byte:.3f} | {gender_head} | {gender_contrast:.2f} | {gender_t:.1f} | {number_head}"
                " | {number_contrast:.2f} | {number_t:.1f} | {block_accuracy:.2f} | {right_answers:.2f}"
                " | {induction:.2f}",
                points,
            )
            lines += ["", f"{model}:", "", *curve]
        return lines

    def _pair_table(self) -> list[str]:
        """Return the table of minimal pairs: a line for each file, a column for each model."""
        rows = []
        for file, accuracies in self.pairs.items():
            rows.append([file, *(value_cell(accuracy, "percent") for accuracy in accuracies.values())])
        return markdown_table(["file", *(model.model for model in self.blocks)], rows)


# Training and evaluation


def _train(run: Path, seed: int, text: str, options: _EnglishOptions) -> None:
    """Train a run to its end; train.py refuses a run with other settings."""
    settings = [f"seed={seed}", f"out={run}", f"data.path={text}", f"data.validation_path={options.validation}"]
    settings.append(f"resume={str((run / 'config.json').exists()).lower()}")
    settings += [f"max_steps={options.max_steps}"] if options.max_steps else []
    run_script("train", "experiment=english/half_hour", "device=cpu", *settings)


def _evaluate(run: Path, model: str, options: _EnglishOptions, results: EnglishResults) -> None:
    """Run eval.py on the validation text, on the other texts and on minimal pairs; add the rows of the model."""
    # The run's own validation text
    arguments = (f"run={run}", "device=cpu")
    run_script("eval", *arguments)
    probe = read_probe(run)
    metrics = load_metrics(run)
    assert probe.natural is not None
    for question, target, shift in probe.natural.chosen():
        names = {"model": model, "target": f"{question}, {target}", "head": place_name(shift)}
        cut = row_from(_EdgeEffect, shift.causal) if shift.causal else None
        results.heads.append(row_from(_TurningHead, shift, **names, cut=cut))
    results.blocks.append(_block_answers(model, probe, metrics))
    results.training[model] = _training_curve(metrics)

    # Other texts, whose results are files of their own
    for path in listed(options.texts):
        run_script("eval", *arguments, f"path={path}")
        natural = _read_outside(_PathNatural, run, test_set_name("natural", path))
        for question, result in natural.questions.items():
            for target, confirmed in result.confirmed.items():
                names = {"model": model, "target": f"{question}, {target}", "head": place_name(confirmed)}
                results.confirmed[Path(path).name].append(row_from(_ConfirmedHead, confirmed, **names))

    # Minimal pairs
    if options.pairs:
        run_script("eval", *arguments, "task=minimal_pairs", f"path={options.pairs}")
        pairs = _read_outside(_PathPairs, run, test_set_name("minimal_pairs", options.pairs))
        for scores in sorted(pairs.files, key=lambda scores: scores.file):
            found = scores.accuracy
            accuracy = Estimate(found.value, *found.interval) if found else None
            results.pairs.setdefault(Path(scores.file).stem, {})[model] = accuracy


def _read_outside(kind: type[Content], run: Path, name: str) -> Content:
    path = run / "probe" / "outside" / f"{name}.json"
    content: Content = from_json(kind, json.loads(path.read_text()), name)
    return content


def _block_answers(model: str, probe: ProbeResults, metrics: Metrics) -> _BlockAnswers:
    # The loss of the checkpoint that is tested
    losses = {record.step: record.bits_per_byte for record in metrics.validation}
    loss = losses[probe.model.step]
    # The model's answers and its head, on new words in new frames
    right = None
    for group in probe.behaviour:
        if (group.family, group.holdout) == ("english", HEADLINE):
            right = Estimate(group.accuracy, *group.interval)
    question = probe.question("english")
    if question is None:
        return _BlockAnswers(model, loss, right, None, "not tested")
    return _BlockAnswers(model, loss, right, str(question.place), question.verdict)


def _training_curve(metrics: Metrics) -> list[_CurvePoint]:
    """Return the probe's records of training at the steps with a validation loss."""
    # The probe may record more steps than there are validations
    probed = {point.step: point for point in metrics.probe}
    points = []
    for loss in metrics.validation:
        point = probed[loss.step]
        values: dict[str, Any] = {}
        for question, shift in point.natural.items():
            values[f"{question}_head"] = f"L{shift.layer}H{shift.head}"
            values[f"{question}_contrast"] = shift.pronoun_contrast
            values[f"{question}_t"] = shift.t
        for blocks in point.questions.values():
            values |= {"block_accuracy": blocks.block_accuracy, "right_answers": blocks.answer_accuracy}
        points.append(_CurvePoint(loss.step, loss.bits_per_byte, point.head_types["induction"], **values))
    return points


def main(options: _EnglishOptions) -> None:
    """Train and test every model, write the page."""
    folder = Path(options.runs)
    results = EnglishResults([], {Path(path).name: [] for path in listed(options.texts)}, [], {}, {})
    for seed in listed(options.seeds):
        run = folder / f"seed_{seed}"
        _train(run, int(seed), options.train, options)
        _evaluate(run, f"seed {seed}", options, results)
    for seed in listed(options.permuted):
        run = folder / f"permuted_{seed}"
        _train(run, int(seed), permuted_files(options.train, folder / "permuted_text"), options)
        _evaluate(run, f"permuted {seed}", options, results)
    title = "Heads that turn with the pronoun in English"
    write_page("english", title, results, torch.get_num_threads(), options.page)


if __name__ == "__main__":
    start_benchmark(main, _EnglishOptions)
