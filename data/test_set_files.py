"""Files of test sets that other authors published, read line by line."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from data.errors import UserError

Row = TypeVar("Row")


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


def load_table(file: Path, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return some columns of a .tsv file with a header, by "FILE line N"; UserError if one is missing."""
    load_lines(file)  # UserError for other encodings and empty files
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, dialect="excel-tab")
        names = reader.fieldnames or []
        for column in columns:
            if column not in names:
                raise UserError(f"{file}: no column {column}; it has {', '.join(names)[:200]}")
        rows = {}
        for row in reader:
            where = f"{file} line {reader.line_num}"
            values = tuple(row[column] for column in columns)
            if None in values:
                raise UserError(f"{where}: fewer columns than the header")
            rows[where] = values
    if not rows:
        raise UserError(f"{file}: no row below the header")
    return rows
