"""Train and compare all attention variants: python -m benchmarks.lab [seeds=1,2,3,4,5].

Each variant changes one switch of the model (configs/variant/). Two runs train at a time, one thread each. Writes
docs/results/lab.{json,md,png}.
"""

import json
import shutil
import tempfile
from pathlib import Path

from benchmarks.measure import RESULTS, arguments, run_script, write_results
from data.typed_json import from_json
from lab.compare import Comparison
from report.sweep_tables import comparison_markdown


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"seeds": "1,2,3,4,5"})
    with tempfile.TemporaryDirectory() as folder:
        out, cache = Path(folder, "lab"), f"cache_dir={folder}/cache"
        parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
        sweep = ("-m", "experiment=lab/all", f"seed={options['seeds']}", f"out={out}")
        training = run_script("train", *sweep, *parallel, cache)
        comparison = run_script("eval", f"compare={out}", "figures=true", cache)
        results = json.loads((out / "probe" / "compare.json").read_text())
        shutil.copy(out / "probe" / "figures" / "compare.png", RESULTS / "lab.png")
    seconds = f"Training took {training.seconds:.0f} s, the comparison {comparison.seconds:.0f} s."
    table = comparison_markdown(from_json(Comparison, results, "compare.json")).strip().splitlines()
    write_results("lab", "The attention lab", results, [*table, "", seconds], threads=1)


if __name__ == "__main__":
    main()
