"""Intervals have their nominal coverage, tests keep their error rate under clustering, and runs are paired by seed."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from data.errors import UserError
from data.typed_json import from_json, to_json
from probe.config import ProbeConfig
from probe.results import Estimate, Finding, Head, Part, ProbeResults, Tested
from probe.seeds import SeedsResult, SweepRun, mean_over_runs, over_seeds
from probe.statistics import Design, Sample, estimate_ratios, mean_and_range, ratio_interval, sample_of, share_interval
from probe.variants import Variant, by_variant, compare_runs, compared_question, mean_difference, measured
from report.sweep_tables import comparison_markdown, seeds_markdown
from tests.probe.factories import blank, noun_pairs, passage_items
from training.metrics import Metrics, TrainRecord, ValidationRecord

TIED, UNMASKED = {"model.tie_query_key": True}, {"model.mask": "none"}
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
    return SweepRun(**{"name": f"run {seed}", "seed": seed, "metrics": Metrics([], [], []), "probe": probe} | values)


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
        values |= {"probe": None} if changes == UNMASKED else {}
        runs.append(sweep_run(i + 1, [replace(finding(), parts=parts)], **values))
    return runs


CONFIG = ProbeConfig(n_bootstrap=400)


def mean_interval(values: np.ndarray, designs: Sequence[Design], n_bootstrap: int, seed: int) -> np.ndarray:
    return ratio_interval(values[:, None], np.ones(len(values)), designs, n_bootstrap, seed)[:, 0]


def null_scores(n_heads: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the frame, first and second word of 211 blocks, and scores of mean 0 with random effects of each."""
    blocks = [rng.integers(n, size=211) for n in (37, 11, 11)]
    scores = rng.normal(size=(211, n_heads)) / 2
    for size, labels in zip((0.5, 1, 1), blocks, strict=True):
        scores += size * rng.normal(size=(37, n_heads))[labels]
    return blocks, scores


def test_the_cluster_bootstrap_covers_the_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 5)
    covered = 0
    for trial in range(300):
        values = rng.random(200) < np.repeat(rng.beta(8, 2, size=40), 5)
        low, high = mean_interval(values, [(clusters,)], 400, seed=trial)
        covered += low <= 0.8 <= high
    assert 0.91 <= covered / 300 <= 0.99


@pytest.mark.parametrize("n_words", [6, 11])
def test_the_crossed_bootstrap_covers_where_one_clustering_is_too_narrow(n_words: int) -> None:
    rng = np.random.default_rng(6)
    n_trials = 250
    crossed = 0
    frames_only = 0
    for trial in range(n_trials):
        frame, first, second = (rng.integers(n, size=151) for n in (37, n_words, n_words))
        per_word = rng.normal(size=(2, n_words))
        per_frame = rng.normal(size=37)
        values = per_word[0][first] + per_word[1][second] + per_frame[frame] + rng.normal(size=151)
        designs = [(frame, labels) for labels in (first, second, first * 1000 + second)]
        low, high = mean_interval(values, designs, 300, seed=trial)
        crossed += low <= 0 <= high
        low, high = mean_interval(values, [(frame,)], 300, seed=trial)
        frames_only += low <= 0 <= high
    assert crossed / n_trials >= 0.92
    assert frames_only / n_trials < 0.80


def test_the_best_of_many_chance_heads_passes_the_chance_level_in_5_of_100_cases() -> None:
    rng = np.random.default_rng(2)
    passed = 0
    for trial in range(300):
        values = rng.integers(0, 5, size=(60, 6, 6)) / 4  # accuracy of a block: 0, 1/4 .. 1
        passed += values.mean(axis=0).max() > Sample(values, [np.arange(60)], []).chance_level(400, trial)
    assert 0.01 <= passed / 300 <= 0.10


def test_the_chance_level_is_conservative_and_that_of_frames_alone_is_not() -> None:
    rng = np.random.default_rng(5)
    passed = {"all": 0, "frames": 0}
    for trial in range(200):
        blocks, scores = null_scores(8, rng)
        best = scores.mean(axis=0).max() + 0.5
        passed["all"] += best > Sample(scores + 0.5, blocks, []).chance_level(200, trial)
        passed["frames"] += best > Sample(scores + 0.5, blocks[:1], []).chance_level(200, trial)
    assert passed["all"] <= 0.05 * 200
    assert passed["frames"] > 0.2 * 200


def test_word_effects_pass_max_t_at_its_level_and_flips_of_frames_alone_fail() -> None:
    rng = np.random.default_rng(0)
    n_trials = 600
    passed = {0.01: 0, 0.05: 0}
    frames_only = 0
    for trial in range(n_trials):
        blocks, values = null_scores(7, rng)
        config = ProbeConfig(n_bootstrap=299, seed=trial)
        smallest = Sample(values, blocks, []).test(config).p.min()
        for level in passed:
            passed[level] += smallest <= level
        frames_only += Sample(values, blocks[:1], []).test(config).p.min() <= 0.05
    for level, count in passed.items():
        assert stats.binomtest(count, n_trials, level, alternative="greater").pvalue > 0.05, (level, count)
    assert share_interval(frames_only, n_trials)[0] > 0.4


def test_few_clusters_enumerate_every_sign_pattern() -> None:
    """Against the definition: one clustering of equal sizes, t = mean / standard error of the cluster means."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(21, 2, 5)) + 0.3
    means = values.reshape(7, 3, 10).mean(axis=1)

    def t(cluster_means: np.ndarray) -> np.ndarray:
        return cluster_means.mean(axis=0) / cluster_means.std(axis=0, ddof=1)

    null = np.array([t(np.array(signs)[:, None] * means).max() for signs in itertools.product((1, -1), repeat=7)])
    test = Sample(values, [np.repeat(np.arange(7), 3)], []).test(ProbeConfig())
    assert test.p.ravel() == pytest.approx([np.mean(null >= value * (1 - 1e-9)) for value in t(means)])
    assert test.smallest_p == 1 / 128


def test_a_ratio_is_one_of_means_and_unknown_if_nothing_is_divided_or_with_one_cluster() -> None:
    values = np.arange(1.0, 9.0)
    ratio = estimate_ratios({"swap": 2 * values}, values, noun_pairs(), CONFIG)["swap"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert np.isnan(estimate_ratios({"swap": values}, 0 * values, noun_pairs(), CONFIG)["swap"].value)
    assert np.isnan(mean_interval(values, [(np.arange(8), np.zeros(8))], 200, seed=0)).all()
    assert mean_and_range([3.0, 1.0, 5.0]) == Estimate(3.0, 1.0, 5.0)


def test_clusters_are_frames_and_words_by_pair_or_block_or_documents_and_entities() -> None:
    items = noun_pairs()
    assert items.n_clusters() == {"frames": 4, "first_words": 2, "second_words": 2, "pairs": 4}
    by_block = np.array(items.clusterings(4))
    assert by_block.tolist() == [["t0", "t1", "t2", "t3"], ["6", "8", "6", "8"], ["7", "9", "9", "7"]]
    assert np.array(items.clusterings(8)).tolist() == by_block.repeat(2, axis=1).tolist()
    designs = np.array(items.designs(4))  # [3, 2, 4]: frames with pairs, first and second words
    assert (designs[:, 0] == by_block[0]).all()
    assert designs[:, 1].tolist() == [["6 7", "8 9", "6 9", "8 7"], *by_block[1:].tolist()]
    assert np.shape(sample_of(items, np.zeros((4, 2))).clusterings) == (3, 4)

    # A passage without an entity of a class is a cluster of its own there.
    items = passage_items()
    counts = items.n_clusters()
    names = [{pair.clusters[i] for pair in items.pairs} - {""} for i in range(3)]
    assert list(counts.values()) == [len(of_class) for of_class in names] and list(counts)[0] == "documents"
    for labels, side in zip(items.clusterings()[1:], (1, 2), strict=True):
        n_alone = sum(not pair.clusters[side] for pair in items.pairs)
        assert len(set(labels)) == len(names[side]) + n_alone and n_alone > 0
    assert len(items.designs()) == 2


def test_only_questions_of_all_runs_are_summarised() -> None:
    runs = list(map(seed_run, range(1, 6)))
    runs[0].probe.findings.append(finding(question="later_cue"))
    for run in runs:
        run.probe.findings.append(finding(question="gender"))
    results = over_seeds(runs)
    assert [question.question for question in results.questions] == ["number", "gender"]
    assert results.questions[0].heads == [[Head(1, 1)], [Head(0, 2)], [Head(1, 0)], [Head(0, 1)], [Head(1, 2)]]
    assert from_json(SeedsResult, json.loads(json.dumps(to_json(results))), "seeds.json").questions[1].n == 5


def test_scores_have_a_t_interval_and_the_supported_share_an_exact_one() -> None:
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    question = over_seeds([seed_run(seed, value) for seed, value in enumerate(values)]).questions[0]
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
    expected = {
        "gap": 0.03, "resolved_share": 0.9, "resolved_share_headline": 0.7, "accuracy": 0.95, "block_accuracy": 0.85,
        "gradient_norm": 12.5,
    }  # fmt: skip
    assert measured(variant_runs([0.03])[0], "number") == pytest.approx(expected)

    # Runs on a text: their loss and the edges of their head
    edge = finding(question="next_pronoun_gender", outcome="edge", follows=0.8)
    run = sweep_run(1, [edge], metrics=variant_runs([None])[0].metrics)
    assert measured(run, edge.question) == {"loss": 1.0, "swap": 0.9, "follows": 0.8, "gradient_norm": 12.5}


def test_the_question_is_the_first_by_attention_that_all_runs_have() -> None:
    edge, one, other = finding(outcome="edge", question="e"), finding(question="number"), finding(question="gender")
    assert compared_question([sweep_run(1, [edge, one, other]), sweep_run(2, [other, edge])]) == "gender"
    assert compared_question([sweep_run(1, [edge, one]), sweep_run(2, [edge])]) == "e"
    assert compared_question([sweep_run(1, [one]), sweep_run(2, [other])]) == ""


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs() -> None:
    worse = [gap + noise for gap, noise in zip(WORSE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    tied = compared(variant_runs(worse, TIED, first=5)[::-1])
    test = tied.differences["gap"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test.mean == pytest.approx(0.010) and test.interval == pytest.approx((expected.low, expected.high))
    assert test.p == test.smallest_p == 0.0625 and test.is_significant
    assert not tied.differences["resolved_share"].is_significant

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


def test_without_a_mask_are_no_head_scores_and_without_a_standard_seed_no_variant() -> None:
    unmasked = compared(variant_runs([-0.9] * 5, UNMASKED, first=5))
    assert unmasked.verdicts == [] and unmasked.values.keys() == {"gap", "gradient_norm"}
    with pytest.raises(UserError, match="tie_query_key=true"):
        by_variant({"0": (1, {}), "1": (7, TIED)})


def test_the_tables_over_seeds_show_heads_sets_warnings_and_what_differs() -> None:
    text = " ".join(seeds_markdown(over_seeds(list(map(seed_run, range(1, 6))), ["resumed"])).split())
    assert "| number | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |" in text
    assert "L1H1 E3, L0H2 E3, L1H0 E3, L0H1 E3, L1H2 E3" in text and "note: resumed" in text
    edge = finding(Head(0, 1), Head(1, 2), question="next_pronoun_gender", outcome="edge")
    assert "L0H1+L1H2 E3" in seeds_markdown(over_seeds([sweep_run(1, [edge])]))

    # The table of variants has a star for each significant difference.
    results = compare_runs([*variant_runs(BASE), *variant_runs(WORSE, TIED, first=5)], {"model.tie_query_key": False})
    text = comparison_markdown(results)
    standard, tied = [line for line in text.splitlines() if line.startswith(("| standard", "| tie"))]
    assert standard.count("*") == 0 and tied.count("*") == 1
    assert standard.count("|") == tied.count("|") == len(results.variants[0].values) + 4
