"""Run the notebooks of docs/ cell by cell and write them with the new outputs: python -m research.notebook.

It trains a model in runs/tour unless there is one, and takes two minutes.
"""

import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

NOTEBOOKS = [Path(__file__).parent.parent / "docs" / f"{name}.ipynb" for name in ("tour", "exercises")]


def run_cell(code: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a cell prints and draws, as outputs of a notebook."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, variables)

    # The text, then the figures
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80)
        plt.close(number)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text())
        shared: dict[str, Any] = {"__name__": "__main__"}
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = run_cell("".join(cell["source"]), shared)
        notebook.write_text(json.dumps(content, indent=1) + "\n")
