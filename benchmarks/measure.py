"""What every benchmark needs: its options, timed commands, and its results as JSON and Markdown."""

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from statistics import median
from string import Formatter
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from data.errors import UserError
from data.text_tables import markdown_table
from probe.results import Estimate
from probe.statistics import share_interval
from report.tables import number
from training.command_line import one_line_errors
from training.files import write_atomically
from training.logging import read_records
from training.run_dir import environment
from training.settings import settings_from_arguments

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
Row = TypeVar("Row")
_MACHINE = ("python", "packages", "processor", "cores", "threads", "commit", "uncommitted_changes")


class PageResults(Protocol):
    """The results of a benchmark: a dataclass of the rows of its tables."""

    def lines(self) -> list[str]:
        """Return the lines of the page between command and machine."""
        ...


@dataclass(frozen=True)
class _Timing:
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
    return [part for part in text.split(",") if part]


def run_command(command: Sequence[str], cwd: Path = ROOT) -> _Timing:
    """Run a command to its end; print its last lines and raise UserError if it fails.

    The CPU-seconds are those of all child processes that end meanwhile, so commands must not overlap.
    """
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        print(*(process.stderr or process.stdout).splitlines()[-20:], sep="\n", file=sys.stderr)
        raise UserError(f"exit status {process.returncode} of {' '.join(command[:4])} ...")
    # User and system time of the command and of all that it started
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Timing(seconds, cpu_seconds, process.stdout)


def run_script(name: str, *settings: str) -> _Timing:
    """Run train.py or eval.py (`name` without .py) as a user does."""
    return run_command([sys.executable, f"{name}.py", *settings])


def split_records(run: Path, split: str) -> list[dict[str, Any]]:
    """Return the records of one split of a run's metrics.jsonl, oldest first."""
    return [record for record in read_records(run) if record["split"] == split]


# Tables


class _CellFormatter(Formatter):
    """Fill in "{share:.2f}": an estimate with its interval, a dash for None; ":auto" rounds as the report does."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return getattr(args[0], str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "-"
        # The limits are rounded as the value is
        if isinstance(value, Estimate):
            limits = (value.value, value.low, value.high)
            return "{} [{}, {}]".format(*(self.format_field(limit, format_spec) for limit in limits))
        if format_spec == "auto":
            return number(value)
        return f"{100 * value:.1f}" if format_spec == "percent" else format(value, format_spec)


def row_cell(template: str, row: Any) -> str:
    """Return the template with the fields of a row filled in."""
    return _CellFormatter().vformat(template, (row,), {})


def row_table(header: str, template: str, rows: Sequence[Any]) -> list[str]:
    """Return a Markdown table with a line for each row.

    `header` is "seed | share [95 %]", `template` has the fields of a row, "{seed} | {share:.2f}".
    """
    # Every column is filled by itself, so a text may contain " | "
    columns = template.split(" | ")
    cells = []
    for row in rows:
        cells.append([row_cell(column, row) for column in columns])
    return markdown_table(header.split(" | "), cells)


def median_range(values: Sequence[float], digits: int = 1) -> str:
    """Return "12.3 (11.9 to 13.0)": the median and the range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def head_name(entry: Mapping[str, Any]) -> str:
    """Return "L1H3" for an entry of probe.json."""
    return f"L{entry['layer']}H{entry['head']}"


def share_range(count: int, n: int) -> str:
    """Return the 95 % interval of a share, "[0.0%, 3.6%]"."""
    low, high = share_interval(count, n)
    return f"[{low:.1%}, {high:.1%}]"


def short_paths(argument: str) -> str:
    """Return an argument with every path cut to its last two parts."""
    return re.sub(r"[^=,:]*/(?=[^/,]+/[^/,]+)", "", argument)


# Rows and JSON


def row_from(schema: type[Row], source: Any, **values: Any) -> Row:
    """Return a row whose other fields are those of `source`, an object or the entry of a JSON file.

    An estimate NAME of an entry has its limits in NAME_interval; a row with a plain number gets the estimate's value.
    """
    for name, hint in get_type_hints(schema).items():
        if name in values:
            continue
        # An entry of a JSON file
        if isinstance(source, Mapping):
            value = source[name]
            values[name] = Estimate(value, *source[f"{name}_interval"]) if hint is Estimate else value
        # A result of the probe in this process
        else:
            value = getattr(source, name)
            values[name] = value.value if hint is float and isinstance(value, Estimate) else value
    return schema(**values)


def to_json(value: Any) -> Any:
    """Return rows as JSON has them: an estimate NAME becomes NAME, NAME_low and NAME_high, None nothing."""
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if not is_dataclass(value):
        return value
    # Numbers of one row stay side by side, as in a table
    content = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Estimate):
            content[field.name] = item.value
            content[f"{field.name}_low"] = item.low
            content[f"{field.name}_high"] = item.high
        elif item is not None:
            content[field.name] = to_json(item)
    return content


def rows_from_json(schema: Any, content: Any) -> Any:
    """Return what `to_json` was given; `schema` is its type: a dataclass, a list or dict of them, or plain."""
    if get_origin(schema) is list:
        [item_schema] = get_args(schema)
        return [rows_from_json(item_schema, item) for item in content]
    if get_origin(schema) is dict:
        _, item_schema = get_args(schema)
        return {name: rows_from_json(item_schema, item) for name, item in content.items()}
    # "X | None" is read as X
    schema = next((kind for kind in get_args(schema) if is_dataclass(kind)), schema)
    if content is None or not is_dataclass(schema):
        return content
    # Absent fields are None
    values = {}
    for name, hint in get_type_hints(schema).items():
        value = content.get(name)
        if Estimate in (hint, *get_args(hint)):
            is_known = value is not None
            values[name] = Estimate(value, content[f"{name}_low"], content[f"{name}_high"]) if is_known else None
        else:
            values[name] = rows_from_json(hint, value)
    return schema(**values)  # type: ignore[operator]


def page_body(results: PageResults, machine: Mapping[str, Any]) -> str:
    """Return the page below its command: the tables, and what they were measured with."""
    packages = [f"{package} {version}" for package, version in machine["packages"].items()]
    measured_with = (
        f"Python {machine['python']}, {', '.join(packages)}; {machine['processor']}, {machine['cores']} cores, "
        f"threads: {machine['threads']}."
    )
    return "\n".join([*results.lines(), "", measured_with]) + "\n"


def write_page(program: str, title: str, results: PageResults, threads: int, page: str = "") -> None:
    """Write docs/results/PAGE.json and .md (default: PROGRAM), print the page."""
    machine = environment("cpu", threads)
    machine = {name: machine[name] for name in _MACHINE}
    # The page holds the command without the folders of this machine
    command = " ".join([f"python -m benchmarks.{program}", *map(short_paths, sys.argv[1:])])
    text = f"# {title}\n\n```\n{command}\n```\n\n{page_body(results, machine)}"
    # The JSON holds what the page is made from, and nothing else
    rows = json.dumps({"environment": machine, **to_json(results)}, indent=1) + "\n"
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS / f"{page or program}.json", rows.encode())
    write_atomically(RESULTS / f"{page or program}.md", text.encode())
    print(text, end="")
