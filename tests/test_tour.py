"""The notebook of docs/ is the tested script, and the script runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from docs.make_notebook import SCRIPT, notebook
from tests.program import ROOT, SMALL


def test_the_notebook_is_made_from_the_script_and_shows_what_its_cells_print() -> None:
    text = SCRIPT.with_suffix(".ipynb").read_text()
    code_cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert text == notebook(SCRIPT.read_text(), [cell["outputs"] for cell in code_cells])
    for cell in code_cells:
        source, outputs = "".join(cell["source"]), cell["outputs"]
        assert ("print(" in source) == any(output["output_type"] == "stream" for output in outputs), source
        assert ("plt.subplots" in source) == any("image/png" in output.get("data", {}) for output in outputs), source
    assert "exchanged [(" in text and "supported (E3)" in text


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small = [setting.replace("probe_sequences=0", "probe_sequences=40") for setting in SMALL]
    changes = {
        "settings = []": f"settings = {[*small, f'cache_dir={tmp_path}/cache']}",
        "probe_model(opened)": f"probe_model(opened, cache_dir='{tmp_path}/cache', n_bootstrap=100, n_untrained=2)",
        'items="stories")': f'items="stories", cache_dir="{tmp_path}/cache", n_bootstrap=100, n_untrained=2)',
        '"runs/': f'"{tmp_path}/',
        '"probes/': f'"{tmp_path}/probes/',
    }
    script = SCRIPT.read_text()
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    (tmp_path / "tour.py").write_text(script)
    process = subprocess.run(
        [sys.executable, str(tmp_path / "tour.py")], cwd=ROOT, env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "exchanged [(" in process.stdout
    assert (tmp_path / "probes" / "tour" / "probe" / "report.html").stat().st_size > 10_000
