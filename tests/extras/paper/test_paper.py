"""Files for a paper: the tables say what was found, LaTeX can read them, and every mark of a figure lies inside it."""

import re
from dataclasses import replace
from math import nan
from xml.etree import ElementTree

import pytest

from extras.paper.paper import COLUMNS, FIGURES, figures_svg, table_csv, table_tex
from probe.questions import HEADLINE
from probe.results import Estimate, Head, Part
from tests.extras.conftest import OUTSIDE
from tests.extras.page import sample
from training.metrics import HeadPoint, Metrics, ProbePoint

GRID, EMERGENCE = FIGURES
HOSTILE = r"my_own 100% & #1 {x} ~ ^ \ $"


def results(*names):
    """Return the findings of an attention and an edge question, and of others with these names."""
    findings = [sample.finding("number"), sample.finding("next_pronoun_gender")]
    for name in names:
        rows = [[0.1, nan, -3.0, *[0.5] * 20], [nan] * 23]
        findings.append(replace(sample.finding("gender"), question=name, grids={"contrast": rows}))
    return sample.results(*findings)


def metrics(*names):
    points = []
    for step, value in ((0, -0.7), (175, nan), (350, 0.5), (700, 1.8)):
        heads = {name: HeadPoint(0, 1, {"swap": [[0.5, 1.0]]}, {"swap": value}) for name in names}
        points.append(ProbePoint(step, heads))
    return Metrics([], [], points)


def test_a_name_with_signs_of_latex_is_escaped():
    begin, header, *rows, end = table_tex(results(HOSTILE, "[odd")).splitlines()
    assert (begin, end) == (rf"\begin{{tabular}}{{{'l' * len(COLUMNS)}}}", r"\end{tabular}")
    assert all(row.endswith(r" \\[0pt]") for row in [header, *rows[:-1]]) and not rows[-1].endswith("[0pt]")
    name = rows[2].partition(" & ")[0]
    commands = (r"my\_{}own 100\%{} \&{} \#{}1 \{{}x\}{} \textasciitilde{} \textasciicircum{} \textbackslash{} \${}",)
    assert (name,) == commands
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(COLUMNS) - 1
        assert not re.search(r"(?<!\\)[%#$_^~]", row)


def test_what_was_not_measured_is_an_empty_cell_and_the_interval_is_of_the_swap_without_an_accuracy():
    found = results()
    del found.findings[1].head.values["accuracy"]
    values = {"answer_accuracy": Estimate(0.97, 0.9, 1.0)}
    found.findings[0].parts[HEADLINE] = Part(n=4, values=values, rules={})
    found.findings[0].head.values["answer"] = Estimate(6.8)  # in nats
    _, attention, edge = table_csv(found).splitlines()
    assert attention == 'number,L0H1,0.999,"[0.969, 0.999]",0.0005,0.500,0.970,supported'
    assert edge == 'next_pronoun_gender,L0H1,,"[0.400, 0.600]",0.0005,0.500,,supported'


@pytest.mark.parametrize("names", [["gender"], [HOSTILE, "a_long_name_" * 5, "<script>", *"abcdefgh"]])
def test_every_mark_and_word_of_a_figure_lies_inside_it(names, browser):
    drawn = figures_svg(results(*names), metrics(*names))
    assert list(drawn) == list(FIGURES)
    page = browser.new_page()
    for svg in drawn.values():
        page.set_content(svg)
        assert page.locator("svg").evaluate(OUTSIDE) == []
    page.close()


def texts_of(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_figures_have_labels_numbers_and_a_legend_whose_lines_differ_without_colours():
    drawn = figures_svg(results("gender"), metrics("number", "gender"))
    for label in ("number: accuracy", "gender: contrast", "L1", "H22", "–", "-3.00", "what the verdict is about"):
        assert label in texts_of(drawn[GRID])
    assert drawn[GRID].count('stroke="#d55e00" stroke-width="3"') == 2 * 3  # a legend and a head for each question
    assert {"training step", "best head", "175", "1.80", "-0.70", "number, swap"} <= {*texts_of(drawn[EMERGENCE])}
    lines = [e.attrib for e in ElementTree.fromstring(drawn[EMERGENCE]).iter() if e.tag.endswith("polyline")]
    marks = {e.get("d") for e in ElementTree.fromstring(drawn[EMERGENCE]).iter() if e.tag.endswith("path")}
    assert len({line["stroke-dasharray"] for line in lines}) == len(lines) == len(marks) == 2


def test_a_figure_without_measured_numbers_is_not_made():
    found = results()
    assert list(figures_svg(found, metrics())) == [GRID]
    found.findings[0].judged.heads[:] = [Head(0, 1), Head(1, 0)]
    assert figures_svg(found, metrics())[GRID].count('stroke="#d55e00" stroke-width="3"') == 2 + 3
