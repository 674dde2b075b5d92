"""Run the code in docs/attention.md and fill in what it prints: python -m benchmarks.attention.

The trained head's numbers come from docs/link_head.json and docs/claim_card.json: run this again after
`python -m benchmarks.link_head`. The figure needs matplotlib. A few seconds.
"""

import contextlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from benchmarks.files import paste
from benchmarks.link_head import CARD, RESULTS, ROOT, picture
from lab.examples import Saturation, saturation
from report.tables import importance_lines

PAGE, FIGURE = ROOT / "docs" / "attention.md", ROOT / "docs" / "attention" / "saturation.png"


def printed(text: str) -> list[list[str]]:
    """Run a page's Python blocks one after the other, as a reader would, and return the lines that each prints."""
    known: dict[str, Any] = {}
    found = []
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(block, known)
        found.append([line.rstrip() for line in out.getvalue().splitlines()])
    return found


def tables() -> dict[str, list[str]]:
    """Return what stands in the page, by marker."""
    blocks = printed(PAGE.read_text())
    outputs = {f"printed {place}": indented(lines) for place, lines in enumerate(blocks, 1)}
    first = json.loads(RESULTS.read_text())["results"][0]
    claim = json.loads(CARD.read_text())["claim"]
    of_a_run = {"trained head": indented(picture(first)), "claim": [f"> {claim}"]}
    return outputs | of_a_run | {"importance": indented(importance_lines(first["importance"][0]))}


def indented(lines: Sequence[str]) -> list[str]:
    """Write lines as a block that Markdown leaves as it is."""
    return [f"    {line}" for line in lines]


def drawn(found: Sequence[Saturation]) -> str:
    """Return the numbers behind the figure as text, which the figure carries with it."""
    return json.dumps(
        [[value if value in (True, False) else round(value, 3) for value in astuple(one)] for one in found]
    )


def draw(found: Sequence[Saturation], path: Path) -> None:
    """Draw entropy and gradient against d_k, with and without scaling."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = ((True, "#0072b2", "o", "divided by √d_k"), (False, "#d55e00", "s", "not divided"))
    for scaled, colour, mark, label in styles:
        of = [one for one in found if one.scaled is scaled]
        widths = [one.d_k for one in of]
        for axes, name in ((left, "entropy"), (right, "gradient")):
            means, errors = ([getattr(one, what) for one in of] for what in (name, f"{name}_error"))
            axes.errorbar(widths, means, yerr=errors, color=colour, marker=mark, capsize=3, label=label)
        right.plot(widths, [one.gradient_median for one in of], color=colour, linestyle=":")
    right.plot([], [], color="black", linestyle=":", label="median; all others are means")
    left.set_ylabel("entropy of the weights, nats")
    right.set_ylabel("gradient through the softmax")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(one) for one in widths])
        axes.set_xlabel("d_k, width of query and key")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white", metadata={"Description": drawn(found)})


def main() -> None:
    """Fill in every block and draw the figure."""
    for marker, lines in tables().items():
        paste(PAGE, marker, lines)
        print("\n".join([marker, *lines]))
    draw(list(saturation()), FIGURE)


if __name__ == "__main__":
    main()
