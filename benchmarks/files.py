"""What a benchmark leaves in docs/, whole or not at all: results as JSON, tables between the marks of a page."""

import json
from pathlib import Path
from typing import Any

from training.checkpoint import write_atomically


def keep(path: Path, found: Any, indent: int | None = 1) -> None:
    """Write results as JSON."""
    write_atomically(path, (json.dumps(found, indent=indent) + "\n").encode())


def paste(path: Path, marker: str, lines: list[str]) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- end -->`."""
    before, opening, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    _, closing, after = rest.partition("<!-- end -->")
    write_atomically(path, (before + opening + "\n".join(lines) + "\n" + closing + after).encode())
