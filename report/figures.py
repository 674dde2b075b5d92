"""Figures for papers as PNG: heads, attention in the worked examples, training curves, causal effects, seeds.

Needs matplotlib, an optional package. Everything is drawn with its default style, so equal numbers give equal files.
"""

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from probe.sentences import unpack_rows
from training.command_line import printable

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8c8c8c"
COLOURS = {"antecedent": BLUE, "distractor": ORANGE, "other": GREY}
FIGURES = ("heads.png", "four_cells.png", "tired_or_soft.png", "training.png", "effects.png", "seeds.png")
MOST_QUESTIONS = 6  # in one figure; probe.json has all
WIDTH = 7.0  # inches


def check_matplotlib() -> None:
    """Raise ValueError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("figures=true: needs matplotlib; pip install matplotlib")


def draw_run(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the figures of one model as PNG by file name; a figure without data is left out.

    Args:
        content: what the page shows (`report.content.page_content`).

    """
    questions = content["questions"][:MOST_QUESTIONS]
    figures = {}
    if questions:
        figures["heads.png"] = draw(len(questions), 1.8, lambda i, axes: draw_heads(axes, questions[i]))
    for question in questions:
        sentences = [sentence for sentence in content["sentences"] if sentence["id"] in question["sentences"]]
        for group in ("four_cells", "tired_or_soft"):
            members = [sentence for sentence in sentences if sentence["group"] == group]
            if members:
                figures[f"{group}.png"] = draw_sentences(members, content["run"], question)
    watched = [
        question for question in questions if content["training"] and question["curve"] in content["training"]["curves"]
    ]
    if watched:
        training = content["training"]
        figures["training.png"] = draw(len(watched), 2.0, lambda i, axes: draw_curves(axes, training, watched[i]))
    tested = [question for question in questions if question["effects"]]
    if tested:
        figures["effects.png"] = draw(len(tested), 2.4, lambda i, axes: draw_effects(axes, tested[i]), columns=1)
    return figures


def draw_seeds(results: Mapping[str, Any], metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, bytes]:
    """Return the accuracy of each run's chosen head during training, a panel for each question, as PNG by file name.

    Args:
        results: the content of seeds.json.
        metrics: records of metrics.jsonl by run.

    """
    panels = []
    for entry in results["questions"][:MOST_QUESTIONS]:
        name, curves = entry["question"], []
        for run, head in zip(results["runs"], entry["heads"], strict=True):
            readings = [record for record in metrics[run] if record["split"] == "probe" and name in record]
            values = [record[name]["accuracy_heads"][head["layer"]][head["head"]] for record in readings]
            curves.append(([record["step"] for record in readings], values))
        if all(steps for steps, _ in curves):
            panels.append((name, curves))
    if not panels:
        return {}

    def draw_panel(i: int, axes: Any) -> None:
        name, curves = panels[i]
        for steps, values in curves:
            axes.plot(steps, values, color=BLUE, linewidth=0.8, alpha=0.7)
        label(axes, f"{name}: accuracy of each seed's head", "step")

    return {"seeds.png": draw(len(panels), 2.0, draw_panel)}


def draw(n_panels: int, height: float, draw_panel: Callable[[int, Any], None], columns: int = 3) -> bytes:
    """Return a PNG of panels of `height` inches, `columns` side by side; `draw_panel` draws panel i on its axes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    style = {
        "font.size": 7,
        "axes.titlesize": 8,
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    n_columns = min(columns, n_panels)
    n_rows = -(-n_panels // n_columns)
    with matplotlib.style.context(["default", style]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(WIDTH, height * n_rows), layout="constrained")
        panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
        for i, axes in enumerate(panels):
            if i < n_panels:
                draw_panel(i, axes)
            else:
                axes.set_axis_off()
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=300, facecolor="white", metadata={"Software": None})
        return stream.getvalue()


def label(axes: Any, title: str, x: str = "") -> None:
    """Set the title and the name of the x axis."""
    axes.set_title(printable(title[:60]), loc="left")
    axes.set_xlabel(x)


def draw_heads(axes: Any, question: Mapping[str, Any]) -> None:
    """Draw the accuracy of every head, with a frame around the chosen head."""
    scores = np.array(question["heads"]["accuracy"], dtype=float)
    axes.imshow(scores, cmap="PuOr", vmin=0, vmax=1, aspect="auto")
    if scores.shape[1] <= 16:
        for layer, head in np.ndindex(*scores.shape):
            axes.text(head, layer, f"{scores[layer, head]:.2f}", ha="center", va="center", fontsize=6)
    axes.plot(question["head"], question["layer"], "s", fillstyle="none", color="black", markersize=18)
    axes.set_xticks(range(scores.shape[1]), [f"H{head}" for head in range(scores.shape[1])])
    axes.set_yticks(range(scores.shape[0]), [f"L{layer}" for layer in range(scores.shape[0])])
    label(axes, f"{question['name']}: accuracy")


def draw_sentences(
    sentences: Sequence[Mapping[str, Any]], run: Mapping[str, Any], question: Mapping[str, Any]
) -> bytes:
    """Draw the attention of the question's head from each sentence's query to its words, as bars."""
    layer, head = question["layer"], question["head"]

    def draw_panel(i: int, axes: Any) -> None:
        sentence = sentences[i]
        words, query = [printable(word[:14]) for word in sentence["words"]], sentence["query"][0]
        packed = sentence["weights"]
        shape = (run["n_layer"], run["n_head"], len(words))
        weights = unpack_rows(packed["data"], packed["rows"], shape, "uint16")[layer, head, query]
        roles = dict.fromkeys(range(len(words)), "other")
        roles |= dict.fromkeys(sentence["antecedents"], "antecedent") | dict.fromkeys(
            sentence["distractors"], "distractor"
        )
        axes.barh(range(len(words)), weights, color=[COLOURS[roles[position]] for position in range(len(words))])
        axes.set_yticks(range(len(words)), words)
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        label(axes, f"“{words[query]}”, L{layer}H{head}", "attention weight")

    return draw(
        len(sentences), 0.17 * max(len(sentence["words"]) for sentence in sentences) + 0.8, draw_panel, columns=4
    )


def draw_curves(axes: Any, training: Mapping[str, Any], question: Mapping[str, Any]) -> None:
    """Draw the accuracy of the question's head during training, the other heads and the chance level."""
    curve, steps = training["curves"][question["curve"]], training["steps"]
    accuracy = np.array(curve["accuracy"], dtype=float)  # [S, L, H]
    axes.plot(steps, accuracy.reshape(len(steps), -1), color=GREY, linewidth=0.5, alpha=0.6)
    axes.plot(steps, accuracy[:, question["layer"], question["head"]], color=BLUE, linewidth=1.6)
    axes.plot(steps, curve["chance_level"], color="black", linewidth=0.8, linestyle="--")
    axes.set_ylim(-0.03, 1.03)
    label(axes, f"{question['name']}: accuracy of L{question['layer']}H{question['head']}", "step")


def draw_effects(axes: Any, question: Mapping[str, Any]) -> None:
    """Draw the causal effects of a question's head with their intervals."""
    for place, effect in enumerate(question["effects"]):
        axes.barh(place, effect["value"], height=0.6, color=BLUE, alpha=0.55)
        if effect["interval"]:
            axes.plot(effect["interval"], [place, place], color="black", linewidth=1.2, marker="|")
    axes.set_yticks(range(len(question["effects"])), [effect["label"] for effect in question["effects"]])
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    label(axes, f"{question['name']}, L{question['layer']}H{question['head']}", "share of the answer [95 % interval]")
