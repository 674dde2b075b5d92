"""What is read of a probe: the lines that are printed, the map, and the rows behind them."""

import csv
import io
import json
from copy import deepcopy

import numpy as np
import pytest

from probe.items import QUESTIONS, UNDECIDED, asked
from probe.scores import Scores
from report.tables import cell_lines, heads_csv, items_jsonl, table
from tests.probe.conftest import Studied


def test_of_a_few_questions_every_head_and_hold_out_is_printed(studied: Studied) -> None:
    results, _ = studied
    lines = table(results)
    for one in results["selected"]:
        [overview] = [line for line in lines if line.startswith(f"{one['question']:<20} L")]
        found = one["test"]["headline"]
        assert f"{found['accuracy']:.3f} [" in overview and overview.endswith(
            f"{one['verdict']} {one['evidence_level']}"
        )
        meaning = next(question.meaning for question in QUESTIONS if question.name == one["question"])
        start = lines.index(f"{one['question']}: {meaning}")
        assert f"L{one['layer']}H{one['head']}, chosen on dev" in lines[start + 1]
        assert [f"  why no more: {reason}" for reason in one["reasons"]] == lines[
            start + 2 : start + 2 + len(one["reasons"])
        ]
        rows = lines[start + 3 + len(one["reasons"]) :][: len(one["test"])]
        assert [row.split()[:2] for row in rows] == [
            [name, str(found["n_items"])] for name, found in one["test"].items()
        ]
    text = "\n".join(lines)
    assert text.count("best heads of 2 untrained models") == 2 * len(results["selected"])
    assert "what knows nothing: nearest, first, subject, uniform, most frequent, fixed offset 0.500;" in text
    assert "agreement alone: sieve 1.000" in text
    assert len([line for line in lines if line.startswith("  V L1")]) == 7  # of behaviour, every hold-out


def test_an_interval_that_there_is_none_of_is_a_dash_as_wide(studied: Studied) -> None:
    results, _ = studied
    found = deepcopy(results)
    one = found["selected"][0]["test"]["headline"]
    one["accuracy_interval"] = one["block_accuracy_interval"] = (float("nan"), float("nan"))
    before, after = table(results), table(found)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2 and all(len(old) == len(new) for old, new in changed)
    assert all(new.count("[  -  ,   -  ]") == 2 and "nan" not in new for _, new in changed)


def test_three_meanings_of_importance_are_printed_with_what_could_not_be_ranked_left_open() -> None:
    means = [{"weight": 0.5, "value_norm": 0.25, "effect": 0.0}, {"weight": 0.25, "value_norm": 7.0, "effect": 0.0}]
    heads = [{"layer": 1, "head": i, "antecedent": one, "distractor": one} for i, one in enumerate(means)]
    known = {"weight_value_norm": 0.875, "weight_value_norm_interval": (-0.5, 1.0)}
    unknown = {f"{name}{end}": None for name in ("weight_effect", "value_norm_effect") for end in ("", "_interval")}
    unknown |= {"weight_value_norm": None, "weight_value_norm_interval": None}
    within = {"value_norm_effect": 0.25, "value_norm_effect_interval": (0.125, 0.375)}
    one = {"question": "later_cue", "holdout": "headline", "layer": 1, "head": 0, "heads": heads}
    one |= {"all_heads": {"n_links": 1234} | unknown | known, "chosen_head": {"n_links": 617} | unknown | within}
    lines = table({"selected": [], "behaviour": [], "importance": [one]})
    start = next(i for i, line in enumerate(lines) if line.startswith("three"))
    assert lines[start : start + 4] == [
        "three meanings of importance, later_cue, 1,234 links of 2 heads (headline): rank correlations [95 %]",
        "  all heads   weight~norm 0.88 [-0.50, 1.00]  weight~effect -  norm~effect -",
        "  L1H0 alone  weight~norm -  weight~effect -  norm~effect 0.25 [0.12, 0.38]",
        "  largest mean at the antecedent: weight L1H0 0.50, norm L1H1 7.00, effect none",
    ]


def test_of_many_questions_only_the_overview_is_printed(studied_full: Studied) -> None:
    results, _ = studied_full
    lines = table(results)
    overview = [
        line for line in lines if any(line.startswith(f"{one['question']:<20} L") for one in results["selected"])
    ]
    assert len(overview) == len(results["selected"]) > 8
    assert not any("chosen on dev" in line or "untrained" in line or "importance" in line for line in lines)
    behaviour = [line for line in lines if line.startswith("  V L1")]
    assert [line.split()[3] for line in behaviour] == ["iid", "headline"]
    assert max(map(len, lines)) <= 120


def test_heads_csv_has_a_row_for_every_head_question_hold_out_and_split(studied: Studied) -> None:
    _, readings = studied
    rows = list(csv.DictReader(io.StringIO(heads_csv(readings))))
    scores = list(Scores.__dataclass_fields__)
    assert list(rows[0]) == [
        "question", "family", "site", "split", "holdout", "layer", "head", "n_blocks",
        *scores, "value_preference", "mass", "first_mass", "share",
    ]  # fmt: skip
    places = {(one["split"], one["question"], one["holdout"]) for one in rows}
    assert places == {
        (split, question.name, holdout)
        for split, reading in readings.items()
        for question in asked((*QUESTIONS, *UNDECIDED), reading.items)
        for holdout in reading.holdouts(question)
    }
    assert len(rows) == 6 * len(places) and {one["holdout"] for one in rows if one["split"] == "dev"} == {"iid"}
    undecided = [one for one in rows if one["question"] in {question.name for question in UNDECIDED}]
    assert undecided and {one["accuracy"] for one in undecided} == {"0.500000"}


def test_heads_csv_agrees_with_what_is_selected(studied: Studied) -> None:
    results, readings = studied
    rows = {
        tuple(one[name] for name in ("split", "question", "holdout", "layer", "head")): one
        for one in csv.DictReader(io.StringIO(heads_csv(readings)))
    }
    for one in results["selected"]:
        for holdout, found in one["test"].items():
            row = rows["test", one["question"], holdout, str(one["layer"]), str(one["head"])]
            assert int(row["n_blocks"]) == found["n_items"] / 4
            for name in ("accuracy", "pair_accuracy", "block_accuracy", "pronoun_contrast", "strict_accuracy"):
                assert float(row[name]) == pytest.approx(found[name], abs=1e-6)


def test_items_jsonl_has_a_line_for_every_item_as_the_chosen_head_saw_it(studied: Studied) -> None:
    results, readings = studied
    lines = [json.loads(line) for line in items_jsonl(results, readings["test"]).splitlines()]
    named = {one["question"]: one for one in results["selected"]}
    assert {line["question"] for line in lines} == {
        "number",
        "later_cue",
        "later_cue_repeat",
    }  # a part of V is not said again
    for question in {line["question"] for line in lines}:
        own = [line for line in lines if line["question"] == question]
        for holdout, found in named[question]["test"].items():
            some = [line for line in own if line["holdout"] == holdout]
            assert len(some) == found["n_items"]
            assert {(line["layer"], line["head"]) for line in some} == {
                (named[question]["layer"], named[question]["head"])
            }
            assert np.mean([line["selects"] > 0 for line in some]) == pytest.approx(found["accuracy"])
    assert all(line["text"] and line["antecedents"] and line["distractors"] for line in lines)


def test_a_cell_names_its_text_once_for_all_its_words() -> None:
    cell = {"text": "The cat sat. It", "word": "cat", "weights": {"cat": 0.25}, "next": []}
    lines = cell_lines([cell, cell | {"word": "It", "weights": {"cat": 0.5, "mat": 0.125}, "next": [("ran", 0.75)]}])
    assert lines == [
        "  The cat sat. It",
        '      "cat" looks at cat 0.25',
        '      "It" looks at cat 0.50, mat 0.12; next: ran 0.75',
    ]
