"""The program for a GPU writes its page on a CPU too, with tiny sizes: pytest research."""

import json
import re
from pathlib import Path

import pytest

from research.gpu import PARTS
from tests.program import run_python


@pytest.mark.slow
def test_every_part_writes_its_figures_to_the_page(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("First Citizen: speak, speak.\n\nAll: We know it, we know it.\n" * 300)
    options = ["device=cpu", "steps=3", f"text={tmp_path / 'input.txt'}", f"out={tmp_path}"]
    result = run_python("-m", "research.gpu", *options)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "gpu.json").read_text())["figures"]
    page = (tmp_path / "gpu.md").read_text()
    assert [figure for figure in figures if figure["name"] == "not measured to its end"] == []
    assert {figure["part"] for figure in figures if figure["value"] is not None} == PARTS.keys()
    assert "no comparison with nanoGPT" in page and re.search(
        r"\| steps +\| default, graph +\| [\d.]+ +\| ms +\|", page
    )


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("parts=all", "all is none of marked"),
        ("device=cpu", "out="),
        ("text=no", "does not exist"),
        ("nanogpt=.", "is no"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_in_one_line(option: str, problem: str) -> None:
    result = run_python("-m", "research.gpu", f"text={__file__}", option)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and problem in result.stderr
