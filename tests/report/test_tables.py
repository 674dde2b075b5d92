"""report/tables.py: numbers, tables, lines and files of the results."""

import csv
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from data.pairs import Cell, Items, Pair
from probe.attention import HeadRows, HeadScores
from probe.results import Change, Estimate, Head
from report import tables
from report.tables import finding_tables, heads_csv, items_jsonl, number, sentence_lines, summary_lines
from tests.blank import blank
from tests.report.sample import finding, results, tokenized

NUMBER, EDGE = finding("number"), finding("next_pronoun_gender")


def change(i: int, p: float = 0.5) -> Change:
    """Return what changed in head i."""
    values = {"before": 0.1, "after": 0.2 - i / 100, "difference": Estimate(-0.00001, -0.1, 0.2), "t": -i}
    return blank(Change, question="number", measure="effect", head=Head(0, i), p=p, n=20, smallest_p=0.02, **values)


def test_numbers_as_text() -> None:
    assert [number(Estimate(0.9955, 0.98, 1.0)), number(0.945455)] == ["0.996 [0.980, 1.000]", "0.945"]
    assert number(Estimate(math.nan, math.nan, 0.0)) == number(None) == "–"
    assert [number(-0.0004), number(-0.00001), number(0.00051, ".4f")] == ["-0.0004", "0.000", "0.0005"]


def test_the_summary_has_a_table_for_each_outcome_and_one_passage() -> None:
    header, number_line, *lines = summary_lines(results(NUMBER, EDGE, EDGE))
    assert header.split("  ")[0] == "question" and "accuracy [95 %]" in header
    assert number_line.startswith('number: "it" or "they": number agreement, at the pronoun  L0H1  0.999 [0.969, ')
    assert [line.split("  ")[-1] for line in lines if line.startswith('"she"')] == ["supported (E3)"] * 2
    weights = "    L0H1 → Anna 0.79, Ben 0.16    next: She 0.91, He 0.02    weights exchanged: She 0.23, He 0.55"
    start = lines.index("  Anna does not listen to Ben. ___")
    assert lines[start + 1 : start + 3] == [weights, "  not met: causal_edge (Why.)"] and lines.count(weights) == 1
    assert summary_lines(results(EDGE, EDGE), verbose=True).count(weights) == 2


def test_what_an_own_question_lacks_is_said_below_the_table() -> None:
    no_swap = replace(NUMBER.head, values={name: each for name, each in NUMBER.head.values.items() if name != "swap"})
    constant = replace(no_swap, values=no_swap.values | {"answer": Estimate(0.0)})
    few = {"frames": 4, "first_words": 5, "second_words": 6, "pairs": 30}
    needed = "test has 4 frames, 5 first words, 6 second words; 8 of each are needed"
    complete = summary_lines(results(replace(NUMBER, file="own.jsonl")))
    for changes, line in (
        ({"smallest_p": 0.25, "clusters": few}, f"  no p can be below 0.25: {needed}"),
        ({"head": constant}, "  no swap: the answer does not follow the antecedent"),
        ({"head": no_swap}, "  no swap: the texts have no answers that can be compared"),
    ):
        assert line in summary_lines(results(replace(NUMBER, file="own.jsonl", **changes))) and line not in complete


def test_a_finding_has_a_table_of_everything_that_was_measured() -> None:
    titles = [table.title for table in finding_tables(EDGE)]
    assert titles == ["Criteria, fixed in advance", "Measures", "Parts of the tested texts", "Heads together"]
    assert len(finding_tables(replace(NUMBER, curve=[], parts={}))) == 2
    with_set = replace(NUMBER, set=replace(NUMBER.head, heads=[Head(0, 1), Head(1, 0)]))
    measures = finding_tables(with_set)[1]
    assert measures.header[2:4] == ["set L0H1 + L1H0 [95 %]", "untrained models [range]"]
    assert next(row for row in measures.rows if row[0] == "accuracy")[1:3] == ["0.999 [0.969, 0.999]"] * 2
    lines = tables.detail_lines(results(with_set, missing=["gender: too few"]))
    assert "not tested: gender: too few" in lines and any("rule: nearest" in line for line in lines)
    assert "**Attention head L0H1 links" in tables.claims_markdown(results(NUMBER))


def test_the_changes_between_two_models_are_listed_by_their_size() -> None:
    changes = [change(i, p=0.001 if i == 7 else 0.5) for i in range(9)]
    found = results(changes=changes, warnings=["A warning."])
    lines = tables.change_lines(found, all_rows=False)
    text = "\n".join(lines)
    assert re.findall(r"^  effect (L\w+)", text, re.MULTILINE) == ["L0H7", "L0H0", "L0H8", "L0H6"]
    assert "  effect: 1 of 9 heads changed, 20 cases" in text and "changed" in lines[3]
    assert "(smallest p 0.020)" in text and lines[-1] == "note: A warning."
    assert len(tables.change_lines(found, all_rows=True)) > len(lines)


def test_the_files_have_every_head_and_every_tested_text() -> None:
    rows = list(csv.DictReader(io.StringIO(heads_csv(results(NUMBER)))))
    assert len(rows) == 4 * 8 and rows[0].keys() == {"question", "measure", "layer", "head", "value"}
    of_head = {row["measure"]: row["value"] for row in rows if (row["layer"], row["head"]) == ("0", "1")}
    assert of_head["accuracy"] == "0.9989"
    cells = (Cell((9, 1, 2, 3), 3, ((1,),), ((2,),)), Cell((9, 1, 2, 4), 3, ((2,),), ((1,),)))
    pairs = [Pair("number", part, cells, ("a b it", "a b they"), 0, ("f", "a", "b"), order)
             for part in ("dev", "headline") for order in (0, 1)]  # fmt: skip
    values = np.arange(16.0).reshape(8, 1, 2) + 1
    scores = HeadScores(Items(pairs), HeadRows(*[values] * 4))
    records = [json.loads(line) for line in items_jsonl(scores, [NUMBER]).splitlines()]
    assert [record["text"] for record in records] == ["a b it", "a b they"] * 2
    assert [record["log_ratio"] for record in records] == values[4:, 0, records[0]["head"]].tolist()


@pytest.mark.parametrize("effects", [None, {6: np.arange(12.0).reshape(3, 4)}])
def test_the_attention_of_a_sentence_names_nouns_and_the_heads_that_matter(effects: dict | None) -> None:
    weights = np.zeros((3, 4, 7, 7))
    weights[..., 6, :] = [0, 0.25, 0.125, 0, 0.5, 0, 0.125]
    lines = sentence_lines(tokenized("fox saw the fox . it"), weights, {6: ["fox"]}, {Head(0, 0): ["number"]}, effects)
    assert lines[1] == "at “it”: the three largest weights of each head; before them the weights on fox"
    heads = [line.split() for line in lines if line.startswith("  L")]
    names = [f"L{i // 4}H{i % 4}" for i in range(12)]
    assert [head[0] for head in heads] == (names if effects is None else [*names[:1:-1], "L0H0"])
    chosen = " ".join(heads[names.index("L0H0") if effects is None else -1])
    assert re.fullmatch(r"L0H0( 0\.00)? fox 0.75 \| fox 0.50 fox 0.25 saw 0.12 ← chosen for number", chosen)
