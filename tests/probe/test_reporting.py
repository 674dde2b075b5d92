"""What a probe leaves behind: nothing of an earlier one is taken for its own."""

from pathlib import Path

import pytest

from report.reporting import write_found

OLD, NEW = {"probe.json": "1", "items.jsonl": "old"}, {"probe.json": "2", "items.jsonl": "new"}
FIGURES = {"map.png": b"a map", "causal.png": b"causes"}


def figures(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").iterdir()}


def test_what_cannot_be_written_leaves_the_earlier_probe_and_its_figures(tmp_path: Path) -> None:
    write_found(tmp_path, "probe.json", OLD, FIGURES)
    (tmp_path / "items.jsonl").unlink()
    (tmp_path / "items.jsonl").mkdir()  # cannot be written
    with pytest.raises(OSError, match=r"items\.jsonl"):
        write_found(tmp_path, "probe.json", NEW, None)
    assert (tmp_path / "probe.json").read_text() == "1" and figures(tmp_path) == {*FIGURES}


def test_figures_of_other_numbers_are_taken_away_and_those_of_the_same_stay(tmp_path: Path) -> None:
    write_found(tmp_path, "probe.json", OLD, FIGURES)
    (tmp_path / "figures" / "mine.png").write_bytes(b"of a person")
    write_found(tmp_path, "probe.json", OLD, None)
    assert figures(tmp_path) == {*FIGURES, "mine.png"}
    write_found(tmp_path, "probe.json", OLD, {"map.png": b"a map"})
    assert figures(tmp_path) == {"map.png", "mine.png"}
    write_found(tmp_path, "probe.json", NEW, None)
    assert figures(tmp_path) == {"mine.png"}
    assert {name: (tmp_path / name).read_text() for name in NEW} == NEW
