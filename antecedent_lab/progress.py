"""How far long work is: a bar on a terminal, in a log a line for each stage of a large model."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

_BAR = "{desc} {percentage:.0f}%, about {remaining} left"


@contextmanager
def stages(name: str, log: Callable[[str], None] | None) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows a stage of the work `name` and its finished share, 0 to 1; a share of 0 restarts."""
    last = ""
    start = time.monotonic()
    with tqdm(desc=name, total=1.0, leave=False, disable=None, miniters=0, bar_format=_BAR) as bar:

        def show(stage: str, share: float) -> None:
            nonlocal last, start
            if share == 0:
                start = time.monotonic()
                bar.reset()
            if bar.disable and log is not None and stage != last:
                seconds = (time.monotonic() - start) * (1 / share - 1) if share else 0
                log(f"{name}: {stage}" + (f", about {seconds:.0f} s left" if share else ""))
                sys.stdout.flush()  # a pipe or a file would keep lines back for minutes
            bar.set_description_str(f"{name}: {stage}", refresh=False)
            bar.update(share - bar.n)
            last = stage

        yield show
