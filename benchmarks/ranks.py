"""One run by 1, 2 and 4 processes on a CPU (gloo): python -m benchmarks.ranks [out=docs/ranks.json].

The default recipe on the stories cut to 50 steps, every loss recorded: how far the losses of several processes are from
those of one, replicated and sharded, in four kinds of numbers; one process on two threads beside it, for what the order
of adding does by itself. A run that 2, then 1, then 4 processes train; and one that loses a process by SIGKILL: the
seconds until all have left, what they say, and the losses of the run gone on with. Writes docs/ranks.json and the
tables in docs/ranks.md; takes some minutes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.files import keep, paste
from benchmarks.link_head import ROOT, environment_line
from training.checkpoint import go_back
from training.logging import read_records

PAGE, RESULTS = ROOT / "docs" / "ranks.md", ROOT / "docs" / "ranks.json"
STEPS = 50
# Without the probe, which looks after every one of so few steps and changes no loss.
COMMON = [f"max_steps={STEPS}", "log_every_steps=1", "eval_every_steps=10", "keep_checkpoints=9", "probe_sequences=0"]
# By what each is called on the page; the last is the default where the processor multiplies bfloat16.
RECIPES = {
    "float32, AdamW": ["precision=float32", "optim=adamw"],
    "float32, Muon": ["precision=float32", "optim=muon"],
    "bfloat16, AdamW": ["precision=bfloat16", "optim=adamw"],
    "bfloat16, Muon": ["precision=bfloat16", "optim=muon"],
}
PLAIN = "float32, AdamW"
# Processes, threads of each, sharding.
VARIANTS = {
    "2 processes": (2, 1, "none"),
    "4 processes": (4, 1, "none"),
    "2, sharded": (2, 1, "fsdp"),
    "4, sharded": (4, 1, "fsdp"),
    "1 on 2 threads": (1, 2, "none"),
}
_SWITCHES = (20, 40)  # steps after which another number of processes goes on
_KILLED_AFTER = 25


@dataclass(frozen=True)
class Job:
    """A training at work."""

    process: subprocess.Popen
    said: Path

    def wait(self) -> str:
        """Return what was said; SystemExit with it where the training failed."""
        if self.process.wait():
            sys.exit(self.said.read_text()[-3000:])
        return self.said.read_text()


def start(out: Path, n_processes: int, *arguments: str) -> Job:
    """Start train.py, by torchrun where it is more than one process."""
    door = [str(ROOT / "train.py"), f"out={out}", *arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)]
    command = [sys.executable, *(launcher if n_processes > 1 else []), *door]
    said = out.with_suffix(".said")
    with said.open("a") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream)
    return Job(process, said)


def losses(run: Path) -> list[float]:
    """Return the training loss of every step."""
    return [one["loss"] for one in read_records(run) if one["split"] == "train"]


def furthest(run: Path, other: Path) -> float:
    """Return the largest difference of two runs' losses in nats/token; SystemExit where one has not all steps."""
    mine, theirs = losses(run), losses(other)
    if len(mine) != STEPS or len(theirs) != STEPS:
        sys.exit(f"{run} has {len(mine)} steps and {other} {len(theirs)}, not {STEPS}")
    return max(abs(one - its) for one, its in zip(mine, theirs, strict=True))


def differences(folder: Path, cache: str) -> dict[str, dict[str, float]]:
    """Return how far each variant of each recipe is from one process on one thread."""
    found: dict[str, dict[str, float]] = {}
    for name, recipe in RECIPES.items():
        alone = folder / f"{name}, alone"
        start(alone, 1, cache, "threads=1", *COMMON, *recipe).wait()
        found[name] = {}
        for variant, (n_processes, threads, sharding) in VARIANTS.items():
            out = folder / f"{name}, {variant}"
            start(out, n_processes, cache, f"threads={threads}", f"sharding={sharding}", *COMMON, *recipe).wait()
            found[name][variant] = furthest(out, alone)
            print(f"{name:>16}  {variant:>15}  {found[name][variant]:.1e}", flush=True)
    return found


def resumed(folder: Path, cache: str) -> float:
    """Return how far a run of 2, then 1, then 4 processes is from one of one."""
    out = folder / "resumed"
    start(out, 2, cache, "threads=1", *COMMON, *RECIPES[PLAIN]).wait()
    for step, n_processes in zip(_SWITCHES, (1, 4), strict=True):
        go_back(out / "checkpoints", step)  # as if it had been stopped there
        start(out, n_processes, cache, "resume=true").wait()
    return furthest(out, folder / f"{PLAIN}, alone")


def ranks(launcher: int) -> dict[int, int]:
    """Return the process of each rank that a torchrun has started, by what Linux tells of it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError, KeyError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == launcher:
                told = dict(one.partition("=")[::2] for one in (folder / "environ").read_text().split("\0"))
                found[int(told["RANK"])] = int(folder.name)
    return found


def killed(folder: Path, cache: str) -> dict[str, Any]:
    """Kill rank 1 of 4; return the seconds until all have left, what they said, and how far the run gone on with is."""
    out = folder / "killed"
    job = start(out, 4, cache, "threads=1", *COMMON, *RECIPES[PLAIN])
    while not (out / "metrics.jsonl").exists() or len(losses(out)) < _KILLED_AFTER:
        if job.process.poll() is not None:
            sys.exit(job.said.read_text()[-3000:])
        time.sleep(0.01)
    every = ranks(job.process.pid)
    os.kill(every[1], signal.SIGKILL)
    began = time.monotonic()
    while ranks(job.process.pid):
        time.sleep(0.01)
    seconds = time.monotonic() - began
    status = job.process.wait()
    lines = [line for line in job.said.read_text().splitlines() if line.startswith("error: ")]
    reached = len(losses(out))
    start(out, 2, cache, "resume=true").wait()
    said = [line.replace(str(every[1]), "PROCESS").replace(str(out), "RUN") for line in lines]
    return {
        "seconds": seconds,
        "said": said,
        "torchrun_status": status,
        "reached": reached,
        "difference": furthest(out, folder / f"{PLAIN}, alone"),
    }


def tables(kept: dict[str, Any]) -> dict[str, list[str]]:
    """Return every block of docs/ranks.md that this makes, by marker."""
    lines = [f"| numbers, optimizer | {' | '.join(VARIANTS)} |", "|---|" + "---|" * len(VARIANTS)]
    for name, row in kept["differences"].items():
        lines.append(f"| {name} | {' | '.join(f'{row[one]:.1e}' if one in row else '' for one in VARIANTS)} |")
    one = kept["killed"]
    after = [
        f"- 2 processes to step {_SWITCHES[0]}, one to step {_SWITCHES[1]}, 4 to step {STEPS} ({PLAIN}): "
        f"{kept['resumed']:.1e} nats/token from one process throughout.",
        f"- Rank 1 of 4 killed after step {one['reached']}: all had left {one['seconds']:.1f} s later, torchrun with "
        f"status {one['torchrun_status']}; gone on with by 2 processes, {one['difference']:.1e} from one throughout. "
        "What was said:",
        "",
        *(f"      {line}" for line in one["said"]),
    ]
    return {"differences": lines, "after": after, "environment": [environment_line(kept["environment"])]}


def main() -> None:
    """Measure, write, print."""
    given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if given.keys() - {"out"}:
        sys.exit("usage: python -m benchmarks.ranks [out=docs/ranks.json]")
    results = Path(given.get("out", RESULTS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = f"cache_dir={folder / 'cache'}"
        kept: dict[str, Any] = {"steps": STEPS, "differences": differences(folder, cache)}
        kept |= {"resumed": resumed(folder, cache), "killed": killed(folder, cache)}
        found = json.loads((folder / f"{PLAIN}, alone" / "environment.json").read_text())
    kept["environment"] = {one: found[one] for one in ("python", "packages", "processor", "cores", "threads")}
    keep(results, kept)
    for marker, lines in tables(kept).items():
        if results.resolve() == RESULTS.resolve():
            paste(PAGE, marker, lines)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
