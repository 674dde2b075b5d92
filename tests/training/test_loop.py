"""The training loop: when the probe runs, and a run that has diverged."""

import pytest

from tests.training.small import small_trainer
from training.loop import MAX_SKIPPED_STEPS, is_probe_step, log_step
from training.trainer import train_step


def test_a_run_ends_after_ten_skipped_steps_in_a_row_and_names_the_learning_rate() -> None:
    trainer = small_trainer()
    loss_fn = trainer.loss_fn
    trainer.loss_fn = lambda targets, *inputs: loss_fn(targets, *inputs) * float("nan")
    for _ in range(MAX_SKIPPED_STEPS - 1):
        log_step(trainer, None, train_step(trainer))
    with pytest.raises(FloatingPointError, match="optim.learning_rate"):
        log_step(trainer, None, train_step(trainer))


def test_the_probe_runs_at_the_start_at_the_end_and_at_log_spaced_steps_between() -> None:
    steps = [step for step in range(1025) if is_probe_step(step, 1024)]
    assert steps == [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert [step for step in range(4) if is_probe_step(step, 3)] == [0, 1, 2, 3]
