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
    "templates: new sentence templates; headline: such nouns in new templates; distance: sentences in between; "
    "distractors: more nouns. In the plot: ● this head with its interval, ○ baselines, grey: untrained models."
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
        "notes": paragraphs("note", content["notes"]),
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
    first, *rest = re.split(r"(?<=[.!?])\s+(?=[A-Z])", question["claim"], maxsplit=1)
    verdict, level = question["verdict"], question["evidence_level"]
    lines = [
        f'<p class="verdict"><span class="badge" data-verdict="{escape(verdict)}">{BADGES.get(verdict, "")} '
        f"{escape(verdict)}</span> <span>evidence {escape(level)} of E4: {escape(question['evidence'])}</span></p>",
        f'<p class="claim"><bdi>{escape(first)}</bdi></p>' if first else "",
        f'<p class="more"><bdi>{escape(rest[0])}</bdi></p>' if rest else "",
        f'<p class="rule"><bdi>{escape(question["name"])}</bdi>: <bdi>{escape(question["description"])}</bdi></p>',
    ]
    return f'<div data-question="{i}">\n' + "\n".join(filter(None, lines)) + "\n</div>"


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
             effect_plot(effect, low, high), effect["meaning"])
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
    return (
        holdout["name"],
        f"{holdout['n_items']:,}",
        f"{number(holdout['accuracy'])} {interval(holdout['accuracy_interval'])}",
        accuracy_plot(holdout),
        f"{number(holdout['block_accuracy'])} {interval(holdout['block_accuracy_interval'])}",
        number(holdout["pronoun_contrast"]),
        number(holdout["chance_level"]),
        f"{best} {number(holdout['baselines'][best])}" if best else "–",
        f"{number(untrained['accuracy'])} {interval(untrained['accuracy_interval'])}" if untrained else "–",
    )


class Svg(str):
    """Markup of a plot that goes into a table cell without escaping."""


def accuracy_plot(holdout: Mapping[str, Any]) -> Svg:
    """Return a plot from 0 to 1: the head's accuracy and interval, the baselines, the untrained models."""
    marks = []
    if holdout["untrained"] and holdout["untrained"]["accuracy_interval"]:
        low, high = holdout["untrained"]["accuracy_interval"]
        marks.append(bar("untrained", low, high, 14))
    marks += [dot("baseline", value, 3.5) for value in holdout["baselines"].values() if value is not None]
    marks += whisker(holdout["accuracy_interval"], 0, 1)
    return plot([*marks, *([] if holdout["accuracy"] is None else [dot("head", holdout["accuracy"], 5)])])


def effect_plot(effect: Mapping[str, Any], low: float, high: float) -> Svg:
    """Return a bar from 0 to the effect with its interval, on a scale from `low` to `high`."""
    zero, value = (0 - low) / (high - low), (effect["value"] - low) / (high - low)
    line = f'<line class="zero" x1="{percent(zero)}" x2="{percent(zero)}" y1="0" y2="19"/>'
    return plot([line, bar("effect", min(zero, value), max(zero, value), 10), *whisker(effect["interval"], low, high)])


def plot(marks: Iterable[str]) -> Svg:
    """Return the marks as an SVG; screen readers skip it and read the numbers."""
    return Svg(f'<svg class="plot" aria-hidden="true">{"".join(marks)}</svg>')


def percent(share: float) -> str:
    """Return a position in a plot, with a margin for the marks at its ends."""
    return f"{4 + 92 * min(1.0, max(0.0, share)):.1f}%"


def dot(kind: str, share: float, radius: float) -> str:
    """Return a circle."""
    return f'<circle class="{kind}" cx="{percent(share)}" cy="50%" r="{radius}"/>'


def bar(kind: str, low: float, high: float, height: int) -> str:
    """Return a bar between two shares."""
    width = f"{92 * (min(1.0, high) - max(0.0, low)):.1f}%"
    return f'<rect class="{kind}" x="{percent(low)}" width="{width}" y="{9.5 - height / 2}" height="{height}"/>'


def whisker(ends: Sequence[float | None] | None, low: float, high: float) -> list[str]:
    """Return a line for an interval; none for an unknown interval."""
    if not ends or ends[0] is None or ends[1] is None:
        return []
    left, right = (percent((end - low) / (high - low)) for end in (ends[0], ends[1]))
    return [f'<line class="whisker" x1="{left}" x2="{right}" y1="50%" y2="50%"/>']


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
    return "\n".join(filter(None, blocks))


def provenance(run: Mapping[str, Any]) -> str:
    """Return the command that makes this page again and the versions it was made with."""
    terms = "".join(
        f"<dt><bdi>{escape(name)}</bdi></dt><dd><bdi>{escape(value)}</bdi></dd>"
        for name, value in run["environment"].items()
    )
    return f"<p><code><bdi>{escape(run['command'])}</bdi></code></p>\n<dl>{terms}</dl>"


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


def paragraphs(kind: str, texts: Iterable[str]) -> str:
    """Return one paragraph for each text."""
    return "\n".join(f'<p class="{kind}"><bdi>{escape(text)}</bdi></p>' for text in texts)


def bullets(title: str, texts: Sequence[str]) -> str:
    """Return a titled list, or "" without texts."""
    items = "".join(f"<li><bdi>{escape(text)}</bdi></li>" for text in texts)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""
