"""What a switch changes: within seeds, exactly tested, and "no difference seen" where none was."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lab.compare import MEASURES, LabRun, by_variant, difference, draw, markdown, measured, table_csv
from lab.compare import compare as compare_with

TIED = {"model.tie_query_key": True}


def probe_of(rho: float, accuracy: float, entropy: float = 0.5, verdict: str = "supported") -> dict[str, Any]:
    """A probe.json in which two levels of the question have rho and rho - .2, with 300 and 100 items."""
    behaviour = [
        {
            "family": "agreement",
            "level": level,
            "site": "pronoun",
            "holdout": holdout,
            "n": n,
            "h_blind": 2.0,
            "h_bayes": 1.0,
        }
        | {"nll": 2.0 - (rho - less)}
        for level, n, less in (("number", 300, 0.0), ("gender", 100, 0.2))
        for holdout in ("iid", "headline")
    ]
    tested = {"headline": {"accuracy": accuracy, "block_accuracy": accuracy**2}}
    return {
        "behaviour": behaviour,
        "selected": [{"question": "number", "verdict": verdict, "test": tested}],
        "attention": {"entropy": [[entropy, entropy + 0.2]], "score_asymmetry": [[0.7, 0.5]]},
    }


def run(name: str, seed: int, gap: float, changed: dict | None = None, probe: dict | None = None) -> LabRun:
    metrics = [{"split": "train", "step": step, "gradient_norm": float(step)} for step in (5, 20, 25)]
    metrics += [{"split": "validation", "step": step, "gap": gap + extra} for step, extra in ((0, 5.0), (30, 0.0))]
    return LabRun(name, seed, changed or {}, metrics, probe)


def five(gaps: list[float], changed: dict | None = None, first: int = 0, **probe: Any) -> list[LabRun]:
    return [
        run(str(first + i), i + 1, gap, changed, probe_of(**{"rho": 0.9, "accuracy": 0.99} | probe))
        for i, gap in enumerate(gaps)
    ]


def compare(runs: list[LabRun]) -> dict[str, Any]:
    return compare_with(runs, {"model.tie_query_key": False})


BASE = [0.030, 0.034, 0.028, 0.031, 0.036]


def test_each_measure_is_read_where_it_stands() -> None:
    found = measured(run("0", 1, 0.03, probe=probe_of(rho=0.9, accuracy=0.8, entropy=0.4)))
    assert found == pytest.approx(
        {
            "gap": 0.03,
            "rho": 0.85,  # (300 x .9 + 100 x .7) / 400
            "rho_headline": 0.85,
            "accuracy": 0.8,
            "block_accuracy": 0.64,
            "entropy": 0.5,
            "gradient_norm": 12.5,  # of the steps 5 and 20, not of 25
            "asymmetry": 0.6,
        }
    )


def test_a_difference_is_taken_within_seeds_and_seen_where_all_five_agree() -> None:
    noise = [0.001, -0.001, 0.002, 0.0, -0.002]
    worse = [gap + 0.010 + e for gap, e in zip(BASE, noise, strict=True)]
    results = compare([*five(BASE), *five(worse, TIED, first=5)])
    standard, tied = results["variants"]
    assert standard["name"] == "standard" and tied["name"] == "tie_query_key=true"
    apart = tied["measures"]["gap"]["difference"]
    assert apart["mean"] == pytest.approx(0.010) and apart["p"] == apart["least_p"] == 0.0625 and apart["seen"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert apart["interval"] == pytest.approx((expected.low, expected.high))
    same = tied["measures"]["rho"]["difference"]
    assert same["mean"] == pytest.approx(0.0) and not same["seen"]
    assert "+0.0100 [" in tied["sentence"] and "no difference seen in rho" in tied["sentence"]
    assert tied["sentence"].endswith("supported in 5 of 5.")


def test_pairs_are_by_seed_and_not_by_the_order_of_the_runs() -> None:
    worse = [gap + 0.010 for gap in BASE]
    turned = [run(str(9 - i), i + 1, gap, TIED, probe_of(0.9, 0.99)) for i, gap in enumerate(worse)][::-1]
    apart = compare([*five(BASE), *turned])["variants"][1]["measures"]["gap"]["difference"]
    assert apart["interval"] == pytest.approx((0.010, 0.010))


def test_where_seeds_disagree_no_difference_is_seen_and_it_is_said_so() -> None:
    mixed = [gap + e for gap, e in zip(BASE, (0.004, -0.003, 0.005, -0.002, 0.001), strict=True)]
    one = compare([*five(BASE), *five(mixed, TIED, first=5)])["variants"][1]
    assert one["sentence"] == "tie_query_key=true: no difference seen; supported in 5 of 5."


def test_the_standard_is_told_by_its_settings() -> None:
    first = compare([*five(BASE), *five(BASE, TIED, first=5)])["variants"][0]
    assert first["sentence"] == (
        "standard is tie_query_key=false: what the others are compared with; supported in 5 of 5."
    )


def test_seeds_without_a_partner_are_named_and_left_out() -> None:
    worse = [gap + 0.010 for gap in BASE]
    one = compare([*five(BASE), *five(worse, TIED, first=5)[:4], run("9", 17, 9.0, TIED, probe_of(0.9, 0.99))])
    tied = one["variants"][1]
    assert tied["alone"] == [5, 17] and tied["n_pairs"] == 4
    assert tied["measures"]["gap"]["difference"]["mean"] == pytest.approx(0.010)
    assert "seeds 5, 17 have no partner" in tied["sentence"]


def test_the_exact_p_is_that_of_every_change_of_signs() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.25, 0.6]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    expected = (means >= abs(np.mean(differences)) - 1e-12).mean()
    assert difference(differences)["p"] == pytest.approx(expected)


def test_an_interval_beyond_zero_is_not_enough_where_signs_could_be_chance() -> None:
    """One of six disagrees a little: two of 64 changes of sign lie farther out, and two as far."""
    found = difference([1.0, 1.1, 0.9, 1.0, 1.05, -0.1])
    assert found["interval"][0] > 0 and found["p"] == 0.0625 and found["least_p"] == 0.03125
    assert not found["seen"]


def test_what_rounding_leaves_is_no_difference_and_many_seeds_are_tested_by_drawing() -> None:
    assert difference([1e-17] * 5)["seen"] is False
    many = difference(np.random.default_rng(0).standard_normal(25) + 3)
    assert many["seen"] and many["p"] == pytest.approx(2e-5, abs=1e-6)


def test_where_nothing_differs_it_is_seen_in_one_of_twenty_at_most() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 5, 8):
        seen = np.mean([difference(rng.standard_normal(n))["seen"] for _ in range(1000)])
        assert seen <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


def test_one_or_two_seeds_are_shown_and_not_tested() -> None:
    some = compare([*five(BASE)[:2], *five([0.05, 0.06], TIED, first=5)])["variants"][1]
    assert some["measures"]["gap"]["difference"]["seen"] is None
    assert "too few seeds to test" in some["sentence"] and "+0.0230" in some["sentence"]


def test_a_model_that_cheats_is_called_that_and_its_heads_have_no_scores() -> None:
    cheats = [run(str(5 + i), i + 1, -0.9, {"model.mask": "none"}) for i in range(5)]
    results = compare([*five(BASE), *cheats])
    one = results["variants"][1]
    assert one["name"] == "mask=none" and one["cheats"] and "cheats" in one["sentence"] and "0.90" in one["sentence"]
    assert one["measures"]["accuracy"]["mean"] is None and one["n_judged"] == 0
    assert "BELOW" in one["sentence"] and "changes the gap to the floor (nats/token) -0.93" in one["sentence"]
    early = [run(str(5 + i), i + 1, 1.2, {"model.mask": "none"}) for i in range(5)]
    assert "1.20 nats/token above the floor so far" in compare([*five(BASE), *early])["variants"][1]["sentence"]
    row = next(line for line in markdown(results).splitlines() if line.startswith("| mask=none"))
    assert "not probed" in row and row.count(" - ") == 6


def test_the_table_has_every_value_and_marks_what_differs() -> None:
    worse = [gap + 0.010 for gap in BASE]
    results = compare([*five(BASE), *five(worse, TIED, first=5)])
    lines = markdown(results).splitlines()
    assert "| standard | 5 | 0.0318 [" in lines[2] and " * |" not in lines[2]
    assert "| tie_query_key=true | 5 | 0.0418 [" in lines[3] and lines[3].count(" * |") == 1
    rows = list(csv.DictReader(io.StringIO(table_csv(results))))
    assert len(rows) == 2 * 5 * len(MEASURES)
    [one] = [row for row in rows if (row["run"], row["measure"]) == ("7", "gap")]
    assert float(one["value"]) == pytest.approx(BASE[2] + 0.010) and one["seed"] == "3"


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (five(BASE), "differ in nothing but their seed"),
        ([*five(BASE), run("9", 2, 0.1)], "1 and 9 are the same variant with the same seed"),
        ([*five(BASE), run("9", 7, 0.1, TIED)], "tie_query_key=true has no seed that the standard has"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs: list[LabRun], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_variant({run.name: (run.seed, run.changed) for run in runs})


def test_the_figure_is_a_png() -> None:
    pytest.importorskip("matplotlib")
    cheats = [run(str(5 + i), i + 1, -0.9, {"model.mask": "none"}) for i in range(5)]
    assert draw(compare([*five(BASE), *cheats]))[:8] == b"\x89PNG\r\n\x1a\n"
