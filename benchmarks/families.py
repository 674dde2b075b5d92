"""Every family, and what depth it takes: python -m benchmarks.families [seeds=1,2,3,4,5] [depths=1,2].

Trains `experiment=full` for every seed, and with fewer layers for the first, two runs side by side on one thread each;
probes them all; writes docs/families.json and the tables in docs/results.md. Half an hour on two cores.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.files import keep, paste
from benchmarks.link_head import ROOT, call, environment_line, over_seeds
from probe.seeds import markdown
from probe.study import HEADLINE

RESULTS = ROOT / "docs" / "families.json"
HOLDOUTS = ("iid", HEADLINE)


def measure(run: Path, seed: int, n_layer: int) -> dict[str, Any]:
    """Train and probe one model on one thread and return what its tables need."""
    cache = f"cache_dir={run.parents[1] / 'cache'}"
    began = time.monotonic()
    call("train", "experiment=full", f"seed={seed}", f"model.n_layer={n_layer}", f"out={run}", "threads=1", cache)
    trained = time.monotonic()
    call("eval", f"run={run}", "threads=1", cache)
    probed = time.monotonic()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [one for one in records if one["split"] == "validation"][-1]
    found = json.loads((run / "probe" / "probe.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    heads = {
        one["question"]: {
            "head": f"L{one['layer']}H{one['head']}",
            "block_accuracy": one["test"][HEADLINE]["block_accuracy"],
            "verdict": one["verdict"],
            "evidence_level": one["evidence_level"],
        }
        for one in found["selected"]
        if HEADLINE in one["test"]
    }
    return {
        "seed": seed,
        "n_layer": n_layer,
        "steps": last["step"],
        "seconds": {"train": round(trained - began), "eval": round(probed - trained), "steps": round(last["seconds"])},
        "validation": {name: last[name] for name in ("loss", "floor", "gap", "gap_error", "gap_by_class")},
        "heads": heads,
        "behaviour": [
            {name: one[name] for name in ("family", "level", "site", "holdout", "rho")}
            for one in found["behaviour"]
            if one["holdout"] in HOLDOUTS
        ],
        "environment": {name: environment[name] for name in ("python", "packages", "processor", "cores", "threads")},
    }


def tables(kept: dict[str, Any]) -> dict[str, list[str]]:
    """Return every table of docs/results.md that this makes, by marker."""
    by_depth = depths(kept["results"])
    deep = [one for one in kept["results"] if one["n_layer"] == by_depth[-1]["n_layer"]]
    return {
        "families": markdown(kept["seeds"]).strip().split("\n")[2:],
        "families answers": answers(deep, [f"seed {one['seed']}" for one in deep]),
        "families seconds": seconds_table(kept["results"]),
        "depth heads": depth_heads(by_depth),
        "depth answers": answers(by_depth, [_layers(one) for one in by_depth]),
        "families environment": [environment_line(kept["results"][0]["environment"])],
    }


def depths(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of the first seed, the shallowest first."""
    return sorted((one for one in results if one["seed"] == results[0]["seed"]), key=lambda one: one["n_layer"])


def seconds_table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return one row per run: how long it took and how far from the floor it ended."""
    lines = [
        "| layers | seed | train.py s | of it steps | eval.py s | gap to the floor (standard error) |",
        "|---" * 6 + "|",
    ]
    for one in results:
        seconds, found = one["seconds"], one["validation"]
        took = f"{seconds['train']} | {seconds['steps']} | {seconds['eval']}"
        lines.append(f"| {one['n_layer']} | {one['seed']} | {took} | {found['gap']:.4f} ({found['gap_error']:.4f}) |")
    return lines


def depth_heads(by_depth: Sequence[dict[str, Any]]) -> list[str]:
    """Return the head of each question on the headline, with what may be said of it, by number of layers."""
    lines = [_row("question", [f"{_layers(one)}: head, F4, verdict" for one in by_depth])]
    lines.append("|---" * (1 + len(by_depth)) + "|")
    for question in by_depth[0]["heads"]:
        heads = [one["heads"][question] for one in by_depth]
        cells = [
            f"{one['head']}, {one['block_accuracy']:.2f}, {one['verdict']} {one['evidence_level']}" for one in heads
        ]
        lines.append(_row(question, cells))
    return lines


def answers(runs: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return rho of each run at each payoff."""
    lines = [_row("payoff", [f"{name}: {', '.join(HOLDOUTS)}" for name in names])]
    lines.append("|---" * (1 + len(runs)) + "|")
    places = [(one["family"], one["level"], one["site"]) for one in runs[0]["behaviour"]]
    for family, level, site in dict.fromkeys(places):
        cells = []
        for run in runs:
            found = {
                one["holdout"]: one["rho"]
                for one in run["behaviour"]
                if (one["family"], one["level"], one["site"]) == (family, level, site)
            }
            cells.append(", ".join("-" if found.get(name) is None else f"{found[name]:.2f}" for name in HOLDOUTS))
        if any(cell != "-, -" for cell in cells):
            lines.append(_row(f"{family if family == level else f'{family} {level}'}, {site}", cells))
    return lines


def _layers(one: dict[str, Any]) -> str:
    return f"{one['n_layer']} layer{'s' * (one['n_layer'] > 1)}"


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {first} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, write, print."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    seeds = [int(one) for one in given.get("seeds", "1,2,3,4,5").split(",")]
    shallow = [int(one) for one in given.get("depths", "1,2").split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call("train", "experiment=full", "max_steps=1", f"out={folder / 'first'}", f"cache_dir={folder / 'cache'}")
        runs = [(folder / "full" / str(seed), seed, 4) for seed in seeds]
        runs += [(folder / "shallow" / str(n_layer), seeds[0], n_layer) for n_layer in shallow]
        with ThreadPoolExecutor(max_workers=2) as pool:
            results = list(pool.map(lambda one: measure(*one), runs))
        kept = {"results": results, "seeds": over_seeds(folder / "full", folder / "cache")}
    keep(RESULTS, kept, indent=None)
    for marker, lines in tables(kept).items():
        paste(ROOT / "docs" / "results.md", marker, lines)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
