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
import torch
from tqdm import tqdm

from data.loader import Corpus
from model.transformer import n_parameters
from settings.command_line import next_command
from settings.files import naming, write_atomically
from training.evaluate import Probe
from training.loop import LAST_VALIDATION, Evaluation, Watcher
from training.metrics import lines_of, step_of
from training.trainer import Trainer
from training.weight_history import HISTORY_FILE, MAX_HISTORY_WEIGHTS, pack_parameters

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


class RunLog(Watcher):
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

    def log(self, trainer: Trainer, values: dict[str, Any]) -> None:
        self.record(trainer.step, "train", values)

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        if n_parameters(trainer.model) <= MAX_HISTORY_WEIGHTS:
            packed = pack_parameters(trainer.model.parameters(), torch.float16)
            self._weights.write(trainer.step, {"weights": packed})
        if evaluation.losses:
            more = {"whole": evaluation.is_whole, "seconds": round(trainer.seconds, 3)}
            self.record(trainer.step, "validation", evaluation.losses.known() | more)

    def close(self) -> None:
        for record in (self._metrics, self._weights, self.board):
            record.close()


class Console(Watcher):
    """Lines on stdout, and below them a progress bar if stderr is a terminal."""

    def __init__(self, corpus: Corpus, folder: Path, label: str) -> None:
        """`label` precedes every line; `folder` is that of the run."""
        self._corpus = corpus
        self._folder = folder
        self._label = label
        self.summary: list[str] = []  # results of the probe, a phrase for each question
        self._bar = tqdm(unit="step", leave=False, disable=None)

    def print(self, *lines: str) -> None:
        self._bar.clear()
        for line in lines:
            print(f"{self._label}{line}", flush=True)

    def start(self, trainer: Trainer) -> None:
        self._bar.total = trainer.settings.run.max_steps
        self._bar.initial = self._bar.n = trainer.step
        self.print(*start_lines(trainer, self._corpus, self._folder))

    def step(self, trainer: Trainer) -> None:
        self._bar.update(trainer.step - self._bar.n)

    def log(self, trainer: Trainer, values: dict[str, Any]) -> None:
        status = self.summary[0] if self.summary else ""
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}  {status}", refresh=False)

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        run, losses = trainer.settings.run, evaluation.losses
        if not evaluation.is_due or losses is None:
            return
        self.print(step_line(trainer.step, losses.loss, self.summary, int(trainer.skipped)))
        if trainer.step == run.max_steps:
            n_tokens = run.validation_tokens * LAST_VALIDATION
            of_all = f"{n_tokens:,} of {len(self._corpus.validation.tokens):,} tokens"
            self.print(*([] if evaluation.is_whole else [f"the loss is that of the first {of_all}"]))
            self.print(*(gap_lines(losses.gap, losses.gap_error) if evaluation.is_finite else []))

    def end(self, trainer: Trainer) -> None:
        run, folder = trainer.settings.run, self._folder
        if trainer.step == run.max_steps:
            command = next_command("eval", f"run={folder}", run.cache_dir)
            self.print(f"done    {trainer.seconds:.0f} s of training; next: {command}")
        else:
            command = next_command("train", f"out={folder}", run.cache_dir, "resume=true")
            self.print(f"stopped at step {max(0, trainer.saved_step)}; resume with: {command}")

    def close(self) -> None:
        self._bar.close()


class ProbeCurves(Watcher):
    """The probe during training, in the log of a run and on its console."""

    def __init__(self, probe: Probe, log: RunLog, console: Console) -> None:
        self._probe = probe
        self._log = log
        self._console = console

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        record = self._probe(trainer.model, trainer.step)
        self._console.summary = record.summary if record else []
        if record:
            if record.values:
                self._log.record(trainer.step, "probe", record.values)
            self._log.show(trainer.step, record.images, record.lines)


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
