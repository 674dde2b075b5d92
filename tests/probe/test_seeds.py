"""Summaries over training seeds of made-up runs."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from probe.seeds import SeedRun, curve_times, markdown, over_seeds, summary

STEPS = [0, 100, 200, 300, 400, 500, 600, 700, 800, 1000]


def make_run(seed: int, rise: int = 200, verdict: str = "supported", accuracy: float = 0.95) -> SeedRun:
    """Return a run whose best head rises at step `rise` and the resolved share 100 steps later."""
    layer, head = seed % 2, seed % 3
    metrics: list[dict[str, Any]] = [{"step": 0, "split": "train", "loss": 1.0}]
    for step in STEPS:
        heads = [[0.5] * 3 for _ in range(2)]
        heads[layer][head] = accuracy if step >= rise else 0.5
        reading = {
            "chance_level": 0.6,
            "accuracy_heads": heads,
            "pronoun_contrast_heads": [[(value - 0.5) * 8 for value in row] for row in heads],
            "resolved_share": 1.0 if step >= rise + 100 else 0.0,
        }
        answer = {"model": 6.0 - step / 200}
        metrics.append({"step": step, "split": "probe", "number": reading, "number_answer": answer})
    test = {"accuracy": accuracy, "block_accuracy": accuracy - 0.1, "pronoun_contrast": accuracy + 1}
    entry = {"layer": layer, "head": head, "verdict": verdict, "evidence_level": "E3"}
    entry |= {"question": "number", "test": {"iid": test | {"accuracy": 0.0}, "headline": test}}
    not_watched = [entry | {"question": "later_cue_repeat"}]
    first_only = [entry | {"question": "later_cue"}] if seed == 1 else []
    group = {"family": "agreement", "level": "number", "site": "pronoun", "holdout": "iid", "n": 80}
    answers = [group | {"resolved_share": seed / 10, "accuracy": 1.0}]
    answers += [group | {"level": "gender", "resolved_share": None, "accuracy": 0.5}]
    answers += [group | {"holdout": "pairs", "resolved_share": 0.5, "accuracy": 0.5}] if seed == 1 else []
    probe = {"selected": [entry, *not_watched, *first_only], "behaviour": answers}
    return SeedRun(f"run {seed}", seed, probe, metrics)


FIVE = [make_run(seed, rise) for seed, rise in ((1, 200), (2, 300), (3, 200), (4, 400), (5, 300))]


def number(runs: list[SeedRun]) -> dict[str, Any]:
    return over_seeds(runs)["questions"][0]


def test_each_run_is_represented_by_its_own_head() -> None:
    heads = [(head["layer"], head["head"]) for head in number(FIVE)["heads"]]
    assert heads == [(1, 1), (0, 2), (1, 0), (0, 1), (1, 2)]


@pytest.mark.parametrize(("n_seeds", "level"), [(4, "E3"), (5, "E4")])
def test_sufficient_heads_that_five_seeds_share_reach_level_e4(n_seeds: int, level: str) -> None:
    runs = [make_run(seed) for seed in range(1, n_seeds + 1)]
    for run in runs:
        entry = run.probe["selected"][0]
        entry["test"]["headline"] |= {
            "p_pair_accuracy": 0.001,
            "p_pronoun_contrast": 0.001,
            "best_baseline": {"difference_interval": [0.3, 0.5]},
        }
        entry["causal"] = {"attention_swap": 0.9, "edge_specificity_interval": [0.2, 0.4], "denoising_patch": 0.9}
        entry["weights"] = {"ov_auc_interval": [0.8, 0.9]}
    assert {head["evidence_level"] for head in number(runs)["heads"]} == {level}


def test_t50_is_half_way_between_the_probes_around_the_rise() -> None:
    timing = number(FIVE)["timing"]["pronoun contrast"]
    assert [times["t50"] for times in timing["by_seed"]] == [150, 250, 150, 350, 250]
    assert timing["t50"]["mean"] == pytest.approx(230)


def test_only_questions_of_all_runs_are_summarised_and_unwatched_ones_have_no_timing() -> None:
    questions = over_seeds(FIVE)["questions"]
    assert [entry["question"] for entry in questions] == ["number", "later_cue_repeat"]
    assert questions[1]["timing"] == {}


def test_scores_are_those_of_the_headline_with_a_t_interval() -> None:
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    result = number([make_run(seed, accuracy=value) for seed, value in enumerate(values)])["scores"]["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert result["mean"] == pytest.approx(0.894)
    assert result["interval"] == pytest.approx(expected)


def test_the_interval_of_a_share_is_clipped_at_one() -> None:
    values = [0.8, 1.0, 1.0, 1.0, 1.0]
    assert summary(values)["interval"][1] > 1
    assert summary(values, is_share=True)["interval"][1] == 1


def test_values_that_are_none_do_not_count() -> None:
    assert summary([1.0, None, 2.0, 3.0, 4.0]) == {"n": 4, "mean": 2.5, "minimum": 1.0, "interval": None}
    assert summary([None]) == {"n": 0, "mean": None, "minimum": None, "interval": None}


def test_supported_verdicts_are_counted() -> None:
    result = number([make_run(1), make_run(2, verdict="suggestive"), make_run(3)])
    assert (result["n"], result["n_supported"]) == (3, 2)
    assert result["verdicts"] == {"supported": 2, "suggestive": 1}


def test_answers_are_summarised_for_groups_that_all_runs_have() -> None:
    of_number, of_gender = over_seeds(FIVE)["behaviour"]
    assert (of_number["level"], of_number["holdout"], of_number["n_items"]) == ("number", "iid", [80] * 5)
    assert of_number["resolved_share"]["mean"] == pytest.approx(0.3)
    assert of_gender["resolved_share"]["n"] == 0


def test_a_head_below_the_chance_level_never_emerges() -> None:
    below = make_run(1, accuracy=0.58)
    t50 = {curve: times["t50"] for curve, times in curve_times(below.metrics, "number", 1, 1).items()}
    assert {curve for curve, step in t50.items() if step is None} == {"accuracy", "pronoun contrast"}
    timing = number([below, make_run(2)])["timing"]["pronoun contrast"]
    assert [times["t50"] for times in timing["by_seed"]] == [None, 150]


def test_a_resolved_share_that_ends_below_zero_never_emerges() -> None:
    runs = [replace(run, metrics=[json.loads(json.dumps(record)) for record in run.metrics]) for run in FIVE]
    for run in runs:
        for record in run.metrics[1:]:
            record["number"]["resolved_share"] = -6.0 + record["step"] / 200
    timing = number(runs)["timing"]["resolved share"]
    assert timing["t50"] == {"n": 0, "mean": None, "minimum": None, "interval": None}
    assert "| number | resolved share | never | never |" in " ".join(markdown(over_seeds(runs)).split())


def test_runs_without_a_probe_during_training_have_scores_and_no_timing() -> None:
    result = number([replace(run, metrics=run.metrics[:1]) for run in FIVE])
    assert result["timing"] == {}
    assert result["scores"]["accuracy"]["n"] == 5


def test_the_results_are_strict_json() -> None:
    results = over_seeds(FIVE)
    assert json.loads(json.dumps(results, allow_nan=False))["seeds"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "text",
    [
        "| number | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |",
        "L1H1 E0 L0H2 E0 L1H0 E0 L0H1 E0 L1H2 E0",
        "| number | pronoun contrast | 3.60 [3.60, 3.60] | 230 [",
        "| agreement number at pronoun | iid | 80 | 0.300 [",
    ],
)
def test_the_tables_show_the_results(text: str) -> None:
    assert text in " ".join(markdown(over_seeds(FIVE)).split())


def test_heads_in_natural_text_are_counted_by_verdict_over_seeds() -> None:
    def probe(contrast: float, verdict: str) -> dict[str, Any]:
        head = {"site": "pronoun", "layer": 1, "head": 2, "contrast": contrast, "t": 5.0, "untrained_t": 2.0}
        head |= {"p_corrected": 0.001, "verdict": verdict}
        chosen = {"antecedent": head}
        return {"selected": [], "behaviour": [], "natural": {"questions": {"gender": {"chosen": chosen}}}}

    probes = (probe(0.2, "supported"), probe(0.4, "suggestive"), probe(0.6, "supported"))
    results = over_seeds([SeedRun(str(seed), seed, values, []) for seed, values in enumerate(probes)])
    (entry,) = results["natural"]
    assert entry["verdicts"] == {"supported": 2, "suggestive": 1}
    assert entry["contrast"]["mean"] == pytest.approx(0.4)
    assert "| gender" in markdown(results) and "L1H2 (0.40, 5.0)" in markdown(results)


def test_a_question_that_a_run_has_not_tested_in_natural_text_is_left_out() -> None:
    without = {"selected": [], "behaviour": [], "natural": {"questions": {}}}
    assert over_seeds([SeedRun("0", 0, without, []), SeedRun("1", 1, without, [])])["natural"] == []
