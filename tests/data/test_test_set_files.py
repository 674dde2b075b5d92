"""data/test_set_files.py: load_lines, load_objects."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from data.test_set_files import load_lines, load_objects


@dataclass
class Line:
    name: str
    place: int


def test_lines_are_named_by_their_place_and_blank_ones_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n\n two\n", encoding="utf-8-sig")
    assert load_lines(file) == {f"{file} line 1": "one", f"{file} line 3": " two"}
    for content, problem in ((b"\n", "no text in it"), (b"\xff", "not UTF-8 text")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=problem):
            load_lines(file)


def test_objects_have_the_fields_of_their_class_and_no_others(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"name": "x", "place": 3, "more": []}\n')
    assert load_objects(file, Line) == {f"{file} line 1": Line("x", 3)}
    for text, problem in (
        ('{"name": "x"}', "line 1: no field place of type int"),
        ("{", "line 1: not JSON"),
        ("[]", "no field"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=problem):
            load_objects(file, Line)
