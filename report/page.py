"""The report page: one HTML file that works offline, fetches nothing and runs no script but its own.

Words and tables are written here, so the page can be read without a script. The interactive views are drawn by the
page*.js files from the JSON that the file carries.
"""

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.errors import printable
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED
from report.tables import Table, question_tables

FOLDER = Path(__file__).parent
SCRIPTS = ("page_data", "page_elements", "page_heads", "page_sentences", "page_training", "page")  # in this order

LONGEST_TEXT = 2000  # characters of a text outside the JSON
LONGEST_UNBROKEN = 32  # characters of a table cell that stays on one line

BADGES = {SUPPORTED: "●", SUGGESTIVE: "◐", NOT_ESTABLISHED: "○"}


def page(content: Mapping[str, Any]) -> str:
    """Returns the HTML file for the content of `report.content.page_content`.

    Every text is escaped, and the Content-Security-Policy allows this script and this style and nothing else. The
    result can be encoded as UTF-8 whatever the content holds.
    """
    script = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'\n(function () {{\n"use strict";\n{script}\n}})();\n'
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    run, questions = content["run"], content["questions"]
    is_tested = bool(questions or content["natural"] or content["next_pronoun"])
    heading = "Which attention head links a pronoun to its antecedent?" if is_tested else "What each head attends to"
    claims = [claim(shown["verdict"], "next pronoun", shown["claim"]) for shown in content["next_pronoun"]]
    claims += [natural_claim(*shown) for shown in content["natural"]]
    for i, question in enumerate(questions):
        about = f"{question['question']}: {question['description']}"
        claims.append(f'<div data-question="{i}">\n{claim(question["verdict"], about, question["claim"])}\n</div>')
    blanks = {
        "title": escape(f"{run['name']}: {heading}"),
        "heading": heading,
        "header": header(run),
        "claims": "\n".join(claims),
        "notes": "".join(f'<p class="note"><bdi>{escape(note)}</bdi></p>' for note in content["notes"]),
        "evidence": evidence(content),
        "limits": limits(content),
        "provenance": provenance(run),
        "policy": policy(script, style),
        "style": style,
        "script": script,
        "content": embedded_json(content),
    }
    # One pass, so that a value that contains {{...}} stays as it is.
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], template)


def embedded_json(content: Mapping[str, Any]) -> str:
    """Returns ASCII JSON without <, > and &, so that no HTML parser sees markup in it; ValueError if not finite."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(script: str, style: str) -> str:
    """Returns the Content-Security-Policy that allows exactly this script and this style."""
    hashes = (b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (script, style))
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def escape(text: Any) -> str:
    """Returns `text` for HTML, cut to 2,000 characters; unprintable characters become U+FFFD."""
    text = str(text)
    return html.escape(printable(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"))


def header(run: Mapping[str, Any]) -> str:
    """Returns name, step, shape and training of the model."""
    name, step, facts = (f"<bdi>{escape(run[key])}</bdi>" for key in ("name", "step", "facts"))
    return f'<p class="run"><span class="brand">Antecedent</span> {name} {step}</p>\n<p class="shape">{facts}</p>'


def claim(verdict: str, about: str, text: str = "") -> str:
    """Returns a verdict and the claim in `text`, if any, its first sentence large."""
    badge = f'<span class="badge" data-verdict="{escape(verdict)}">{BADGES.get(verdict, "")} {escape(verdict)}</span>'
    lines = [f'<p class="verdict">{badge} <bdi>{escape(about)}</bdi></p>']
    first, rest = [*re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1), ""][:2]
    parts = {"claim": first, "more": rest}
    lines += [f'<p class="{kind}"><bdi>{escape(part)}</bdi></p>' for kind, part in parts.items() if part]
    return "\n".join(lines)


def natural_claim(verdict: str, text: str) -> str:
    """Returns the verdict on a head in natural text and its claim, which is small if nothing is established."""
    if verdict == NOT_ESTABLISHED:
        return claim(verdict, f"natural text: {text}")
    return claim(verdict, "natural text", text)


def evidence(content: Mapping[str, Any]) -> str:
    """Returns the tables behind every verdict, and those of all questions."""
    is_tested = content["questions"] or content["natural"] or content["next_pronoun"]
    blocks = [] if is_tested else ['<p class="lead">No claim was tested for this model.</p>']
    for i, question in enumerate(content["questions"]):
        head = f"L{question['layer']}H{question['head']}"
        lead = f"Question {question['question']}, head {head}, chosen on dev sentences."
        tables = "\n".join(map(table, question_tables(question)))
        code = f"<h3>Remove this head</h3>\n<pre><code>{escape(question['ablation'])}</code></pre>"
        blocks.append(
            f'<div data-question="{i}">\n<p class="lead"><bdi>{escape(lead)}</bdi></p>\n{tables}\n{code}\n</div>'
        )
    return "\n".join([*blocks, *(table(Table(**shown)) for shown in content["tables"])])


def limits(content: Mapping[str, Any]) -> str:
    """Returns what the claims do not show, what stands against them, and what the file leaves out."""
    blocks = []
    for i, question in enumerate(content["questions"]):
        inner = bullets("The result for this question does not show:", question["does_not_show"])
        inner += bullets("Why no more is claimed:", question["reasons"])
        blocks.append(f'<div data-question="{i}">{inner}</div>')
    blocks.append(
        "<p>Attention weights alone are no explanation: they show where a head reads, not what the model does with it. "
        "A causal test measures whether the answer depends on it. A causal model reads from left to right, so no word "
        "attends to a later word.</p>"
    )
    blocks.append(bullets("Settings changed when training was resumed:", content["resumed"]))
    blocks.append(bullets("Left out of this file:", content["omissions"]))
    return "\n".join(blocks)


def provenance(run: Mapping[str, Any]) -> str:
    """Returns the commands that make this page again and the versions it was made with."""
    versions = "".join(
        f"<dt>{escape(name)}</dt><dd><bdi>{escape(v)}</bdi></dd>" for name, v in run["environment"].items()
    )
    lines = "".join(f"<p><code><bdi>{escape(command)}</bdi></code></p>" for command in run["commands"])
    return f"{lines}\n<dl>{versions}</dl>"


def table(shown: Table) -> str:
    """Returns a table whose first column is a header, in a frame that scrolls if the table is too wide."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown.header)
    body = "\n".join(
        f"<tr>{cell('th scope=row', row[0])}{''.join(cell('td', text) for text in row[1:])}</tr>" for row in shown.rows
    )
    title, note = escape(shown.title), escape(shown.note)
    return (
        f'<h3>{title}</h3>\n<p class="rule"><bdi>{note}</bdi></p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def cell(tag: str, text: str) -> str:
    """Returns a table cell; short texts stay on one line."""
    short = " class=short" if len(text) <= LONGEST_UNBROKEN else ""
    return f"<{tag}{short}><bdi>{escape(text)}</bdi></{tag.split()[0]}>"


def bullets(title: str, texts: Sequence[str]) -> str:
    """Returns a titled list, or "" without texts."""
    items = "".join(f"<li><bdi>{escape(text)}</bdi></li>" for text in texts)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""
