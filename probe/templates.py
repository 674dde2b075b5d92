"""Texts with gaps, in files: the page, claims and tables."""

import re
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from settings.errors import printable

LONGEST_TEXT = 2000  # characters of a text in a gap


def templates(folder: Path) -> Environment:
    """Return the templates of a folder; in .html and .svg every value is made printable, then escaped."""
    found = Environment(
        loader=FileSystemLoader(folder), autoescape=True, finalize=_shown, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters["first_sentence"] = _first_sentence
    found.tests["finite"] = isfinite
    return found


def _shown(value: Any) -> Any:
    """Return a value as it is written, before it is escaped: printable, and cut to LONGEST_TEXT."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + "…"
    return printable(text)


def _first_sentence(text: str) -> list[str]:
    """Return the first sentence, which ends before a space and a capital letter, and the rest."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)
