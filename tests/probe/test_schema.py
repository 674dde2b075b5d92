"""The files of a probe are what the shipped schema says, to the letter."""

import copy
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from probe.verdict import Criterion, Verdict, finite, judge
from report.tables import heads_csv, items_jsonl
from tests.probe.conftest import Studied
from tests.probe.test_verdict import STRONG, entry

SCHEMA = json.loads((Path(__file__).parents[2] / "probe" / "probe.schema.json").read_text())


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


@pytest.fixture(scope="module")
def whole(studied: Studied) -> dict[str, Any]:
    """As it is written to probe.json."""
    results, _ = studied
    about = {
        "schema_version": 5,
        "model": {"run": "runs/x", "step": 17, "n_layer": 2, "n_head": 3, "dropout": 0.0},
        "data": {"generator_version": 1, "fingerprint": "f0", "leakage": {"iid": 0}},
        "settings": {"seed": 0},
        "showcase": {"number": [{"text": "It", "word": "It", "weights": {"cat": 0.9}, "next": [["purred", 0.5]]}]},
        "warnings": [],
    }
    return finite(about | results)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_what_a_probe_finds_fits_the_schema_and_json(whole: dict[str, Any]) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(whole, allow_nan=False)))
    assert [one["question"] for one in whole["selected"]]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the path of every object whose keys the schema fixes."""
    found = []
    measures = {"causal", "weights", "contract", "leakage"}  # whatever is measured, however deep
    if isinstance(value, dict) and not measures & set(path):
        open_to_all = {"test", "baselines", "settings", "showcase", "model", "head_type", "measured", "bars"}
        if not path or path[-1] not in open_to_all:
            found.append(path)
        found += [one for key, inner in value.items() for one in places(inner, (*path, key))]
    if isinstance(value, list):
        found += [one for i, inner in enumerate(value[:1]) for one in places(inner, (*path, i))]
    return found


def changed(whole: dict[str, Any], path: tuple) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a copy, and the object in it that stands at `path`."""
    copied = copy.deepcopy(whole)
    inner: Any = copied
    for key in path:
        inner = inner[key]
    return copied, inner


def test_every_fixed_object_refuses_a_key_too_many_and_one_too_few(whole: dict[str, Any]) -> None:
    valid, optional = (
        Draft202012Validator(SCHEMA).is_valid,
        {"untrained", "value_weighted_contrast", "value_weighted_contrast_interval"},
    )
    whole = whole | {name: whole[name][:1] for name in ("selected", "behaviour")}  # the others are like the first
    every = places(whole)
    assert len(every) > 15
    for path in every:
        more, inner = changed(whole, path)
        inner["unheard_of"] = 1
        assert not valid(more), path
        for key in set(inner) - {"unheard_of"} - optional:
            fewer, inner = changed(whole, path)
            del inner[key]
            assert not valid(fewer), (path, key)


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ((), "schema_version", 1),
        (("selected", 0), "verdict", "true"),
        (("selected", 0), "evidence_level", "E5"),
        (("selected", 0), "site", "S9"),
        (("selected", 0, "test", "headline"), "accuracy", 1.2),
        (("selected", 0, "test", "headline"), "accuracy_interval", [0.1]),
        (("selected", 0), "causal", [0.3]),
        (("selected", 0, "criteria", 0), "passed", "yes"),
        (("behaviour", 0), "n", 2.5),
    ],
)
def test_wrong_values_are_refused(whole: dict[str, Any], path: tuple, key: str, value: Any) -> None:
    copied, inner = changed(whole, path)
    assert key in inner
    inner[key] = value
    assert not Draft202012Validator(SCHEMA).is_valid(copied)


def test_a_strong_head_fits_as_well_as_one_that_is_nothing(whole: dict[str, Any]) -> None:
    validator("selected").validate(whole["selected"][0] | {name: entry()[name] for name in ("verdict", "criteria")})
    assert judge(STRONG).entry().keys() == {"verdict", "evidence_level", "criteria", "reasons"}


def test_heads_csv_and_items_jsonl_fit_theirs(studied: Studied) -> None:
    results, readings = studied
    results = finite(results)
    rows = list(csv.DictReader(io.StringIO(heads_csv(readings))))
    assert rows
    words = {"question", "family", "site", "split", "holdout"}
    for row in rows[:: len(rows) // 97]:
        kept = {key: value if key in words else json.loads(value) for key, value in row.items()}
        validator("heads_row").validate(kept)
    lines = items_jsonl(results, readings["test"]).splitlines()
    for line in lines[:: len(lines) // 97]:
        one = json.loads(line)
        validator("items_line").validate(one)
        assert not validator("items_line").is_valid(one | {"unheard_of": "words"})
        assert not validator("items_line").is_valid({key: value for key, value in one.items() if key != "text"})


def test_nan_never_reaches_a_file() -> None:
    verdict = Verdict("suggestive", "E0", (Criterion("flips", {"p": math.nan}, {"p": 0.01}, False, ""),), ())
    assert verdict.entry()["criteria"][0]["measured"] == {"p": None}
    assert finite(np.array([np.inf])) == [None]
