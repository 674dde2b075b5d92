"""What is said over training seeds, from made-up runs of which everything is known."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from probe.seeds import SeedRun, head_curves, markdown, over_seeds, summary

STEPS = [0, 100, 200, 300, 400, 500, 600, 700, 800, 1000]


def run(seed: int, comes_at: int, verdict: str | None = None, accuracy: float = 0.95) -> SeedRun:
    """A run whose own head of two layers of three leaps at `comes_at`, rho 100 steps later; the others know nothing."""
    own = (seed % 2, seed % 3)
    metrics: list[dict[str, Any]] = [{"step": 0, "split": "train", "loss": 1.0}]
    for step in STEPS:
        heads = [[0.5] * 3 for _ in range(2)]
        heads[own[0]][own[1]] = accuracy if step >= comes_at else 0.5
        rho = 1.0 if step >= comes_at + 100 else 0.0
        found = {
            "luck": 0.6,
            "accuracy_heads": heads,
            "pronoun_contrast_heads": [[(x - 0.5) * 8 for x in row] for row in heads],
            "rho": rho,
        }
        metrics.append({"step": step, "split": "probe", "number": found, "V_S1_payoff": {"model": 6.0 - step / 200}})
    test = {
        "accuracy": accuracy,
        "block_accuracy": accuracy - 0.1,
        "pronoun_contrast": accuracy + 1,
        "accuracy_interval": [accuracy - 0.03, accuracy + 0.03],
        "chance_level": 0.6,
    }
    entry = {
        "question": "number",
        "layer": own[0],
        "head": own[1],
        "test": {"iid": test | {"accuracy": 0.0}, "headline": test},
    }
    entry |= {} if verdict is None else {"verdict": verdict, "evidence_level": "E3"}
    part = {**entry, "question": "number"}
    alone = [{**entry, "question": "later_cue"}] if seed == 1 else []
    place = {"family": "agreement", "level": "number", "site": "pronoun", "holdout": "iid", "n": 80}
    answered = [
        place | {"rho": seed / 10, "accuracy": 1.0},
        place | {"level": "gender", "rho": None, "accuracy": 0.5},
    ]
    answered += [place | {"holdout": "pairs", "rho": 0.5, "accuracy": 0.5}] if seed == 1 else []
    return SeedRun(f"{seed - 1}", seed, {"selected": [entry, part, *alone], "behaviour": answered}, metrics)


FIVE = [run(seed, comes_at) for seed, comes_at in ((1, 200), (2, 300), (3, 200), (4, 400), (5, 300))]


def test_a_head_is_followed_by_what_it_does_whatever_its_index() -> None:
    found = over_seeds(FIVE)["questions"][0]
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [(1, 1), (0, 2), (1, 0), (0, 1), (1, 2)]
    assert found["same_index"] is False
    timing = found["timing"]["head DD"]
    assert [one["t50"] for one in timing["by_seed"]] == [150, 250, 150, 350, 250]
    assert timing["t50"]["mean"] == pytest.approx(230)
    assert over_seeds([run(1, 200), run(7, 200)])["questions"][0]["same_index"] is True


def test_a_rho_that_ends_at_or_below_nothing_never_came() -> None:
    misled = [replace(one, metrics=[line for line in one.metrics]) for one in FIVE]
    for one in misled:
        for i, line in enumerate(one.metrics):
            if "number" in line:
                one.metrics[i] = line | {"number": line["number"] | {"rho": -6.0 + line["step"] / 200}}
    found = over_seeds(misled)["questions"][0]
    assert found["timing"]["rho"]["t50"] == {"n": 0, "mean": None, "least": None, "interval": None}
    assert not found["timing"]["rho"]["phase_change"] and "| rho | never | never | never | no |" in markdown(
        over_seeds(misled)
    )


def test_the_interval_of_a_share_ends_at_one() -> None:
    values = [0.8, 1.0, 1.0, 1.0, 1.0]
    assert summary(values)["interval"][1] > 1 == summary(values, share=True)["interval"][1]
    assert (
        over_seeds([run(i, 200, accuracy=one) for i, one in enumerate(values)])["questions"][0]["scores"]["accuracy"][
            "interval"
        ][1]
        == 1
    )


def test_only_questions_asked_of_every_run_are_answered_and_only_whole_families_are_timed() -> None:
    found = over_seeds(FIVE)
    assert [one["question"] for one in found["questions"]] == ["number", "number"]
    assert found["questions"][1]["timing"] == {} and found["seeds"] == [1, 2, 3, 4, 5]


def test_what_the_models_answer_is_gathered_where_all_were_asked() -> None:
    results = over_seeds(FIVE)
    of_l1, of_l2 = results["behaviour"]
    assert (of_l1["level"], of_l1["holdout"], of_l1["n_items"]) == ("number", "iid", [80] * 5)
    assert of_l1["rho"]["mean"] == pytest.approx(0.3) and of_l1["rho"]["least"] == 0.1
    assert of_l2["rho"]["n"] == 0 and of_l2["accuracy"]["mean"] == 0.5
    rows = [line for line in markdown(results).splitlines() if " at S1 | iid | " in line]
    half = stats.t.ppf(0.975, 4) * stats.sem([0.1, 0.2, 0.3, 0.4, 0.5])
    expected = f"0.300 [{0.3 - half:.3f}, {0.3 + half:.3f}] | 0.100 | 1.000 [1.000, 1.000] | 1.000 |"
    assert rows == [f"| V L1 at S1 | iid | 80 | {expected}"]


def test_the_order_of_the_halves_is_counted_over_seeds() -> None:
    order = over_seeds([*FIVE[:4], run(5, 600)])["questions"][0]["order"]
    assert order["by_seed"][0] == ["head Sel@1", "head DD", "rho", "payoff loss"]
    assert order["by_seed"][4] == ["payoff loss", "head Sel@1", "head DD", "rho"]
    assert (order["commonest"], order["n_commonest"]) == (["head Sel@1", "head DD", "rho", "payoff loss"], 4)


def test_verdicts_count_where_every_run_has_one_and_luck_where_not() -> None:
    judged = [run(1, 200, "supported"), run(2, 200, "suggestive"), run(3, 200, "supported")]
    found = over_seeds(judged)["questions"][0]
    assert (found["n"], found["n_supported"], found["by"]) == (3, 2, "verdict")
    assert found["verdicts"] == {"supported": 2, "suggestive": 1}
    found = over_seeds([*judged[:2], run(3, 200)])["questions"][0]
    assert (found["n_supported"], found["by"], found["verdicts"]) == (3, "Sel@1 above luck", {})
    assert over_seeds([run(1, 200), run(2, 200, accuracy=0.62)])["questions"][0]["n_supported"] == 1


def test_scores_are_those_of_the_headline_with_the_t_interval_over_seeds() -> None:
    runs = [run(seed, 200, accuracy=score) for seed, score in enumerate((0.8, 0.85, 0.9, 0.95, 0.97))]
    found = over_seeds(runs)["questions"][0]["scores"]["accuracy"]
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert found["mean"] == pytest.approx(0.894) and found["interval"] == pytest.approx(expected)
    assert summary([1.0, None, 2.0, 3.0, 4.0]) == {"n": 4, "mean": 2.5, "least": 1.0, "interval": None}
    assert summary([None, None]) == {"n": 0, "mean": None, "least": None, "interval": None}


def test_a_leap_between_two_probes_of_ten_is_a_phase_change_unless_one_seed_is_slow() -> None:
    timing = over_seeds(FIVE)["questions"][0]["timing"]
    assert timing["head Sel@1"]["phase_change"] is True and timing["payoff loss"]["phase_change"] is False
    slow = run(6, 200)
    for step, one in zip(STEPS, slow.metrics[1:], strict=True):
        one["number"]["pronoun_contrast_heads"][0][0] = step / 250
    timing = over_seeds([*FIVE, slow])["questions"][0]["timing"]
    assert timing["head Sel@1"]["phase_change"] is True and timing["head DD"]["phase_change"] is False


def test_a_head_that_ends_within_luck_came_at_no_time() -> None:
    none = run(1, 200, accuracy=0.58)
    assert set(head_curves(none.metrics, "number", 1, 1)) == {"rho", "payoff loss"}
    found = over_seeds([none, run(2, 200)])["questions"][0]
    assert [one["t50"] for one in found["timing"]["head DD"]["by_seed"]] == [None, 150]
    assert found["timing"]["head DD"]["phase_change"] is False
    assert "head DD" not in found["order"]["by_seed"][0] and "head DD" in found["order"]["by_seed"][1]


def test_a_run_without_a_probe_in_training_has_scores_and_no_times() -> None:
    bare = [SeedRun(one.name, one.seed, one.probe, one.metrics[:1]) for one in FIVE]
    found = over_seeds(bare)["questions"][0]
    assert found["timing"] == {} and found["scores"]["accuracy"]["n"] == 5
    assert "never" not in markdown(over_seeds(bare))


def test_what_is_written_is_strict_json_and_a_table_that_says_it() -> None:
    results = over_seeds(FIVE)
    assert json.loads(json.dumps(results, allow_nan=False)) == json.loads(json.dumps(results))
    text = markdown(results)
    assert "| number | 5 of 5 [0.48, 1.00] | Sel@1 above luck | 0.950 [0.950, 0.950] |" in text
    assert "L1H1 L0H2 L1H0 L0H1 L1H2" in text
    assert "| number | head DD | 3.60 [3.60, 3.60] | 230 [" in text and "| yes |" in text
    assert "order of t50 in 5 of 5 seeds: head Sel@1, head DD, rho, payoff loss." in text
