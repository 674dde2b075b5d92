"""The whole goal table: python -m benchmarks.speed nanogpt=PATH data.path=input.txt [out=docs/benchmarks.json].

Runs every row script in a process of its own, one after the other, and prints one table: what was wanted, what was
found, and what was left out, with the reason. [quick=true] measures everything once and little, and shows only that it
runs. [only=shakespeare,growth]. With out=docs/benchmarks.json the table in docs/benchmarks.md is written too, with
growth's own tables and figure. Exit status 1 where a script fails or a goal is missed. An hour, on an idle machine.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.link_head import paste
from benchmarks.rows import ROOT, Row, machine, machine_line, read, settings, table, write

PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.json"
# Row scripts in the order of the table, and what each must be given to run.
SCRIPTS: dict[str, tuple[str, ...]] = {
    "shakespeare": ("data.path", "nanogpt"),
    "utilisation": (),
    "stories": (),
    "attention_rows": (),
    "probing": (),
    "tokenizing": (),
    "startup": (),
    "growth": (),
}
KNOWN = ("data.path", "nanogpt", "only")


@dataclass(frozen=True)
class Table:
    """What came of all scripts."""

    rows: list[Row]
    left_out: dict[str, str]  # the reason, by script
    failed: bool  # whether one of those was tried


def gather(given: Mapping[str, str], out: Path | None) -> Table:
    """Run every script that can be; `out`: where the table goes, so that growth's goes beside it."""
    names = given["only"].split(",") if "only" in given else list(SCRIPTS)
    if unknown := {*names} - SCRIPTS.keys():
        sys.exit(f"only={','.join(sorted(unknown))}: known are {', '.join(SCRIPTS)}")
    rows: list[Row] = []
    left_out, failed = {name: "not asked for" for name in SCRIPTS if name not in names}, False
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if reason := why_not(name, given):
                left_out[name] = reason
                continue
            path = growth.RESULTS if name == "growth" and out == RESULTS else Path(folder) / f"{name}.json"
            status = ran(name, given, path)
            if status or not path.exists():
                left_out[name] = f"failed with exit status {status}" if status else "it wrote no rows"
                failed = True
                continue
            rows += read(path)[0]
    return Table(rows, left_out, failed)


def why_not(name: str, given: Mapping[str, str]) -> str:
    """Return why a script cannot be run; "" where it can."""
    if missing := [one for one in SCRIPTS[name] if one not in given]:
        return f"{' and '.join(missing)} was not given"
    if importlib.util.find_spec(f"benchmarks.{name}") is None:
        return "there is no such script yet"
    return ""


def ran(name: str, given: Mapping[str, str], path: Path) -> int:
    """Run a script that writes to `path`, its table to stderr; return its exit status."""
    passed = [f"{one}={given[one]}" for one in (*SCRIPTS[name], "quick") if one in given]
    command = [sys.executable, "-m", f"benchmarks.{name}", *passed, f"out={path}"]
    print(f"+ {' '.join(command[1:])}", file=sys.stderr, flush=True)
    return subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode


def page(rows: Sequence[Row], found: Mapping[str, Any]) -> list[str]:
    """Return everything that is to be said; `found`: what stands beside the rows in the JSON."""
    met, aims = sum(row.met for row in rows), [row.aim_met for row in rows if row.aim_met is not None]
    said = [f"{met} of {len(rows)} goals met, {sum(aims)} of {len(aims)} aims."]
    if found["quick"]:
        said.insert(0, "Measured once and little, to show that it runs: no figure here counts.")
    said += [f"Left out: {name} ({reason})." for name, reason in found["left_out"].items()]
    return [*table(rows), "", *said, "", machine_line(found["environment"])]


def page_of(path: Path) -> list[str]:
    """Return what docs/benchmarks.md has to say, by the JSON at `path`."""
    if not path.exists():
        return ["Not measured yet."]
    return page(read(path)[0], json.loads(path.read_text()))


def main() -> None:
    """Measure, print, and write down where asked."""
    given = settings(KNOWN)
    out = Path(given["out"]).resolve() if "out" in given else None
    found = gather(given, out)
    beside = {"left_out": found.left_out, "quick": given.get("quick") == "true"}
    print("\n".join(page(found.rows, {"environment": machine(), **beside})))
    if out is not None:
        write(out, found.rows, machine(), **beside)
    if out == RESULTS:
        paste(PAGE, "goals", page_of(RESULTS))
    if found.failed or not all(row.met for row in found.rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
