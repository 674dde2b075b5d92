"""The results of a study can be written as strict JSON, and every field is documented."""

import json
from pathlib import Path
from typing import Any

import pytest

from report.content import jsonable
from tests.probe.conftest import Studied

DOCUMENT = (Path(__file__).parents[2] / "docs" / "probe.md").read_text()
# Keys are data here: names of rules, heads, hold-outs or measurements.
DATA = {"test", "baselines", "head_type", "clusters", "heads", "measured", "bars", "causal", "weights"}


@pytest.fixture(scope="module")
def results(studied: Studied) -> dict[str, Any]:
    return json.loads(json.dumps(jsonable(studied[0]), allow_nan=False))


def keys_of(value: Any, parent: str = "") -> set[str]:
    """Return the keys at every depth, without those of DATA."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, parent) for item in value))
    if not isinstance(value, dict):
        return set()
    keys = set() if parent in DATA else set(value)
    return keys.union(*(keys_of(item, key) for key, item in value.items() if key not in DATA - {"test"}))


@pytest.mark.parametrize("part", ["selected", "behaviour", "attention"])
def test_every_field_of_probe_json_is_documented(results: dict[str, Any], part: str) -> None:
    nested = {"name", "passed", "reason", "n_models", "accuracy_range", "block_accuracy_range", "difference_interval"}
    fields = {key.removesuffix("_interval") for key in keys_of(results[part])} - nested
    assert len(fields) >= 2
    assert sorted(key for key in fields if key.replace("_", " ") not in DOCUMENT and key not in DOCUMENT) == []


def test_a_selected_entry_has_the_fields_of_the_report(results: dict[str, Any]) -> None:
    fields = """question family site layer head dev test heads similar median selectivity head_type mass
    causal head_set weights verdict evidence_level criteria reasons"""
    assert all(set(entry) == set(fields.split()) for entry in results["selected"])


def test_a_holdout_has_the_fields_of_the_report(results: dict[str, Any]) -> None:
    scores = ["accuracy", "pair_accuracy", "block_accuracy", "pronoun_contrast", "strict_accuracy"]
    fields = """n_items clusters p_pair_accuracy p_pronoun_contrast p_corrected smallest_p chance_level accuracy_flipped
    value_weighted_contrast baselines best_baseline"""
    expected = {*scores, *(f"{name}_interval" for name in scores), *fields.split()}
    for entry in results["selected"]:
        for holdout, test in entry["test"].items():
            untrained = {"untrained"} if holdout == "headline" else set()
            assert set(test) == expected | untrained
