"""Results over the runs of a sweep: runs are paired by seed, and tables say what the files say."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from extras.sweeps.door import variants_of
from extras.sweeps.sweep import (
    STANDARD,
    Sweep,
    SweepRun,
    compare_runs,
    mean_over_runs,
    paired,
)
from extras.sweeps.tables import sweep_markdown
from probe.config import ProbeConfig
from probe.results import Estimate, Finding, Head, Part, ProbeResults, Tested
from settings.errors import UserError
from settings.train import compose_settings, result_settings
from settings.typed_json import from_json, to_json
from tests.probe.factories import blank
from training.metrics import Metrics, TrainRecord, ValidationRecord

TIED = "tie_query_key=true"
METRICS = Metrics([], [blank(ValidationRecord, loss=1.0, gap=0.02)], [])
BASE = [0.030, 0.034, 0.028, 0.031, 0.036]
WORSE = [gap + 0.010 for gap in BASE]
Tests = list[tuple[SweepRun, ProbeResults]]


def finding(*heads, question="number", outcome="attention", **values):
    """Return a supported finding; several heads are a set."""
    measured = {"accuracy": 0.95, "block_accuracy": 0.85, "contrast": 2.0, "swap": 0.9} | values
    estimates = {name: Estimate(*np.atleast_1d(value).tolist()) for name, value in measured.items()}
    tested = Tested(list(heads or [Head(0, 0)]), estimates, verdict="supported", level="E3")
    facts = {"unit": "set" if len(heads) > 1 else "head", "head": tested, "set": tested}
    return blank(Finding, question=question, outcome=outcome, **facts)


def sweep_run(seed, *findings, metrics=METRICS, variant=STANDARD):
    """Return a run and the results of its test."""
    results = blank(ProbeResults, settings=ProbeConfig(), findings=list(findings))
    return SweepRun(f"{variant} {seed}", seed, metrics, variant), results


def seed_runs(*accuracies):
    """Return runs of seeds 1, 2, ..., with different heads."""
    runs = []
    for seed, accuracy in enumerate(accuracies or [0.95] * 5, start=1):
        runs.append(sweep_run(seed, finding(Head(seed % 2, seed % 3), accuracy=accuracy)))
    return runs


def variant_runs(gaps, variant=STANDARD):
    """Return runs of seeds 1, 2, ...; the last gap and the gradient norms up to step 20 of each count."""
    runs = []
    train = [TrainRecord(step, 1.0, norm) for step, norm in ((5, 10.0), (20, 15.0), (25, 99.0))]
    shares = {"iid": 0.9, "headline": 0.7}
    parts = {name: blank(Part, values={"resolved_share": Estimate(share)}) for name, share in shares.items()}
    for seed, gap in enumerate(gaps, start=1):
        metrics = Metrics(train, [blank(ValidationRecord, loss=1.0, gap=each) for each in (9.9, gap)], [])
        runs.append(sweep_run(seed, replace(finding(), parts=parts), metrics=metrics, variant=variant))
    return runs


def compared(runs, warnings=(), units="seeds"):
    """Return a comparison as sweep.json has it."""
    sweep = compare_runs(*map(list, zip(*runs, strict=True)), {"model.tie_query_key": False}, warnings, units)
    return from_json(Sweep, json.loads(json.dumps(to_json(sweep))), "sweep.json")


def tables_of(runs, *arguments):
    return sweep_markdown(compared(runs, *arguments))


def last_variant(runs):
    """Return what `runs` are in a comparison with standard runs."""
    return compared([*variant_runs(BASE), *runs]).variants[-1]


def test_only_questions_of_all_runs_are_summarised():
    runs = seed_runs()
    runs[0][1].findings.append(finding(question="verb"))
    for _, results in runs:
        results.findings.append(finding(question="gender"))
    number, gender = compared(runs).variants[0].questions
    assert (number.question, gender.question, gender.n) == ("number", "gender", 5)
    assert number.heads == [[Head(1, 1)], [Head(0, 2)], [Head(1, 0)], [Head(0, 1)], [Head(1, 2)]]


def test_scores_have_a_t_interval_and_the_supported_share_an_exact_one():
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    [question] = compared(seed_runs(*values)).variants[0].questions
    result = question.values["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert (result.mean, result.interval) == (pytest.approx(0.894), pytest.approx(expected, abs=1e-6))
    assert (question.share.value, question.share.high) == (1, 1)
    assert question.share.low == pytest.approx(0.025**0.2, abs=1e-6)


def test_the_interval_of_a_share_is_clipped_at_one_and_missing_values_do_not_count():
    values = np.array([0.8, 1.0, math.nan, 1.0, math.nan, 1.0, 1.0])
    whole, clipped, short = mean_over_runs(values), mean_over_runs(values, is_share=True), mean_over_runs(values[:4])
    assert whole.interval and whole.interval[1] > 1
    assert clipped.interval and clipped.interval[1] == 1
    assert (short.n, short.mean, short.interval) == (3, pytest.approx(2.8 / 3), None)


def test_each_measure_is_read_from_its_field():
    for gap, expected in ((0.03, {"gap": [0.03]}), (None, {"loss": [1.0]})):  # a text has no lower bound
        [variant] = compared(variant_runs([gap])).variants
        found = {name: summary.by_run for name, summary in variant.values.items()}
        assert found == expected | {"gradient_norm": [12.5]}
    names = ("accuracy", "iid resolved_share", "headline resolved_share")
    assert [variant.questions[0].values[name].mean for name in names] == [0.95, 0.9, 0.7]
    edge = [sweep_run(1, replace(finding(outcome="edge"), rules={"nearest": 0.5}))]
    assert compared(edge).variants[0].questions[0].values["nearest"].mean == 0.5
    assert "| rule: nearest |" in tables_of(edge) and "| resolved share, iid |" in tables_of(variant_runs([0.03]))


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs():
    worse = [gap + noise for gap, noise in zip(WORSE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    tied = last_variant(variant_runs(worse, TIED)[::-1])
    test = tied.differences["gap"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test.mean == pytest.approx(0.010)
    assert test.interval == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert test.p == test.smallest_p == 0.0625 and test.is_significant
    assert not tied.questions[0].differences["iid resolved_share"].is_significant

    # Seeds without a pair are left out.
    [[run, results]] = variant_runs([9.0], TIED)
    tied = last_variant([*variant_runs(WORSE, TIED)[:4], (run._replace(seed=17), results)])
    assert tied.differences["gap"].mean == pytest.approx(0.010) and tied.differences["gap"].n == 4


def test_the_exact_p_counts_all_sign_changes_and_decides_what_is_significant():
    differences = np.array([0.3, -0.1, 0.4, 0.2, 0.25, 0.6])
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    assert paired(differences).p == pytest.approx((means >= abs(np.mean(differences)) - 1e-12).mean())
    result = paired(np.array([1.0, 1.1, 0.9, 1.0, 1.05, -0.1]))  # one of six differs in sign
    assert result.interval and result.p and result.smallest_p
    assert result.interval[0] > 0 and result.p == 0.0625 > 0.05 > result.smallest_p
    assert not result.is_significant

    # Two seeds are not tested, rounding is no difference, and many seeds are permuted.
    two = paired(np.array([0.02, 0.03, math.nan]))
    assert two.n == 2 and two.is_significant is two.interval is None
    assert paired(np.full(5, 1e-17)).is_significant is False
    result = paired(np.random.default_rng(0).standard_normal(25) + 3)
    assert result.is_significant and result.p == pytest.approx(2e-5, abs=1e-6)


def test_the_tables_show_heads_sets_warnings_and_what_differs():
    text = " ".join(tables_of(seed_runs(), ["resumed"]).split())
    assert "| number | standard | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |" in text
    assert "L1H1 E3, L0H2 E3, L1H0 E3, L0H1 E3, L1H2 E3" in text and "note: resumed" in text and "5 seeds on" in text
    models = tables_of(seed_runs(), [], "models")
    assert "| variant  | models |" in models and "seed" not in models
    edge = finding(Head(0, 1), Head(1, 2), question="next_pronoun_gender", outcome="edge")
    assert "L0H1+L1H2 E3" in tables_of([sweep_run(1, edge)])

    # A star for each significant difference
    text = tables_of([*variant_runs(BASE), *variant_runs(WORSE, TIED)])
    standard, tied = [line for line in text.splitlines() if line.startswith(("| standard", "| tie"))]
    assert standard.count("*") == 0 and tied.count("*") == 1 and "standard: tie_query_key=false" in text


def settings_of(*overrides):
    return result_settings(compose_settings(overrides))


def test_runs_are_described_by_the_settings_that_differ_from_the_standard():
    text = ["data=text", "data.path=x"]
    runs = {"a": settings_of("seed=1", *text), "b": settings_of("seed=2", "threads=1", "log_every_steps=3", *text)}
    assert variants_of(runs) == ({"a": STANDARD, "b": STANDARD}, {})
    runs = {"0": settings_of("variant=one_head", "seed=1"), "1": settings_of("seed=1"), "2": settings_of("seed=2")}
    standard = {"model.n_head": compose_settings().model.n_head}
    assert variants_of(runs) == ({"0": "n_head=1", "1": STANDARD, "2": STANDARD}, standard)


@pytest.mark.parametrize(("overrides", "error"), [
    (["log_every_steps=3"], "a and b have the same settings and the same seed"),
    (["seed=2", "data.seed=5"], "data.seed"),
    (["data=text", "data.path=x"], "data.source differs"),
    (["tokens_per_batch=1024"], "tokens_per_batch"),
    (["model.context_length=32"], "model.context_length"),
    (["seed=7", "model.tie_query_key=true"], "tie_query_key=true shares no seed with the standard"),
])  # fmt: skip
def test_runs_of_the_same_seed_or_other_batches_or_seeds_are_refused(overrides, error):
    with pytest.raises(UserError, match=error):
        variants_of({"a": settings_of(), "b": settings_of(*overrides)})
