"""antecedent_lab/opened.py: open_run, load_run_settings, load_resumes, check_items; tests/test_eval.py has more."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from antecedent_lab.opened import check_items, load_resumes, load_run_settings, open_run
from probe.opened_model import OpenedModel
from tests.probe.factories import word_model
from tests.probe.pair_items import link


def test_a_resume_with_other_settings_is_one_sentence_and_an_equal_one_none(tmp_path: Path) -> None:
    record = {"step": 20, "time": "now", "environment": {"torch": ["2.1", "2.2"]}, "settings": {"seed": [1, 2]}}
    unchanged = record | {"environment": {}, "settings": {}}
    lines = [json.dumps(line) + "\n" for line in (record, unchanged, record)]
    (tmp_path / "resumes.jsonl").write_text("".join(lines))
    assert load_resumes(tmp_path) == ["Resumed at step 20 with seed 2 (before: 1), torch 2.2 (before: 2.1)."]
    (tmp_path / "resumes.jsonl").write_text('{"step": 20}\n')
    with pytest.raises(ValueError, match=r"resumes.jsonl: damaged \(.*no field time\); delete it"):
        load_resumes(tmp_path)


def test_a_run_without_readable_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json: not the settings of a run"):
        load_run_settings(tmp_path)
    with pytest.raises(ValueError, match="config.json"):
        open_run(tmp_path, torch.device("cpu"))


@pytest.fixture
def opened() -> OpenedModel:
    return word_model(["a b c d e"], context_length=8)


def test_items_of_an_external_model_are_read_with_warnings(opened: OpenedModel) -> None:
    item = link([0, 2, 3, 4, 5], ((2,), (3,)), 0, answers=(2,), foils=(3,), target=2)
    unanswered = replace(item, payoff=None, tokens=(0, opened.unknown, 3, 4, 5))
    assert len(check_items(opened, [item], n_answers=1)) == 1
    warnings = check_items(opened, [item, unanswered], n_answers=2)
    assert "10.0%" in warnings[1] and "In 1 of 2 items" in warnings[2]


def test_items_that_a_model_cannot_read_are_refused(opened: OpenedModel) -> None:
    item = link([0, 2, 3, 4, 5], ((2,), (3,)), 0, answers=(2,), foils=(3,), target=2)
    with pytest.raises(ValueError, match="reads 8 tokens, but the sentences need 11"):
        check_items(opened, [replace(item, tokens=item.tokens * 2)], n_answers=1)
    with pytest.raises(ValueError, match="writes token 99"):
        check_items(opened, [replace(item, foils=(99,))], n_answers=1)
