"""What a run says while it goes: metrics.jsonl (the exact record), TensorBoard, and lines for a person."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run.checkpoint import write_atomically

if TYPE_CHECKING:
    import numpy as np


_NO_CURVE = {"layer", "head", "whole", "seconds"}  # for metrics.jsonl alone: a line through them says nothing


class Recorder:
    """Writes every number of a run once, to metrics.jsonl and to TensorBoard."""

    def __init__(self, run: Path, resumed_step: int | None) -> None:
        """Open the run's records; those after `resumed_step` are dropped, for they will be written again."""
        from torch.utils.tensorboard import SummaryWriter  # not at import: it is slow and not every door needs it

        self._path = run / "metrics.jsonl"
        if resumed_step is not None and self._path.exists():
            lines = self._path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if _step_of(line) <= resumed_step]
            write_atomically(self._path, "".join(kept).encode())
        self._lines = self._path.open("a", buffering=1)
        purge = None if resumed_step is None else resumed_step + 1
        self._tensorboard = SummaryWriter(str(run / "tb"), purge_step=purge)

    def record(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Write one object to metrics.jsonl and each of its numbers to TensorBoard as <name>/<split>.

        A nested dict becomes <outer>/<inner>, so that its curves stand together.
        """
        self._lines.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        for name, value in values.items():
            curves = value if isinstance(value, dict) else {split: value}
            for inner, number in curves.items():
                if name not in _NO_CURVE and inner not in _NO_CURVE:
                    self._tensorboard.add_scalar(f"{name}/{inner}", number, step)

    def overlay(self, charts: dict[str, list[str]]) -> None:
        """Lay several curves over each other in TensorBoard's custom scalars, by chart title and tags."""
        layout = {title: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags]] for title, tags in charts.items()}
        self._tensorboard.add_custom_scalars({"antecedent": layout})

    def text(self, step: int, tag: str, text: str) -> None:
        """Show `text` in TensorBoard, as it is: fenced, so that none of it becomes markup."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._tensorboard.add_text(tag, indented, step)

    def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
        """Show `pixels` [height, width, 3] uint8 in TensorBoard."""
        self._tensorboard.add_image(tag, pixels, step, dataformats="HWC")

    def flush(self) -> None:
        """Bring everything said so far to the disk."""
        self._tensorboard.flush()

    def close(self) -> None:
        """Flush and close."""
        self._tensorboard.close()
        self._lines.close()


def _step_of(line: str) -> float:
    """Return the step of a line, or infinity for one that was cut off or damaged."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


class Progress:
    """One line that moves, on a terminal only: a log gets none of it."""

    def __init__(self, max_steps: int, first_step: int) -> None:
        """Start counting at `first_step`."""
        self._max_steps, self._first_step, self._began = max_steps, first_step, time.monotonic()
        self._shown, self._visible = 0.0, sys.stderr.isatty()

    def show(self, step: int) -> None:
        """Redraw the line, at most ten times a second."""
        now = time.monotonic()
        if not self._visible or now - self._shown < 0.1:
            return
        self._shown = now
        done = step - self._first_step
        left = (now - self._began) / max(1, done) * (self._max_steps - step)
        filled = 30 * step // self._max_steps
        bar = "#" * filled + "." * (30 - filled)
        sys.stderr.write(f"\r[{bar}] step {step}/{self._max_steps}  about {left:.0f} s left \033[K")
        sys.stderr.flush()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._visible:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        print(line, flush=True)
