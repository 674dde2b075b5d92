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
from settings.files import write_atomically
from training.loop import LAST_VALIDATION, Evaluation, Watcher
from training.metrics import lines_of, step_of
from training.trainer import Trainer
from training.weight_history import HISTORY_FILE, MAX_HISTORY_WEIGHTS, pack_parameters

MAX_STANDARD_ERRORS = 3  # a loss that lies so far below its lower bound is no chance result
LOSSES = ["loss/train", "loss/validation", "other/floor/validation"]  # in one chart
NOT_PLOTTED = {"layer", "head", "seconds", "whole"}


class JsonLines:
    """A file with one JSON object per step."""

    def __init__(self, path: Path, first_step: int) -> None:
        """Open `path` to append, without the lines of `first_step` and later, which are recorded again."""
        lines = []
        if path.exists():
            lines = [line for line in lines_of(path) if step_of(line) < first_step]
            write_atomically(path, "".join(lines).encode())
        self.is_empty = not lines
        self._file = path.open("ab")

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Append one object; numbers that are not finite become null."""
        finite = json.loads(json.dumps({"step": step, **values}), parse_constant=lambda _: None)
        self._file.write(json.dumps(finite).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def print_unless_raised_again(error: threading.ExceptHookArgs) -> None:
    """Print the error of a thread, but not an OSError of TensorBoard's, which the next record raises."""
    if not isinstance(error.exc_value, OSError):
        threading.__excepthook__(error)


class RunLog(Watcher):
    """Write the numbers of a run to metrics.jsonl and TensorBoard, each step once after any number of resumes."""

    def __init__(self, run: Path, first_step: int = 0) -> None:
        """Open the records of `run`, and drop those of `first_step` and later."""
        self._metrics = JsonLines(run / "metrics.jsonl", first_step)
        self._weights = JsonLines(run / HISTORY_FILE, first_step)  # empty for a large model
        self._timed: tuple[int, float] | None = None  # step and seconds of the record before
        if first_step and self._metrics.is_empty:
            problem = f"missing or empty; records up to step {first_step - 1} are lost"
            print(f"warning: {run / 'metrics.jsonl'}: {problem}", file=sys.stderr)

        # TensorBoard reads event files in the order of their names, which begin with the time in seconds, and hides the
        # events of earlier files from purge_step on.
        if any((run / "tb").glob(f"events*.{int(time.time())}.*")):
            time.sleep(1)
        from torch.utils.tensorboard import SummaryWriter  # half a second, and only train.py writes

        self.board = SummaryWriter(str(run / "tb"), purge_step=first_step)
        self.board.add_custom_scalars_multilinechart(LOSSES, title="loss and its lower bound")

    def record(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Record JSON values of one step by name, in TensorBoard the finite numbers.

        TensorBoard sorts tags: first come the questions (1_verb/accuracy), then loss/split, then other/name/split.
        """
        self._metrics.write(step, {"split": split, **values})
        for place, (name, value) in enumerate(values.items(), 1):
            group, numbers = name if name == "loss" else f"other/{name}", {split: value}
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
        # The first record of a process has no speed: its first step compiles and records.
        speed = None
        if self._timed:
            step, seconds = self._timed
            n_tokens = (trainer.step - step) * trainer.tokens_per_step
            speed = round(n_tokens / (trainer.seconds - seconds))
        self._timed = (trainer.step, trainer.seconds)
        seconds = round(trainer.seconds, 3)
        self.record(trainer.step, "train", values | {"tokens_per_second": speed, "seconds": seconds})

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        step = trainer.step
        if evaluation.probe:
            if evaluation.probe.values:
                self.record(step, "probe", evaluation.probe.values)
            self.show(step, evaluation.probe.images, evaluation.probe.lines)
        if n_parameters(trainer.model) <= MAX_HISTORY_WEIGHTS:
            self._weights.write(step, {"weights": pack_parameters(trainer.model.parameters(), torch.float16)})
        if evaluation.losses:
            self.record(step, "validation", evaluation.losses.known() | {"seconds": round(trainer.seconds, 3)})

    def close(self) -> None:
        for record in (self._metrics, self._weights, self.board):
            record.close()


class Console(Watcher):
    """Lines on stdout, and below them a progress bar if stderr is a terminal."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path, label: str) -> None:
        """Print what the run in `folder` starts with; `label` precedes every line."""
        self._corpus = corpus
        self._folder = folder
        self._label = label
        run, shape = trainer.settings.run, trainer.settings.model
        self._bar = tqdm(total=run.max_steps, initial=trainer.step, unit="step", leave=False, disable=None)

        processes, origin = "", ""
        if trainer.distributed.world_size > 1:
            processes = f"; {trainer.distributed.world_size} processes (DDP)"
        if run.init:
            optim = trainer.settings.optim
            rates = f"learning rates {optim.learning_rate:g}, {optim.embedding_learning_rate:g}"
            origin = f"; from {run.init}, {rates}"
        self.print(f"device  {trainer.device.description}{processes}")
        self.print(
            f"data    {corpus.config.source}: {len(corpus.train.tokens):,} training and "
            f"{len(corpus.validation.tokens):,} validation tokens, vocabulary {trainer.model.vocab_size:,}"
        )
        for note in corpus.notes:
            self.print(f"note    {note}")
        self.print(
            f"model   {n_parameters(trainer.model):,} parameters: {shape.n_layer} layers x {shape.n_head} heads, "
            f"width {shape.d_model}, context {shape.context_length}{origin}"
        )
        watch = f"tensorboard --logdir {quote(str(folder.parent))}"
        self.print(f"run     {folder}, step {trainer.step} of {run.max_steps:,}; watch it with: {watch}")

    def print(self, line: str) -> None:
        self._bar.clear()
        print(f"{self._label}{line}", flush=True)

    def log(self, trainer: Trainer, values: dict[str, Any]) -> None:
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}", refresh=False)
        self._bar.update(trainer.step - self._bar.n)

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        run, losses = trainer.settings.run, evaluation.losses
        if not evaluation.is_due or losses is None:
            return
        phrases = [f"step {trainer.step:>5}", f"validation loss {losses.loss:.3f}"]
        if evaluation.probe:
            phrases += evaluation.probe.summary
        if trainer.skipped:
            phrases.append(f"skipped steps {int(trainer.skipped)}")
        self.print("  ".join(phrases))
        if trainer.step < run.max_steps:
            return
        if not losses.whole:
            n_tokens = run.validation_tokens * LAST_VALIDATION
            of_all = f"{n_tokens:,} of {len(self._corpus.validation.tokens):,} tokens"
            self.print(f"the loss is that of the first {of_all}")
        if losses.gap is not None and losses.gap_error is not None:
            self.print(f"gap to the entropy lower bound: {losses.gap:.3f} ± {losses.gap_error:.3f} nats/token")
            if losses.gap < -MAX_STANDARD_ERRORS * losses.gap_error:
                problem = f"the loss is below its lower bound by more than {MAX_STANDARD_ERRORS} standard errors"
                self.print(f"warning: {problem}: a bug or a leak")

    def end(self, trainer: Trainer) -> None:
        run, folder = trainer.settings.run, self._folder
        if trainer.step == run.max_steps:
            command = next_command("eval", f"run={folder}", run.cache_dir)
            self.print(f"done    {trainer.seconds:.0f} s of training; next: {command}")
        else:
            command = next_command("train", f"out={folder}", run.cache_dir, "resume=true")
            self.print(f"stopped at step {trainer.step}; resume with: {command}")

    def close(self) -> None:
        self._bar.close()
