"""The report page: one HTML file that works offline, fetches nothing and runs no script but its own.

Words and tables are written here, so the page can be read without a script. The interactive views are drawn by the
page*.js files from the JSON that the file carries.
"""

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.command_line import printable

FOLDER = Path(__file__).parent
SCRIPTS = ("page_data", "page_elements", "page_heads", "page_sentences", "page_training", "page")  # in this order

LONGEST_TEXT = 2000  # characters of a text outside the JSON
LONGEST_UNBROKEN = 24  # characters of a table cell that stays on one line

BADGES = {"supported": "●", "suggestive": "◐", "not established": "○"}
MEASURES = {
    "p_pair_accuracy": "corrected p of the pair accuracy",
    "p_pronoun_contrast": "corrected p of the pronoun contrast",
    "lead_low": "accuracy minus the best baseline, lower end",
    "selectivity": "selectivity",
    "attention_swap": "attention swap",
    "edge_specificity_low": "edge specificity, lower end",
    "unlinked_mass": "attention on nouns without an antecedent, relative to with one",
}
UPPER_LIMITS = {"p_pair_accuracy", "p_pronoun_contrast", "unlinked_mass"}
HOLDOUT_NOTE = (
    "iid: same distribution as training; pairs: new pairs of nouns; nouns: nouns no pronoun referred to in training; "
    "templates: new templates; headline: such nouns in new templates; distance: sentences in between; "
    "distractors: more nouns. "
    "Plot: blue is this head with its interval; grey are baselines (dots) and untrained models (bar)."
)


def page(content: Mapping[str, Any]) -> str:
    """Return the HTML file for the content of `report.content.page_content`.

    Every text is escaped, and the Content-Security-Policy allows this script and this style and nothing else. The
    result can be encoded as UTF-8 whatever the content holds.
    """
    script = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'\n(function () {{\n"use strict";\n{script}\n}})();\n'
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    run, questions = content["run"], content["questions"]
    heading = "Which attention head links a pronoun to its antecedent?" if questions else "What each head attends to"
    blanks = {
        "title": escape(f"{run['name']}: {heading}"),
        "heading": heading,
        "header": header(run),
        "claims": "\n".join(claim(i, question) for i, question in enumerate(questions)),
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
    """Return ASCII JSON without <, > and &, so that no HTML parser sees markup in it; ValueError if not finite."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy that allows exactly this script and this style."""
    hashes = (b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in (script, style))
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)
    return f"default-src 'none'; {sources}; img-src data:; base-uri 'none'; form-action 'none'"


def escape(text: Any) -> str:
    """Return `text` for HTML, cut to 2,000 characters; unprintable characters become U+FFFD."""
    text = str(text)
    cut = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"
    return html.escape(printable(cut))


def header(run: Mapping[str, Any]) -> str:
    """Return name, step, shape and training of the model."""
    is_external = run["max_steps"] is None
    facts = [
        f"{run['n_layer']} layers × {run['n_head']} heads",
        f"width {run['d_model']}",
        f"context of {run['context_length']} tokens",
        f"{run['n_parameters']:,} parameters",
        "trained elsewhere" if is_external else f"trained on {run['data']}, seed {run['seed']}",
        *([f"differs from a Llama-style model: {', '.join(run['departures'])}"] if run["departures"] else []),
    ]
    step = "external model" if is_external else f"step {run['step']:,} of {run['max_steps']:,}"
    return (
        f'<p class="run"><span class="brand">Antecedent</span> <bdi>{escape(run["name"])}</bdi> <span>{step}</span></p>'
        f'\n<p class="shape"><bdi>{escape(" · ".join(facts))}</bdi></p>'
    )


def claim(i: int, question: Mapping[str, Any]) -> str:
    """Return the verdict of a question and its claim, the first sentence large."""
    first, rest = [*re.split(r"(?<=[.!?])\s+(?=[A-Z])", question["claim"], maxsplit=1), ""][:2]
    verdict, level = question["verdict"], question["evidence_level"]
    badge = f'<span class="badge" data-verdict="{escape(verdict)}">{BADGES.get(verdict, "")} {escape(verdict)}</span>'
    lines = [
        f'<p class="verdict">{badge} <span>evidence {escape(level)} of E4: {escape(question["evidence"])}</span></p>',
        *(
            f'<p class="{kind}"><bdi>{escape(text)}</bdi></p>'
            for kind, text in (("claim", first), ("more", rest))
            if text
        ),
        f'<p class="rule"><bdi>{escape(question["name"])}</bdi>: <bdi>{escape(question["description"])}</bdi></p>',
    ]
    return f'<div data-question="{i}">\n' + "\n".join(lines) + "\n</div>"


def evidence(content: Mapping[str, Any]) -> str:
    """Return the tables behind every verdict, and those of the sweep that the run belongs to."""
    blocks = [question_evidence(i, question) for i, question in enumerate(content["questions"])]
    if not blocks:
        blocks.append('<p class="lead">No claim was tested for this model.</p>')
    blocks += [table(sweep["title"], sweep["header"], sweep["rows"], sweep["note"]) for sweep in content["tables"]]
    return "\n".join(blocks)


def question_evidence(i: int, question: Mapping[str, Any]) -> str:
    """Return the criteria, hold-outs, causal effects and cues of one question."""
    head = f"L{question['layer']}H{question['head']}"
    blocks = [
        f'<p class="lead">Question <bdi>{escape(question["name"])}</bdi>, head {head}, chosen by the probe on dev.</p>',
        table("Five criteria, fixed in advance", ("criterion", "measured", "required", "met"), criteria_rows(question)),
        table("Hold-outs", HOLDOUT_HEADER, map(holdout_row, question["holdouts"]), HOLDOUT_NOTE),
    ]
    if question["effects"]:
        ends = [end for effect in question["effects"] for end in (effect["value"], *(effect["interval"] or ()))]
        low, high = min(0, *ends), max(1, *ends)
        rows = [
            (effect["label"], number(effect["value"]), interval(effect["interval"]),
             plot(effect["value"], effect["interval"], low, high), effect["meaning"])
            for effect in question["effects"]
        ]  # fmt: skip
        note = "Share of the change of the model's answer between a sentence and the same with the other pronoun."
        blocks.append(table("Causal tests", ("intervention", "effect", "95 %", "plot", "how to read it"), rows, note))
    if question["cues"]:
        total = sum(value**2 for value in question["cues"].values()) or 1.0
        cues = [(name, number(value), f"{value**2 / total:.1%}") for name, value in question["cues"].items()]
        note = "A factorial analysis of the log attention ratio; a link head follows coreference alone."
        blocks.append(table("What the preference follows", ("cue", "effect b", "share of b²"), cues, note))
    return f'<div data-question="{i}">\n' + "\n".join(blocks) + "\n</div>"


def criteria_rows(question: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each criterion: name, measured values, bars, and whether they are met."""
    rows: list[tuple[str, ...]] = []
    for criterion in question["criteria"]:
        measured, bars = criterion["measured"], criterion["bars"]
        values = "; ".join(f"{MEASURES.get(name, name)} {number(value)}" for name, value in measured.items())
        required = "; ".join(f"{'below' if name in UPPER_LIMITS else 'above'} {bar:g}" for name, bar in bars.items())
        met = "✓ met" if criterion["passed"] else "– not measured" if None in measured.values() else "✗ missed"
        rows.append((criterion["name"].replace("_", " "), values, required, met))
    return rows


HOLDOUT_HEADER = ("hold-out", "items", "accuracy [95 %]", "plot", "block accuracy [95 %]", "pronoun contrast",
                  "chance level", "best baseline", "untrained [95 %]")  # fmt: skip


def holdout_row(holdout: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one row of the hold-out table."""
    best = max(holdout["baselines"], key=holdout["baselines"].__getitem__, default=None)
    untrained = holdout["untrained"]
    compared = [mark("untrained", untrained["accuracy_interval"], 0, 1)] if untrained else []
    compared += [mark("baseline", (value, value), 0, 1) for value in holdout["baselines"].values()]
    return (
        holdout["name"],
        f"{holdout['n_items']:,}",
        f"{number(holdout['accuracy'])} {interval(holdout['accuracy_interval'])}",
        plot(holdout["accuracy"], holdout["accuracy_interval"], 0, 1, *compared),
        f"{number(holdout['block_accuracy'])} {interval(holdout['block_accuracy_interval'])}",
        number(holdout["pronoun_contrast"]),
        number(holdout["chance_level"]),
        f"{best} {number(holdout['baselines'][best])}" if best else "–",
        f"{number(untrained['accuracy'])} {interval(untrained['accuracy_interval'])}" if untrained else "–",
    )


class Svg(str):
    """Markup of a plot that goes into a table cell without escaping."""


def plot(value: float | None, ends: Sequence[float | None] | None, low: float, high: float, *more: str) -> Svg:
    """Return a dot with its interval on a scale from `low` to `high`; screen readers skip it and read the numbers."""
    zero = mark("zero", (0, 0), low, high) if low < 0 else ""
    marks = [zero, *more, mark("whisker", ends, low, high), mark("head", (value, value), low, high)]
    return Svg(f'<svg class="plot" aria-hidden="true">{"".join(marks)}</svg>')


def mark(kind: str, ends: Sequence[float | None] | None, low: float, high: float) -> str:
    """Return a line between two values, drawn as a dot where they are equal; "" for unknown values."""
    if not ends or ends[0] is None or ends[1] is None:
        return ""
    left, right = (4 + 92 * min(1.0, max(0.0, (end - low) / (high - low))) for end in (ends[0], ends[1]))
    return f'<line class="{kind}" x1="{left:.1f}%" x2="{right + 0.01:.2f}%" y1="50%" y2="50%"/>'


def limits(content: Mapping[str, Any]) -> str:
    """Return what the claims do not show, what stands against them, and what the file leaves out."""
    blocks = []
    for i, question in enumerate(content["questions"]):
        inner = bullets("The result for this question does not show:", question["does_not_show"])
        inner += bullets("Why no more is claimed:", question["reasons"])
        blocks.append(f'<div data-question="{i}">{inner}</div>')
    blocks.append(
        "<p>Attention weights alone are no explanation: they show where a head reads, not what the model does with it. "
        "The causal tests above measure whether the answer depends on it. A causal model reads from left to right, so "
        "no word attends to a later word.</p>"
    )
    blocks.append(bullets("Settings changed when training was resumed:", content["resumed"]))
    blocks.append(bullets("Left out of this file:", content["omissions"]))
    return "\n".join(blocks)


def provenance(run: Mapping[str, Any]) -> str:
    """Return the command that makes this page again and the versions it was made with."""
    versions = "".join(
        f"<dt>{escape(name)}</dt><dd><bdi>{escape(v)}</bdi></dd>" for name, v in run["environment"].items()
    )
    return f"<p><code><bdi>{escape(run['command'])}</bdi></code></p>\n<dl>{versions}</dl>"


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table whose first column is a header, in a frame that scrolls if the table is too wide."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "\n".join(
        f"<tr>{cell('th scope=row', row[0])}{''.join(cell('td', text) for text in row[1:])}</tr>" for row in rows
    )
    small = f"<small><bdi>{escape(note)}</bdi></small>" if note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}{small}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def cell(tag: str, text: str) -> str:
    """Return a table cell; only plots stay unescaped."""
    short = " class=short" if len(text) <= LONGEST_UNBROKEN else ""
    inner = text if isinstance(text, Svg) else f"<bdi>{escape(text)}</bdi>"
    return f"<{tag}{short}>{inner}</{tag.split()[0]}>"


def number(value: float | None) -> str:
    """Return a number with three decimals (four below .001), "–" for None."""
    if value is None:
        return "–"
    return f"{value:.4f}" if 0 < abs(value) < 0.001 else f"{round(value, 3) + 0.0:.3f}"


def interval(ends: Sequence[float | None] | None) -> str:
    """Return "[low, high]", or "" for an unknown interval."""
    return f"[{number(ends[0])}, {number(ends[1])}]" if ends and None not in ends else ""


def bullets(title: str, texts: Sequence[str]) -> str:
    """Return a titled list, or "" without texts."""
    items = "".join(f"<li><bdi>{escape(text)}</bdi></li>" for text in texts)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""
