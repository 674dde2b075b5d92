"""The notebook of docs/: its cells run, and its stored outputs are those of its cells."""

import json
from pathlib import Path

import pytest

from tests.program import ROOT, SMALL, run_python

CELLS = [cell for cell in json.loads((ROOT / "docs/tour.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_shows_what_its_cells_print_and_draw() -> None:
    for cell in CELLS:
        source, outputs = "".join(cell["source"]), cell["outputs"]
        assert ("print(" in source) == any(output["output_type"] == "stream" for output in outputs), source
        assert ("plt.subplots" in source) == any("image/png" in output.get("data", {}) for output in outputs), source
    assert "supported (E3)" in json.dumps([cell["outputs"] for cell in CELLS])


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    small = [setting.replace("probe_sequences=0", "probe_sequences=40") for setting in SMALL]
    changes = {
        "settings = []": f"settings = {[*small, f'cache_dir={tmp_path}/cache']}",
        "probe_model(opened)": f"probe_model(opened, cache_dir='{tmp_path}/cache', n_bootstrap=100, n_untrained=2)",
        'items="stories")': f'items="stories", cache_dir="{tmp_path}/cache", n_bootstrap=100, n_untrained=2)',
        '"runs/': f'"{tmp_path}/',
        '"probes/': f'"{tmp_path}/probes/',
    }
    script = "\n".join("".join(cell["source"]) for cell in CELLS)
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    (tmp_path / "tour.py").write_text(script)
    monkeypatch.setenv("MPLBACKEND", "agg")
    process = run_python(str(tmp_path / "tour.py"))
    assert process.returncode == 0, process.stderr
    assert "exchanged [(" in process.stdout
    assert (tmp_path / "probes" / "tour" / "probe" / "report.html").stat().st_size > 10_000
