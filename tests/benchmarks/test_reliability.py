"""The table of figures as it is printed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reliability


def found(*, met: bool) -> dict[str, Any]:
    figure = {"row": "8 starts", "target": "8 directories", "measured": "8" if met else "7", "met": met, "test": "a"}
    failed = [] if met else [{"test": "a", "reason": "7 and not 8"}]
    return {"figures": [figure], "failed": failed, "skipped": [], "cpu_seconds": 90.0, "status": int(not met)}


def test_a_target_that_is_met_is_a_row_and_what_it_took_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(reliability, "measure", lambda full: found(met=True))
    monkeypatch.setattr("sys.argv", ["reliability", f"out={tmp_path}/figures.json"])
    reliability.main()
    said = capsys.readouterr().out
    assert said.startswith("Counts: the full ones")
    assert "| 8 starts | 8 directories | 8 | yes |" in said
    assert "1 of 1 targets met, 0 tests failed, 0 skipped; 1.5 CPU-minutes" in said
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["full"] and written["figures"][0]["met"] and written["environment"]["python"]


def test_a_target_that_is_missed_is_said_and_so_is_its_test_and_the_exit_status_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(reliability, "measure", lambda full: found(met=False))
    monkeypatch.setattr("sys.argv", ["reliability", "quick=true"])
    with pytest.raises(SystemExit) as ended:
        reliability.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert said.startswith("Counts: the quick ones of CI")
    assert "| 7 | NO |" in said and "failed: a" in said and "0 of 1 targets met" in said


def test_the_page_holds_what_was_measured_and_every_target_was_met() -> None:
    measured = json.loads((reliability.ROOT / "docs" / "reliability.json").read_text())
    page = (reliability.ROOT / "docs" / "reliability.md").read_text()
    (shown,) = re.findall(r"^<!-- figures -->\n(.*?)\n<!-- end -->", page, re.DOTALL | re.MULTILINE)
    assert shown == "\n".join(reliability.page(measured))
    assert measured["full"] and len(measured["figures"]) > 20 and measured["failed"] == []
    assert all(one["met"] for one in measured["figures"])
