"""How far long work is: the stage and the time left on a terminal, in a log a line for each stage of a large model."""

import sys
import time
from collections.abc import Callable

MIN_SHARE = 0.03  # finished share from which on the remaining time is estimated


def stages(name: str, log: Callable[[str], None] | None = None) -> Callable[[str, float], None]:
    """Return a function that shows a stage of the work `name` and its finished share, 0 to 1; a share of 0 restarts.

    On a terminal the line is overwritten; otherwise `log`, if given, gets a line for each new stage.
    """
    start = time.monotonic()
    last = ""

    def show(stage: str, share: float) -> None:
        nonlocal start, last
        if share == 0:
            start = time.monotonic()
        line = f"{name}: {stage}{time_left(start, share)}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line}\033[K")
            sys.stderr.flush()
        elif log is not None and stage != last:
            log(line)
        last = stage

    return show


def clear() -> None:
    """Clear the line of `stages` on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def time_left(start: float, share: float) -> str:
    """Return ", about 2 min left" for work that began at `start` (time.monotonic); "" while it cannot be known."""
    if share < MIN_SHARE:
        return ""
    seconds = (time.monotonic() - start) * (1 - share) / share
    return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {max(1, seconds):.0f} s left"
