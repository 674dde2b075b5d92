"""eval.py before=: two models on the same items."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from antecedent_lab import compare_models
from antecedent_lab.opened import open_run
from data.errors import UserError
from tests.program import SMALL, SMALL_PROBE, run_program


def test_two_runs_are_compared_and_the_table_is_printed_and_written(run: Path, tmp_path: Path, cache: str) -> None:
    other = tmp_path / "other"
    result = run_program("train.py", f"out={other}", cache, *SMALL, "seed=2")
    assert result.status == 0, result.err
    result = run_program("eval.py", f"run={run}", f"before={other}", cache, *SMALL_PROBE)
    assert (result.status, result.err) == (0, "")
    assert f"compared with {other}" in result.out
    for text in ("number: ", "later_cue: ", "  answer ", "heads changed", "p: paired, two-sided"):
        assert text in result.out, text

    folder = run / "probe/compared/other"
    written = json.loads((folder / "comparison.json").read_text())
    assert (written["before"]["run"], written["after"]["run"]) == (str(other), str(run))
    (number,) = [question for question in written["questions"] if question["question"] == "number"]
    effects = [change for change in number["changes"] if change["measure"] == "effect"]
    assert {tuple(change["head"]) for change in effects} == {(0, 0), (0, 1)}
    assert "effect L0H1" in (folder / "comparison.md").read_text()


def test_the_same_run_twice_has_not_changed(run: Path, tmp_path: Path, cache: str) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    result = run_program("eval.py", f"run={run}", f"before={copy}", cache, *SMALL_PROBE)
    assert result.status == 0 and "no change shown" in result.out
    assert " changed\n" not in result.out and "0 of 2 heads changed" in result.out


def test_models_that_cannot_be_compared_are_one_line(run: Path, tmp_path: Path, cache: str) -> None:
    wider = tmp_path / "wider"
    result = run_program("train.py", f"out={wider}", cache, *SMALL, "model.n_layer=2")
    assert result.status == 0, result.err
    result = run_program("eval.py", f"run={run}", f"before={wider}", cache, *SMALL_PROBE)
    assert "has 2 layers of 2 heads" in result.error and not (run / "probe/compared/wider").exists()
    for arguments in ([f"before={tmp_path}/none"], ["before="], ["before=x", "text=It"], ["before=x", "open=true"]):
        result = run_program("eval.py", f"run={run}", cache, *arguments)
        assert result.error.startswith(arguments[0].split("=")[0]) or "open" in result.error, arguments


def test_other_tokens_are_refused(run: Path, tmp_path: Path, cache: str) -> None:
    device = torch.device("cpu")
    before, after = open_run(run, device), open_run(run, device)
    object.__setattr__(before, "bos_id", 3)
    with pytest.raises(UserError, match="other tokens"):
        compare_models(before, after, cache_dir=cache.removeprefix("cache_dir="))
