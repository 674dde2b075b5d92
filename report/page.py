"""The page: one file that shows what `report.content` holds, asks for nothing and runs nothing that is data."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report import page_text

_HERE = Path(__file__).parent


# One script, in the order in which its parts need each other.
_SCRIPTS = ("page_data.js", "page_draw.js", "page_map.js", "page_view.js", "page_time.js", "page_why.js", "page.js")


_PLACE = re.compile(r"\{\{(\w+)\}\}")


def page(content: Mapping[str, Any]) -> str:
    """Return the whole HTML file.

    No text of `content` becomes markup: what Python writes goes through `page_text.plain`, what the script writes goes
    in as text nodes, and the file's own policy lets no other script or style run and nothing be fetched. The result
    can always be encoded as UTF-8, whatever code points the content holds.

    Args:
        content: as `report.content` makes it.

    """
    script, style = _script(), _read("page.css")
    filled = page_text.parts(content) | {
        "policy": _policy(script, style),
        "style": style,
        "script": script,
        "content": embedded(content),
    }
    # One pass: a value that happens to hold {{...}} is not filled in again.
    return _PLACE.sub(lambda place: filled[place[1]], _read("page.html"))


def embedded(content: Mapping[str, Any]) -> str:
    """Return JSON that no parser of HTML can see an end of script or a comment in.

    ASCII alone, so that U+2028 and lone surrogates are escapes too; ValueError where a number is not finite.
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(script: str, style: str) -> str:
    """Return a Content-Security-Policy under which this script and this style run and nothing else does or loads."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _script() -> str:
    """Return all parts in one function's scope, so that no name is global."""
    body = "\n".join(_read(name) for name in _SCRIPTS)
    return f'\n(function () {{\n"use strict";\n{body}\n}})();\n'


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
