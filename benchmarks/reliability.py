"""Every figure of docs/reliability.md, measured: python -m benchmarks.reliability [quick=true] [out=FILE.json].

Runs every test that records a figure, with its full count (quick=true: with the counts of CI), two files at a time,
and prints one table, what failed, and what it took. Exit status 1 where a target is missed.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.files import keep
from training.run_dir import environment

ROOT = Path(__file__).parent.parent


def measure(*, full: bool) -> dict[str, Any]:
    """Run the tests that record figures, and return these, what failed and what was skipped, and the CPU-seconds."""
    options = ["--full"] if full else []
    if importlib.util.find_spec("xdist"):  # of requirements-dev.txt
        options += ["-n", "2", "--dist", "loadfile"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # two files at a time share two cores
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        door = [sys.executable, "-m", "pytest", f"--figures={path}", "--tb=short", *options]
        ran = subprocess.run(door, cwd=ROOT, env=os.environ | threads, stdout=sys.stderr, check=False)
        if not path.exists():
            sys.exit(f"the tests ended with exit status {ran.returncode} and wrote no figures")
        return json.loads(path.read_text()) | {"status": ran.returncode}


def table(figures: list[dict[str, Any]]) -> list[str]:
    """Return the figures as a Markdown table."""
    rows = [
        f"| {one['row']} | {one['target']} | {one['measured']} | {'yes' if one['met'] else 'NO'} |" for one in figures
    ]
    return ["| test | target | measured | met |", "|---|---|---|---|", *rows]


def heading(*, full: bool) -> str:
    """Return what is to be said above the table."""
    if full:
        return "Counts: the full ones, those of what is promised."
    return "Counts: the quick ones of CI; a target names the full count beside the one that was taken."


def summary(found: dict[str, Any]) -> list[str]:
    """Return what is to be said below the table."""
    about = found["environment"]
    packages = ", ".join(f"{name} {number}" for name, number in about["packages"].items())
    met = sum(one["met"] for one in found["figures"])
    said = [f"{kind}: {one['test']}" for kind in ("failed", "skipped") for one in found[kind]]
    return [
        *said,
        f"{met} of {len(found['figures'])} targets met, {len(found['failed'])} tests failed, "
        f"{len(found['skipped'])} skipped; {found['cpu_seconds'] / 60:.1f} CPU-minutes",
        f"Python {about['python']}, {packages}; {about['machine']}, {about['processor']}, {about['cores']} cores; "
        f"commit {about['commit']}{' and changes' if about['uncommitted_changes'] else ''}",
    ]


def page(found: dict[str, Any]) -> list[str]:
    """Return everything that is to be said, as the page has it too."""
    return [heading(full=found["full"]), "", *table(found["figures"]), "", *summary(found)]


def main() -> None:
    """Measure, print, and write down where asked."""
    given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if unknown := given.keys() - {"quick", "out"}:
        sys.exit(f"{', '.join(sorted(unknown))}: known are quick=true and out=FILE.json")
    full = given.get("quick") != "true"
    found = measure(full=full) | {"full": full, "environment": environment("cpu", 1)}
    found["figures"].sort(key=lambda one: one["test"])  # files end in any order
    print("\n".join(page(found)))
    if path := given.get("out"):
        keep(Path(path), found)
    if found["status"] or not found["figures"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
