"""Comparison of variants: paired by seed, exactly tested, complete in table and sentence."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lab.compare import MEASURES, LabRun, by_variant, compare, difference, draw, markdown, measured, overview, table_csv

TIED, UNMASKED = {"model.tie_query_key": True}, {"model.mask": "none"}
BASE = [0.030, 0.034, 0.028, 0.031, 0.036]
WORSE = [gap + 0.010 for gap in BASE]


def probe_json(resolved_share: float = 0.9, accuracy: float = 0.99, entropy: float = 0.5) -> dict[str, Any]:
    group = {"family": "agreement", "site": "pronoun"}
    behaviour = [
        group | {"level": level, "holdout": holdout, "resolved_share": resolved_share - less}
        for level, more in (("gender", 0.5), ("number", 0.0))
        for holdout, less in (("iid", more), ("headline", more + 0.1))
    ]
    headline = {"accuracy": accuracy, "block_accuracy": accuracy**2}
    return {
        "behaviour": behaviour,
        "selected": [{"question": "number", "verdict": "supported", "test": {"headline": headline}}],
        "attention": {"entropy": [[entropy, entropy + 0.2]], "score_asymmetry": [[0.7, 0.5]]},
    }


def lab_run(name: str, seed: int, gap: float, changes: dict | None = None, probe: dict | None = None) -> LabRun:
    metrics = [{"split": "train", "step": step, "gradient_norm": float(step)} for step in (5, 20, 25)]
    metrics += [{"split": "validation", "step": step, "gap": value} for step, value in ((0, 5.0), (30, gap))]
    return LabRun(name, seed, changes or {}, metrics, probe)


def lab_runs(gaps: list[float], changes: dict | None = None, first: int = 0) -> list[LabRun]:
    probe = None if changes == UNMASKED else probe_json()
    return [lab_run(str(first + i), i + 1, gap, changes, probe) for i, gap in enumerate(gaps)]


def compared(runs: list[LabRun], base: list[float] = BASE) -> dict[str, Any]:
    """Return the last variant of a comparison of the standard runs `base` with `runs`."""
    return compare([*lab_runs(base), *runs], {"model.tie_query_key": False})["variants"][-1]


def test_each_measure_is_read_from_its_field() -> None:
    run = lab_run("0", 1, 0.03, probe=probe_json(resolved_share=0.9, accuracy=0.8, entropy=0.4))
    expected = {
        "gap": 0.03, "resolved_share": 0.9, "resolved_share_headline": 0.8, "accuracy": 0.8, "block_accuracy": 0.64,
        "entropy": 0.5, "gradient_norm": 12.5, "asymmetry": 0.6,
    }  # fmt: skip
    assert measured(run) == pytest.approx(expected)


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs() -> None:
    noise = [0.001, -0.001, 0.002, 0.0, -0.002]
    worse = [gap + e for gap, e in zip(WORSE, noise, strict=True)]
    tied = compared(lab_runs(worse, TIED, first=5)[::-1])
    test = tied["measures"]["gap"]["difference"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test["mean"] == pytest.approx(0.010) and test["interval"] == pytest.approx((expected.low, expected.high))
    assert test["p"] == test["smallest_p"] == 0.0625 and test["is_significant"]
    assert not tied["measures"]["resolved_share"]["difference"]["is_significant"]


def test_seeds_that_disagree_give_no_significant_difference() -> None:
    mixed = [gap + e for gap, e in zip(BASE, (0.004, -0.003, 0.005, -0.002, 0.001), strict=True)]
    tied = compared(lab_runs(mixed, TIED, first=5))
    assert not any(values["difference"]["is_significant"] for values in tied["measures"].values())


def test_seeds_without_a_pair_are_named_and_left_out() -> None:
    tied = compared([*lab_runs(WORSE, TIED, first=5)[:4], lab_run("9", 17, 9.0, TIED, probe_json())])
    assert tied["unpaired_seeds"] == [5, 17] and "5, 17" in tied["sentence"]
    assert tied["measures"]["gap"]["difference"]["mean"] == pytest.approx(0.010)


def test_the_exact_p_counts_all_sign_changes() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.25, 0.6]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    assert difference(differences)["p"] == pytest.approx((means >= abs(np.mean(differences)) - 1e-12).mean())


def test_an_interval_without_zero_is_not_significant_without_a_small_p() -> None:
    result = difference([1.0, 1.1, 0.9, 1.0, 1.05, -0.1])  # one of six differs in sign
    assert result["interval"][0] > 0 and result["p"] == 0.0625 > 0.05 > result["smallest_p"]
    assert not result["is_significant"]


def test_rounding_errors_are_no_difference() -> None:
    assert difference([1e-17] * 5)["is_significant"] is False


def test_more_than_sixteen_seeds_are_tested_by_random_permutations() -> None:
    result = difference(np.random.default_rng(0).standard_normal(25) + 3)
    assert result["is_significant"] and result["p"] == pytest.approx(2e-5, abs=1e-6)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_without_a_difference_at_most_one_test_in_twenty_is_significant(n: int) -> None:
    rng = np.random.default_rng(n)
    rate = np.mean([difference(rng.standard_normal(n))["is_significant"] for _ in range(600)])
    assert rate <= 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


def test_two_seeds_are_shown_and_not_tested() -> None:
    tied = compared(lab_runs([0.05, 0.06], TIED, first=5), base=BASE[:2])
    assert tied["measures"]["gap"]["difference"]["is_significant"] is None and "+0.0230" in tied["sentence"]


@pytest.mark.parametrize(("gap", "side"), [(-0.9, "below"), (1.2, "above")])
def test_a_model_without_a_mask_is_not_causal_and_has_no_head_scores(gap: float, side: str) -> None:
    unmasked = compared(lab_runs([gap] * 5, UNMASKED, first=5))
    assert not unmasked["is_causal"] and unmasked["n_tested"] == 0
    assert unmasked["measures"]["accuracy"]["mean"] is None
    assert f"{abs(gap):.2f} nats/token {side}" in unmasked["sentence"]


def test_the_table_has_a_row_per_variant_and_a_star_per_significant_difference() -> None:
    results = compare([*lab_runs(BASE), *lab_runs(WORSE, TIED, first=5)], {"model.tie_query_key": False})
    header, rows = overview(results)
    assert [row[0] for row in rows] == ["standard", "tie_query_key=true"]
    assert {len(row) for row in rows} == {len(header)}
    assert [sum("*" in cell for cell in row) for row in rows] == [0, 1]
    assert all(f"| {' | '.join(row)} |" in " ".join(markdown(results).split()) for row in rows)


def test_the_csv_has_every_value() -> None:
    results = compare([*lab_runs(BASE), *lab_runs(WORSE, TIED, first=5)], {})
    rows = list(csv.DictReader(io.StringIO(table_csv(results))))
    assert len(rows) == 2 * 5 * len(MEASURES)
    (row,) = [row for row in rows if (row["run"], row["measure"]) == ("7", "gap")]
    assert float(row["value"]) == pytest.approx(WORSE[2]) and row["seed"] == "3"


@pytest.mark.parametrize(("runs", "message"), [([], "runs=DIR"), ([lab_run("9", 7, 0.1, TIED)], "tie_query_key=true")])
def test_runs_that_cannot_be_compared_are_refused(runs: list[LabRun], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_variant({run.name: (run.seed, run.changes) for run in [*lab_runs(BASE), *runs]})


def test_the_figure_is_a_png() -> None:
    pytest.importorskip("matplotlib")
    results = compare([*lab_runs(BASE), *lab_runs([-0.9] * 5, UNMASKED, first=5)], {})
    assert draw(results)[:8] == b"\x89PNG\r\n\x1a\n"
