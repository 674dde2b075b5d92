"""report.sweep_tables: the tables of a sweep."""

import csv
import io

import pytest

from lab.compare import MEASURES
from lab.seeds import SeedRun, over_seeds
from probe.results import Head, NaturalQuestion, NaturalResult, NextPronounResult, SetResult, ShiftResult
from report.sweep_tables import comparison_csv, comparison_markdown, seeds_markdown
from tests.blank import blank
from tests.lab.made_up_runs import WORSE, five_runs, probe_results, seed_run, two_variants
from training.metrics import Metrics


@pytest.mark.parametrize(
    "row",
    [
        "| number | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |",
        "L1H1 E4 L0H2 E4 L1H0 E4 L0H1 E4 L1H2 E4",
        "| number | pronoun contrast | 3.60 [3.60, 3.60] | 230 [",
        "| agreement number at pronoun | iid | 80 | 0.300 [",
    ],
)
def test_the_tables_over_seeds_show_heads_timing_and_answers(row: str) -> None:
    assert row in " ".join(seeds_markdown(over_seeds(five_runs())).split())


def test_a_curve_that_does_not_rise_is_shown_as_never() -> None:
    text = seeds_markdown(over_seeds([seed_run(1, accuracy=0.58)]))
    assert "| number | accuracy | never | never |" in " ".join(text.split())


def test_the_tables_over_seeds_show_heads_in_english() -> None:
    shift = blank(ShiftResult, layer=1, head=2, contrast=0.4, t=5.0, verdict="supported")
    natural = NaturalResult({"gender": blank(NaturalQuestion, chosen={"matching entity": shift})}, [])
    decision = blank(
        NextPronounResult, question="next_pronoun_gender", unit="set", evidence_level="E3",
        head_set=blank(SetResult, heads=[Head(0, 1), Head(1, 2)]),
    )  # fmt: skip
    run = SeedRun("1", 1, probe_results(natural=natural, next_pronoun=[decision]), Metrics([], [], []))
    text = seeds_markdown(over_seeds([run]))
    assert "L1H2 (0.40, 5.0)" in text
    assert "L0H0 set of 2 (0.00) E3" in text


def test_the_table_of_variants_has_a_row_for_each_and_a_star_for_each_significant_difference() -> None:
    results = two_variants()
    text = comparison_markdown(results)
    standard, tied = [line for line in text.splitlines() if line.startswith(("| standard", "| tie"))]
    assert standard.count("*") == 0 and tied.count("*") == 1
    assert standard.count("|") == tied.count("|") == len(MEASURES) + 4
    assert all(variant.sentence in text for variant in results.variants)


def test_the_csv_has_every_value() -> None:
    rows = list(csv.DictReader(io.StringIO(comparison_csv(two_variants()))))
    assert len(rows) == 2 * 5 * len(MEASURES)
    (row,) = [row for row in rows if (row["run"], row["measure"]) == ("7", "gap")]
    assert float(row["value"]) == pytest.approx(WORSE[2]) and row["seed"] == "3"
