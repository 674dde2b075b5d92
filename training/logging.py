"""Record of a run: metrics.jsonl (exact), weights.jsonl, TensorBoard, and the lines on the terminal."""

import json
import sys
import threading
import time
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from tqdm import tqdm

from data.loader import Corpus
from model.transformer import n_parameters
from settings.files import naming, write_atomically
from training.metrics import lines_of, step_of
from training.trainer import Trainer
from training.weight_history import HISTORY_FILE

MAX_STANDARD_ERRORS = 3  # a loss that lies so far below its lower bound is no chance result
LOSSES = ["loss/train", "loss/validation", "floor/validation"]  # in one chart
NOT_PLOTTED = {"layer", "head", "seconds", "whole"}
GROUPS = {"bits_per_byte": "units/bits_per_byte"}  # TensorBoard sorts by name; this is read last


class JsonLines:
    """A file with one JSON object per step."""

    def __init__(self, path: Path, resumed_step: int, recorded_step: int = -1) -> None:
        """Open `path` to append, without the lines after `resumed_step` (-1: a new run), which are recorded again.

        Warns if the file is missing, or has no line of `recorded_step` or later.
        """
        self.path = path
        lines = []
        if path.exists():
            lines = [line for line in lines_of(path) if step_of(line) <= resumed_step]
            write_atomically(path, "".join(lines).encode())
        last = max(map(step_of, lines), default=-1)
        if resumed_step > 0 and (not path.exists() or last < recorded_step):
            problem = f"ends at step {last}" if lines else "missing or empty"
            print(f"warning: {path}: {problem}; records up to step {resumed_step} are lost", file=sys.stderr)
        self._file = path.open("ab")

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Append one object; numbers that are not finite become null."""
        finite = json.loads(json.dumps({"step": step, **values}), parse_constant=lambda _: None)
        with naming(self.path):
            self._file.write(json.dumps(finite).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        with naming(self.path):
            self._file.close()


def print_unless_raised_again(error: threading.ExceptHookArgs) -> None:
    """Print the error of a thread, but not an OSError of TensorBoard's, which the next record raises."""
    if not isinstance(error.exc_value, OSError):
        threading.__excepthook__(error)


class RunLog:
    """Write the numbers of a run to metrics.jsonl and TensorBoard, each step once after any number of resumes."""

    def __init__(self, run: Path, resumed_step: int = -1, log_every_steps: int = 1) -> None:
        """Open the records of `run` and drop those after `resumed_step` (default: all, for a new run).

        `log_every_steps` is that of the steps so far.
        """
        self._metrics = JsonLines(run / "metrics.jsonl", resumed_step, resumed_step - resumed_step % log_every_steps)
        self._weights = JsonLines(run / HISTORY_FILE, resumed_step)  # empty for a large model

        # TensorBoard reads event files in the order of their names, which begin with the time in seconds, and hides the
        # events of earlier files from purge_step on.
        if any(f".{int(time.time())}." in path.name for path in (run / "tb").glob("events*")):
            time.sleep(1)
        from torch.utils.tensorboard import SummaryWriter  # half a second, and only train.py writes

        self.board = SummaryWriter(str(run / "tb"), purge_step=resumed_step + 1)
        self.board.add_custom_scalars_multilinechart(LOSSES, title="loss and its lower bound")

    def record(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Record JSON values of one step by name, in TensorBoard the finite numbers: name/split, or 1_outer/inner."""
        self._metrics.write(step, {"split": split, **values})
        for place, (name, value) in enumerate(values.items(), 1):
            group, numbers = GROUPS.get(name, name), {split: value}
            if isinstance(value, dict):
                group, numbers = f"{place}_{name}", value
            for inner, number in numbers.items():
                is_number = isinstance(number, int | float) and isfinite(number)
                if is_number and not {name, inner} & NOT_PLOTTED:
                    self.board.add_scalar(f"{group}/{inner}", number, step)
        self.board.flush()

    def show(self, step: int, images: dict[str, np.ndarray], lines: list[str]) -> None:
        for tag, image in images.items():
            self.board.add_image(tag, image, step, dataformats="HWC")
        if lines:
            self.board.add_text("text/greedy", "".join(f"    {line}\n" for line in lines), step)  # Markdown of code

    def weights(self, step: int, packed: str) -> None:
        """Record a line of weights.jsonl; `packed` is of `pack_parameters`."""
        self._weights.write(step, {"weights": packed})

    def close(self) -> None:
        for record in (self._metrics, self._weights, self.board):
            record.close()


class Console:
    """Lines on stdout, and below them a progress bar if stderr is a terminal."""

    def __init__(self, first_step: int, max_steps: int, label: str) -> None:
        """Start the bar at `first_step`; `label` precedes every line."""
        self._label = label
        self.status = ""  # text at the end of the bar: the best head of the first question
        self._bar = tqdm(total=max_steps, initial=first_step, unit="step", leave=False, disable=None)

    def print(self, *lines: str) -> None:
        self._bar.clear()
        for line in lines:
            print(f"{self._label}{line}", flush=True)

    def advance(self, step: int) -> None:
        self._bar.update(step - self._bar.n)

    def show_loss(self, loss: float) -> None:
        self._bar.set_postfix_str(f"loss {loss:.3f}  {self.status}", refresh=False)

    def close(self) -> None:
        self._bar.close()


def start_lines(trainer: Trainer, corpus: Corpus, folder: Path) -> list[str]:
    """Return the lines about device, data, model and run directory that a run begins with."""
    settings = trainer.settings
    shape = settings.model
    n_processes = trainer.distributed.world_size
    origin = ""
    if settings.run.init:
        rates = f"learning rates {settings.optim.learning_rate:g}, {settings.optim.embedding_learning_rate:g}"
        origin = f"; from {settings.run.init}, {rates}"
    processes = f"; {n_processes} processes (DDP)" if n_processes > 1 else ""
    return [
        f"device  {trainer.device.description}{processes}",
        f"data    {settings.data.source}: {len(corpus.train.tokens):,} training and "
        f"{len(corpus.validation.tokens):,} validation tokens, vocabulary {trainer.model.vocab_size:,}",
        *map("note    {}".format, corpus.notes),
        f"model   {n_parameters(trainer.model):,} parameters: {shape.n_layer} layers x {shape.n_head} heads, "
        f"width {shape.d_model}, context {shape.context_length}{origin}",
        f"run     {folder}, step {trainer.step} of {settings.run.max_steps:,}; watch it with: "
        f"tensorboard --logdir {quote(str(folder.parent))}",
    ]


def step_line(step: int, loss: float, summary: list[str], n_skipped: int) -> str:
    """Return the line of an evaluation, with at most three questions of the probe."""
    phrases = [f"step {step:>5}", f"validation loss {loss:.3f}", *summary[:3]]
    if n_skipped:
        phrases.append(f"skipped steps {n_skipped}")
    return "  ".join(phrases)


def gap_lines(gap: float | None, error: float | None) -> list[str]:
    """Return lines for the terminal about the gap to the lower bound; None if that is unknown."""
    lines = []
    if gap is not None and error is not None:
        lines.append(f"gap to the entropy lower bound: {gap:.3f} ± {error:.3f} nats/token")
        if gap < -MAX_STANDARD_ERRORS * error:
            lines.append("warning: the loss is below its lower bound by more than 3 standard errors: a bug or a leak")
    return lines
