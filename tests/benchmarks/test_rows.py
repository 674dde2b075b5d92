"""What the row scripts share: how a row is written, judged and timed."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rows
from benchmarks.rows import Row

ROW = Row(
    work="a work", goal="a tenth", aim="a twentieth", unit="CPU-s", ours=[2.0, 1.0, 4.0], peer_name="a peer",
    peer=[40.0, 30.0, 40.0], met=True, aim_met=False, note="",
)  # fmt: skip


def test_a_ratio_is_that_of_each_pair_and_not_of_two_medians() -> None:
    assert ROW.ratios == [0.05, 1 / 30, 0.1]
    assert rows.ratio(ROW) == "1/20.0 (1/30.0 to 1/10.0)"
    assert rows.ratio(replace(ROW, ours=[100.0, 90.0, 80.0])) == "2.50x (2.00 to 3.00)"
    assert rows.ratio(replace(ROW, ours=[10.0], peer=[4.0])) == "2.50x"
    assert rows.ratio(replace(ROW, peer_name="", peer=[])) == ""


def test_the_worst_repeat_decides() -> None:
    assert rows.all_within(ROW.ratios, 1 / 10) and not rows.all_within(ROW.ratios, 1 / 15)


def test_a_miss_is_printed_as_a_miss_and_a_note_under_the_table() -> None:
    missed = replace(ROW, met=False, aim="", aim_met=None, note="one core", peer_name="", peer=[])
    lines = rows.table([ROW, missed])
    assert lines[2] == (
        "| a work | a tenth (a twentieth) | 2.00 (1.00 to 4.00) CPU-s | a peer: 40.0 (30.0 to 40.0) CPU-s "
        "| 1/20.0 (1/30.0 to 1/10.0) | yes | no |"
    )
    assert lines[3] == "| a work [1] | a tenth | 2.00 (1.00 to 4.00) CPU-s | none |  | NO |  |"
    assert lines[-1] == "1. one core"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00123456, "0.00123"), (0.2, "0.200"), (1.0, "1.00"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_a_number_has_three_digits_that_count(value: float, text: str) -> None:
    assert rows.number(value) == text


def test_a_row_whose_repeats_do_not_pair_up_is_refused() -> None:
    with pytest.raises(ValueError, match="3 repeats of ours, 1 of the peer's"):
        replace(ROW, peer=[1.0])
    with pytest.raises(ValueError, match="or neither"):
        replace(ROW, peer_name="")


def test_a_row_is_the_same_once_written_and_read_again(tmp_path: Path) -> None:
    rows.write(tmp_path / "rows.json", [ROW], rows.machine())
    found, about = rows.read(tmp_path / "rows.json")
    assert found == [ROW] and about == rows.machine()
    assert rows.processor() in rows.machine_line(about)


def test_a_child_is_timed_by_its_own_work_and_told_its_threads() -> None:
    work = "import os, time; began = time.process_time()\nwhile time.process_time() - began < 0.3: pass\n"
    code = work + "time.sleep(0.3); print(os.environ['OMP_NUM_THREADS'], os.environ['MORE'])"
    child = rows.timed([sys.executable, "-c", code], threads=3, MORE="yes")
    assert child.said == "3 yes\n"
    assert 0.3 <= child.cpu_seconds < child.seconds and child.seconds >= 0.6


def test_a_childs_memory_is_its_own_and_not_that_of_who_started_it() -> None:
    ours = bytearray(300 * 2**20)
    ours[:: 2**12] = b"x" * len(ours[:: 2**12])  # every page is there
    small, large = (rows.timed([sys.executable, "-S", "-c", code]) for code in ("pass", "b'x' * (200 * 2**20)"))
    assert small.peak_bytes < 2**26 and large.peak_bytes - small.peak_bytes > 190 * 2**20


def test_what_is_no_number_keeps_to_no_limit() -> None:
    assert rows.all_within([1.0, 2.0], 2.0)
    assert not rows.all_within([1.0, float("nan")], 2.0) and not rows.all_within([float("nan"), 1.0], 2.0)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("quick", "quick=: true or false"),
        ("quick=True", "quick=True: true or false"),
        ("data.path=nowhere.txt", "data.path=nowhere.txt: there is no such file"),
        ("nanogpt=.", "nanogpt=.: there is no train.py in it"),
        ("out=nowhere/found.json", "out=nowhere/found.json: there is no folder nowhere"),
        ("out=", "out=: a file is meant, and this is none"),
        ("out=.", "out=.: a file is meant, and this is none"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    argument: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        rows.settings(["nanogpt", "data.path"], [argument])
    assert ended.value.code == said
    with pytest.raises(SystemExit, match="seeds=1,b: whole numbers"):
        rows.whole_numbers({"seeds": "1,b"}, "seeds", "1")
    assert rows.whole_numbers({}, "seeds", "1,2") == [1, 2]


def test_a_child_that_fails_ends_the_measurement_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match="(?s)exit status 3 .*no such thing"):
        rows.timed([sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"])


def test_a_name_that_nobody_knows_is_refused() -> None:
    assert rows.settings(["folder"], ["folder=a=b", "quick=true"]) == {"folder": "a=b", "quick": "true"}
    with pytest.raises(SystemExit, match="nanogtp: known are nanogpt, out, quick, each as NAME=VALUE"):
        rows.settings(["nanogpt"], ["nanogtp=1"])


def test_a_script_prints_its_table_and_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "n=2", f"out={tmp_path}/rows.json"])
    rows.alone(lambda given: [replace(ROW, work=given["n"])], ["n"])
    assert "| 2 | a tenth (a twentieth) |" in capsys.readouterr().out
    assert rows.read(tmp_path / "rows.json")[0] == [replace(ROW, work="2")]


def test_no_script_writes_what_does_not_count_over_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    with pytest.raises(SystemExit, match="quick=true measures nothing that counts, and out=.*kept.json is there"):
        rows.settings(["only"], ["quick=true", f"out={kept}"])
    assert kept.read_text() == "{}"


def test_a_mistake_that_a_script_finds_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_rows(given: dict[str, str]) -> list[rows.Row]:
        raise ValueError("vocab_size=abc is no number")

    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(SystemExit) as ended:
        rows.alone(no_rows, [])
    assert ended.value.code == 2 and capsys.readouterr().err == "error: vocab_size=abc is no number\n"
