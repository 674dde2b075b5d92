"""Files of test sets that other authors published: found, and read line by line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from data.errors import UserError
from data.text import text_files

Row = TypeVar("Row")


def find_files(path: str, endings: Sequence[str]) -> list[Path]:
    """Return the files of `text_files` that have one of these endings; FileNotFoundError if there are none."""
    files = [file for file in text_files(path, "path") if file.suffix in endings]
    if not files:
        raise FileNotFoundError(f"path={path}: no {' or '.join(endings)} file there")
    return files


def load_lines(file: Path) -> dict[str, str]:
    """Return the non-blank lines by "FILE line N"; UserError if there are none or the text is not UTF-8."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    lines = {f"{file} line {number}": line for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    if not lines:
        raise UserError(f"{file}: no text in it")
    return lines


def load_objects(file: Path, kind: type[Row]) -> dict[str, Row]:
    """Return each line of a .jsonl file as the dataclass `kind`, by "FILE line N".

    Other fields of a line are left out. Raises UserError if a field is missing or of another type.
    """
    hints = get_type_hints(kind)
    objects = {}
    for where, line in load_lines(file).items():
        try:
            value: Any = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error})") from None
        # Only the fields of `kind` are checked and kept.
        for name, expected in hints.items():
            if not isinstance(value, dict) or type(value.get(name)) is not expected:
                raise UserError(f"{where}: no field {name} of type {expected.__name__}")
        objects[where] = kind(**{name: value[name] for name in hints})
    return objects
