"""probe.json holds the results without loss, a damaged file is named in one line, and every field is documented."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints
from zlib import crc32

import pytest

from data.errors import UserError
from data.typed_json import from_json, to_json
from probe import results as parts
from probe.claim import ClaimCard
from probe.items import HEADLINE
from probe.results import SCHEMA_VERSION, NextPronounResult, ProbeResults
from tests.report.sample import filled

DOCUMENT = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()


@pytest.fixture
def results() -> ProbeResults:
    selected = filled(parts.QuestionResult, test={HEADLINE: filled(parts.HoldoutResult)})
    next_pronoun = filled(NextPronounResult, question="next_pronoun_gender")
    return filled(ProbeResults, schema_version=SCHEMA_VERSION, selected=[selected], next_pronoun=[next_pronoun])


def test_results_without_the_headline_are_refused(results: ProbeResults) -> None:
    content = results.to_json()
    content["selected"][1]["test"] = {"iid": content["selected"][1]["test"][HEADLINE]}
    with pytest.raises(UserError, match="no hold-out headline"):
        ProbeResults.from_json(content)


def test_a_file_has_all_that_was_found_out(results: ProbeResults) -> None:
    assert ProbeResults.from_json(results.to_json()) == results


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": "0"}, "probe.json.selected[0].layer: '0' is not a whole number"),
        ({"test": {"headline": {}}}, "probe.json.selected[0].test.headline: no field n_items"),
        ({"colour": "red"}, "probe.json.selected[0]: unknown field colour"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place_of_the_error(
    results: ProbeResults, changes: dict[str, Any], message: str
) -> None:
    content = results.to_json()
    content["selected"][1] |= changes
    with pytest.raises(UserError) as error:
        ProbeResults.from_json(content)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "kind",
    [
        parts.DevScores, parts.ShownSentence, parts.MedianBlock, parts.Agreement, parts.LinkMeans,
        parts.LinkMeansOfHead, parts.ImportanceResult, parts.ShowcaseExample, parts.ContractResult, parts.Stratum,
        parts.ShiftTable, parts.NeededItems, parts.ConfirmedShift, parts.PrefixExample, parts.LevelCriterion,
        parts.PassageExample, parts.Choice, parts.AfterPronoun, parts.Confirmation, parts.Leakage, parts.TestedData,
        ClaimCard,
    ],
)  # fmt: skip
def test_a_part_of_the_results_is_read_back_and_an_empty_one_refused(kind: type) -> None:
    part = filled(kind)
    assert from_json(kind, json.loads(json.dumps(to_json(part))), "part") == part
    with pytest.raises(UserError, match="^part: no field "):
        from_json(kind, {}, "part")


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
    assert (SCHEMA_VERSION, len(names), crc32(names.encode())) == (12, 2669, 2191686544)


def test_every_field_is_documented() -> None:
    names = {name.removesuffix("_interval") for name in fields_of(ProbeResults)} - {"shape"}
    assert sorted(name for name in names if name not in DOCUMENT and name.replace("_", " ") not in DOCUMENT) == []
