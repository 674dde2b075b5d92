"""Which files are meant, and their lines; whatever does not fit is one line that names the file and the line."""

import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def find_files(path: str, endings: Sequence[str]) -> list[Path]:
    """Return the files meant by a file, a folder, a glob, or several of them parted by commas, in order of name.

    Args:
        path: as the user wrote it.
        endings: of the files that this test reads, the only ones taken from a folder.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file has another ending, or is one in name only, as a pipe is.

    """
    found: list[Path] = []
    for part in path.split(","):
        here = Path(os.path.expanduser(part.strip()))  # of nobody's home: as it stands, and so not there
        if here.is_dir():
            some = sorted(file for file in here.iterdir() if file.suffix in endings)
        else:
            some = [here] if here.is_file() else sorted(Path(name) for name in glob.glob(str(here)))
        if not part.strip() or not some:
            raise FileNotFoundError(f"path: no file of {' or '.join(endings)} at {part.strip() or 'an empty name'}")
        found += some
    for file in found:
        if file.suffix not in endings:
            raise ValueError(f"path: {file} is not one of {', '.join(endings)}, which this task reads")
        if file.exists() and not file.is_file():  # to open a pipe is to wait for whoever writes to it
            raise ValueError(f"path: {file} is no regular file: write the lines to one and give that")
    return list(dict.fromkeys(found))


def read_lines(file: Path) -> list[tuple[int, str]]:
    """Return (number, line) of the lines that are not blank; ValueError where there is none or it is no UTF-8 text."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # with its mark or without
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty")
    return lines


def read_objects(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return (number, object) of each line of a .jsonl file; ValueError naming the line that holds none."""
    found = []
    for number, line in read_lines(file):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file} line {number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{file} line {number}: not a JSON object")
        found.append((number, value))
    return found


def field(value: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """Return value[name]; ValueError, beginning with `where`, unless it is there and of `kind`."""
    if name not in value:
        raise ValueError(f"{where}: no field {name}")
    found = value[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{where}: {name} is not {_KINDS[kind]}")
    return found


_KINDS = {str: "a text", int: "a whole number", list: "a list"}
