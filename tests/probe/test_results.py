"""Dataclasses and probe.json survive the way to a file and back, and a wrong file is named in one line."""

import json
import math
from dataclasses import is_dataclass, replace
from typing import get_args, get_type_hints
from zlib import crc32

import numpy as np
import pytest

from probe.results import SCHEMA_VERSION, Change, Estimate, Finding, Head, ProbeResults
from settings.errors import UserError
from settings.model import Scale
from settings.typed_json import from_json, to_json
from tests.extras.page import sample
from tests.probe.factories import blank


def test_numbers_have_six_digits_and_those_that_are_not_finite_are_null():
    values = {"a": np.array([1 / 3, np.inf]), "b": np.float64("nan"), "c": (1, Scale.none)}
    assert to_json(values) == {"a": [0.333333, None], "b": None, "c": [1, "none"]}
    assert math.isnan(from_json(float, None, "file"))
    assert from_json(float | None, None, "file") is None
    assert isinstance(from_json(float, 3, "file"), float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": True}, "file.n: True is not a whole number"),
        ({"head": {"values": {}}}, "file.head: no field heads"),
        ({"head": {"heads": [], "values": {}, "a": 2}}, "file.head: unknown field a"),
        ({"head": 3}, "file.head: not an object"),
        ({"grids": {"p": [[1.0], 2]}}, r"file.grids.p\[1\]: not a list"),
        ({"rules": {"nearest": "b"}}, "file.rules.nearest: 'b' is not a number"),
        ({"curve": [[[0], 0.1, {"value": 1}]]}, r"file.curve\[0\]\[0\]: 1 values instead of 2"),
    ],
)
def test_a_wrong_file_names_the_place(change, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        from_json(Finding, to_json(results().findings[0]) | change, "file")


def results():
    """Return results with something of every kind."""
    finding = sample.finding("next_pronoun_gender", file="a.jsonl", unit="set")
    finding = replace(finding, set=finding.head, grids={"p": [[0.5, float("nan")]]})
    change = blank(Change, question="number", measure="effect", head=Head(0, 1), difference=Estimate(1.0, 0.5, 2.0))
    model = replace(sample.MODEL, shape={"size": 3})
    facts = {"model": model, "data": {"fingerprint": "0"}, "missing": ["m"], "contract": {"logits": 0.0}}
    return sample.results(finding, before=sample.MODEL, changes=[change, replace(change, head=None)], **facts)


def read(content):
    return ProbeResults.from_json(json.loads(json.dumps(content)))


def test_a_file_has_all_that_was_found_out():
    content = to_json(results())
    again = read(content)
    assert "size" in content["model"] and "before" not in to_json(replace(results(), before=None))
    assert to_json(again) == content and np.isnan(again.findings[0].grids["p"][0][1])
    without_nan = replace(results(), findings=[replace(results().findings[0], grids={})])
    assert read(to_json(without_nan)) == without_nan == without_nan.rounded()


def test_what_is_no_probe_or_of_another_version_is_refused():
    for content in (None, [], {}, {"schema_version": 12, "selected": []}, {"findings": {}}):
        with pytest.raises(UserError, match="^probe.json: not the results of a probe"):
            read(content)
    for version in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, None):
        with pytest.raises(UserError, match=f"^probe.json: version {version} instead of {SCHEMA_VERSION}$"):
            read(to_json(results()) | {"schema_version": version})


def fields_of(kind):
    """Return the fields of a dataclass and of all dataclasses in it."""
    parts = [*get_args(kind), *(get_type_hints(kind).values() if is_dataclass(kind) else ())]
    return {*getattr(kind, "__dataclass_fields__", ())}.union(*map(fields_of, parts))


def test_a_change_of_a_field_needs_another_version():
    """If this fails: raise SCHEMA_VERSION, then record both here."""
    names = ",".join(sorted(fields_of(ProbeResults)))
    assert (SCHEMA_VERSION, len(names), crc32(names.encode())) == (21, 573, 1407832593)
