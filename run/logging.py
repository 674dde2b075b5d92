"""What a run says while it goes: metrics.jsonl (the exact record), TensorBoard, and lines for a person."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run.checkpoint import write_atomically

if TYPE_CHECKING:
    import numpy as np


_BELOW_FLOOR = 3  # standard errors; no luck takes a loss so far below what is possible
_NO_CURVE = {"layer", "head", "whole", "seconds"}  # for metrics.jsonl alone: a line through them says nothing

_OF_PROBE = ".probe"  # how the event file ends that eval.py writes beside training's


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

        A nested dict becomes <outer>/<inner>, so that its curves stand together. What is no number has no curve.
        """
        self._lines.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        for name, value in values.items():
            curves = value if isinstance(value, dict) else {split: value}
            for inner, number in curves.items():
                if isinstance(number, int | float) and not {name, inner} & _NO_CURVE:
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


def write_probe_scores(run: Path, step: int, scores: dict[str, float]) -> None:
    """Show what a probe has measured as scalars probe/<name> of the run itself, in place of what an earlier one did.

    They stand in an event file of their own, so that training's is left as it is.

    Args:
        run: its directory.
        step: of the checkpoint that was probed.
        scores: by name, as in "Sel@1 V at S1".

    Raises:
        OSError: it cannot be written.

    """
    from torch.utils.tensorboard import SummaryWriter

    folder = run / "tb"
    earlier = list(folder.glob(f"events.out.tfevents.*{_OF_PROBE}"))
    with SummaryWriter(str(folder), filename_suffix=_OF_PROBE) as writer:
        for name, value in scores.items():
            writer.add_scalar(f"probe/{name}", value, step)
    for path in earlier:
        path.unlink(missing_ok=True)


def write_hparams(folder: Path, runs: dict[str, tuple[dict[str, Any], dict[str, float]]]) -> None:
    """Write runs for TensorBoard's HParams table, one directory for each, in place of what `folder` held of them.

    Args:
        folder: of the event files.
        runs: settings (what is neither number, text nor bool is written as text) and measured values, by run.

    Raises:
        OSError: `folder` cannot be written.

    """
    import shutil

    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    if folder.exists():
        shutil.rmtree(folder)
    for name, (settings, values) in runs.items():
        plain = {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings.items()}
        with SummaryWriter(str(folder / name)) as writer:  # add_hparams would leave a second file beside it
            for summary in hparams(plain, values):
                writer._get_file_writer().add_summary(summary)
            for measure, value in values.items():
                writer.add_scalar(measure, value)


def charts(by_class: list[str], names: list[str], oracles: Iterable[str]) -> dict[str, list[str]]:
    """Return which curves TensorBoard lays over each other, by the chart's title.

    Args:
        by_class: the curves of the loss by token class and, where it is known, of its floor.
        names: what the small probe watches, as in "V_S1".
        oracles: whose payoff losses stand beside the model's where they are known.

    """
    found = {"loss": ["loss/train", "loss/validation"]} | ({"loss by class and floor": by_class} if by_class else {})
    for name in names:
        found[f"{name}: best head and luck"] = [f"{name}/sel1", f"{name}/luck"]
        found[f"{name}: payoff loss and oracles"] = [f"{name}_payoff/{reader}" for reader in ("model", *oracles)]
    return found | ({"rho": [f"{name}/rho" for name in names]} if names else {})


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
    """Return what a run has recorded, oldest first; ValueError in one line where it is damaged."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if not all(_step_of(line) < float("inf") for line in lines):
        raise ValueError(f"{path} is damaged")
    return [json.loads(line) for line in lines]


def _step_of(line: str) -> float:
    """Return the step of a line, or infinity for one that was cut off or damaged."""
    try:
        return json.loads(line)["step"] if line.endswith("\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


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
