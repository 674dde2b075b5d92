"""The tables of every family are those that were measured."""

import json
import re

import pytest

from benchmarks.families import RESULTS, tables
from benchmarks.link_head import ROOT

KEPT = json.loads(RESULTS.read_text())


@pytest.mark.parametrize("marker", list(tables(KEPT)))
def test_tables_are_those_that_were_measured(marker: str) -> None:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- end -->", (ROOT / "docs" / "results.md").read_text(), re.DOTALL)
    assert found and found[1].strip("\n").split("\n") == tables(KEPT)[marker]


def of(family: str, level: str) -> list[dict]:
    """rho over seeds at every site of a plot, iid."""
    return [
        place["rho"]
        for place in KEPT["seeds"]["behaviour"]
        if (place["family"], place["level"], place["holdout"]) == (family, level, "iid") and place["rho"]["n"]
    ]


def test_five_seeds_answer_what_the_page_says_and_none_is_below_the_floor() -> None:
    deep = [one for one in KEPT["results"] if one["n_layer"] == 4]
    assert len({one["seed"] for one in deep}) == 5
    for one in KEPT["results"]:
        assert one["validation"]["gap"] > -3 * one["validation"]["gap_error"]
    levels = [
        ("agreement", "number"),
        ("agreement", "gender"),
        ("agreement", "state"),
        ("attribute", "before"),
        ("several_pronouns", "number"),
        ("several_pronouns", "gender"),
        ("later_cue", "later_cue"),
    ]
    for family, level in levels:
        found = of(family, level)
        assert found and min(rho["least"] for rho in found) >= 0.9, (family, level, found)
    for level in ("before", "after"):  # two hops come in few seeds
        (hops,) = of("ownership", level)
        assert hops["least"] < 0 < hops["mean"] < 0.9
    assert {one["n_layer"] for one in KEPT["results"] if one["seed"] == deep[0]["seed"]} == {1, 2, 4}
