"""report.sweep_tables: the tables of a sweep."""

from probe.results import Head
from probe.seeds import over_seeds
from report.sweep_tables import comparison_markdown, seeds_markdown
from tests.probe.sweep_runs import finding, five_runs, sweep_run, two_variants


def test_the_tables_over_seeds_show_heads_sets_and_warnings() -> None:
    text = " ".join(seeds_markdown(over_seeds(five_runs(), ["resumed"])).split())
    assert "| number | 5 of 5 [0.48, 1.00] | supported 5 | 0.950 [0.950, 0.950] |" in text
    assert "L1H1 E4, L0H2 E4, L1H0 E4, L0H1 E4, L1H2 E4" in text and "note: resumed" in text
    edge = finding(Head(0, 1), Head(1, 2), question="next_pronoun_gender", outcome="edge")
    assert "L0H1+L1H2 E3" in seeds_markdown(over_seeds([sweep_run(1, [edge])]))


def test_the_table_of_variants_has_a_row_for_each_and_a_star_for_each_significant_difference() -> None:
    results = two_variants()
    text = comparison_markdown(results)
    standard, tied = [line for line in text.splitlines() if line.startswith(("| standard", "| tie"))]
    assert standard.count("*") == 0 and tied.count("*") == 1
    assert standard.count("|") == tied.count("|") == len(results.variants[0].values) + 4
