"""The whole goal table: python -m benchmarks.speed nanogpt=PATH data.path=input.txt [out=docs/benchmarks.json].

Runs every row script in a process of its own, one after the other, and prints one table: what was wanted, what was
found, and what was left out, with the reason. [only=shakespeare,growth]: those alone; what `out` holds of the others
stays, each with the machine and commit it was measured on. [quick=true] measures everything once and little, and shows
only that it runs. With out=docs/benchmarks.json the table in docs/benchmarks.md is written too, with growth's own
tables and figure. Exit status 1 where a script fails or a goal is missed. An hour or more, on an idle machine.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.files import keep, paste
from benchmarks.rows import ROOT, Row, machine, machine_line, read, settings, table

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
class Part:
    """What one script has measured, and on what."""

    rows: list[Row]
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """What came of all scripts."""

    parts: dict[str, Part]  # by script, in the order of the table
    left_out: dict[str, str]  # the reason, by script
    quick: bool

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for part in self.parts.values() for row in part.rows]


def gather(given: Mapping[str, str], out: Path | None) -> tuple[Table, bool]:
    """Run every script that can be, and write the table to `out` after each; return it, and whether one failed."""
    names = given["only"].split(",") if "only" in given else list(SCRIPTS)
    if unknown := {*names} - SCRIPTS.keys():
        sys.exit(f"only={','.join(sorted(unknown))}: known are {', '.join(SCRIPTS)}")
    about, quick, has_failed = machine(), given.get("quick") == "true", False
    parts, reasons = kept(out, quick=quick), dict.fromkeys(SCRIPTS, "not asked for")
    for name in names:
        reason = why_not(name, given)
        if not reason:
            reason, rows = measured(name, given, out)
            has_failed = has_failed or bool(reason)
        if not reason:
            parts[name] = Part(rows, about)
        elif name in parts:
            print(f"{name}: {reason}; its earlier rows stay", file=sys.stderr)
        reasons[name] = reason
        if out is not None:
            write_table(out, in_order(parts, reasons, quick=quick))
    return in_order(parts, reasons, quick=quick), has_failed


def in_order(parts: Mapping[str, Part], reasons: Mapping[str, str], *, quick: bool) -> Table:
    """Return a table of the parts there are; of the others the reason why not."""
    there = {name: parts[name] for name in SCRIPTS if name in parts}
    return Table(there, {name: reasons[name] for name in SCRIPTS if name not in parts}, quick)


def kept(out: Path | None, *, quick: bool) -> dict[str, Part]:
    """Return the parts that an earlier call has written there; none where either is quick, which counts for nothing."""
    if out is None or quick or not out.exists():
        return {}
    try:
        before = read_table(out)
    except (ValueError, KeyError, TypeError, AttributeError):
        sys.exit(f"{out} is there and holds no table of goals: give another out=")
    if before.quick:
        return {}
    return {name: part for name, part in before.parts.items() if name in SCRIPTS}


def write_table(path: Path, found: Table) -> None:
    """Write a table as JSON, whole or not at all."""
    keep(path, asdict(found))


def read_table(path: Path) -> Table:
    """Return what `write_table` has written."""
    found = json.loads(path.read_text())
    parts = {
        name: Part([Row(**row) for row in part["rows"]], part["environment"]) for name, part in found["parts"].items()
    }
    return Table(parts, found["left_out"], found["quick"])


def measured(name: str, given: Mapping[str, str], out: Path | None) -> tuple[str, list[Row]]:
    """Run a script; return why there are no rows, or "" and its rows. `out`: growth's own page is written beside."""
    with tempfile.TemporaryDirectory() as folder:
        path = growth.RESULTS if name == "growth" and out == RESULTS else Path(folder) / f"{name}.json"
        if status := ran(name, given, path):
            return f"failed with exit status {status}", []
        return ("", read(path)[0]) if path.exists() else ("it wrote no rows", [])


def why_not(name: str, given: Mapping[str, str]) -> str:
    """Return why a script cannot be run; "" where it can."""
    missing = [one for one in SCRIPTS[name] if one not in given]
    return f"{' and '.join(missing)} {'were' if len(missing) > 1 else 'was'} not given" if missing else ""


def ran(name: str, given: Mapping[str, str], path: Path) -> int:
    """Run a script that writes to `path`, its table to stderr; return its exit status."""
    passed = [f"{one}={given[one]}" for one in (*SCRIPTS[name], "quick") if one in given]
    command = [sys.executable, "-m", f"benchmarks.{name}", *passed, f"out={path}"]
    print(f"+ {' '.join(command[1:])}", file=sys.stderr, flush=True)
    return subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode


def page(found: Table) -> list[str]:
    """Return everything that is to be said."""
    rows = found.rows
    met, aims = sum(row.met for row in rows), [row.aim_met for row in rows if row.aim_met is not None]
    said = [f"{met} of {len(rows)} rows met, {sum(aims)} of {len(aims)} aims."]
    if found.quick:
        said.insert(0, "Measured once and little, to show that it runs: no figure here counts.")
    said += [f"Left out: {name} ({reason})." for name, reason in found.left_out.items()]
    on: dict[str, list[str]] = {}  # scripts, by the machine and commit that they ran on
    for name, part in found.parts.items():
        on.setdefault(machine_line(part.environment), []).append(name)
    where = [line if len(on) == 1 else f"{', '.join(names)}: {line}" for line, names in on.items()]
    return [*table(rows), "", *said, "", *where]


def page_of(path: Path) -> list[str]:
    """Return what docs/benchmarks.md has to say, by the JSON at `path`."""
    return page(read_table(path)) if path.exists() else ["Not measured yet."]


def main() -> None:
    """Measure, print, and write down where asked."""
    given = settings(KNOWN)
    out = Path(given["out"]).resolve() if "out" in given else None
    found, has_failed = gather(given, out)
    print("\n".join(page(found)))
    if out == RESULTS:
        paste(PAGE, "goals", page_of(RESULTS))
    if has_failed or not found.rows or not all(row.met for row in found.rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
