"""The report page: one HTML file that works offline, fetches nothing and runs no script but its own.

Words and tables are written by page.html, so the page can be read without a script. The interactive
views are drawn by the page*.js files from the JSON that the file carries.
"""

import hashlib
import json
from base64 import b64encode
from pathlib import Path

from markupsafe import Markup

from extras.page.shown import PageContent
from extras.page.train import training_script
from probe.templates import templates
from settings.typed_json import to_json

FOLDER = Path(__file__).parent
SCRIPTS = [  # in this order
    "page_model", "page_tokens", "page_data", "page_elements", "page_live_model", "page_sentences",
    "page_lines", "page_edits", "page_deciding", "page_training", "page_words", "page_live", "page_how", "page_picture",
    "page_link", "page_cards", "page",
]  # fmt: skip


def page(content: PageContent) -> str:
    """Return the HTML file of the page.

    Every text is escaped, and the Content-Security-Policy allows this script and this style only. The
    result can be encoded as UTF-8 whatever the content holds.
    """
    trains = content.live.model is not None and content.live.model.training is not None
    script = _script_text(trains)
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    return (
        templates(FOLDER)
        .get_template("page.html")
        .render(
            content=content,
            policy=Markup(_policy(script, style, trains)),
            style=Markup(style),
            script=Markup(script),
            embedded=Markup(_embedded_json(content)),
        )
    )


def _script_text(trains: bool) -> str:
    cards = json.loads((FOLDER / "cards.json").read_text(encoding="utf-8"))
    cards = [card for card in cards if trains or "trains" not in card]
    training = training_script() if trains else ""
    script = f"const CARDS = {json.dumps(cards, ensure_ascii=False)};\n{training}\n" + "\n".join(
        (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS
    )
    return f'\n(function () {{\n"use strict";\n{script}\n}})();\n'


def _policy(script: str, style: str, trains: bool) -> str:
    """Return the Content-Security-Policy that allows exactly this script and this style, and workers that train."""
    hashes = [b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (script, style)]
    sources = "script-src 'sha256-{}'{}; style-src 'sha256-{}'".format(
        hashes[0], " 'wasm-unsafe-eval'; worker-src blob:" if trains else "", hashes[1]
    )
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _embedded_json(content: PageContent) -> str:
    """Return ASCII JSON without <, > and &, so that no HTML parser sees markup in it."""
    text = json.dumps(to_json(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
