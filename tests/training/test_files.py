"""JSON files, locks and unfinished files; test_checkpoint.py tests the atomic writes."""

from pathlib import Path

import pytest

from training.files import lock, read_json, write_json


def test_json_comes_back_and_damaged_json_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, None, "é"]})
    assert read_json(tmp_path / "a.json") == {"a": [1, None, "é"]}
    for content in ("{", "[" * 100_000):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(ValueError, match=r"b\.json"):
            read_json(tmp_path / "b.json")


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"\.lock"):
        lock(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"
