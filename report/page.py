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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.errors import printable
from data.typed_json import to_json
from probe.results import QuestionResult
from probe.verdict import NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED
from report.live import Live
from report.tables import Table, head_names, question_tables

FOLDER = Path(__file__).parent
SCRIPTS = (  # in this order
    "page_model",
    "page_tokens",
    "page_data",
    "page_elements",
    "page_live_model",
    "page_heads",
    "page_sentences",
    "page_save",
    "page_training",
    "page_live",
    "page",
)

LONGEST_TEXT = 2000  # characters of a text outside the JSON
LONGEST_UNBROKEN = 32  # characters of a table cell that stays on one line

LIVE_LEAD = (
    "Type a sentence, remove a head or cut a link, and see which word the model expects next. "
    "One sentence is an illustration (n = 1), not a test: the verdict above stays as it is."
)
BADGES = {SUPPORTED: "●", SUGGESTIVE: "◐", NOT_ESTABLISHED: "○"}


# What the page shows: the fields are the keys of its JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModel:
    """Name, shape, training and provenance of a model."""

    name: str
    step: str
    facts: str
    n_layer: int
    n_head: int
    environment: Mapping[str, Any]
    commands: list[str]  # that make the page again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuestion:
    """The result of a question, and what the page says about it."""

    result: QuestionResult = field(metadata={"flattened": True})
    description: str
    claim: str
    does_not_show: list[str]
    holdout: str  # that the heads' scores are of
    ablation: str  # code
    heads: Mapping[str, Any]  # scores and p of all heads, [L][H], in place of those of the result
    sentences: list[str]  # their ids


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSentence:
    """A sentence with the attention of every head between its words; words are indices into `words`."""

    id: str  # group and number, for the address: report.html#yours-1
    group: str  # is shown side by side
    title: str
    text: str
    words: list[str]
    query: list[int]  # heads are read at these words; the first is selected on the page
    antecedents: list[int]
    distractors: list[int]
    notes: list[str]
    next: list[tuple[str, float]]  # the most probable next tokens
    weights: str  # of `pack_weights`


@dataclass(frozen=True, slots=True)
class PageClaim:
    """A verdict and the claim that it allows."""

    verdict: str
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """Everything that the page shows."""

    run: PageModel
    notes: list[str]
    max_p: float
    questions: list[PageQuestion] = field(default_factory=list)
    sentences: list[PageSentence]
    training: dict[str, Any] | None  # `report.content.training_content`, for the script
    next_pronoun: list[PageClaim] = field(default_factory=list)
    asked: str = "links a pronoun to its antecedent"  # of the heads, in the heading
    tables: list[Table] = field(default_factory=list)
    resumed: Sequence[str]
    omissions: list[str]  # parts that are left out for their size
    live: Live = Live(None, "")


# HTML


def page(content: PageContent) -> str:
    """Return the HTML file of the page.

    Every text is escaped, and the Content-Security-Policy allows this script and this style and nothing else. The
    result can be encoded as UTF-8 whatever the content holds.
    """
    script, style = script_text(), style_text()

    # The template names its blanks {{name}}.
    heading = "What each head attends to"
    if _is_tested(content):
        heading = f"Which attention head {content.asked}?"
    blanks = {
        "title": _escape(f"{content.run.name}: {heading}"),
        "heading": _escape(heading),
        "header": _header(content.run),
        "claims": _claims(content),
        "notes": "".join(f'<p class="note"><bdi>{_escape(note)}</bdi></p>' for note in content.notes),
        "live": _live(content.live),
        "evidence": _evidence(content),
        "limits": _limits(content),
        "provenance": _provenance(content.run),
        "policy": policy(script, style),
        "style": style,
        "script": script,
        "content": _embedded_json(content),
    }
    # One pass, so that a value that contains {{...}} stays as it is.
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], template)


def script_text() -> str:
    """Return the script of the page; its files share one scope."""
    script = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    return f'\n(function () {{\n"use strict";\n{script}\n}})();\n'


def style_text() -> str:
    """Return the style of the page."""
    return (FOLDER / "page.css").read_text(encoding="utf-8")


def _is_tested(content: PageContent) -> bool:
    return bool(content.questions or content.next_pronoun)


def _embedded_json(content: PageContent) -> str:
    """Return ASCII JSON without <, > and &, so that no HTML parser sees markup in it."""
    text = json.dumps(to_json(content), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy that allows exactly this script and this style."""
    hashes = [b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (script, style)]
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def _escape(value: Any) -> str:
    """Return a value for HTML, cut to 2,000 characters; unprintable characters become U+FFFD."""
    text = str(value)
    return html.escape(printable(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"))


def _header(run: PageModel) -> str:
    name, step, facts = (f"<bdi>{_escape(text)}</bdi>" for text in (run.name, run.step, run.facts))
    return f'<p class="run"><span class="brand">Antecedent</span> {name} {step}</p>\n<p class="shape">{facts}</p>'


def _claims(content: PageContent) -> str:
    """Return the claims on the next pronoun, and on each question of the probe's own sentences."""
    blocks = [_claim(shown.verdict, "next pronoun", shown.claim) for shown in content.next_pronoun]

    # The script shows the claim of one question at a time.
    for i, question in enumerate(content.questions):
        about = f"{question.result.question}: {question.description}"
        shown = _claim(question.result.verdict, about, question.claim)
        blocks.append(f'<div data-question="{i}">\n{shown}\n</div>')
    return "\n".join(blocks)


def _claim(verdict: str, about: str, text: str) -> str:
    """Return a verdict and the claim in `text`, if any, its first sentence large."""
    badge = f'<span class="badge" data-verdict="{_escape(verdict)}">{BADGES.get(verdict, "")} {_escape(verdict)}</span>'
    lines = [f'<p class="verdict">{badge} <bdi>{_escape(about)}</bdi></p>']

    # The first sentence ends before a space and a capital letter.
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)
    for kind, part in zip(("claim", "more"), sentences, strict=False):
        if part:
            lines.append(f'<p class="{kind}"><bdi>{_escape(part)}</bdi></p>')
    return "\n".join(lines)


def _live(live: Live) -> str:
    """Return the frame of the live section, which the script fills, or the reason why there is none."""
    if live.model is None:
        return f'<p class="rule live-reason"><bdi>{_escape(live.reason)}</bdi></p>' if live.reason else ""
    return (
        '<section id="live" class="scripted" aria-labelledby="live-title">\n'
        '<h2 id="live-title">Your own sentence</h2>\n'
        f'<p class="lead">The model runs in this page, without a network. {_escape(LIVE_LEAD)}</p>\n'
        '<div id="live-body"></div>\n</section>'
    )


def _evidence(content: PageContent) -> str:
    """Return the tables behind every verdict, and those of all questions."""
    blocks = [] if _is_tested(content) else ['<p class="lead">No claim was tested for this model.</p>']
    for i, question in enumerate(content.questions):
        result = question.result
        heads = head_names(result.judged_heads)
        lead = _escape(f"Question {result.question}, head {heads}, chosen on dev sentences.")
        tables = "\n".join(map(_table, question_tables(result)))
        code = f"<h3>Remove this head</h3>\n<pre><code>{_escape(question.ablation)}</code></pre>"
        blocks.append(f'<div data-question="{i}">\n<p class="lead"><bdi>{lead}</bdi></p>\n{tables}\n{code}\n</div>')
    return "\n".join([*blocks, *map(_table, content.tables)])


def _limits(content: PageContent) -> str:
    """Return what the claims do not show, what stands against them, and what the file leaves out."""
    blocks = []
    for i, question in enumerate(content.questions):
        inner = _bullets("The result for this question does not show:", question.does_not_show)
        inner += _bullets("Why no more is claimed:", question.result.reasons)
        blocks.append(f'<div data-question="{i}">{inner}</div>')

    # The same for every model
    blocks.append(
        "<p>Attention weights alone are no explanation: they show where a head reads, not what the model does with it. "
        "A causal test measures whether the answer depends on it. A causal model reads from left to right, so no word "
        "attends to a later word.</p>"
    )
    blocks.append(_bullets("Settings changed when training was resumed:", content.resumed))
    blocks.append(_bullets("Left out of this file:", content.omissions))
    return "\n".join(blocks)


def _provenance(run: PageModel) -> str:
    """Return the commands that make this page again and the versions it was made with."""
    lines = "".join(f"<p><code><bdi>{_escape(command)}</bdi></code></p>" for command in run.commands)
    versions = ""
    for name, version in run.environment.items():
        versions += f"<dt>{_escape(name)}</dt><dd><bdi>{_escape(version)}</bdi></dd>"
    return f"{lines}\n<dl>{versions}</dl>"


def _table(shown: Table) -> str:
    """Return a table whose first column is a header, in a frame that scrolls if the table is too wide."""
    # Header and rows
    head = "".join(f'<th scope="col">{_escape(name)}</th>' for name in shown.header)
    rows = []
    for first, *others in shown.rows:
        rows.append(f"<tr>{_cell('th scope=row', first)}{''.join(_cell('td', text) for text in others)}</tr>")
    body = "\n".join(rows)

    # A region that scrolls must be reachable by the keyboard, so it has a name.
    title = _escape(shown.title)
    return (
        f'<h3>{title}</h3>\n<p class="rule"><bdi>{_escape(shown.note)}</bdi></p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, text: str) -> str:
    """Return a table cell; short texts stay on one line."""
    short = " class=short" if len(text) <= LONGEST_UNBROKEN else ""
    return f"<{tag}{short}><bdi>{_escape(text)}</bdi></{tag.split()[0]}>"


def _bullets(title: str, texts: Sequence[str]) -> str:
    """Return a titled list, or "" without texts."""
    items = "".join(f"<li><bdi>{_escape(text)}</bdi></li>" for text in texts)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""
