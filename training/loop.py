"""Training from top to bottom: take a step, log it now and then, evaluate now and then.

- `backward()` is two calls below `train`: `train_step` makes the batches, `update` the gradient (trainer.py).
- All that is not learning is a `Watcher`: the terminal and the curves (logging.py), the checkpoints (checkpoint.py).
  The start of a run is prepared by start.py, and its probe comes from probe/emergence.py.
- A new run is evaluated and saved before its first step.
- The device is waited for at logged steps and evaluations only.
- Every evaluation reads the same tokens and chooses the best checkpoint by them; the last one also reads more.
- The probe looks at steps that are denser at the beginning (`is_probe_step`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean
from typing import Any

import numpy as np

from data.loader import Split
from settings.errors import UserError
from training.device import StopRequest
from training.evaluate import LossSummary, Probe, ProbeRecord, validation_loss
from training.trainer import StepStats, Trainer, train_step, wait_for_device

LAST_VALIDATION = 64  # the last evaluation reads up to this many times validation_tokens
MAX_SKIPPED_STEPS = 10  # in a row: not one bad batch, but diverged weights


@dataclass(frozen=True)
class Evaluation:
    """The measurements between two steps."""

    is_due: bool  # whether it is printed and saved; the others only make the curves finer
    losses: LossSummary | None  # on a part of the validation text, a larger part at the last step
    comparable_loss: float  # on the same tokens at every step, which chooses the best checkpoint; nan: not measured
    probe: ProbeRecord | None


class Watcher:
    """An observer of training, on rank 0 alone; a subclass overrides the methods that it needs."""

    def log(self, trainer: Trainer, values: dict[str, Any]) -> None:
        """Be called every log_every_steps with the numbers of the step, by their names in metrics.jsonl."""

    def look(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """Be called at evaluations, and at `is_probe_step`."""

    def end(self, trainer: Trainer) -> None:
        """Be called after the last step, or when a signal has stopped the run."""


def train(
    trainer: Trainer, validation: Split, probe: Probe | None, watchers: Sequence[Watcher], stop: StopRequest
) -> int:
    """Take the steps that are left, unless a signal stops the run; return the exit status of the process.

    Every rank calls it; rank 0 has the probe and the watchers.
    """
    run = trainer.settings.run
    if trainer.step == 0:  # a new run begins with an evaluation and a checkpoint
        evaluate(trainer, validation, probe, watchers)

    while trainer.step < run.max_steps and not is_stopped(stop, trainer):
        stats = train_step(trainer)
        if is_due(trainer.step, run.log_every_steps, run.max_steps):
            log_step(trainer, stats, watchers)
        if is_due(trainer.step, run.eval_every_steps, run.max_steps) or is_probe_step(trainer.step, run.max_steps):
            evaluate(trainer, validation, probe, watchers)

    wait_for_device(trainer)
    for watcher in watchers:
        watcher.end(trainer)
    return stop.exit_status


def log_step(trainer: Trainer, stats: StepStats, watchers: Sequence[Watcher]) -> None:
    """Show a training step, and stop a run that cannot learn. Between evaluations the only wait for the device."""
    wait_for_device(trainer)
    loss = fmean(trainer.distributed.gather(stats.loss.item()))
    values = {
        "loss": loss,
        "bits_per_byte": trainer.loader.batches.split.bits_per_byte(loss),
        "gradient_norm": stats.gradient_norm.item(),
        "learning_rate": stats.learning_rate,
        "skipped": int(trainer.skipped),
    }
    for watcher in watchers:
        watcher.log(trainer, values)

    if stats.gradient_norm == 0:  # a wrong compilation does this, and weights that are all 0
        raise UserError(f"step {trainer.step}: the gradient is exactly 0; try compile=none, or a lower learning rate")
    if trainer.skipped_in_row >= MAX_SKIPPED_STEPS:
        raise _diverged(trainer, f"{MAX_SKIPPED_STEPS} steps in a row had a loss or gradient that is not finite")


def evaluate(trainer: Trainer, validation: Split, probe: Probe | None, watchers: Sequence[Watcher]) -> None:
    """Measure the validation loss, on all ranks, and the heads, on rank 0, and show them."""
    run, step = trainer.settings.run, trainer.step
    wait_for_device(trainer)  # or the steps in its queue would count as time of the evaluation
    trainer.model.eval()

    def measure(n_tokens: int) -> LossSummary:
        tokens_per_batch = run.tokens_per_batch // trainer.distributed.world_size  # what fits one device in training
        return validation_loss(
            trainer.model, validation, tokens_per_batch, n_tokens, trainer.device.autocast(), trainer.distributed
        )

    is_evaluation = is_due(step, run.eval_every_steps, run.max_steps)
    losses, comparable_loss = None, nan
    # At earlier steps of the probe the loss of the batches says enough: for English all would cost 6 % of training.
    if is_evaluation or 16 * step >= run.max_steps:
        losses = measure(run.validation_tokens)
        comparable_loss = losses.loss
    if step == run.max_steps:
        losses = measure(run.validation_tokens * LAST_VALIDATION)
        if not isfinite(losses.loss):
            raise _diverged(trainer, "the validation loss is not finite")

    record = probe(trainer.model, is_evaluation) if probe else None
    for watcher in watchers:
        watcher.look(trainer, Evaluation(is_evaluation, losses, comparable_loss, record))
    trainer.model.train()


def is_stopped(stop: StopRequest, trainer: Trainer) -> bool:
    """Return True if a signal was received; several processes stop together, at the next step that is logged."""
    if trainer.distributed.world_size > 1:
        if trainer.step % trainer.settings.run.log_every_steps:
            return False
        stop.receive(max(trainer.distributed.gather(stop.signal or 0)))
    return stop.signal is not None


def is_due(step: int, interval: int, max_steps: int) -> bool:
    """Return True at multiples of `interval` and at max_steps."""
    return step % interval == 0 or step == max_steps


def is_probe_step(step: int, max_steps: int) -> bool:
    """Return True at step 0, at max_steps / 2^i, i = 0 to 8, and at 3 max_steps / 2^i, i = 2 to 5."""
    shares = np.append(0.5 ** np.arange(9), 3 * 0.5 ** np.arange(2, 6))
    return step == 0 or step in np.rint(max_steps * shares)


def _diverged(trainer: Trainer, problem: str) -> FloatingPointError:
    optim = trainer.settings.optim
    return FloatingPointError(
        f"step {trainer.step}: {problem}; try a lower optim.learning_rate (now {optim.learning_rate:g}) or "
        f"optim.embedding_learning_rate (now {optim.embedding_learning_rate:g}), or precision=float32"
    )
