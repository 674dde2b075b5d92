"""Training and evaluation on a system that lacks what Windows lacks: fcntl, resource, SIGHUP, O_NOFOLLOW and others."""

import os
import subprocess
import sys
from pathlib import Path

from tests.program import ROOT, SMALL, SMALL_PROBE

WITHOUT_POSIX = ROOT / "tests" / "without_posix"  # takes away what Windows lacks


def run_without_posix(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(WITHOUT_POSIX)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment)


def test_a_process_without_posix_has_no_file_locks_and_no_sighup() -> None:
    for missing in ("import fcntl", "import resource", "import signal; signal.SIGHUP", "import os; os.O_NOFOLLOW"):
        assert run_without_posix("-c", missing).returncode == 1, missing


def test_a_model_is_trained_resumed_and_tested_without_posix(tmp_path: Path, cache: str) -> None:
    out = tmp_path / "run"
    for arguments in ([], ["resume=true", "max_steps=6"]):
        result = run_without_posix("train.py", f"out={out}", cache, *SMALL, *arguments)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    result = run_without_posix("eval.py", f"run={out}", cache, *SMALL_PROBE)
    assert (result.returncode, result.stderr) == (0, "")
    assert (out / "probe" / "report.html").is_file()
