"""data/errors.py: messages of one printable line."""

from pathlib import Path

import pytest

from data.errors import damaged_file_error, one_line


def test_the_message_of_a_library_is_one_printable_line_of_its_cause() -> None:
    error = RuntimeError("outer")
    assert one_line(error) == "outer" and one_line(KeyError()) == "KeyError"
    error.__cause__ = ValueError("a\n  b\x1b[31m" + "c" * 300)
    assert one_line(error) == "a b\ufffd[31m" + "c" * 192


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(), "^a.json: missing; delete it$"),
        (KeyError("x"), "^a.json: damaged; delete it$"),
        (PermissionError("no access"), "^no access$"),  # not an error of parsing
    ],
)
def test_an_error_of_parsing_names_the_file_and_a_remedy(error: Exception, message: str) -> None:
    with pytest.raises(Exception, match=message), damaged_file_error(Path("a.json"), "delete it"):
        raise error
