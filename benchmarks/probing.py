"""How long the whole probe takes: python -m benchmarks.probing [run=DIR] [cache_dir=DIR] [out=FILE.json].

Whole processes of `python eval.py` on a default run, the page included, as a user starts them: wall seconds with two
threads, and what is left of them without the seconds spent in its causal part. A sixth one takes one thread, for its
CPU-seconds. Before them comes a pass that is not counted, which writes the test stories where the cache has none;
without run= a default run is trained for it, a minute. quick=true: one pass of a run of 20 steps, which shows only that
it runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import Child, Row, all_within, alone, number, repeats, timed

LIMIT, CAUSAL_LIMIT = 20.0, 60.0  # wall seconds, without the causal part and with it
_CLOCKED = "benchmarks.probing.clocked"  # by which a child of this script is known
_SAID = "seconds in the causal part: "


def trained(folder: Path, settings: Sequence[str]) -> Path:
    """Train a run by train.py and return where it is."""
    run = folder / "run"
    timed([sys.executable, "train.py", f"out={run}", *settings], threads=2)
    return run


def rows(given: dict[str, str]) -> list[Row]:
    """Measure whole processes of eval.py."""
    with tempfile.TemporaryDirectory() as name:
        cache = f"cache_dir={given.get('cache_dir', Path(name) / 'cache')}"
        short = ["max_steps=20", "eval_every_steps=20"] if given.get("quick") == "true" else []
        run = Path(given["run"]).resolve() if "run" in given else trained(Path(name), [cache, *short])
        door = [f"run={run}", cache]
        clocked = [sys.executable, "-m", "benchmarks.probing", _CLOCKED, *door]
        first = timed(clocked, threads=2)
        passes = [timed(clocked, threads=2) for _ in range(repeats(given))]
        alone_ = timed([sys.executable, "eval.py", *door, "threads=1"])
    return judged([one.seconds for one in passes], [causal_seconds(one.said) for one in passes], first, alone_)


def judged(whole: Sequence[float], causal: Sequence[float], first: Child, alone_: Child) -> list[Row]:
    """Return the rows of some passes: the wall seconds of each, and how many of them its causal part took."""
    note = (
        "The first pass, after which the test stories are in the cache, took "
        f"{number(first.seconds)} s; with one thread a pass takes {number(alone_.cpu_seconds)} CPU-seconds and "
        f"{number(alone_.peak_bytes / 2**20)} MB at most."
    )
    without = [one - part for one, part in zip(whole, causal, strict=True)]
    about = "every change to a head (probe/causal.py, probe/importance.py) is that part"
    work = "whole probe (standard) of a default run, page included"
    return [
        _row(f"{work}, causal part left out", without, LIMIT, f"Measured in the same passes as the next row: {about}."),
        _row(f"{work}, causal part too", list(whole), CAUSAL_LIMIT, note),
    ]


def _row(work: str, seconds: list[float], limit: float, note: str) -> Row:
    met = all_within(seconds, limit)
    goal = f"≤ {limit:.0f} s on 2 cores"
    return Row(
        work=work, goal=goal, aim="", unit="s", ours=seconds, peer_name="", peer=[], met=met, aim_met=None, note=note
    )  # fmt: skip


def causal_seconds(output: str) -> float:
    """Return what `clocked` has said."""
    return float(output.rpartition(_SAID)[2])


def clocked(arguments: list[str]) -> None:
    """Do what `python eval.py` does with `arguments`, and say last how many seconds its causal part took."""
    from hydra.errors import HydraException

    from eval import main
    from probe import study
    from training.command_line import door

    spent = 0.0

    def timing(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*inputs: Any, **options: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            found = work(*inputs, **options)
            spent += time.perf_counter() - began
            return found

        return wrapped

    study.causal_study, study.importance_study = timing(study.causal_study), timing(study.importance_study)
    sys.argv = ["eval.py", *arguments]
    with door("eval", HydraException):
        main()
    print(f"{_SAID}{spent:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == [_CLOCKED]:
        clocked(sys.argv[2:])
    else:
        alone(rows, ("run", "cache_dir"))
