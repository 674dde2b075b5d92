"""Write docs/tour.ipynb from docs/tour.py: python docs/make_notebook.py. Cells begin with `# %%`."""

import json
import re
from pathlib import Path

SCRIPT = Path(__file__).parent / "tour.py"


def notebook(script: str) -> str:
    """Return the notebook (nbformat 4.5) of a script, without outputs."""
    cells = []
    for number, cell in enumerate(re.split(r"^# %%", script, flags=re.MULTILINE)[1:]):
        kind, _, body = cell.partition("\n")
        text = body.strip()
        content = {"cell_type": "code", "execution_count": None, "outputs": []}
        if "markdown" in kind:
            text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
            content = {"cell_type": "markdown"}
        source = text.splitlines(keepends=True)
        cells.append({**content, "id": f"cell-{number}", "metadata": {}, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    SCRIPT.with_suffix(".ipynb").write_text(notebook(SCRIPT.read_text()))
