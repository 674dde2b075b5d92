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


def kept() -> list[Check]:
    return [Check(**one) for one in json.loads(RESULTS.read_text())["checks"]]


def test_the_table_of_the_page_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "export.md").read_text()
    found = re.search(r"<!-- doors -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found and found[1].split("\n") == noted(json.loads(RESULTS.read_text()))


def test_every_limit_was_kept_and_nothing_left_out() -> None:
    assert all(one.is_met for one in kept())
    limits = {one.what: one.limit for one in kept()}
    assert limits == {
        "logits, float32": 0.0, "weights of heads, eager": 1e-6, "lines whose tokens differ": 0.0,
        "tensors that read back otherwise": 0.0, "logits, of the GGUF file": 0.0, "patterns": 1e-5,
        "no page in HTML": 0.0, "pairs judged otherwise": 0.0,
    }  # fmt: skip


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
        ([], "run=DIR and blimp=FOLDER"),
        (["run=nowhere", "blimp=."], "run=nowhere: there is no config.json in it"),
        (["rum=x"], "rum: known are run, blimp"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks.doors", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and said in ran.stderr and ran.stderr.count("\n") == 1
