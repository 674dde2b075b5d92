"""PNG figures of a sweep, for papers: training curves over its seeds, and the measures of its variants.

Needs matplotlib, an optional package. Everything is drawn with its default style, so equal numbers give equal files.
"""

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from data.errors import UserError
from lab.compare import MEASURES, Comparison, Measure
from lab.seeds import QuestionOverSeeds, SeedsResult
from training.metrics import Metrics

BLUE = "#0072b2"
ORANGE = "#d55e00"
MOST_PANELS = 6  # panels of seeds.png; seeds.json has all questions
_STYLE = {"font.size": 7, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False}


def check_matplotlib() -> None:
    """Raise UserError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("figures=true: needs matplotlib; pip install matplotlib")


def draw_seeds(results: SeedsResult, metrics: Sequence[Metrics]) -> bytes | None:
    """Return the accuracy of each run's chosen head during training, a panel for each question that all runs probed.

    `metrics` are those of each run. None if there is no such question.
    """

    def draw_question(axes: Any, question: QuestionOverSeeds) -> None:
        # One line for each run: its own head, [L, H] at every step.
        for records, head in zip(metrics, question.heads, strict=True):
            points = [point for point in records.probe if question.question in point.questions]
            tables = [point.questions[question.question].accuracy_heads for point in points]
            accuracy = [table[head.layer][head.head] for table in tables]
            axes.plot([point.step for point in points], accuracy, color=BLUE, linewidth=0.8, alpha=0.7)
        axes.set_title(question.question, loc="left")
        axes.set(xlabel="step", ylabel="accuracy of each seed's head")

    watched = [question for question in results.questions if question.timing]
    return _draw(watched[:MOST_PANELS], draw_question, n_columns=3, height=2) if watched else None


def draw_comparison(results: Comparison) -> bytes:
    """Return a panel for each measure: for each variant a dot per seed, and the mean with its interval."""
    names = [variant.name for variant in results.variants]

    def draw_measure(axes: Any, measure: Measure) -> None:
        for height, variant in enumerate(results.variants):
            values = variant.measures[measure.name]
            # A dot for each run, a bar for the interval, a mark for the mean.
            dots = [value for value in values.by_seed if value is not None]
            axes.plot(dots, [height] * len(dots), "o", color=BLUE, alpha=0.35, markersize=3)
            if values.interval:
                axes.plot(values.interval, [height, height], color="black", linewidth=1)
            if dots:
                axes.plot(values.mean, height, "|", color=ORANGE, markersize=8, markeredgewidth=1.5)
        axes.set_title(measure.name.replace("_", " "), loc="left")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)

    # Without a causal variant, for example, no head has been tested.
    shown = []
    for measure in MEASURES:
        if any(variant.measures[measure.name].n for variant in results.variants):
            shown.append(measure)
    return _draw(shown, draw_measure, n_columns=4, height=0.6 + 0.2 * len(names), share_y=True)


def _draw(
    panels: Sequence[Any],
    draw_panel: Callable[[Any, Any], None],
    n_columns: int,
    height: float,
    *,
    share_y: bool = False,
) -> bytes:
    """Return a PNG of 7 inches in width; `draw_panel` draws a panel on its axes, `height` inches high."""
    import matplotlib.style
    from matplotlib.figure import Figure

    # As many columns as are needed, and rows of equal height.
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(7, height * n_rows), layout="constrained")
        all_axes = figure.subplots(n_rows, n_columns, squeeze=False, sharey=share_y).ravel()
        for axes, panel in zip(all_axes, panels, strict=False):
            draw_panel(axes, panel)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()

        # Without the version of matplotlib, equal numbers give equal files.
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=300, facecolor="white", metadata={"Software": None})
    return stream.getvalue()
