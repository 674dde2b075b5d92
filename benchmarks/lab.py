"""Train and compare the attention variants: python -m benchmarks.lab [experiments=heads,mask] [seeds=1,2,3,4,5].

Each experiment changes one switch of the model (configs/experiment/lab/). Two runs train at a time, one thread each.
Writes docs/results/lab.{json,md} and docs/results/lab/*.png; experiments that are not asked for keep their figures.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, arguments, fail, run_script, write_results
from lab.compare import markdown

EXPERIMENTS = ("asymmetry", "scaling", "shared_kv", "weighting", "heads", "position", "mask", "depth")


def measure(name: str, seeds: str, folder: Path) -> dict[str, Any]:
    """Trains every variant of one experiment for every seed and compares them."""
    out, cache = folder / name, f"cache_dir={folder / 'cache'}"
    parallel = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    training = run_script("train", "-m", f"experiment=lab/{name}", f"seed={seeds}", f"out={out}", *parallel, cache)
    comparison = run_script("eval", f"compare={out}", "figures=true", cache)
    figures = RESULTS / "lab"
    figures.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "probe" / "figures" / "compare.png", figures / f"{name}.png")
    return {
        "results": json.loads((out / "probe" / "compare.json").read_text()),
        "seconds": {"train": training.seconds, "compare": comparison.seconds},
    }


def page(experiments: dict[str, Any]) -> list[str]:
    """Returns the table of every experiment as Markdown lines."""
    lines = []
    for name, entry in experiments.items():
        seconds = entry["seconds"]
        lines += [f"## {name}", "", *markdown(entry["results"]).strip().splitlines(), ""]
        lines += [f"Training took {seconds['train']:.0f} s, the comparison {seconds['compare']:.0f} s.", ""]
    return lines


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"experiments": ",".join(EXPERIMENTS), "seeds": "1,2,3,4,5"})
    names = options["experiments"].split(",")
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        fail(f"experiments={unknown[0]}: unknown; known: {', '.join(EXPERIMENTS)}")
    earlier = RESULTS / "lab.json"
    experiments = json.loads(earlier.read_text())["experiments"] if earlier.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            experiments[name] = measure(name, options["seeds"], Path(folder))
            print(f"{name} done", flush=True)
    ordered = {name: experiments[name] for name in EXPERIMENTS if name in experiments}
    write_results("lab", "The attention lab", {"experiments": ordered}, page(ordered), threads=1)


if __name__ == "__main__":
    main()
