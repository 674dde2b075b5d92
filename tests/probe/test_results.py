"""Dataclasses and probe.json survive the way to a file and back, and a wrong file is named in one line."""

import json
import math
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, get_args, get_type_hints
from zlib import crc32

import numpy as np
import pytest

from data.errors import UserError
from data.typed_json import flattened, from_json, may_be_absent, to_json
from probe.results import SCHEMA_VERSION, Change, Estimate, Head, ProbeResults
from tests.probe.factories import blank
from tests.report import sample


class Colour(StrEnum):
    red = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Inner:
    value: float
    label: str = "none"


@dataclass(frozen=True)
class Outer:
    number: int
    inner: Inner
    table: list[list[float]]
    by_name: dict[str, Inner]
    interval: tuple[float, float] | None
    place: Point
    colour: Colour
    absent: Inner | None = may_be_absent()
    pairs: list[tuple[str, float]] = field(default_factory=list)
    shape: dict[str, Any] = flattened()  # what no other field has


COMPLETE = Outer(1, Inner(0.5), [[1.0]], {"a": Inner(1.0, "b")}, (0.1, 0.2), Point(1, 2), Colour.red, shape={"size": 3})


def test_a_dataclass_survives_the_way_to_a_file_with_six_digits_and_null_for_not_finite() -> None:
    written = json.loads(json.dumps(to_json(COMPLETE)))
    assert from_json(Outer, written, "file") == COMPLETE
    assert "absent" not in written
    assert (written["place"], written["size"]) == ([1, 2], 3)
    values = {"a": np.array([1 / 3, np.inf]), "b": np.float64("nan"), "c": (1, Colour.red)}
    assert to_json(values) == {"a": [0.333333, None], "b": None, "c": [1, "red"]}
    assert math.isnan(from_json(float, None, "file"))
    assert from_json(float | None, None, "file") is None
    assert from_json(float, 3, "file") == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": "1"}, "file.number: '1' is not a whole number"),
        ({"number": True}, "file.number: True is not a whole number"),
        ({"inner": {}}, "file.inner: no field value"),
        ({"inner": {"value": 1.0, "other": 2}}, "file.inner: unknown field other"),
        ({"inner": 3}, "file.inner: not an object"),
        ({"table": [[1.0], 2]}, r"file.table\[1\]: not a list"),
        ({"by_name": {"a": {"value": None, "label": 1}}}, "file.by_name.a.label: 1 is not a text"),
        ({"interval": [0.1]}, "file.interval: 1 values instead of 2"),
        ({"place": [1]}, "file.place: 1 values instead of 2"),
        ({"colour": "blue"}, "file.colour: 'blue' is none of red"),
    ],
)
def test_a_wrong_file_names_the_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        from_json(Outer, to_json(COMPLETE) | change, "file")


def results() -> ProbeResults:
    """Return results with something of every kind."""
    finding = sample.finding("next_pronoun_gender", file="a.jsonl", unit="set")
    finding = replace(finding, set=finding.head, grids={"p": [[0.5, float("nan")]]})
    change = blank(Change, question="number", measure="effect", head=Head(0, 1), difference=Estimate(1.0, 0.5, 2.0))
    facts = {"data": {"fingerprint": "0"}, "warnings": ["w"], "missing": ["m"], "contract": {"logits": 0.0}}
    return sample.results(finding, before=sample.MODEL, changes=[change, replace(change, head=None)], **facts)


def read(content: Any) -> ProbeResults:
    return ProbeResults.from_json(json.loads(json.dumps(content)))


def test_a_file_has_all_that_was_found_out() -> None:
    content = to_json(results())
    again = read(content)
    assert to_json(again) == content and np.isnan(again.findings[0].grids["p"][0][1])
    without_nan = replace(results(), findings=[replace(results().findings[0], grids={})])
    assert read(to_json(without_nan)) == without_nan == without_nan.rounded()


@pytest.mark.parametrize("content", [None, [], {}, {"schema_version": 12, "selected": []}, {"findings": {}}])
def test_what_is_no_probe_or_of_another_version_is_refused(content: Any) -> None:
    with pytest.raises(UserError, match="^probe.json: not the results of a probe"):
        read(content)
    for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, None):
        with pytest.raises(UserError, match=f"^probe.json: version {version} instead of {SCHEMA_VERSION}$"):
            read(to_json(results()) | {"schema_version": version})


def fields_of(kind: Any) -> set[str]:
    """Return the fields of a dataclass and of all dataclasses in it."""
    names = set()
    if is_dataclass(kind):
        names = {*kind.__dataclass_fields__}
        for hint in get_type_hints(kind).values():
            names |= fields_of(hint)
    for argument in get_args(kind):
        names |= fields_of(argument)
    return names


def test_a_change_of_a_field_needs_another_version() -> None:
    """If this fails: raise SCHEMA_VERSION, then record both here."""
    names = ",".join(sorted(fields_of(ProbeResults)))
    assert (SCHEMA_VERSION, len(names), crc32(names.encode())) == (14, 470, 2892699171)
