"""The whole attention lab: python -m benchmarks.lab [experiments=asymmetry,scaling] [seeds=1,2,3,4,5].

Trains every variant of every experiment for every seed, two runs side by side on one thread each, and compares them as
a user does; writes docs/lab.json, docs/lab/*.png and the tables in docs/lab.md. It says how long it took.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.files import keep, paste
from benchmarks.link_head import ROOT, call, environment_line
from lab.compare import markdown

PAGE, RESULTS, FIGURES = ROOT / "docs" / "lab.md", ROOT / "docs" / "lab.json", ROOT / "docs" / "lab"
EXPERIMENTS = ("asymmetry", "scaling", "shared_kv", "weighting", "heads", "position", "mask", "depth")
_AT_ONCE = 2  # runs, one thread each


def train_command(name: str, out: str, seeds: str) -> list[str]:
    """Return the arguments of train.py for an experiment of the lab."""
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={_AT_ONCE}"]
    return ["-m", f"experiment=lab/{name}", f"seed={seeds}", f"out={out}", *launcher]


def compare_command(out: str) -> list[str]:
    """Return the arguments of eval.py that compare its runs."""
    return [f"compare={out}", "threads=1"]


def printed_commands(name: str, seeds: str) -> list[str]:
    """Return both commands as the page shows them."""
    train = " ".join(["python train.py", *train_command(name, f"runs/lab/{name}", seeds)])
    return [train, " ".join(["python eval.py", *compare_command(f"runs/lab/{name}")])]


def entry_lines(name: str, kept: dict[str, Any]) -> list[str]:
    """Return what the page says of one experiment: the commands, the table and a sentence for each variant."""
    one = kept["experiments"][name]
    seeds = ",".join(map(str, one["results"]["variants"][0]["seeds"]))  # its own: a part may be measured with others
    commands = ["```", *printed_commands(name, seeds), "```", ""]
    seconds = f"Training {one['seconds']['train']:.0f} s, comparing {one['seconds']['compare']:.0f} s."
    return [*commands, *markdown(one["results"]).strip().split("\n"), "", seconds]


def tables(kept: dict[str, Any]) -> dict[str, list[str]]:
    """Return every block of docs/lab.md that this makes, by marker."""
    blocks = {name: entry_lines(name, kept) for name in kept["experiments"]}
    blocks["time"] = [
        f"All of it took {kept['seconds'] / 60:.0f} minutes, two runs at a time on one thread each; "
        f"`python train.py -m experiment=lab/quick` alone, one run after the other, {kept['quick_seconds'] / 60:.1f}."
    ]
    blocks["environment"] = [environment_line(kept["environment"])]
    return blocks


def main() -> None:
    """Measure, write, print."""
    given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    names = given.get("experiments", ",".join(EXPERIMENTS)).split(",")
    seeds = given.get("seeds", "1,2,3,4,5")
    if given.keys() - {"experiments", "seeds"} or {*names} - {*EXPERIMENTS}:
        sys.exit(f"usage: python -m benchmarks.lab [experiments={','.join(EXPERIMENTS)}] [seeds={seeds}]")
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cache = f"cache_dir={Path(folder) / 'cache'}"
        call("train", "max_steps=1", f"out={Path(folder) / 'first'}", cache)  # writes the stories, once
        began = time.monotonic()
        trained = {name: timed("train", *train_command(name, f"{folder}/{name}", seeds), cache) for name in names}
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
            compared = pool.map(lambda name: timed("eval", *compare_command(f"{folder}/{name}"), cache), names)
            seconds = {
                name: {"train": trained[name], "compare": one} for name, one in zip(names, compared, strict=True)
            }
        whole = time.monotonic() - began
        experiments = {}
        for name in names:
            probe = Path(folder) / name / "probe"
            experiments[name] = {"results": json.loads((probe / "compare.json").read_text()), "seconds": seconds[name]}
            shutil.copy(probe / "compare.png", FIGURES / f"{name}.png")
        environment = json.loads((Path(folder) / names[0] / "0" / "environment.json").read_text())
        if {*names} == {*EXPERIMENTS}:
            quick = timed("train", "-m", "experiment=lab/quick", f"out={folder}/quick", cache)
        else:  # the page keeps what was not asked for, and the time of the whole
            before = json.loads(RESULTS.read_text())
            experiments = {**before["experiments"], **experiments}
            whole, quick = before["seconds"], before["quick_seconds"]
    kept = {
        "seeds": [int(seed) for seed in seeds.split(",")],
        "seconds": whole,
        "quick_seconds": quick,
        "environment": {name: environment[name] for name in ("python", "packages", "processor", "cores", "threads")},
        "experiments": experiments,
    }
    keep(RESULTS, kept)
    for marker, lines in tables(kept).items():
        paste(PAGE, marker, lines)
        print("\n".join(lines))


def timed(door: str, *arguments: str) -> float:
    """Run one of the two doors quietly and return the seconds it took."""
    began = time.monotonic()
    subprocess.run([sys.executable, f"{door}.py", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
