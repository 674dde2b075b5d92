"""probe.json holds the results without loss, and a damaged file is named in one line."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints
from zlib import crc32

import numpy as np
import pytest

from data.errors import UserError
from data.typed_json import to_json
from probe.results import (
    SCHEMA_VERSION,
    Change,
    Estimate,
    Head,
    ProbeResults,
)
from tests.blank import blank
from tests.report import sample


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


def test_a_damaged_file_is_refused_with_the_place_of_the_error() -> None:
    content = to_json(results())
    content["findings"][0]["head"] = {}
    with pytest.raises(UserError, match=r"^probe.json.findings\[0\].head: no field heads$"):
        read(content)


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
        names = {field.name for field in fields(kind)}
        for hint in get_type_hints(kind).values():
            names |= fields_of(hint)
    for argument in get_args(kind):
        names |= fields_of(argument)
    return names


def test_a_change_of_a_field_needs_another_version() -> None:
    """If this fails: raise SCHEMA_VERSION, then record both here."""
    names = ",".join(sorted(fields_of(ProbeResults)))
    assert (SCHEMA_VERSION, len(names), crc32(names.encode())) == (14, 470, 2892699171)
