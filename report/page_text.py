"""What the page says in words and tables, written by Python: it can be read without any script."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Nor what would turn the rest of a line around.
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


_FIRST_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


_LONGEST = 2000  # characters of one text in a table or a line: a word of ten thousand letters tells nobody more


_SHORT = 24  # characters that are not broken over two lines: a number with its interval


_MARKS = {"supported": "●", "suggestive": "◐", "not established": "○"}


_LEVELS = ("E0", "E1", "E2", "E3", "E4")


# The bars that must stay below; the others must be passed.
_BELOW = frozenset({"p_pair_accuracy", "p_pronoun_contrast", "unlinked_mass"})


# Whether it passed, and whether something of it could not be measured.
_MET = {(True, False): "✓ met", (True, True): "✓ met", (False, False): "✗ missed", (False, True): "– not measured"}


_NAMES = {
    "p_pair_accuracy": "corrected p on F2",
    "p_pronoun_contrast": "corrected p on DD",
    "over_best_low": "Sel@1 over the best baseline, lower end",
    "selectivity": "selectivity",
    "attention_swap": "T, its two weights exchanged",
    "edge_specificity_low": "ES, its edge cut, lower end",
    "unlinked_mass": "weight on nouns where none is meant",
}


def plain(text: Any) -> str:
    """Return `text` for HTML: escaped, cut to 2,000 characters, and without what no text can hold.

    NUL, other control characters and lone surrogates become U+FFFD.
    """
    text = str(text)
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return html.escape(_NO_TEXT.sub("\ufffd", cut))


def parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the fillings of page.html that are words, by name."""
    run, questions = content["run"], content["questions"]
    asks = "Which head knows what “it” means?" if questions else "What each head looks at"
    return {
        "title": plain(f"{run['name']}: {asks}"),
        "heading": asks,
        "header": _header(run),
        "claims": "\n".join(_claim(place, one) for place, one in enumerate(questions)),
        "notes": _lines("note", content["notes"]),
        "why": _why(content),
        "limits": _limits(content),
        "made": _made(run),
    }


def _header(run: Mapping[str, Any]) -> str:
    is_elsewhere = run["max_steps"] is None  # and so what it was trained on, and how, is not known
    shape = [
        f"{run['n_layer']} layers × {run['n_head']} heads",
        f"width {run['d_model']}",
        f"{run['context_length']} tokens of context",
        f"{run['n_parameters']:,} parameters",
        "trained elsewhere" if is_elsewhere else f"trained on {run['data']}, seed {run['seed']}",
    ]
    departures = ", ".join(run["departures"])
    shape.append(f"unlike a plain Llama: {departures}" if departures else "a plain Llama in shape")
    step = "a model from elsewhere"
    if not is_elsewhere:
        step = f"step {run['step']:,}" + (f" of {run['max_steps']:,}" if run["step"] != run["max_steps"] else "")
    return (
        '<p class="run"><span class="brand">Antecedent</span> '
        f"<bdi>{plain(run['name'])}</bdi> <span>{step}</span></p>\n"
        f'<p class="shape"><bdi>{plain(" · ".join(shape))}</bdi></p>'
    )


def _claim(place: int, one: Mapping[str, Any]) -> str:
    """Return the card of one question: its verdict, its sentence large, the rest of what it says below."""
    claim = (one["claim"] or f"{one['name']}: {one['verdict']}").replace(" %", "\u00a0%")
    first, *rest = _FIRST_SENTENCE.split(claim, maxsplit=1)
    level, verdict = one["evidence_level"], one["verdict"]
    steps = "".join(f'<i class="{"reached" if level >= step else "open"}"></i>' for step in _LEVELS[1:])
    return (
        f'<article class="card" data-question="{place}">\n'
        f'<p class="verdict"><span class="badge" data-verdict="{plain(verdict)}">'
        f'<span aria-hidden="true">{_MARKS.get(verdict, "○")}</span> {plain(verdict)}</span> '
        f'<span class="ladder" aria-hidden="true">{steps}</span> '
        f'<span class="level">{plain(level)} of E4: <bdi>{plain(one["evidence"])}</bdi></span></p>\n'
        f'<p class="sentence"><bdi>{plain(first)}</bdi></p>\n'
        + "".join(f'<p class="rest"><bdi>{plain(text)}</bdi></p>\n' for text in rest)
        + f'<p class="meaning"><bdi>{plain(one["name"])}</bdi>: <bdi>{plain(one["meaning"])}</bdi></p>\n</article>'
    )


def _why(content: Mapping[str, Any]) -> str:
    found = [_evidence(place, one) for place, one in enumerate(content["questions"])]
    if not found:
        found.append("<p>Nothing was asked of this model, so there is no effect, baseline or verdict to show.</p>")
    for name in ("lab", "seeds"):
        if content[name]:
            found.append(_given(content[name]))
    return "\n".join(found)


def _evidence(place: int, one: Mapping[str, Any]) -> str:
    """Return what one verdict rests on: criteria, hold-outs, causes, cues."""
    head = f"L{one['layer']}H{one['head']}"
    header = ["hold-out", "n", "Sel@1 [95 %]", "F4 [95 %]", "DD", "luck", "rules: Sel@1", "untrained: Sel@1 [95 %]"]
    blocks = [
        f'<p class="lead"><bdi>{plain(one["name"])}</bdi>: of the head that the probe chose, {head}.</p>',
        table("Five criteria, fixed beforehand", ["criterion", "measured", "needed", "met"], _criteria(one)),
        _plotted("holdouts", table("By hold-out, beside what knows nothing", header, map(_holdout, one["holdouts"]))),
    ]
    if one["causal"]:
        rows = [[it["label"], number(it["value"]), interval(it["interval"]), it["reads"]] for it in one["causal"]]
        found = table("What happens to the answer", ["what is done", "effect", "95 %", "how to read it"], rows)
        blocks.append(_plotted("causal", found))
    if one["cues"]:
        found = table("What moves its preference", ["cue", "effect b", "share of b²"], _cues(one["cues"]))
        blocks.append(_plotted("cues", found))
    return f'<div data-question="{place}">\n' + "\n".join(blocks) + "\n</div>"


def _plotted(name: str, table: str) -> str:
    """Return the place of a picture and its numbers under it, open until a script has drawn the picture."""
    return f'<div class="plot" data-plot="{name}"></div><details open><summary>the numbers</summary>{table}</details>'


def _criteria(one: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for it in one["criteria"]:
        measured = "; ".join(f"{_NAMES.get(name, name)} {number(value)}" for name, value in it["measured"].items())
        needed = "; ".join(
            f"{'below' if name in _BELOW else 'above'} {number(bar)}" for name, bar in it["bars"].items()
        )
        rows.append([it["name"], measured, needed, _MET[it["passed"], None in it["measured"].values()]])
    return rows


def _holdout(one: Mapping[str, Any]) -> list[str]:
    rules = [f"{name} {number(value)}" for name, value in one["baselines"].items()]
    rules += [f"{name} (knows number and kind) {number(value)}" for name, value in one["knowing"].items()]
    untrained = one["untrained"]
    return [
        one["name"],
        f"{one['n']:,}",
        f"{number(one['accuracy'])} {interval(one['accuracy_interval'])}",
        f"{number(one['block_accuracy'])} {interval(one['block_accuracy_interval'])}",
        number(one["pronoun_contrast"]),
        number(one["luck"]),
        ", ".join(rules),
        f"{number(untrained['accuracy'])} {interval(untrained['interval'])} of {untrained['n']}" if untrained else "–",
    ]


def _cues(cues: Mapping[str, float]) -> list[list[str]]:
    whole = sum(value**2 for value in cues.values())
    return [[name, number(value), f"{100 * value**2 / whole:.1f} %" if whole else "–"] for name, value in cues.items()]


def _limits(content: Mapping[str, Any]) -> str:
    found = []
    for place, one in enumerate(content["questions"]):
        inner = (
            f"<p>The answer to <bdi>{plain(one['name'])}</bdi> does not show:</p>{_list(one['does_not_show'])}"
            if one["does_not_show"]
            else ""
        )
        if one["reasons"]:
            inner += f"<h3>Why no more is claimed</h3>{_list(one['reasons'])}"
        found.append(f'<div data-question="{place}">{inner}</div>')
    found.append(
        "<p>Attention is not explanation. A line says where a head looks, not what the model makes of it: the bars "
        "above say whether the answer hangs on it. A causal model reads from left to right, so no word knows a later "
        "one.</p>"
    )
    if content["resumed"]:
        found.append(f"<h3>What was changed while it learned</h3>{_list(content['resumed'])}")
    if content["caps"]:
        found.append(f"<h3>What was left out of this file</h3>{_list(content['caps'])}")
    return "\n".join(found)


def _made(run: Mapping[str, Any]) -> str:
    rows = [(str(name), str(value)) for name, value in run["environment"].items()]
    terms = "".join(
        f"<dt><bdi>{plain(name)}</bdi></dt><pronoun_contrast><bdi>{plain(value)}</bdi></pronoun_contrast>"
        for name, value in rows
    )
    return f"<p><code><bdi>{plain(run['command'])}</bdi></code></p>\n<dl>{terms}</dl>"


def _given(given: Mapping[str, Any]) -> str:
    note = f'<p class="rule"><bdi>{plain(given["note"])}</bdi></p>' if given["note"] else ""
    return table(given["title"], given["header"], given["rows"]) + note


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names the row, in a frame of its own that scrolls where it is too wide."""
    head = "".join(f'<th scope="col">{plain(name)}</th>' for name in header)
    body = "\n".join(
        "<tr>"
        + "".join(_cell("th scope=row" if place == 0 else "td", cell) for place, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{plain(caption)}"><table>'
        f"<caption>{plain(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, text: str) -> str:
    short = " class=short" if len(text) <= _SHORT else ""
    return f"<{tag}{short}><bdi>{plain(text)}</bdi></{tag[:2]}>"


def number(value: float | None) -> str:
    """Return a number to three places, a small one to four, a dash where it is not known."""
    if value is None:
        return "–"
    return f"{value:.4f}" if 0 < abs(value) < 0.001 else f"{value:.3f}"


def interval(ends: Sequence[float] | None) -> str:
    """Return "[low, high]", nothing where it is not known."""
    return f"[{number(ends[0])}, {number(ends[1])}]" if ends else ""


def _lines(kind: str, texts: Iterable[str]) -> str:
    return "\n".join(f'<p class="{kind}"><bdi>{plain(text)}</bdi></p>' for text in texts)


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li><bdi>{plain(text)}</bdi></li>" for text in texts) + "</ul>"
