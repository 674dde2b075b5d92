"""lab.compare: differences between variants are paired by seed and exactly tested."""

import numpy as np
import pytest
from scipy import stats

from lab.compare import VariantResult, VariantRun, by_variant, compare_runs, difference, measured
from tests.lab.made_up_runs import BASE, TIED, UNMASKED, WORSE, variant_run, variant_runs


def compared(runs: list[VariantRun], base: list[float] = BASE) -> VariantResult:
    """Return the last variant of a comparison of standard runs with `runs`."""
    return compare_runs([*variant_runs(base), *runs], {"model.tie_query_key": False}).variants[-1]


def test_each_measure_is_read_from_its_field() -> None:
    expected = {
        "gap": 0.03, "resolved_share": 0.9, "resolved_share_headline": 0.7, "accuracy": 0.8, "block_accuracy": 0.7,
        "entropy": 0.5, "gradient_norm": 12.5, "asymmetry": 0.6,
    }  # fmt: skip
    assert measured(variant_run("0", 1, 0.03, {})) == pytest.approx(expected)


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs() -> None:
    worse = [gap + noise for gap, noise in zip(WORSE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    tied = compared(variant_runs(worse, TIED, first=5)[::-1])
    test = tied.measures["gap"].difference
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test.mean == pytest.approx(0.010) and test.interval == pytest.approx((expected.low, expected.high))
    assert test.p == test.smallest_p == 0.0625 and test.is_significant
    assert not tied.measures["resolved_share"].difference.is_significant


def test_seeds_that_disagree_give_no_significant_difference() -> None:
    mixed = [gap + e for gap, e in zip(BASE, (0.004, -0.003, 0.005, -0.002, 0.001), strict=True)]
    tied = compared(variant_runs(mixed, TIED, first=5))
    assert not any(measure.difference.is_significant for measure in tied.measures.values())


def test_seeds_without_a_pair_are_named_and_left_out() -> None:
    tied = compared([*variant_runs(WORSE, TIED, first=5)[:4], variant_run("9", 17, 9.0, TIED)])
    assert tied.unpaired_seeds == [5, 17] and "5, 17" in tied.sentence
    assert tied.measures["gap"].difference.mean == pytest.approx(0.010)


def test_the_exact_p_counts_all_sign_changes() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.25, 0.6]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    assert difference(differences).p == pytest.approx((means >= abs(np.mean(differences)) - 1e-12).mean())


def test_an_interval_without_zero_is_not_significant_without_a_small_p() -> None:
    result = difference([1.0, 1.1, 0.9, 1.0, 1.05, -0.1])  # one of six differs in sign
    assert result.interval[0] > 0 and result.p == 0.0625 > 0.05 > result.smallest_p
    assert not result.is_significant


def test_rounding_errors_are_no_difference() -> None:
    assert difference([1e-17] * 5).is_significant is False


def test_more_than_sixteen_seeds_are_tested_by_random_permutations() -> None:
    result = difference(np.random.default_rng(0).standard_normal(25) + 3)
    assert result.is_significant and result.p == pytest.approx(2e-5, abs=1e-6)


@pytest.mark.parametrize("n", [3, 5, 8])
def test_without_a_difference_at_most_one_test_in_twenty_is_significant(n: int) -> None:
    rng = np.random.default_rng(n)
    rate = np.mean([difference(rng.standard_normal(n)).is_significant for _ in range(600)])
    assert rate <= 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


def test_two_seeds_are_shown_and_not_tested() -> None:
    tied = compared(variant_runs([0.05, 0.06], TIED, first=5), base=BASE[:2])
    assert tied.measures["gap"].difference.is_significant is None and "+0.0230" in tied.sentence


@pytest.mark.parametrize(("gap", "side"), [(-0.9, "below"), (1.2, "above")])
def test_a_model_without_a_mask_is_not_causal_and_has_no_head_scores(gap: float, side: str) -> None:
    unmasked = compared(variant_runs([gap] * 5, UNMASKED, first=5))
    assert not unmasked.is_causal and unmasked.n_tested == 0
    assert unmasked.measures["accuracy"].mean is None
    assert f"{abs(gap):.2f} nats/token {side}" in unmasked.sentence


@pytest.mark.parametrize(
    ("runs", "message"), [([], "runs=DIR"), ([variant_run("9", 7, 0.1, TIED)], "tie_query_key=true")]
)
def test_runs_that_cannot_be_compared_are_refused(runs: list[VariantRun], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_variant({run.name: (run.seed, run.changes) for run in [*variant_runs(BASE), *runs]})
