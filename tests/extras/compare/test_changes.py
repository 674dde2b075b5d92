"""The tables of a comparison of two models."""

import re
from dataclasses import replace

from antecedent_lab.modes import changed
from extras.compare.tables import change_lines, change_tables
from extras.page.content import comparison_content
from extras.page.page import page
from probe.results import Change, Estimate, Head
from tests.extras.page.sample import opened_run, results
from tests.probe.factories import blank


def change_of(head, **values):
    facts = {"question": "number", "measure": "effect", "n": 20, "smallest_p": 0.02, "p": 0.5}
    return blank(Change, head=Head(0, head), **{**facts, "difference": Estimate(-head), **values})


# Two heads changed; head 1 has the largest t of all changes, and the smallest difference.
CHANGES = [change_of(head) for head in (0, 2, 3, 5, 6, 7, 8)]
CHANGES += [change_of(1, p=0.001, t=-9), change_of(4, p=0.001, t=-2)]


def test_established_changes_between_two_models_are_listed_first_by_their_size():
    found = results(changes=CHANGES, warnings=["A warning."])
    lines = change_lines(found, all_rows=False)
    text = "\n".join(lines)
    assert re.findall(r"^  effect (L\w+)", text, re.MULTILINE) == ["L0H4", "L0H1", "L0H8", "L0H7"]
    assert "  effect: 2 of 9 heads changed, 20 cases" in text and lines[-1] == "note: A warning."
    assert "(smallest p 0.020)" in text
    assert len(change_lines(found, all_rows=True)) > len(lines)
    larger = replace(CHANGES[0], question="verb", measure="answer", p=0.001, difference=Estimate(5.0))
    assert [*change_tables(results(changes=[*CHANGES, larger]), all_rows=True)] == ["verb", "number"]


def test_the_page_of_a_comparison_opens_with_what_changed():
    run, _ = opened_run()
    found = results(changes=CHANGES)
    content = comparison_content(run, replace(run, source="copies/default"), found, changed(found), (), None)
    assert content.findings[0].place == Head(0, 4) and content.live.model.before == run.source
    assert content.heading == "What changed from runs/default to copies/default?"  # both have one name
    html = page(content)
    assert html.index('id="verdict"') < html.index('id="live"') and '<details id="evidence" open>' in html
    external = replace(run, settings=None, transformer=None)
    assert comparison_content(external, run, found, [], (), None).live.model is None
