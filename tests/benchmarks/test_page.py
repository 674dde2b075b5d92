"""The benchmark of the page measures a real one."""

import sys
from pathlib import Path

import pytest

from report.page import page
from tests.report import sample
from tests.report.browser import running


def test_a_row_of_times_is_printed_for_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running():
        pass  # skips where there is no browser
    from benchmarks import page as benchmark

    path = tmp_path / "report.html"
    path.write_text(page(sample.long()), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["page", str(path)])
    monkeypatch.setattr(benchmark, "no_antecedent", 2)
    benchmark.main()
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert [row[1].strip(), row[5].strip()] == [str(path), "512"]
    assert all(float(cell) > 0 for cell in row[2:8])
