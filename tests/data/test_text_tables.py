"""data/text_tables.py: markdown_table, percent, percent_interval."""

from data.text_tables import markdown_table, percent, percent_interval


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert markdown_table(("a", "long"), [("wide", "b")]) == [
        "| a    | long |",
        "| ---- | ---- |",
        "| wide | b    |",
    ]


def test_shares_are_percentages_with_one_digit_and_unknown_ones_dashes() -> None:
    assert (percent(0.4312), percent(None)) == ("43.1", "-")
    assert (percent_interval((0.41, 0.452)), percent_interval(None)) == ("[41.0, 45.2]", "-")
