"""Training and evaluation on a system that lacks what Windows lacks: fcntl, resource, SIGHUP, O_NOFOLLOW and others."""

from pathlib import Path

from tests.program import ROOT, SMALL, SMALL_PROBE, run_python

WITHOUT_POSIX = ROOT / "tests" / "without_posix"  # takes away what Windows lacks


def test_a_model_is_trained_resumed_and_tested_without_posix(tmp_path: Path, cache: str) -> None:
    assert run_python("-c", "import fcntl", path=WITHOUT_POSIX).returncode == 1
    out = tmp_path / "run"
    for arguments in ([], ["resume=true", "max_steps=6"]):
        result = run_python("train.py", f"out={out}", cache, *SMALL, *arguments, path=WITHOUT_POSIX)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    result = run_python("eval.py", f"run={out}", cache, *SMALL_PROBE, path=WITHOUT_POSIX)
    assert (result.returncode, result.stderr) == (0, "")
    assert (out / "probe" / "report.html").is_file()
