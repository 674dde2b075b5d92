"""Files for a paper, made from the results alone: a short table as .csv and .tex, and figures as .svg."""

import csv
import io
from math import isfinite
from pathlib import Path

import numpy as np

from probe.questions import HEADLINE
from probe.results import MEASURES, ProbeResults
from probe.tables import head_names, number
from probe.templates import templates
from training.metrics import Metrics

# Columns of the table: words about a finding, and its measures. The interval is that of the accuracy, or of the
# swap if there is none.
COLUMNS = ("question", "head", "accuracy", "interval", "p", "swap", "answer", "verdict")
FIGURES = ("figures/grid.svg", "figures/emergence.svg")
# Signs of LaTeX, and the commands that print them.
_ESCAPED = str.maketrans({"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"})
_ESCAPED |= {ord(sign): rf"\{sign}{{}}" for sign in "&%$#_{}"}
_FOLDER = Path(__file__).parent


def paper_rows(results: ProbeResults) -> list[list[str]]:
    """Return the header and a row for each finding; "" for a missing measure."""
    rows = [list(COLUMNS)]
    for finding in results.findings:
        judged = finding.judged
        measured = judged.values.get("accuracy") or judged.values.get("swap")
        cells = {"question": finding.question, "head": head_names(judged.heads), "verdict": finding.verdict}
        cells["interval"] = number(measured).partition(" ")[2]
        for name in ("accuracy", "p", "swap"):
            cells[name] = number(judged.value(name), MEASURES[name].form).strip("–")
        cells["answer"] = ""  # the share of right answers, as on the terminal
        if HEADLINE in finding.parts and "answer_accuracy" in finding.parts[HEADLINE].values:
            cells["answer"] = number(finding.parts[HEADLINE].values["answer_accuracy"].value)
        rows.append([cells[name] for name in COLUMNS])
    return rows


def table_csv(results: ProbeResults) -> str:
    """Return the table for programs."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(paper_rows(results))
    return file.getvalue()


def table_tex(results: ProbeResults) -> str:
    """Return the table as a tabular of LaTeX, which needs no package."""
    lines = []
    for row in paper_rows(results):
        lines.append(" & ".join(cell.translate(_ESCAPED) for cell in row))
    body = " \\\\[0pt]\n".join(lines)  # or a "[" at the start of the next line would belong to it
    return f"\\begin{{tabular}}{{{'l' * len(COLUMNS)}}}\n{body}\n\\end{{tabular}}\n"


def figures_svg(results: ProbeResults, metrics: Metrics) -> dict[str, str]:
    """Return the figures as SVG by a name of FIGURES: those for which something was measured.

    grid: the main measure of every head; emergence, of a run: the best head at steps of its training.
    """
    grid = templates(_FOLDER).get_template("figure_grid.svg").render(findings=results.findings, measures=MEASURES)
    best: dict[str, list[tuple[int, float]]] = {}  # points by name
    for point in metrics.probe:
        for name, head in point.questions.items():
            [measure, *_] = head.grids
            best.setdefault(f"{name}, {measure}", []).append((point.step, head.values[measure]))
    measured = [point for line in best.values() for point in line if isfinite(point[1])]
    if not measured:
        return {FIGURES[0]: grid}
    # The axes have 0, the vertical one also 1.
    x, y = zip(*measured, strict=True)
    ticks = {"x_ticks": np.linspace(0, max(x), 5), "y_ticks": np.linspace(min(0, *y), max(1, *y), 5)}
    emergence = templates(_FOLDER).get_template("figure_lines.svg").render(lines=best, **ticks)
    return dict(zip(FIGURES, (grid, emergence), strict=True))
