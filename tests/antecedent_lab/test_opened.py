"""antecedent_lab/opened.py: what a page says about resumes; tests/test_eval.py opens runs."""

import json
from pathlib import Path

import pytest

from antecedent_lab.api import open_model
from antecedent_lab.opened import load_resumes
from data.errors import UserError


def test_a_resume_with_other_settings_is_one_sentence_and_an_equal_one_none(tmp_path: Path) -> None:
    record = {"step": 20, "time": "now", "environment": {"torch": ["2.1", "2.2"]}, "settings": {"seed": [1, 2]}}
    unchanged = record | {"environment": {}, "settings": {}}
    lines = [json.dumps(line) + "\n" for line in (record, unchanged, record)]
    (tmp_path / "resumes.jsonl").write_text("".join(lines))
    assert load_resumes(tmp_path) == ["Resumed at step 20 with seed 2 (before: 1), torch 2.2 (before: 2.1)."]
    (tmp_path / "resumes.jsonl").write_text('{"step": 20}\n')
    with pytest.raises(ValueError, match="resumes.jsonl: damaged; delete it"):
        load_resumes(tmp_path)


def test_a_folder_of_settings_without_checkpoints_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="^run=.*: is no run of train.py, which has a folder checkpoints$"):
        open_model(tmp_path, setting="run")
