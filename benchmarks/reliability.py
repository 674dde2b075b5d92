"""Nothing is lost: python -m benchmarks.reliability [kills=50] [corruptions=220] [cases=2000].

- kill: SIGKILL at random moments of a 600-step run, resumed until it ends; weights and losses are compared with those
  of a run that was never interrupted, bit by bit.
- corruption: random bit flips (10 of 11) and truncations (1 of 11) of checkpoint files; each must be detected, and the
  newest undamaged checkpoint loaded, or be harmless.
- full disk: a file-size limit while a run saves; the checkpoints from before must be unchanged.
- fuzz: random command lines of train.py, up to the start of training; the exit status must be 0 or 2, without a
  traceback.

Writes docs/results/reliability.{json,md}; exit status 1 if a promise is broken. Needs requirements-dev.txt.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings

from benchmarks.measure import arguments, read_records, write_results
from data.text_tables import markdown_table
from tests.program import SMALL_DATA, start_program, wait
from tests.reliability.strategies import command_lines
from tests.reliability.test_fuzz import status_and_error
from training.checkpoint import load_checkpoint

SHORT_RUN = [
    "model=nano", "eval_every_steps=20", "log_every_steps=1", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=16", "sample_tokens=0", "threads=1", *SMALL_DATA,
]  # fmt: skip
KILLED_RUN = [*SHORT_RUN, "max_steps=600"]


def equal(first: Path, second: Path) -> bool:
    """Returns True if two runs have identical training losses and weights."""
    left, right = (load_checkpoint(run / "checkpoints")["model"] for run in (first, second))
    losses, other_losses = ([record["loss"] for record in read_records(run, "train")] for run in (first, second))
    return losses == other_losses and all(torch.equal(left[name], right[name]) for name in left | right)


def measure_kills(n_kills: int, folder: Path) -> dict[str, Any]:
    """Kills and resumes runs at random moments; counts the runs that end like the uninterrupted one."""
    draw, cache, reference = random.Random(0), f"cache_dir={folder / 'cache'}", folder / "reference"
    start = time.monotonic()
    wait(start_program("train.py", f"out={reference}", *KILLED_RUN, cache), 600)
    duration = time.monotonic() - start
    n_done, runs = 0, list[Path]()
    while n_done < n_kills:
        run = folder / f"killed_{len(runs)}"
        ended = False
        while not ended:
            resume = ["resume=true"] if (run / "config.json").exists() else []
            process = start_program("train.py", f"out={run}", *KILLED_RUN, cache, *resume)
            if n_done < n_kills:
                time.sleep(draw.uniform(0.3, 0.8) * duration)
                n_done += process.poll() is None
                process.kill()
            ended = wait(process, 600).status == 0
        runs.append(run)
    identical = sum(equal(reference, run) for run in runs)
    return {"kills": n_done, "runs": len(runs), "identical": identical, "passed": identical == len(runs)}


def measure_corruption(n_files: int, folder: Path) -> dict[str, Any]:
    """Damages one checkpoint file at a time; counts what loading does."""
    draw, run = random.Random(0), folder / "reference"
    paths = (run / "checkpoints").glob("step_*.pt")
    weights = {int(path.stem[5:]): torch.load(path, weights_only=True)["model"] for path in paths}
    counts, copy = Counter[str](), folder / "damaged"
    for number in range(n_files):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run / "checkpoints", copy)
        path = draw.choice(sorted(copy.iterdir()))
        content = bytearray(path.read_bytes())
        if number % 11:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            state = load_checkpoint(copy)
        except ValueError:
            counts["the manifest is damaged: refused"] += 1
            continue
        saved = weights[state["step"]]
        if any(not torch.equal(saved[name], state["model"][name]) for name in saved):
            counts["loaded damaged weights"] += 1
        else:
            is_older = state["step"] < max(weights)
            counts["detected, an undamaged checkpoint loaded" if is_older else "harmless"] += 1
    return dict(counts) | {"files": n_files, "passed": not counts["loaded damaged weights"]}


def measure_full_disk(folder: Path) -> dict[str, Any]:
    """Resumes with a limit on the size of files; compares the checkpoints with those from before."""
    run, cache = folder / "limited", f"cache_dir={folder / 'cache'}"
    wait(start_program("train.py", f"out={run}", *SHORT_RUN, "max_steps=40", cache), 600)
    before = {path: path.read_bytes() for path in (run / "checkpoints").iterdir()}
    smallest = min(len(content) for path, content in before.items() if path.suffix == ".pt")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (smallest // 2, smallest // 2))

    result = wait(start_program("train.py", f"out={run}", "resume=true", "max_steps=80", cache, prepare=limit), 600)
    unchanged = {path: path.read_bytes() for path in (run / "checkpoints").iterdir()} == before
    errors = [line for line in result.err.splitlines() if not line.startswith("warning: ")]
    passed = unchanged and (result.status, len(errors)) == (2, 1)
    return {"message": "; ".join(errors), "unchanged": unchanged, "passed": passed}


def measure_fuzz(n_cases: int) -> dict[str, Any]:
    """Parses random command lines as train.py does, up to the start of training; counts exit statuses."""
    statuses, failures = Counter[str](), list[str]()

    @settings(max_examples=n_cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(command_lines())
    def fuzz(arguments: list[str]) -> None:
        try:
            status, error = status_and_error(arguments)
        except Exception as exception:  # the failure that this looks for
            failures.append(f"{arguments}: {exception!r}")
            return
        statuses[str(status)] += 1
        if status not in (0, 2) or "Traceback" in error:
            failures.append(f"{arguments}: exit status {status}")

    fuzz()
    return {"cases": n_cases, "statuses": dict(statuses), "failures": failures, "passed": not failures}


def lines_of(results: dict[str, Any]) -> list[str]:
    """Returns the page's table."""
    kills, corruption, disk, fuzz = (results[name] for name in ("kills", "corruption", "full_disk", "fuzz"))
    outcomes = ", ".join(f"{count} {name}" for name, count in corruption.items() if name not in ("files", "passed"))
    statuses = ", ".join(f"exit status {status} {count} times" for status, count in sorted(fuzz["statuses"].items()))
    identical = f"{kills['identical']} of {kills['runs']} runs bit-identical to the uninterrupted one"
    checkpoints = "checkpoints unchanged" if disk["unchanged"] else "checkpoints CHANGED"
    rows = [
        ["kill -9 and resume", f"{kills['kills']} kills in {kills['runs']} runs of 600 steps", identical],
        ["corrupted checkpoint files", f"{corruption['files']} files", outcomes],
        ["full disk while saving", "one run", f"{checkpoints}; `{disk['message']}`"],
        ["random settings", f"{fuzz['cases']} command lines", f"{statuses}; {len(fuzz['failures'])} tracebacks"],
    ]
    return markdown_table(["test", "size", "result"], rows)


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"kills": "50", "corruptions": "220", "cases": "2000"})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = {
            "kills": measure_kills(int(options["kills"]), folder),
            "corruption": measure_corruption(int(options["corruptions"]), folder),
            "full_disk": measure_full_disk(folder),
            "fuzz": measure_fuzz(int(options["cases"])),
        }
    results = json.loads(json.dumps(results).replace(name, "RUNS"))
    write_results("reliability", "Nothing is lost", results, lines_of(results), threads=1)
    if broken := [name for name, result in results.items() if not result["passed"]]:
        print(f"broken: {', '.join(broken)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
