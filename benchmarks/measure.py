"""What every benchmark needs: its arguments, a timed command, and its results as JSON and Markdown."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from training.files import write_atomically
from training.run_dir import environment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Timing:
    """One command that has ended: wall seconds, CPU-seconds (user and system) and its standard output."""

    seconds: float
    cpu_seconds: float
    output: str


def fail(message: str) -> NoReturn:
    """Prints one line to stderr and exits with status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def arguments(defaults: Mapping[str, str], required: Sequence[str] = ()) -> dict[str, str]:
    """Returns the NAME=VALUE arguments of this process over `defaults`; exits with status 2 on a bad one."""
    values = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    known = [*defaults, *required]
    for name in values:
        if name not in known:
            fail(f"{name}: unknown argument; known: {', '.join(known)}")
    for name in required:
        if not values.get(name):
            fail(f"{name}= is missing")
    return {**defaults, **values}


def run_command(command: Sequence[str], cwd: Path = ROOT) -> Timing:
    """Runs a command to its end; exits with its last lines if it fails.

    The CPU-seconds are those of all child processes that end meanwhile, so commands must not overlap.
    """
    start, usage = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    seconds, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        last_lines = "\n".join((process.stderr or process.stdout).splitlines()[-20:])
        fail(f"exit status {process.returncode} of {' '.join(command[:4])} ...\n{last_lines}")
    cpu_seconds = used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime
    return Timing(seconds, cpu_seconds, process.stdout)


def run_script(name: str, *settings: str) -> Timing:
    """Runs train.py or eval.py (`name` without .py) as a user does."""
    return run_command([sys.executable, f"{name}.py", *settings])


def read_records(run: Path, split: str) -> list[dict[str, Any]]:
    """Returns the records of one split of a run's metrics.jsonl, oldest first."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["split"] == split]


def interval_text(value: float, interval: Sequence[float] | None) -> str:
    """Returns "0.987 [0.951, 1.000]"."""
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def median_range(values: Sequence[float], digits: int = 1) -> str:
    """Returns "12.3 (11.9 to 13.0)": the median and the range."""
    middle, least, most = (f"{value:.{digits}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def write_results(
    name: str, title: str, results: Any, lines: Sequence[str], threads: int, page: str | None = None
) -> None:
    """Writes docs/results/PAGE.json and .md (default: NAME) with command, machine and versions; prints the page."""
    machine = environment("cpu", threads)
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    command = " ".join(["python -m", f"benchmarks.{name}", *map(short_paths, sys.argv[1:])])
    content = [f"# {title}", "", "```", command, "```", "", *lines, ""]
    content.append(
        f"Python {machine['python']}, {packages}; {machine['processor']}, {machine['cores']} cores, threads: {threads}."
    )
    text = "\n".join(content) + "\n"
    RESULTS.mkdir(parents=True, exist_ok=True)
    results_json = json.dumps({"environment": machine, **results}, indent=1) + "\n"
    write_atomically(RESULTS / f"{page or name}.json", results_json.encode())
    write_atomically(RESULTS / f"{page or name}.md", text.encode())
    print(text, end="")


def short_paths(argument: str) -> str:
    """Returns an argument with every path cut to its last two parts."""
    return re.sub(r"[^=,:]*/(?=[^/,]+/[^/,]+)", "", argument)


def paste(marker: str, lines: Sequence[str]) -> None:
    """Replaces the text between `<!-- marker -->` and `<!-- end -->` of README.md."""
    path = ROOT / "README.md"
    head, opening, rest = path.read_text().partition(f"<!-- {marker} -->\n")
    _, closing, tail = rest.partition("<!-- end -->")
    if not opening or not closing:
        fail(f"{path.name} has no place marked {marker}")
    write_atomically(path, "".join([head, opening, *(f"{line}\n" for line in lines), closing, tail]).encode())
