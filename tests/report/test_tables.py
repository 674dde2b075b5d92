"""report/tables.py: numbers, tables and lines of the results."""

import math
from dataclasses import replace

import numpy as np

from probe.results import Head, ProbeResults
from report.tables import (
    estimate,
    head_names,
    model_tables,
    question_tables,
    sentence_lines,
    summary_lines,
    table_lines,
    table_of,
)
from tests.report.sample import filled, question_result, tokenized


def test_numbers_and_heads_as_text() -> None:
    assert estimate(0.9955, (0.98, 1.0)) == "0.996 [0.980, 1.000]"
    assert estimate(-0.0001, (math.nan, 0.0)) == "-0.0001 [–, 0.000]"
    assert estimate(None) == "–"
    assert head_names([Head(0, 1), Head(10, 12)]) == "L0H1 + L10H12"


def test_a_table_has_aligned_columns_below_its_title_and_a_wrapped_note() -> None:
    columns = {"head": str, "layer": lambda head: f"{head.layer}"}
    lines = table_lines([table_of("Heads", [Head(0, 1), Head(10, 12)], columns, "a note " * 20)])
    assert lines[:5] == ["", "  Heads", "    head    layer", "    L0H1    0", "    L10H12  10"]
    assert len(lines) == 7 and max(map(len, lines)) <= 120


def test_the_attention_of_a_sentence_names_nouns_and_the_largest_weights() -> None:
    text = tokenized("fox saw the fox . it")
    weights = np.zeros((1, 2, 7, 7))
    weights[0, :, 6] = [[0, 0.25, 0.125, 0, 0.5, 0, 0.125], [0, 0, 1, 0, 0, 0, 0]]
    title, first, second = sentence_lines(text, weights, {6: ["fox"]}, {Head(0, 0): ["number"]})[1:]
    assert title == "at “it”: the three largest weights of each head; before them the weights on fox"
    assert first.split() == "L0H0 fox 0.75 | fox 0.50 fox 0.25 saw 0.12 ← chosen for number".split()
    assert second.split() == "L0H1 fox 0.00 | saw 1.00".split()


def test_of_many_heads_the_ten_with_the_largest_effect_and_the_chosen_ones_are_shown() -> None:
    text = tokenized("fox saw the fox . it")
    weights = np.full((3, 4, 7, 7), 0.5)
    effects = np.arange(12.0).reshape(3, 4)
    lines = sentence_lines(text, weights, {6: []}, {Head(0, 0): ["number"]}, {6: effects})
    names = [line.split()[0] for line in lines if line.startswith("  L")]
    assert names == [f"L{i // 4}H{i % 4}" for i in range(11, 1, -1)] + ["L0H0"]
    assert "all heads: verbose=true" in "".join(lines)
    assert [line.split()[1] for line in lines if line.startswith("  L")][:2] == ["11.00", "10.00"]


def test_what_an_own_question_lacks_is_said_below_the_table() -> None:
    of_sample = question_result("number", "supported")
    enough = {name: replace(test, smallest_p=0.001) for name, test in of_sample.test.items()}
    supported = replace(of_sample, test=enough)
    assert supported.own
    results = filled(ProbeResults, selected=[supported], showcase={})
    complete = summary_lines(results)
    few = {name: replace(test, smallest_p=0.25) for name, test in supported.test.items()}
    constant = replace(supported.causal, attention_swap=None) if supported.causal else None
    for change, line in (
        ({"test": few}, "  too few different test frames or words: no p can be below 0.01"),
        ({"causal": constant}, "  no swap: the model's answer does not follow the antecedent"),
        ({"causal": None}, "  no swap: the texts have no answers that can be compared"),
    ):
        lines = summary_lines(replace(results, selected=[replace(supported, **change)]))
        assert line in lines and line not in complete


def test_the_tables_of_a_question_and_of_the_model_leave_out_what_was_not_measured() -> None:
    result = question_result("number", "supported")
    weights = replace(result.weights, ov_auc=None)
    untested = replace(result, causal=None, weights=weights, similar=[], head_set=None)
    assert [len(question_tables(each)) for each in (result, untested)] == [5, 2]
    results = filled(ProbeResults)
    assert [len(model_tables(each)) for each in (results, replace(results, importance=[]))] == [2, 1]
