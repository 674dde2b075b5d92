"""Results over the runs of a sweep: runs are paired by seed, and tables say what the files say."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from extras.sweeps.sweep import (
    Sweep,
    SweepRun,
    Variant,
    by_variant,
    compare_runs,
    mean_difference,
    mean_over_runs,
    measure_of,
    of_training,
    value_of,
)
from extras.sweeps.tables import sweep_markdown
from probe.config import ProbeConfig
from probe.results import Estimate, Finding, Head, Part, ProbeResults, Tested
from settings.errors import UserError
from settings.typed_json import from_json, to_json
from tests.probe.factories import blank
from training.metrics import Metrics, TrainRecord, ValidationRecord

TIED = {"model.tie_query_key": True}
METRICS = Metrics([], [blank(ValidationRecord, loss=1.0, gap=0.02)], [])
BASE = [0.030, 0.034, 0.028, 0.031, 0.036]
WORSE = [gap + 0.010 for gap in BASE]


def finding(*heads: Head, question: str = "number", outcome: str = "attention", **values: Any) -> Finding:
    """Return a supported finding; several heads are a set."""
    measured = {"accuracy": 0.95, "block_accuracy": 0.85, "contrast": 2.0, "swap": 0.9} | values
    estimates = {name: Estimate(*np.atleast_1d(value).tolist()) for name, value in measured.items()}
    tested = Tested(list(heads or [Head(0, 0)]), estimates, verdict="supported", level="E3")
    facts = {"unit": "set" if len(heads) > 1 else "head", "head": tested, "set": tested}
    return blank(Finding, question=question, outcome=outcome, **facts)


def sweep_run(seed: int, findings: Sequence[Finding], **values: Any) -> SweepRun:
    """Return a run; the fields of its metrics and changes are empty unless they are given."""
    probe = blank(ProbeResults, settings=ProbeConfig(), findings=list(findings))
    return SweepRun(**{"name": f"run {seed}", "seed": seed, "metrics": METRICS, "probe": probe} | values)


def seed_run(seed: int, accuracy: float = 0.95) -> SweepRun:
    return sweep_run(seed, [finding(Head(seed % 2, seed % 3), accuracy=accuracy)])


def variant_runs(gaps: Sequence[float | None], changes: dict[str, Any] | None = None, first: int = 0) -> list[SweepRun]:
    """Return runs of seeds 1, 2, ...; the last gap and the gradient norms up to step 20 of each count."""
    runs = []
    train = [TrainRecord(step, 1.0, norm) for step, norm in ((5, 10.0), (20, 15.0), (25, 99.0))]
    shares = {"iid": 0.9, "headline": 0.7}
    parts = {name: blank(Part, values={"resolved_share": Estimate(share)}) for name, share in shares.items()}
    for i, gap in enumerate(gaps):
        validation = [blank(ValidationRecord, loss=1.0, gap=each) for each in (9.9, gap)]
        values = {"name": str(first + i), "changes": changes or {}, "metrics": Metrics(train, validation, [])}
        runs.append(sweep_run(i + 1, [replace(finding(), parts=parts)], **values))
    return runs


def over_seeds(runs: list[SweepRun], warnings: Sequence[str] = ()) -> Variant:
    """Return the only variant of runs with the same settings, as sweep.json has it."""
    content = json.loads(json.dumps(to_json(compare_runs(runs, {}, warnings))))
    [variant] = from_json(Sweep, content, "sweep.json").variants
    return variant


def test_only_questions_of_all_runs_are_summarised() -> None:
    runs = list(map(seed_run, range(1, 6)))
    runs[0].probe.findings.append(finding(question="verb"))
    for run in runs:
        run.probe.findings.append(finding(question="gender"))
    number, gender = over_seeds(runs).questions
    assert (number.question, gender.question, gender.n) == ("number", "gender", 5)
    assert number.heads == [[Head(1, 1)], [Head(0, 2)], [Head(1, 0)], [Head(0, 1)], [Head(1, 2)]]


def test_the_tables_of_models_do_not_call_them_seeds() -> None:
    runs = [seed_run(number, 0.9) for number in range(1, 6)]
    tables = sweep_markdown(compare_runs(runs, {}, [], "models"))
    assert tables.startswith("# Results over models 1, 2, 3, 4, 5\n") and "| variant  | models |" in tables
    assert "seed" not in tables and "5 seeds on" in sweep_markdown(compare_runs(runs, {}))


def test_scores_have_a_t_interval_and_the_supported_share_an_exact_one() -> None:
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    [question] = over_seeds([seed_run(seed, value) for seed, value in enumerate(values)]).questions
    result = question.values["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert result.mean == pytest.approx(0.894)
    assert result.interval == pytest.approx(expected)
    assert (question.share.value, question.share.low, question.share.high) == (1, pytest.approx(0.025**0.2), 1)


def test_the_interval_of_a_share_is_clipped_at_one_and_missing_values_do_not_count() -> None:
    values = [0.8, 1.0, None, 1.0, math.nan, 1.0, 1.0]
    whole, clipped, short = mean_over_runs(values), mean_over_runs(values, is_share=True), mean_over_runs(values[:4])
    assert whole.interval and whole.interval[1] > 1
    assert clipped.interval and clipped.interval[1] == 1
    assert (short.n, short.mean, short.interval) == (3, pytest.approx(2.8 / 3), None)
    assert mean_over_runs([None]).mean is None


def compared(runs: list[SweepRun], base: list[float] = BASE) -> Variant:
    """Return the last variant of a comparison of standard runs with `runs`."""
    return compare_runs([*variant_runs(base), *runs], {"model.tie_query_key": False}).variants[-1]


def test_each_measure_is_read_from_its_field() -> None:
    [run] = variant_runs([0.03])
    assert of_training(run) == {"gap": 0.03, "loss": None, "gradient_norm": 12.5}
    assert of_training(replace(run, metrics=variant_runs([None])[0].metrics))["loss"] == 1.0
    of_run = replace(run.probe.findings[0], rules={"nearest": 0.5})
    expected = {"accuracy": 0.95, "nearest": 0.5, "iid resolved_share": 0.9, "headline resolved_share": 0.7}
    assert {name: value_of(of_run, name) for name in expected} == expected
    assert measure_of("accuracy").is_share and measure_of("nearest").is_share
    assert not measure_of("contrast").is_share and not measure_of("gap").is_share
    assert math.isnan(value_of(of_run, "swap_of_nothing"))
    assert measure_of("iid resolved_share").label == "resolved share, iid"


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs() -> None:
    worse = [gap + noise for gap, noise in zip(WORSE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    tied = compared(variant_runs(worse, TIED, first=5)[::-1])
    test = tied.differences["gap"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test.mean == pytest.approx(0.010) and test.interval == pytest.approx((expected.low, expected.high))
    assert test.p == test.smallest_p == 0.0625 and test.is_significant
    assert not tied.questions[0].differences["iid resolved_share"].is_significant

    # Seeds without a pair are left out.
    extra = replace(variant_runs([9.0], TIED, first=9)[0], seed=17)
    tied = compared([*variant_runs(WORSE, TIED, first=5)[:4], extra])
    assert tied.differences["gap"].mean == pytest.approx(0.010)


def test_the_exact_p_counts_all_sign_changes_and_decides_what_is_significant() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.25, 0.6]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    assert mean_difference(differences).p == pytest.approx((means >= abs(np.mean(differences)) - 1e-12).mean())
    result = mean_difference([1.0, 1.1, 0.9, 1.0, 1.05, -0.1])  # one of six differs in sign
    assert result.interval and result.p and result.smallest_p
    assert result.interval[0] > 0 and result.p == 0.0625 > 0.05 > result.smallest_p
    assert not result.is_significant

    # Two seeds are not tested, rounding is no difference, and many seeds are permuted.
    assert mean_difference([0.02, 0.03]).is_significant is mean_difference([0.02, 0.03]).interval is None
    assert mean_difference([1e-17] * 5).is_significant is False
    result = mean_difference(np.random.default_rng(0).standard_normal(25) + 3)
    assert result.is_significant and result.p == pytest.approx(2e-5, abs=1e-6)


def test_without_a_standard_seed_is_no_variant() -> None:
    with pytest.raises(UserError, match="tie_query_key=true"):
        by_variant({"0": (1, {}), "1": (7, TIED)})


def test_the_tables_show_heads_sets_warnings_and_what_differs() -> None:
    text = " ".join(sweep_markdown(compare_runs(list(map(seed_run, range(1, 6))), {}, ["resumed"])).split())
    assert "| number | standard | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |" in text
    assert "L1H1 E3, L0H2 E3, L1H0 E3, L0H1 E3, L1H2 E3" in text and "note: resumed" in text
    edge = finding(Head(0, 1), Head(1, 2), question="next_pronoun_gender", outcome="edge")
    assert "L0H1+L1H2 E3" in sweep_markdown(compare_runs([sweep_run(1, [edge])], {}))

    # A star for each significant difference
    results = compare_runs([*variant_runs(BASE), *variant_runs(WORSE, TIED, first=5)], {"model.tie_query_key": False})
    text = sweep_markdown(results)
    standard, tied = [line for line in text.splitlines() if line.startswith(("| standard", "| tie"))]
    assert standard.count("*") == 0 and tied.count("*") == 1
