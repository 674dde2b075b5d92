"""The goal table holds what its scripts measured, and says what it left out."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import growth, probing, speed
from benchmarks.rows import Child, Row, machine, machine_line, write
from benchmarks.speed import Part
from tests.benchmarks.test_rows import ROW

TEXT = speed.PAGE.read_text()
NEEDS = {"shakespeare": ("nanogpt",)}


def between(marker: str) -> list[str]:
    (found,) = re.findall(rf"^<!-- {marker} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL | re.MULTILINE)
    return found.splitlines()


def test_the_table_of_the_page_is_what_was_measured() -> None:
    assert between("goals") == speed.page_of(speed.RESULTS)
    found = speed.read_table(speed.RESULTS)
    assert not found.quick and not found.left_out and {*found.parts} == {*speed.SCRIPTS}


def test_a_page_without_figures_says_so_and_one_with_them_counts_goals_and_misses(tmp_path: Path) -> None:
    assert speed.page_of(tmp_path / "none.json") == ["Not measured yet."]
    parts = {"startup": Part([ROW, replace(ROW, met=False, aim_met=None, aim="")], machine())}
    found = speed.Table(parts, {"growth": "not asked for"}, quick=False)
    speed.write_table(tmp_path / "found.json", found)
    assert speed.read_table(tmp_path / "found.json") == found
    said = speed.page_of(tmp_path / "found.json")
    assert "1 of 2 rows met, 0 of 1 aims." in said and "Left out: growth (not asked for)." in said
    assert said[-1] == machine_line(machine())
    assert not any("no figure here counts" in line for line in said)
    assert any("no figure here counts" in line for line in speed.page(replace(found, quick=True)))


def test_what_was_measured_before_stays_with_its_own_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    before = {name: Part([replace(ROW, work=name)], machine() | {"commit": "before"}) for name in ("startup", "growth")}
    speed.write_table(out, speed.Table(before, {}, quick=False))

    def measured(name: str, given: Any, out: Path | None) -> tuple[str, list[Row]]:
        return ("", [replace(ROW, work=f"{name} anew")]) if name == "growth" else ("it broke", [])

    monkeypatch.setattr(speed, "measured", measured)
    found, has_failed = speed.gather({"only": "growth"}, out)
    assert [row.work for row in found.rows] == ["startup", "growth anew"] and not has_failed
    *_, old, new = speed.page_of(out)
    assert old.startswith("startup: ") and "commit before" in old
    assert new.startswith("growth: ") and "commit before" not in new
    found, has_failed = speed.gather({"only": "startup"}, out)
    assert [row.work for row in found.rows] == ["startup", "growth anew"] and has_failed  # what was there stays
    assert speed.gather({"only": "startup", "quick": "true"}, out)[0].parts == {}
    out.write_text('{"rows": []}')
    with pytest.raises(SystemExit, match="holds no table of goals"):
        speed.gather({"only": "startup"}, out)


@pytest.mark.parametrize("door", [speed, growth])
def test_what_counts_is_not_written_over_by_what_does_not(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = door.RESULTS.read_bytes()
    monkeypatch.setattr(sys, "argv", [door.__name__, "quick=true", f"out={door.RESULTS}"])
    with pytest.raises(SystemExit, match="quick=true measures nothing that counts"):
        door.main()
    assert door.RESULTS.read_bytes() == before


def test_what_is_not_run_is_named_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(name: str, given: Any, path: Path) -> int:
        if name == "growth":
            return 3
        if name == "tokenizing":
            return 0
        write(path, [replace(ROW, work=name)], machine())
        return 0

    monkeypatch.setattr(speed, "ran", ran)
    monkeypatch.setattr(speed, "SCRIPTS", dict.fromkeys(("startup", "growth", "tokenizing"), ()) | NEEDS)
    monkeypatch.setattr(sys, "argv", ["speed", f"out={tmp_path}/found.json", "quick=true"])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one["work"] for one in found["parts"]["startup"]["rows"]] == ["startup"] and len(found["parts"]) == 1
    assert found["left_out"] == {
        "shakespeare": "nanogpt was not given", "growth": "failed with exit status 3",
        "tokenizing": "it wrote no rows",
    }  # fmt: skip
    said = capsys.readouterr().out
    assert "| startup | a tenth (a twentieth) |" in said and "Left out: shakespeare (nanogpt was not given)." in said
    monkeypatch.setattr(sys, "argv", ["speed", "only=startup"])
    speed.main()
    assert "Left out: growth (not asked for)." in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["speed", "only=startpu"])
    with pytest.raises(SystemExit, match="only=startpu: known are startup, growth"):
        speed.main()


def test_a_table_of_nothing_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed", "only=shakespeare"])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 1
    assert "Left out: shakespeare (data.path and nanogpt were not given)." in capsys.readouterr().out


def test_rows_of_the_page_are_those_that_their_scripts_make_now() -> None:
    kept = {row.work for row in speed.read_table(speed.RESULTS).parts["probing"].rows}
    child = Child(1.0, 1.0, 1, "")
    assert kept == {row.work for row in probing.judged([1.0], [0.5], child, child)}


def test_a_goal_that_is_missed_is_an_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"startup": Part([replace(ROW, met=False)], machine())}
    monkeypatch.setattr(speed, "gather", lambda given, out: (speed.Table(parts, {}, False), False))
    monkeypatch.setattr(sys, "argv", ["speed"])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 1


def test_a_script_is_given_what_it_needs_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    class Ended:
        returncode = 0

    monkeypatch.setattr(speed.subprocess, "run", lambda command, **_: commands.append(command) or Ended())
    given = {"nanogpt": "there", "data.path": "text", "quick": "true", "only": "startup"}
    speed.ran("startup", given, tmp_path / "x")
    speed.ran("shakespeare", given, tmp_path / "x")
    assert commands[0][1:] == ["-m", "benchmarks.startup", "quick=true", f"out={tmp_path}/x"]
    assert commands[1][3:-1] == ["data.path=text", "nanogpt=there", "quick=true"]
