"""What a run says while it goes: metrics.jsonl (the exact record), TensorBoard, and lines for a person."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

from training.board import EventFile
from training.checkpoint import Stream, write_atomically

_BELOW_FLOOR = 3  # standard errors; no luck takes a loss so far below what is possible


# For metrics.jsonl alone: a line through them says nothing.
_NO_CURVE = {"step", "layer", "head", "whole", "seconds", "counted_5grams"}


class Lines:
    """A file of one JSON object a line, each of a step, oldest first."""

    def __init__(self, path: Path, resumed_step: int | None, *, looked: bool = True) -> None:
        """Open it to go on; what will be written again is dropped (see `Recorder`)."""
        self.lost = ""  # what is not there though it was written, in one line
        if resumed_step is not None and path.exists():
            lines = _read_lines(path)
            kept = [line for line in lines if _is_kept(line, resumed_step, looked=looked)]
            # The last may have been cut off by a kill; then it is written again.
            if n_damaged := sum(_step_of(line) == float("inf") for line in lines[:-1]):
                self.lost = f"{path}: {n_damaged} damaged line{'s' * (n_damaged > 1)} left out"
            write_atomically(path, "".join(kept).encode())
        elif resumed_step is not None and resumed_step > 0:
            self.lost = f"{path} is gone: what was recorded up to step {resumed_step} is lost"
        self._stream = Stream(path)
        self.is_empty = self._stream.is_empty

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Add one object; what it holds of numbers that are not finite becomes null, for JSON has none."""
        self._stream.write(f"{json.dumps({'step': step, **_finite(values)}, allow_nan=False)}\n".encode())
        self._stream.flush()

    def sync(self) -> None:
        """Bring everything written so far to the disk."""
        self._stream.sync()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _is_kept(line: str, resumed_step: int, *, looked: bool) -> bool:
    step = _step_of(line)
    return step < resumed_step or (step == resumed_step and (looked or json.loads(line).get("split") == "train"))


def _finite(value: Any) -> Any:
    """Return a value of JSON with null for every number that is not finite."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class Recorder:
    """Writes every number of a run once, to metrics.jsonl and to TensorBoard."""

    def __init__(self, run: Path, resumed_step: int | None, *, looked: bool = True) -> None:
        """Open the run's records; what will be written again is dropped.

        Args:
            run: its directory.
            resumed_step: the step gone on from; None: a run that begins.
            looked: whether the evaluation or probe of that very step, if one was due, is behind us and kept.

        """
        self.run = run
        self._resumed_step, self._looked = resumed_step, looked
        self._lines = Lines(run / "metrics.jsonl", resumed_step, looked=looked)
        self._beside: dict[str, Lines] = {}
        # A fresh run too says that it starts: TensorBoard's slow loader takes the first start that it sees for none.
        self.board = EventFile(run / "tb", purge=0 if resumed_step is None else resumed_step + looked)
        if resumed_step is not None and not looked:  # the step itself is kept, but TensorBoard hides steps whole
            for one in read_records(run):
                if one["step"] == resumed_step:
                    self._draw(resumed_step, one.pop("split"), one)

    def record(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Write one object to metrics.jsonl and each of its numbers to TensorBoard as <name>/<split>.

        A nested dict becomes <outer>/<inner>, so that its curves stand together. What is no number, or not a finite
        one, has no point.
        """
        self._lines.write(step, {"split": split, **values})
        self._draw(step, split, values)

    def _draw(self, step: int, split: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            curves = value if isinstance(value, dict) else {split: value}
            for inner, number in curves.items():
                is_number = isinstance(number, int | float) and isfinite(number)
                if is_number and not {name, inner} & _NO_CURVE:
                    self.board.scalar(step, f"{name}/{inner}", number)
        self.board.flush()

    @property
    def lost(self) -> list[str]:
        """What of the records of a resumed run was damaged or gone, in lines."""
        return [lines.lost for lines in (self._lines, *self._beside.values()) if lines.lost]

    def beside(self, file: str, header: dict[str, Any]) -> None:
        """Open another record of the run, `file`, that begins with `header` as of step -1."""
        lines = self._beside[file] = Lines(self.run / file, self._resumed_step, looked=self._looked)
        if lines.is_empty:
            lines.write(-1, header)

    def keep(self, file: str, step: int, values: dict[str, Any]) -> None:
        """Write one object to a record opened by `beside`."""
        self._beside[file].write(step, values)

    def sync(self) -> None:
        """Bring everything said so far to the disk: a checkpoint must never be newer than its records."""
        for record in self._every():
            record.sync()

    def close(self) -> None:
        """Close every record, and raise an OSError where the last of one could not be written."""
        with ExitStack() as stack:
            for record in self._every():
                stack.callback(record.close)

    def _every(self) -> list[Lines | EventFile]:
        return [self._lines, *self._beside.values(), self.board]


def gap_lines(measured: dict[str, Any], *, cheats: bool = False) -> list[str]:
    """Return what to say of the gap to the floor: nothing where the floor is not known.

    `cheats`: the model sees what it must predict, so it is no wonder to find it below.
    """
    note = "note: model.mask=none lets each word see the one it must predict: this model cheats, it cannot write"
    if "gap" not in measured:
        return [note] if cheats else []
    error, gaps = measured["gap_error"], {"all": measured["gap"]} | measured.get("gap_by_class", {})
    seen = "  ".join(f"{name} {gap:.3f}" for name, gap in gaps.items())
    lines = [f"gap     to the floor, nats/token: {seen} (standard error of all {error:.3f})"]
    # Only the whole is bounded: who expects pronouns too often gains on them what other words then cost.
    if cheats:
        lines.append(note)
    elif measured["gap"] < -_BELOW_FLOOR * error:
        lines.append(f"warning: below the floor by more than {_BELOW_FLOOR} standard errors: a bug or a leak")
    return lines


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return what a run has recorded, oldest first; ValueError in one line where it is damaged.

    A last line that was cut off is left out: the run was killed there, or is still writing it.
    """
    path = run / "metrics.jsonl"
    lines = _read_lines(path)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not all(_step_of(line) < float("inf") for line in lines):
        raise ValueError(f"{path} is damaged")
    return [json.loads(line) for line in lines]


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a record with their ends; what is no text is left to JSON to refuse."""
    return path.read_bytes().decode(errors="replace").splitlines(keepends=True)


def _step_of(line: str) -> float:
    """Return the step of a line, or infinity for one that was cut off or damaged."""
    try:
        step = json.loads(line)["step"] if line.endswith("\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        step = None
    return step if isinstance(step, int) else float("inf")


class Progress:
    """One line that moves, on a terminal only: a log gets none of it."""

    def __init__(self, max_steps: int, first_step: int, label: str = "") -> None:
        """Start counting at `first_step`; `label` stands before every line that stays."""
        self._label = label
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
        print(f"{self._label}{line}", flush=True)
