"""Figures for papers, as PNG: the map of heads, the four cells, when it came, whether it is why. Needs matplotlib.

Everything is drawn with matplotlib's own style and font and without a date, so the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.sentences import Layout, by_word, unwritten
from probe.verdict import MAX_P
from report.colours import AGAINST, FOR, Colour, ink, score_colour
from report.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"map.png", "four_cells.png", "twins.png", "emergence.png", "causal.png"}  # of all that is drawn here


_WIDTH = 7.0  # inches, a page's text


_DPI = 300


_FONT = 7.0  # points, the least that journals print


# Questions in one figure, so that it is no taller than a page; probe.json has them all.
_MOST_MAPS, _MOST_CURVES, _MOST_CAUSES = 8, 4, 5


_MOST_NUMBERED = 16  # heads in a row with a number in each: of more they would overlap


_LONGEST = 14  # characters of a word


_GREY = "#8c8c8c"


_STYLES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 3)))  # of lines that are all black


def check_installed() -> None:
    """Raise ValueError, before minutes of work, where matplotlib, an extra, is not there."""
    if find_spec("matplotlib") is None:
        raise ValueError("figures=true needs matplotlib: pip install matplotlib")


def draw_run(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw one run: the PNG of each file's name; one of which nothing is known is left out.

    Args:
        content: what the page holds (`report.content`).

    Raises:
        ValueError: matplotlib is not installed.

    """
    check_installed()
    with _style():
        drawn = {
            "map.png": _map(content),
            "four_cells.png": _strip(content, "cells"),
            "twins.png": _strip(content, "twins"),
            "emergence.png": _emergence(content),
            "causal.png": _causal(content),
        }
        return {name: _png(figure) for name, figure in drawn.items() if figure is not None}


def draw_seeds(results: Mapping[str, Any], records: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, bytes]:
    """Draw when the heads of several seeds came: {"emergence.png": bytes}, or {} where no question has curves.

    Args:
        results: what seeds.json holds (`probe.seeds.over_seeds`).
        records: the lines of metrics.jsonl of each run, by the names in `results["runs"]`.

    Raises:
        ValueError: matplotlib is not installed.

    """
    check_installed()
    by_question = {one["question"]: _curves_of_seeds(one, results["runs"], records) for one in results["questions"]}
    known = {name: curves for name, curves in by_question.items() if curves}
    if not known:
        return {}
    with _style():
        return {"emergence.png": _png(_over_seeds(dict(list(known.items())[:_MOST_CURVES]), len(results["runs"])))}


@contextmanager
def _style() -> Iterator[None]:
    """Draw as matplotlib does out of the box, whatever its owner has set, and take text for text."""
    import matplotlib.style

    plain = {"font.size": _FONT, "axes.titlesize": _FONT + 1, "figure.titlesize": _FONT + 1, "legend.fontsize": _FONT}
    plain |= {"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6}
    plain |= {"text.parse_math": False, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.style.context(["default", plain]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn for it
        yield


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return stream.getvalue()


def _panels(n_rows: int, n_columns: int, height: float, width: float = _WIDTH) -> tuple[Figure, np.ndarray]:
    """Return a figure of `height` inches and its axes [n_rows, n_columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False)


def _shade(colour: Colour) -> tuple[float, float, float]:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255


def _plain(text: str, longest: int = _LONGEST) -> str:
    """Return `text` without what no font can draw, cut off where it is longer than `longest`."""
    text = printable(text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _title(axes: Axes, text: str) -> None:
    axes.set_title(_plain(text, 60), loc="left")


def _map(content: Mapping[str, Any]) -> Figure | None:
    """Draw Sel@1 of every head, a panel for each question."""
    questions = content["questions"][:_MOST_MAPS]
    if not questions:
        return None
    run = content["run"]
    cell = min(0.42, (_WIDTH - 0.8) / run["n_head"])
    panel = max(1.6, cell * run["n_head"] + 0.5)
    n_columns = max(1, min(len(questions), int(_WIDTH // panel)))
    n_rows = -(-len(questions) // n_columns)
    height = n_rows * (cell * run["n_layer"] + 0.65) + 0.35
    figure, axes = _panels(n_rows, n_columns, height, max(3.4, min(_WIDTH, n_columns * panel)))
    for one, place in zip(questions, axes.flat, strict=False):
        _heads(place, one)
    for place in list(axes.flat)[len(questions) :]:
        place.set_axis_off()
    figure.supxlabel(
        "Sel@1: 0 orange, chance .5 white, 1 blue; "
        f"dot: p < {_number(MAX_P)}, corrected; frame: the head chosen on dev",
        fontsize=_FONT,
    )
    return figure


def _heads(axes: Axes, question: Mapping[str, Any]) -> None:
    """Draw one map: a cell for each head, its number, a dot where it is significant, a frame around the chosen."""
    from matplotlib.patches import Rectangle

    scores, p = question["heads"]["accuracy"], question["heads"]["p"]
    n_layer, n_head = len(scores), len(scores[0])
    axes.imshow([[_paper(score) for score in row] for row in scores], aspect="equal")
    for layer, head in np.ndindex(n_layer, n_head):
        colour = _ink(scores[layer][head])
        if n_head <= _MOST_NUMBERED:
            axes.text(head, layer, _number(scores[layer][head]), ha="center", va="center", color=colour)
        if p and p[layer][head] is not None and p[layer][head] < MAX_P:
            axes.plot(head + 0.36, layer - 0.34, ".", color=colour, markersize=3.5)
    chosen = (question["head"] - 0.47, question["layer"] - 0.47)
    axes.add_patch(Rectangle(chosen, 0.94, 0.94, fill=False, edgecolor="black", linewidth=1.4))
    axes.set_xticks(range(n_head), [f"H{head}" for head in range(n_head)])
    axes.set_yticks(range(n_layer), [f"L{layer}" for layer in range(n_layer)])
    axes.tick_params(length=0)
    axes.spines[:].set(visible=True, color=_GREY)
    _title(axes, question["name"])


def _paper(score: float | None) -> tuple[float, float, float]:
    return (0.9, 0.9, 0.9) if score is None else _shade(score_colour(score, 0, 0.5, 1))


def _ink(score: float | None) -> tuple[float, float, float]:
    return (0.0, 0.0, 0.0) if score is None else _shade(ink(score_colour(score, 0, 0.5, 1)))


def _number(score: float | None) -> str:
    """Write a share as in .87 and 1.0, so that it fits its cell."""
    if score is None:
        return "–"
    shown = f"{score:.2f}"
    return shown[1:] if shown.startswith("0") else f"{score:.1f}"


def _strip(content: Mapping[str, Any], group: str) -> Figure | None:
    """Draw what the chosen head of the group's question looks at, a panel for each sentence and asked word."""
    by_id = {one["id"]: one for one in content["sentences"] if one["group"] == group}
    found = ((one, [by_id[name] for name in one["sentences"] if name in by_id]) for one in content["questions"])
    question, sentences = next(((one, some) for one, some in found if some), (None, []))
    if question is None:
        return None
    asked = [(one, word) for one in sentences for word in sorted(one["asked"])]
    figure, axes = _panels(1, len(asked), 0.15 * max(len(one["words"]) for one in sentences) + 0.9)
    for (one, word), place in zip(asked, axes.flat, strict=True):
        rows = word_weights(one, content["run"], question["layer"], question["head"])
        _lines(place, one, word, rows[word])
    figure.suptitle(
        _plain(f"What L{question['layer']}H{question['head']} looks at ({question['name']})", 90), x=0.01, ha="left"
    )
    return figure


def _lines(axes: Axes, sentence: Mapping[str, Any], asked: int, weights: np.ndarray) -> None:
    """Draw a sentence twice, with lines from the asked word on the left to those on the right, by their weights."""
    words = [_plain(word) for word in sentence["words"]]
    meant = {place: _shade(FOR) for place in sentence["antecedents"]}
    meant |= {place: _shade(AGAINST) for place in sentence["distractors"]}
    for place, word in enumerate(words):
        colour = meant.get(place, "black")
        weight = "bold" if place == asked else "normal"
        axes.text(
            0.38, -place, word, ha="right", va="center", color="black" if place == asked else _GREY, weight=weight
        )
        axes.text(0.62, -place, word, ha="left", va="center", color=colour)
        axes.plot(
            [0.4, 0.6], [-asked, -place], color=colour, linewidth=3 * weights[place], alpha=0.25 + 0.75 * weights[place]
        )
    named = [f"{words[place]} {weights[place]:.2f}" for place in meant]
    axes.set_title(f"{words[asked]} → {'   '.join(named)}", loc="left", fontsize=_FONT)
    axes.set_xlim(0, 1)
    axes.set_ylim(0.6 - len(words), 0.6)
    axes.set_axis_off()


def word_weights(sentence: Mapping[str, Any], run: Mapping[str, Any], layer: int, head: int) -> np.ndarray:
    """Return a head's weights between the words of one of the page's sentences: [n_words, n_words]."""
    how = Layout(sentence["pieces"], sentence["words"], sentence["owner"])
    every = unwritten(sentence["weights"], (run["n_layer"], run["n_head"], len(how.pieces)))
    return by_word(every[layer, head], how)


def _emergence(content: Mapping[str, Any]) -> Figure | None:
    """Draw, of each watched question, Sel@1 and DD of every head and the payoff's loss; below, rho and the loss."""
    emergence = content["emergence"]
    if emergence is None:
        return None
    watched = {one["curve"]: one for one in reversed(content["questions"]) if one["curve"] in emergence["curves"]}
    some = list(reversed(watched.values()))[:_MOST_CURVES]
    figure, axes = _panels(len(some) + 1, 3, 1.55 * (len(some) + 1) + 0.2)
    for one, (accuracy, pronoun_contrast, payoff) in zip(some, axes, strict=False):
        curve = emergence["curves"][one["curve"]]
        where = f"{one['name']}, L{one['layer']}H{one['head']}"
        _head_curves(accuracy, emergence["steps"], curve["accuracy"], (one["layer"], one["head"]), curve["luck"])
        accuracy.set_ylim(-0.03, 1.03)
        _title(accuracy, f"Sel@1 of {where}")
        _head_curves(pronoun_contrast, emergence["steps"], curve["pronoun_contrast"], (one["layer"], one["head"]), None)
        _title(pronoun_contrast, "DD")
        _payoff(payoff, emergence["steps"], curve["payoff"])
    rho, loss, gap = axes[-1]
    _rhos(rho, emergence["steps"], {one["name"]: emergence["curves"][one["curve"]]["rho"] for one in some})
    _loss(loss, gap, emergence["loss"])
    for place in axes[-1]:
        place.set_xlabel("step")
    if some:
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
    return figure


def _head_curves(
    axes: Axes, steps: Sequence[int], values: Sequence[Any], head: tuple[int, int], luck: Sequence[float] | None
) -> None:
    every = np.array(values, dtype=float)  # [S, L, H]
    axes.plot(steps, every[:, *head], color=_shade(FOR), linewidth=1.6, zorder=3, label="this head")
    others = axes.plot(steps, every.reshape(len(steps), -1), color=_GREY, linewidth=0.5, alpha=0.6)
    others[0].set_label("every head")
    if luck:
        axes.plot(steps, np.array(luck, dtype=float), color="black", linewidth=0.8, linestyle="--", label="luck")


def _payoff(axes: Axes, steps: Sequence[int], payoff: Mapping[str, Sequence[float]] | None) -> None:
    if payoff is None:
        axes.set_axis_off()
        return
    axes.plot(steps, np.array(payoff["model"], dtype=float), color=_shade(FOR), linewidth=1.6, label="model")
    alike: dict[tuple[float, ...], list[str]] = {}
    for name in payoff:
        if name != "model":
            alike.setdefault(tuple(payoff[name]), []).append(_plain(name))
    for place, (values, names) in enumerate(alike.items()):
        style = _STYLES[place % len(_STYLES)]
        axes.plot(steps, values, color="black", linewidth=0.8, linestyle=style, label=fill(", ".join(names), 18))
    axes.legend(frameon=False, loc="upper right")
    _title(axes, "loss of the payoff, nats")


def _rhos(axes: Axes, steps: Sequence[int], by_name: Mapping[str, Sequence[float | None] | None]) -> None:
    known = {name: some for name, some in by_name.items() if some and any(one is not None for one in some)}
    if not known:
        axes.set_axis_off()
        return
    colours = (_shade(FOR), _shade(AGAINST), "black", _GREY)
    for place, (name, values) in enumerate(known.items()):
        style = ("-", "--")[place // len(colours) % 2]
        colour = colours[place % len(colours)]
        axes.plot(steps, np.array(values, dtype=float), color=colour, linestyle=style, label=_plain(name, 24))
    axes.legend(frameon=False, loc="best")
    _frame_rho(axes, list(known.values()))


def _frame_rho(axes: Axes, curves: Sequence[Sequence[float | None]]) -> None:
    """Cut off what lies far below 0, where training begins, unless all of it does; 1 is as good as can be."""
    values = np.array([one for curve in curves for one in curve], dtype=float)
    is_cut = bool(np.nanmin(values) < -1 and np.nanmax(values) > 0)
    if is_cut:
        axes.set_ylim(-1, 1.15)
    axes.axhline(1, color="black", linewidth=0.5, linestyle=":")
    _title(axes, "rho (below -1 cut off)" if is_cut else "rho")


def _loss(axes: Axes, gap: Axes, loss: Mapping[str, Any]) -> None:
    """Draw the validation loss with its floor, and, on a scale of powers of ten, what lies between them."""
    steps, validation = loss["steps"], np.array(loss["validation"], dtype=float)
    axes.plot(steps, validation, color=_shade(FOR), linewidth=1.6, marker=".", label="validation")
    _title(axes, "loss, nats/token")
    if not loss["floor"]:
        gap.set_axis_off()
        return
    floor = np.array(loss["floor"], dtype=float)
    axes.plot(steps, floor, color="black", linewidth=0.8, linestyle="--", label="floor")
    axes.legend(frameon=False, loc="upper right")
    above = np.where(validation > floor, validation - floor, np.nan)
    gap.plot(steps, above, color=_shade(FOR), linewidth=1.6, marker=".")
    if np.isfinite(above).any():
        gap.set_yscale("log")
        gap.yaxis.set_major_formatter("{x:g}")
    _title(gap, "the same, above the floor")


def _causal(content: Mapping[str, Any]) -> Figure | None:
    """Draw the causal effects of each question's head with their intervals, as shares of what the partner changes."""
    shown = [(one, [each for each in one["causal"] if each["value"] is not None]) for one in content["questions"]]
    shown = [(one, effects) for one, effects in shown if effects][:_MOST_CAUSES]
    if not shown:
        return None
    n_bars = [len(effects) for _, effects in shown]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 0.19 * sum(n_bars) + 0.6 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=n_bars)
    for (one, effects), place in zip(shown, axes.flat, strict=True):
        _bars(place, effects)
        _title(place, f"{one['name']}, L{one['layer']}H{one['head']}")
    axes.flat[-1].set_xlabel("share of the answer [95 % interval]")
    return figure


def _bars(axes: Axes, effects: Sequence[Mapping[str, Any]]) -> None:
    for place, one in enumerate(effects):
        axes.barh(place, one["value"], height=0.62, color=_shade(FOR), alpha=0.55)
        if one["interval"] is not None:
            axes.plot(one["interval"], [place, place], color="black", linewidth=1.2, marker="|", markersize=5)
        right = max(chain([one["value"], 0.0], one["interval"] or ()))
        axes.text(right, place, f"  {round(one['value'], 2) + 0.0:.2f}", va="center")
    axes.set_yticks(range(len(effects)), [_plain(one["label"], 60) for one in effects])
    axes.set_ylim(len(effects) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.axvline(1, color="black", linewidth=0.5, linestyle=":")


def _curves_of_seeds(
    question: Mapping[str, Any], runs: Sequence[str], records: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, list[tuple[list[int], list[float]]]]:
    """Return (steps, values) of each seed, Sel@1 and DD of its own head and rho; {} where training did not watch."""
    name = question["question"]
    curves: dict[str, list[tuple[list[int], list[float]]]] = {"Sel@1": [], "DD": [], "rho": []}
    for run, head in zip(runs, question["heads"], strict=True):
        found = [one for one in records[run] if one["split"] == "probe" and name in one]
        if not found:
            return {}
        steps = [one["step"] for one in found]
        for curve, score in (("Sel@1", "accuracy"), ("DD", "pronoun_contrast")):
            values = [one[name][f"{score}_heads"][head["layer"]][head["head"]] for one in found]
            curves[curve].append((steps, values))
        if all(one[name].get("rho") is not None for one in found):
            curves["rho"].append((steps, [one[name]["rho"] for one in found]))
    return curves


def _over_seeds(by_question: Mapping[str, Mapping[str, Any]], n_seeds: int) -> Figure:
    """Draw a thin line for each seed and a thick one for the median where all seeds were probed."""
    figure, axes = _panels(len(by_question), 3, 1.6 * len(by_question) + 0.3)
    for (question, curves), row in zip(by_question.items(), axes, strict=True):
        for place, (name, seeds) in zip(row, curves.items(), strict=True):
            if not seeds:
                place.set_axis_off()
                continue
            _seeds(place, seeds)
            _title(place, f"{name}, {question}" if name == "Sel@1" else name)
        row[0].set_ylim(-0.03, 1.03)
        if curves["rho"]:
            _frame_rho(row[2], [values for _, values in curves["rho"]])
    for place in axes[-1]:
        place.set_xlabel("step")
    figure.suptitle(f"{n_seeds} seeds, each its own head; thick: the median", x=0.01, ha="left", fontsize=_FONT)
    return figure


def _seeds(axes: Axes, seeds: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
    for steps, values in seeds:
        axes.plot(steps, values, color=_GREY, linewidth=0.7)
    common = sorted(set.intersection(*(set(steps) for steps, _ in seeds)))
    by_seed = [dict(zip(steps, values, strict=True)) for steps, values in seeds]
    axes.plot(common, [np.median([one[step] for one in by_seed]) for step in common], color=_shade(FOR), linewidth=1.8)
