"""data/typed_json.py: dataclasses survive the way to a file and back; a wrong file gives one line with the place."""

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

from data.errors import UserError
from data.typed_json import flattened, from_json, may_be_absent, to_json


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


COMPLETE = Outer(
    1, Inner(0.5), [[1.0], [2.0]], {"a": Inner(1.0, "b")}, (0.1, 0.2), Point(1, 2), Colour.red, shape={"width": 3}
)


def test_a_dataclass_survives_the_way_to_a_file_and_back() -> None:
    written = json.loads(json.dumps(to_json(COMPLETE)))
    assert from_json(Outer, written, "file") == COMPLETE
    assert "absent" not in written
    assert (written["place"], written["width"]) == ([1, 2], 3)


def test_numbers_have_six_digits_and_what_is_not_finite_is_null() -> None:
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
