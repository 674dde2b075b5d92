"""The report page: one HTML file that works offline, fetches nothing and runs no script but its own.

Words and tables are written by page.html, so the page can be read without a script. The interactive
views are drawn by the page*.js files from the JSON that the file carries.
"""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from probe.results import Head
from report.live import Live
from report.tables import Table
from settings.errors import printable
from settings.typed_json import to_json

FOLDER = Path(__file__).parent
SCRIPTS = [  # in this order
    "page_model", "page_tokens", "page_data", "page_elements", "page_live_model", "page_sentences",
    "page_lines", "page_edits", "page_training", "page_words", "page_live", "page_how", "page_picture", "page_link",
    "page_cards", "page",
]  # fmt: skip
LONGEST_TEXT = 2000  # characters of a text outside the JSON


# What the page shows: the fields are the keys of its JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModel:
    """Name, shape, training and provenance of a model."""

    name: str
    step: str
    facts: str
    n_layer: int
    n_head: int
    environment: dict[str, Any]
    commands: list[str]  # that make the page again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFinding:
    """A finding, and what the page says about it."""

    question: str
    description: str
    verdict: str
    heads: str  # that the verdict is about
    place: Head  # the chosen head
    claim: str
    tables: list[Table]
    does_not_show: list[str]
    reasons: list[str]  # why no more is claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSentence:
    """A sentence with the attention of every head; words are indices into `words`."""

    id: str  # group and number, for the address: report.html#yours-1
    text: str
    words: list[str]
    query: int | None  # heads are read at this word; None: the last one
    next: list[tuple[str, float]]  # the most probable next tokens
    weights: list[list[list[int]]]  # ten-thousandths, [L][H][n]: all rows, row r up to word r; [] without attention


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """Everything that the page shows."""

    run: PageModel
    heading: str
    notes: list[str]
    findings: list[PageFinding]
    sentences: list[PageSentence]
    omissions: list[str]  # parts that are left out for their size
    live: Live


def page(content: PageContent) -> str:
    """Return the HTML file of the page.

    Every text is escaped, and the Content-Security-Policy allows this script and this style only. The
    result can be encoded as UTF-8 whatever the content holds.
    """
    script = _script_text()
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return (
        templates()
        .get_template("page.html")
        .render(
            content=content,
            policy=Markup(_policy(script, style)),
            style=Markup(style),
            script=Markup(script),
            embedded=Markup(_embedded_json(content)),
        )
    )


def templates() -> Environment:
    """Return the templates of this folder; every value is made printable, then escaped."""
    found = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, finalize=_shown, undefined=StrictUndefined, trim_blocks=True
    )
    found.filters["first_sentence"] = _first_sentence
    found.tests["finite"] = isfinite
    return found


def _script_text() -> str:
    cards = (FOLDER / "cards.json").read_text(encoding="utf-8")
    script = f"const CARDS = {cards.strip()};\n" + "\n".join(
        (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS
    )
    return f'\n(function () {{\n"use strict";\n{script}\n}})();\n'


def _policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy that allows exactly this script and this style."""
    hashes = [b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (script, style)]
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _embedded_json(content: PageContent) -> str:
    """Return ASCII JSON without <, > and &, so that no HTML parser sees markup in it."""
    text = json.dumps(to_json(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shown(value: Any) -> Any:
    """Return a value as it is written, before it is escaped: printable, and cut to LONGEST_TEXT."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return printable(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…")


def _first_sentence(text: str) -> list[str]:
    """Return the first sentence, which ends before a space and a capital letter, and the rest."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)
