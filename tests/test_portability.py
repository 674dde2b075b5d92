"""Training and evaluation on a system that lacks what Windows lacks: fcntl, resource, SIGHUP, O_NOFOLLOW and others."""

import os
import subprocess
import sys
from pathlib import Path

from tests.program import ROOT, SMALL, SMALL_PROBE


def run_without_posix(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "without_posix")}  # takes away what Windows lacks
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment)


def test_a_model_is_trained_resumed_and_tested_without_posix(tmp_path: Path, cache: str) -> None:
    assert run_without_posix("-c", "import fcntl").returncode == 1
    out = tmp_path / "run"
    for arguments in ([], ["resume=true", "max_steps=6"]):
        result = run_without_posix("train.py", f"out={out}", cache, *SMALL, *arguments)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    result = run_without_posix("eval.py", f"run={out}", cache, *SMALL_PROBE)
    assert (result.returncode, result.stderr) == (0, "")
    assert (out / "probe" / "report.html").is_file()
