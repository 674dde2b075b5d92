"""benchmarks.measure: every page of docs/results is made from its JSON file."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.calibration import CalibrationResults
from benchmarks.lab import LabResults, _variant_row
from benchmarks.link_head import LinkHeadResults, _seed_head
from benchmarks.measure import (
    Machine,
    json_text,
    listed,
    median_range,
    page_body,
    read_page,
    row_from,
    row_table,
    share_range,
    short_paths,
    value_cell,
)
from benchmarks.next_pronoun import NextPronounPage
from benchmarks.next_pronoun_controls import ControlResults
from benchmarks.own_questions import OwnQuestionResults
from benchmarks.real_models import RealModelsResults
from benchmarks.reliability import ReliabilityResults
from benchmarks.speed import SpeedResults
from data.typed_json import from_json
from probe.results import Estimate
from tests.lab.made_up_runs import strong_head, two_variants

RESULTS = Path(__file__).parent.parent / "docs" / "results"
MACHINE = Machine("3.11", {"torch": "2"}, "x86_64", 2, 1, "abc", False)
PAGES: dict[str, Any] = {
    "calibration": CalibrationResults,
    "lab": LabResults,
    "link_head": LinkHeadResults,
    "link_head_float32": LinkHeadResults,
    "next_pronoun": NextPronounPage,
    "next_pronoun_coin": NextPronounPage,
    "next_pronoun_controls": ControlResults,
    "next_pronoun_genders": NextPronounPage,
    "next_pronoun_long": NextPronounPage,
    "own_questions": OwnQuestionResults,
    "real_models": RealModelsResults,
    "reliability": ReliabilityResults,
    "speed": SpeedResults,
}


@dataclass(frozen=True)
class Scored:
    name: str
    score: Estimate
    other: Estimate | None = None


@dataclass(frozen=True)
class Page:
    rows: list[Scored]
    by_text: dict[str, list[Scored]]
    note: str | None = None


@pytest.mark.parametrize(("name", "schema"), PAGES.items())
def test_a_page_and_its_json_are_made_from_the_same_rows(name: str, schema: Any) -> None:
    results, machine = read_page(schema, name)
    _, _, below_the_command = (RESULTS / f"{name}.md").read_text().partition("\n```\n\n")
    assert page_body(results, machine) == below_the_command
    assert json_text(results, machine) == (RESULTS / f"{name}.json").read_text()


def test_the_published_json_has_at_most_8000_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in RESULTS.glob("*.json")) <= 8000


def test_rows_with_estimates_survive_json() -> None:
    row = Scored("a", Estimate(0.5, 0.25, 0.75))
    page = Page([row], {"text": [row, Scored("b", Estimate(1.0, 0.0, 2.0), Estimate(3.0, 2.0, 4.0))]})
    text = json_text(page, MACHINE)
    assert '"score": { "value": 0.5, "low": 0.25, "high": 0.75 }' in text
    content = json.loads(text)
    assert from_json(Machine, content.pop("environment"), "page") == MACHINE
    assert from_json(Page, content, "page") == page


def test_a_row_is_filled_from_an_object_with_estimates_or_intervals() -> None:
    source = SimpleNamespace(score=0.5, score_interval=(0.25, 0.75), more=1)
    assert row_from(Scored, source, name="a", other=None) == Scored("a", Estimate(0.5, 0.25, 0.75))
    assert row_from(Scored, Scored("b", Estimate(1, 0, 2)), name="a") == Scored("a", Estimate(1, 0, 2))


def test_a_table_has_a_line_for_each_row_with_intervals_and_dashes() -> None:
    rows = [Scored("a", Estimate(0.5, 0.25, 0.75)), Scored("b", Estimate(1, 0, 2), Estimate(0.0001, -1, 1))]
    lines = row_table("name | score [95 %] | other", "<{name}> | {score:.1f} | {other:auto}", rows)
    assert lines[2:] == [
        "| <a>  | 0.5 [0.2, 0.8] | -                      |",
        "| <b>  | 1.0 [0.0, 2.0] | 0.0001 [-1.000, 1.000] |",
    ]
    assert value_cell(rows[0].score, "percent") == "50.0 [25.0, 75.0]"


def test_rows_are_made_from_the_results_of_a_probe_and_a_comparison() -> None:
    result = strong_head(layer=1, head=2)
    head = _seed_head(3, result)
    assert (head.seed, head.head, head.accuracy.value, head.verdict) == (3, "L1H2", 0.95, "supported")
    assert head.accuracy.low == result.headline.accuracy_interval[0]
    compared = two_variants().variants[1]
    row = _variant_row(compared)
    gap = compared.measures["gap"]
    assert gap.mean is not None and gap.interval is not None
    assert row.means["gap"] == Estimate(gap.mean, *gap.interval)
    assert row.n_seeds == len(compared.seeds) and row.star["gap"] == (" *" if "gap" in row.different else "")


def test_the_texts_of_cells_and_options() -> None:
    assert median_range([3, 1, 2]) == "2.0 (1.0 to 3.0)"
    assert share_range(0, 200) == "[0.0%, 1.8%]"
    assert short_paths("texts=/a/b/c.txt,d/e.txt") == "texts=b/c.txt,d/e.txt"
    assert listed("a,b") == ["a", "b"] and listed("") == []
