"""Figures for papers as PNG: the scores of all heads, and curves of training for one run or all seeds of a sweep.

Needs matplotlib, an optional package. Everything is drawn with its default style, so equal numbers give equal files.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

BLUE, GREY = "#0072b2", "#8c8c8c"
FIGURES = ("heads.png", "training.png", "seeds.png")
MOST_PANELS = 6  # in a figure; probe.json has all questions


def check_matplotlib() -> None:
    """Raises ValueError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("figures=true: needs matplotlib; pip install matplotlib")


def draw_run(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns the figures for the content of a page as PNG by file name; a figure without data is left out."""
    training = content["training"] or {"curves": {}}
    watched = [question for question in content["questions"] if question["question"] in training["curves"]]
    return {
        **draw("heads.png", content["questions"], draw_heads),
        **draw("training.png", watched, lambda axes, question: draw_curves(axes, training, question)),
    }


def draw_seeds(results: Mapping[str, Any], metrics: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, bytes]:
    """Returns the accuracy of each run's chosen head during training, a panel for each question, as PNG by file name.

    `results` is the content of seeds.json, `metrics` the records of each run's metrics.jsonl.
    """
    probes = [[record for record in records if record["split"] == "probe"] for records in metrics]

    def draw_question(axes: Any, entry: Mapping[str, Any]) -> None:
        name = entry["question"]
        for records, head in zip(probes, entry["heads"], strict=True):
            accuracy = [record[name]["accuracy_heads"][head["layer"]][head["head"]] for record in records]
            axes.plot([record["step"] for record in records], accuracy, color=BLUE, linewidth=0.8, alpha=0.7)
        axes.set_title(f"{name}: accuracy of each seed's head", loc="left")
        axes.set_xlabel("step")

    names = set.intersection(*({*record} for records in probes for record in records)) if all(probes) else set()
    return draw("seeds.png", [entry for entry in results["questions"] if entry["question"] in names], draw_question)


def draw(name: str, panels: Sequence[Any], draw_panel: Callable[[Any, Any], None]) -> dict[str, bytes]:
    """Returns a PNG by its file name, {} without panels; `draw_panel` draws a panel on its axes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    if not panels:
        return {}
    panels = panels[:MOST_PANELS]
    style = {"font.size": 7, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False}
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    with matplotlib.style.context(["default", style]):
        figure = Figure(figsize=(7, 2 * n_rows), layout="constrained")
        all_axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axes, panel in zip(all_axes, panels, strict=False):
            draw_panel(axes, panel)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=300, facecolor="white", metadata={"Software": None})
        return {name: stream.getvalue()}


def draw_heads(axes: Any, question: Mapping[str, Any]) -> None:
    """Draws the accuracy of every head, with a frame around the chosen head."""
    scores = np.array(question["heads"]["accuracy"], dtype=float)
    axes.imshow(scores, cmap="PuOr", vmin=0, vmax=1, aspect="auto")
    if scores.shape[1] <= 16:
        for (layer, head), score in np.ndenumerate(scores):
            axes.text(head, layer, f"{score:.2f}", ha="center", va="center", fontsize=6)
    axes.plot(question["head"], question["layer"], "s", fillstyle="none", color="black", markersize=18)
    axes.set_xticks(range(scores.shape[1]), [f"H{head}" for head in range(scores.shape[1])])
    axes.set_yticks(range(scores.shape[0]), [f"L{layer}" for layer in range(scores.shape[0])])
    axes.set_title(f"{question['question']}: accuracy", loc="left")


def draw_curves(axes: Any, training: Mapping[str, Any], question: Mapping[str, Any]) -> None:
    """Draws the accuracy of the question's head during training, the other heads and the chance level."""
    curve, steps = training["curves"][question["question"]], training["steps"]
    accuracy = np.array(curve["accuracy"], dtype=float)  # [S, L, H]
    axes.plot(steps, accuracy.reshape(len(steps), -1), color=GREY, linewidth=0.5, alpha=0.6)
    axes.plot(steps, accuracy[:, question["layer"], question["head"]], color=BLUE, linewidth=1.6)
    axes.plot(steps, curve["chance_level"], color="black", linewidth=0.8, linestyle="--")
    axes.set_ylim(-0.03, 1.03)
    axes.set_title(f"{question['question']}: accuracy of L{question['layer']}H{question['head']}", loc="left")
    axes.set_xlabel("step")
