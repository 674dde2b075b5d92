"""How far long work is: the stage and the time left on a terminal, in a log a line for each stage of a large model."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MIN_SHARE = 0.03  # finished share from which on the remaining time is estimated


@contextmanager
def stages(name: str, log: Callable[[str], None] | None = None) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows a stage of the work `name` and its finished share, 0 to 1; a share of 0 restarts.

    On a terminal the line is overwritten and cleared in the end; otherwise `log`, if given, gets a line for each new
    stage.
    """
    start = time.monotonic()
    last = ""
    on_terminal = sys.stderr.isatty()

    def show(stage: str, share: float) -> None:
        nonlocal start, last
        if share == 0:
            start = time.monotonic()
        line = f"{name}: {stage}{time_left(start, share)}"
        if on_terminal:
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
        elif log is not None and stage != last:
            log(line)
            sys.stdout.flush()  # a pipe or a file would keep lines back for minutes
        last = stage

    # The work is done by the caller.
    try:
        yield show
    finally:
        if on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def time_left(start: float, share: float) -> str:
    """Return ", about 2 min left" for work that began at `start` (time.monotonic); "" while it cannot be known."""
    if share < MIN_SHARE:
        return ""
    seconds = (time.monotonic() - start) * (1 - share) / share
    amount = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(1, seconds):.0f} s"
    return f", about {amount} left"
