"""The program for a GPU writes its page on a CPU too, with tiny sizes: pytest research."""

import json
import re
from pathlib import Path

import pytest

from research.gpu import PARTS, STOPPED, _GpuOptions, _Work
from settings.errors import UserError
from settings.train import Device, Precision
from tests.program import run_python
from training.device import choose_device

TRIED = ["-m", "research.gpu", "device=cpu", "steps=3"]


@pytest.mark.slow
def test_it_can_be_tried_without_a_gpu_and_without_a_text(tmp_path: Path) -> None:
    result = run_python(*TRIED, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "runs/gpu/gpu.json").read_text())["figures"]
    missing = {figure["part"] for figure in figures if figure["note"] == "needs text=input.txt"}
    failed = {figure["part"] for figure in figures if figure["name"] == "not measured to its end"}
    assert (missing, failed) == ({"steps", "shakespeare"}, {"shakespeare"})
    assert {figure["part"] for figure in figures if figure["value"] is not None} == PARTS.keys() - {"shakespeare"}
    page = (tmp_path / "runs/gpu/gpu.md").read_text()
    assert "no comparison with nanoGPT" in page and str(tmp_path) not in page
    assert re.search(r"\| steps +\| default, graph +\| [\d.]+ +\| ms +\|", page)


@pytest.mark.slow
def test_the_parts_with_a_text_are_measured(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("First Citizen: speak, speak.\n\nAll: We know it, we know it.\n" * 300)
    options = ["parts=steps,shakespeare", f"text={tmp_path / 'input.txt'}", f"out={tmp_path / 'new'}"]
    result = run_python(*TRIED, *options)
    assert result.returncode == 0, result.stderr
    figures = json.loads((tmp_path / "new" / "gpu.json").read_text())["figures"]
    assert [figure for figure in figures if figure["name"] == "not measured to its end"] == []
    notes = {figure["name"]: figure["note"] for figure in figures}
    assert "cache empty" in notes["shakespeare/gpu, compiled"] and "experiment=shakespeare/gpu: whole process" in notes


def work(tmp_path: Path, started: float) -> _Work:
    return _Work(_GpuOptions(), choose_device(Device.cpu, Precision.float32), tmp_path, started=started)


@pytest.mark.slow
def test_a_program_that_finds_no_time_keeps_its_output_or_does_not_start(tmp_path: Path) -> None:
    now = work(tmp_path, float("inf"))
    _, process = now.run("-c", "import time; print('partial'); time.sleep(600)", limit=5)
    assert (process.returncode, process.stdout) == (STOPPED, "partial\n")
    with pytest.raises(UserError, match="^no time left$"):
        work(tmp_path, float("-inf")).run("-c", "")


def test_a_note_has_no_folder_of_the_machine(tmp_path: Path) -> None:
    now = work(tmp_path, 0)
    now.add("train.py", None, "", f"{tmp_path}/train.py: no and/or 1 ms/s")
    assert now.figures[0].note == "train.py: no and/or 1 ms/s"


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("parts=all", "all is none of gpu_tests"),
        ("device=cpu", "steps=3"),
        ("steps=0", "1 or more"),
        ("text=no", "is no file"),
        ("nanogpt=.", "is no"),
        (f"out={__file__}", "exists"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_in_one_line(option: str, problem: str) -> None:
    result = run_python("-m", "research.gpu", option)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and problem in result.stderr


def test_the_help_names_the_parts() -> None:
    result = run_python("-m", "research.gpu", "--help")
    assert all(re.search(f"^{part} ", result.stdout, re.MULTILINE) for part in PARTS), result.stdout
