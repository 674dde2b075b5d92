"""benchmarks/doors.py says what was measured, what was not, and whether it kept to the limits."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from benchmarks import doors
from benchmarks.doors import RESULTS, Check, lines, measured, noted, table

ROOT = Path(__file__).parents[2]


def kept() -> list[list[Check]]:
    return [[Check(**one) for one in run["checks"]] for run in json.loads(RESULTS.read_text())["runs"]]


def test_the_tables_of_the_page_are_what_was_measured() -> None:
    page = (ROOT / "docs" / "export.md").read_text()
    found = re.search(r"<!-- doors -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found and found[1].split("\n") == noted(json.loads(RESULTS.read_text()))


def test_nothing_was_left_out_and_of_the_default_run_every_limit_was_kept() -> None:
    """Of the larger one the weights of heads were 1.3e-6 apart: docs/export.md says so, and why."""
    default, larger = kept()
    limits = {
        "logits, float32": 0.0, "weights of heads, eager": 1e-6,
        "weights of heads, layer by layer": 1e-6, "lines whose tokens differ": 0.0,
        "tensors that read back otherwise": 0.0, "logits, of the GGUF file": 0.0, "patterns": 1e-5,
        "no page in HTML": 0.0, "pairs judged otherwise": 0.0,
    }  # fmt: skip
    for some in (default, larger):
        assert {one.what: one.limit for one in some} == limits and len(some) == 10
    assert all(one.is_met for one in default)
    assert [one.what for one in larger if not one.is_met] == ["weights of heads, eager"]


@pytest.mark.parametrize(
    ("worst", "met", "said"), [(0.0, True, "yes"), (2e-6, False, "NO"), (float("nan"), False, "NO"), (None, None, "-")]
)
def test_a_limit_is_kept_or_passed_and_no_number_passes_it(worst: float | None, met: bool | None, said: str) -> None:
    one = Check(who="a 1", what="b", of="c", worst=worst, limit=1e-6, note="d")
    assert one.is_met is met and table([one])[2].endswith(f"| {said} |") and table([one])[-1] == "- d"


def test_what_is_not_installed_is_left_out_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doors, "version", version)
    found = list(measured(None, tmp_path, tmp_path, tmp_path))  # type: ignore[arg-type]
    assert len(found) == 6 and all(one.is_met is None for one in found)
    assert "- bertviz is not installed" in table(found) and "not measured" in table(found)[2]


def test_lines_are_the_same_at_each_call_and_odd() -> None:
    some = lines(300)
    assert some == lines(300) and len(set(some)) > 200
    assert all(any(odd in one for one in some) for odd in ("🐈", "e\u0301", "\u00a0", "  ", "日本語"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "runs=DIR[,DIR] and blimp=FOLDER"),
        (["runs=nowhere", "blimp=."], "nowhere is not a run's directory"),
        (["run=x"], "run: known are runs, blimp"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.doors", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode in (1, 2) and said in ran.stderr and ran.stderr.count("\n") == 1
