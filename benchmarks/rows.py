"""A row of the goal table: what is measured, against whom, and whether its goal is met; and how a child is timed.

Each row script offers `rows(given) -> list[Row]` and is run alone by `python -m benchmarks.NAME [name=value ...]
[out=FILE.json]`; `python -m benchmarks.speed` runs them all. Times are CPU-seconds (user and system, of a whole child
process and of its children, as the operating system counts them) where nothing else is said, and a ratio is that of
two runs one after the other on the same machine: seconds of two machines, or of two hours, say little of each other.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.files import keep
from training.command_line import one_line_errors
from training.run_dir import environment

ROOT = Path(__file__).parent.parent
N_REPEATS = 5  # seeds, or repeats where nothing is drawn
# Starts a command, waits, and writes down how it ended. A process counts as its own the most memory that the one before
# it in the same place has held, so the command must be the child of a small process and not of ours.
_LAUNCHER = """
import json, os, sys, time
out, *command = sys.argv[1:]
began = time.monotonic()
if not (child := os.fork()):
    os.execvp(command[0], command)
_, status, used = os.wait4(child, 0)
how = (os.waitstatus_to_exitcode(status), time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)
json.dump(how, open(out, "w"))
"""
# Settings that name what must be there, and what of it.
_PLACES = {"data.path": "", "text": "", "run": "config.json", "nanogpt": "train.py"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the goal table."""

    work: str
    goal: str  # as docs/benchmarks.md has it, in words
    aim: str  # what would be better still; "": none
    unit: str  # of ours and of the peer's
    ours: list[float]  # one of each repeat
    peer_name: str  # "": none
    peer: list[float]  # of the same repeats in the same order, each measured beside ours; empty without a peer
    met: bool
    aim_met: bool | None  # None: no aim
    note: str  # what a reader must know to believe it; "": nothing

    def __post_init__(self) -> None:
        """Refuse repeats that do not pair up, and a peer without a name or figures."""
        if self.peer and len(self.peer) != len(self.ours):
            raise ValueError(f"{self.work}: {len(self.ours)} repeats of ours, {len(self.peer)} of the peer's")
        if bool(self.peer) != bool(self.peer_name) or not self.ours:
            raise ValueError(f"{self.work}: ours, and a peer's name and figures or neither")

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, pair by pair."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)] if self.peer else []


@dataclass(frozen=True)
class Child:
    """What a process that has ended took, and what it said."""

    seconds: float  # wall
    cpu_seconds: float  # user and system, its own children included
    peak_bytes: int  # resident
    said: str  # on stdout


def timed(command: Sequence[str], *, threads: int = 1, folder: Path = ROOT, **environ: str) -> Child:
    """Run a command to its end with so many threads; SystemExit with the last it said where it fails.

    What it says goes to files and not through pipes, whose reading would be timed too.
    """
    pinned = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
        tempfile.NamedTemporaryFile("r") as how,
    ):
        launched = [sys.executable, "-S", "-c", _LAUNCHER, how.name, *command]
        subprocess.run(
            launched, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=errors,
            env=os.environ | pinned | environ, check=True,
        )  # fmt: skip
        status, seconds, cpu_seconds, peak = json.load(how)
        said, complained = (_read(stream) for stream in (out, errors))
    if status:
        last = "\n".join((complained or said).splitlines()[-20:])
        words = [one if "\n" not in one else "..." for one in command]  # a program given by -c is long
        sys.exit(f"exit status {status} of {' '.join(words)}\n{last}")
    return Child(seconds, cpu_seconds, peak * 1024, said)  # Linux counts kilobytes


def _read(stream: Any) -> str:
    stream.seek(0)
    return stream.read()


def all_within(values: Sequence[float], most: float) -> bool:
    """Return whether every repeat keeps to a limit: the worst one counts, not the mean, and nan does not."""
    return all(value <= most for value in values)


def number(value: float) -> str:
    """Write a figure with three digits that count, or all of those before the point."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    size = next(power for power in range(1, -10, -1) if abs(value) >= 10**power or power == -9)
    return f"{value:.{2 - size}f}"


def spread(values: Sequence[float], written: Callable[[float], str] = number, after: str = "") -> str:
    """Write the median and, of several, the least and the greatest."""
    if not values:
        return ""
    middle = written(statistics.median(values)) + after
    return middle if len(values) == 1 else f"{middle} ({written(min(values))} to {written(max(values))})"


def ratio(row: Row) -> str:
    """Write the median of the pairs' ratios, and their range: below one as a part, above as a multiple."""
    if not row.peer:
        return ""
    if statistics.median(row.ratios) >= 1:
        return spread(row.ratios, after="x")
    return spread(row.ratios, lambda one: f"1/{number(1 / one)}")


def table(rows: Sequence[Row]) -> list[str]:
    """Return the goal table in Markdown, and under it the notes."""
    lines = ["| work | goal (aim) | ours: median (range) | peer in the same run | ratio | met | aim |"]
    lines += ["|---|---|---|---|---|---|---|"]
    notes: list[str] = []
    for row in rows:
        if row.note:
            notes.append(f"{len(notes) + 1}. {row.note}")
        mark = f" [{len(notes)}]" if row.note else ""
        goal = f"{row.goal} ({row.aim})" if row.aim else row.goal
        peer = f"{row.peer_name}: {spread(row.peer)} {row.unit}" if row.peer else "none"
        aim = {True: "yes", False: "no", None: ""}[row.aim_met]
        cells = [row.work + mark, goal, f"{spread(row.ours)} {row.unit}", peer, ratio(row)]
        lines.append("| " + " | ".join([*cells, "yes" if row.met else "NO", aim]) + " |")
    return [*lines, "", *notes] if notes else lines


def machine(threads: int = 1) -> dict[str, Any]:
    """Return what figures depend on besides the code: processor, cores, versions, commit; docs/ is no code."""
    about = environment("cpu", threads)
    with suppress(PackageNotFoundError):
        about["packages"] |= {"transformers": version("transformers")}
    if about["commit"]:
        asked = ["git", "status", "--porcelain", "-uno", "--", ".", ":!docs"]
        about["uncommitted_changes"] = bool(subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).stdout)
    return about | {"processor": processor(), "cores_allowed": len(os.sched_getaffinity(0))}


def processor() -> str:
    """Return the processor's name as Linux has it."""
    found = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("model name")]
    return found[0].partition(":")[2].strip() if found else "a processor without a name"


def machine_line(about: Mapping[str, Any]) -> str:
    """Write `machine` in one line."""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    changes = " and changes" if about["uncommitted_changes"] else ""
    return (
        f"{about['processor']}, {about['cores']} cores of which {about['cores_allowed']} allowed, {about['machine']}; "
        f"Python {about['python']}, {packages}; commit {about['commit']}{changes}."
    )


def settings(known: Sequence[str], arguments: Sequence[str] | None = None) -> dict[str, str]:
    """Return name=value of the command line; SystemExit with one line where it says what cannot be.

    A name is one of `known` or of all scripts'; what it names is there, and a result can be written. quick=true, which
    measures nothing that counts, writes over no file.
    """
    every = [*known, "out", "quick"]
    given = dict(one.partition("=")[::2] for one in (sys.argv[1:] if arguments is None else arguments))
    if unknown := given.keys() - set(every):
        sys.exit(f"{', '.join(sorted(unknown))}: known are {', '.join(every)}, each as NAME=VALUE")
    if given.get("quick", "true") not in ("true", "false"):
        sys.exit(f"quick={given['quick']}: true or false")
    for name, inside in _PLACES.items():
        if name in given and not (Path(given[name]) / inside if inside else Path(given[name])).is_file():
            sys.exit(f"{name}={given[name]}: there is no {f'{inside} in it' if inside else 'such file'}")
    if "out" in given:
        out = Path(given["out"])
        if not given["out"] or out.is_dir():
            sys.exit(f"out={given['out']}: a file is meant, and this is none")
        if not out.absolute().parent.is_dir():
            sys.exit(f"out={out}: there is no folder {out.parent}")
        if given.get("quick") == "true" and out.exists():
            sys.exit(f"quick=true measures nothing that counts, and out={out} is there: give another")
    return given


def whole_numbers(given: Mapping[str, str], name: str, default: str) -> list[int]:
    """Return the whole numbers, parted by commas, of a setting; SystemExit with one line where it holds others."""
    try:
        return [int(one) for one in given.get(name, default).split(",")]
    except ValueError:
        sys.exit(f"{name}={given[name]}: whole numbers, parted by commas")


def repeats(given: Mapping[str, str]) -> int:
    """Return how often everything is measured: once with quick=true, which shows only that it runs."""
    return 1 if given.get("quick") == "true" else N_REPEATS


def alone(rows: Callable[[dict[str, str]], list[Row]], known: Sequence[str]) -> None:
    """Be the `main` of a row script: measure, print the table, and write the rows where `out` says."""
    given = settings(known)
    with one_line_errors():
        found = rows(given)
    print("\n".join([*table(found), "", machine_line(machine())]))
    if path := given.get("out"):
        write(Path(path), found, machine())


def write(path: Path, rows: Sequence[Row], about: Mapping[str, Any], **more: Any) -> None:
    """Write rows as JSON, and whatever else belongs to them."""
    found = {"environment": about, "rows": [asdict(row) for row in rows], **more}
    keep(path, found)


def read(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return what `write` has written: the rows, and what they were measured on."""
    found = json.loads(path.read_text())
    return [Row(**one) for one in found["rows"]], found["environment"]
