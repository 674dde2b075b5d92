"""benchmarks/gpu.py on a CPU, where all it shows is that it runs, and without a device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent


def ask(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_one_call_measures_trains_tests_and_writes_it_down(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mat. It was tired, and so it slept.\n" * 200)
    ran = ask(f"out={tmp_path / 'found'}", "device=cpu", f"data.path={tmp_path / 'text.txt'}")
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "found" / "gpu.json").read_text())
    kinds = [(one["model"], one["compile"], one["text_on"]) for one in found["speeds"]]
    assert kinds == [(model, "none", where) for where in ("device", "host") for model in ("nano", "tiny")]
    assert all(one["tokens_per_second"] > 100 and 0 < one["utilisation"] < 1.5 for one in found["speeds"])
    assert [one["step"] for one in found["training"]["curve"]] == [0, 10, 20]
    assert found["training"]["returncode"] == 0 and found["left_out"] == []
    assert found["tests"]["returncode"] == 0  # all of them skipped, where there is no device
    assert ran.stdout == (tmp_path / "found" / "gpu.md").read_text()
    assert "| nano" in ran.stdout and "bits/byte" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out=x"], "no CUDA device"),
        ([], "out=DIR must be given"),
        (["out=x", "models=base"], "models is not a setting here"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() and message == "no CUDA device":
        pytest.skip("there is one")
    ran = ask(*(one.replace("out=x", f"out={tmp_path / 'x'}") for one in arguments))
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1 and not (tmp_path / "x").exists()
    assert message in ran.stderr
