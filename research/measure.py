"""The common parts of benchmarks: options, timed commands, and results as JSON and Markdown."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import isnan
from pathlib import Path
from statistics import median
from typing import Any

from probe.results import Estimate
from probe.statistics import share_interval
from settings.command_line import one_line_errors
from settings.errors import UserError
from settings.files import write_atomically
from settings.train import settings_from_arguments
from settings.typed_json import from_json, to_json
from training.run_dir import environment

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "research" / "results"


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that a page was measured with."""

    python: str
    packages: dict[str, str]  # versions
    processor: str
    cores: int
    threads: int
    commit: str | None
    uncommitted_changes: bool | None
    device: str = "cpu"


@dataclass(frozen=True)
class Timing:
    """One command that has ended: wall seconds, CPU-seconds (user and system) and its standard output."""

    seconds: float
    cpu_seconds: float
    output: str


# Options and commands


def start_benchmark(main: Callable[[Any], None], schema: type) -> None:
    """Call `main` with the options of the command line; an error of the user is one line and exit status 2."""
    with one_line_errors():
        main(settings_from_arguments(schema, sys.argv[1:]))


def listed(text: str) -> list[str]:
    """Return the parts of an option like "a,b"; none for ""."""
    return [word for word in text.split(",") if word]


def run_command(command: Sequence[str], cwd: Path = ROOT) -> Timing:
    """Run a command to its end; print its last lines and raise UserError if it fails.

    The CPU-seconds are those of all child processes that end meanwhile, so commands must not overlap.
    """
    start = os.times()
    process = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    end = os.times()
    if process.returncode:
        *earlier, last = (process.stderr or process.stdout or "no output").splitlines()
        print(*earlier[-20:], sep="\n", end="\n" if earlier else "", file=sys.stderr)
        raise UserError(f"exit status {process.returncode} of {' '.join(command[1:3])} ...: {last}")
    # User and system time of the command and of all that it started
    user = end.children_user - start.children_user
    system = end.children_system - start.children_system
    return Timing(end.elapsed - start.elapsed, user + system, process.stdout)


def run_script(name: str, *settings: str) -> Timing:
    """Run train.py or eval.py (`name` without .py) as a user does."""
    return run_command([sys.executable, f"{name}.py", *settings])


# Tables


def value_cell(value: Any, form: str) -> str:
    """Return a value as text: an estimate with its interval, a dash for None and nan."""
    if value is None or isinstance(value, float) and isnan(value):
        return "-"
    # The limits are rounded as the value is
    if isinstance(value, Estimate):
        text = value_cell(value.value, form)
        if value.low is None or isnan(value.value):
            return text
        return f"{text} [{value_cell(value.low, form)}, {value_cell(value.high, form)}]"
    return format(value, form)


def median_range(values: Sequence[float], digits: int = 1) -> str:
    """Return "12.3 (11.9 to 13.0)": the median and the range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def share_range(count: int, n: int) -> str:
    """Return the 95 % interval of a share, "[0.0%, 3.6%]"."""
    low, high = share_interval(count, n)
    return f"[{low:.1%}, {high:.1%}]"


def short_paths(argument: str) -> str:
    """Return an argument with every path cut to its last two parts."""
    return re.sub(r"[^=,:]*/(?=[^/,]+/[^/,]+)", "", argument)


# JSON and pages


def page_body(results: Any, machine: Machine) -> str:
    """Return the page below its command: the lines of the results, then machine and versions."""
    packages = [f"{package} {version}" for package, version in machine.packages.items()]
    versions = f"Python {machine.python}, {', '.join(packages)}"
    cores = f"{machine.cores} cores, threads: {machine.threads}"
    if machine.device != "cpu":
        cores += f"; {machine.device}"
    return "\n".join([*results.lines(), "", f"{versions}; {machine.processor}, {cores}."]) + "\n"


def json_text(results: Any, machine: Machine) -> str:
    """Return the file that a page is made from: lists and objects of plain values are on one line."""
    text = json.dumps({"environment": to_json(machine), **to_json(results)}, indent=1)
    plain = re.compile(r"[\[{]\n[^][{}]*[\]}]")
    return plain.sub(lambda match: re.sub(r"\n *", " ", match[0]), text) + "\n"


def write_page(
    name: str, title: str, results: Any, threads: int = 1, device: str = "cpu", folder: Path = RESULTS
) -> None:
    """Write NAME.json and .md in `folder` and print the page; `results` is a dataclass with a method `lines`."""
    known = environment(device, threads)
    machine = Machine(**{field.name: known[field.name] for field in fields(Machine)})
    # The page holds the command without the folders of this machine
    program = Path(sys.argv[0]).stem
    command = " ".join([f"python -m research.{program}", *map(short_paths, sys.argv[1:])])
    # The page is made from the rounded values of its JSON, as research/test_pages.py makes it again
    content = json_text(results, machine)
    values = {field: value for field, value in json.loads(content).items() if field != "environment"}
    text = f"# {title}\n\n```\n{command}\n```\n\n{page_body(from_json(type(results), values, name), machine)}"
    write_atomically(folder / f"{name}.json", content.encode())
    write_atomically(folder / f"{name}.md", text.encode())
    print(text, end="")
