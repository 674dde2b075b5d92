"""One step after the other: what changes while a model learns, kept so that it can be stopped and gone on with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from run.config import OptimConfig, RunConfig
from run.device import Place
from run.logging import Recorder
from run.schedule import rate_factor, set_rates


@dataclass
class Training:
    """Everything a step needs, and what changes from step to step."""

    model: nn.Module
    forward: Callable[..., Tensor]  # the model, compiled if so asked
    loss: Callable[[Tensor, Tensor, int], Tensor]  # (logits, targets, number of targets in the whole step) -> scalar
    # Number of a batch -> what the model reads, tokens first, and the targets; below 0: no target.
    batch_at: Callable[[int], tuple[tuple[Tensor, ...], Tensor]]
    optimizers: list[torch.optim.Optimizer]
    place: Place
    own: RunConfig
    optim: OptimConfig
    step: int = 0  # optimizer steps taken
    seconds: float = 0.0  # spent in steps, evaluations left out
    unrecorded: tuple[int, float] = (0, 0.0)  # tokens and seconds since the last record
    best_loss: float = float("inf")  # lowest validation loss so far

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: with the settings, all that the following steps depend on."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.place.device.type == "cuda" else [],
            "step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to the moment of `state`."""
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and self.place.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["random_cuda"])
        self.step, self.seconds, self.best_loss = state["step"], state["seconds"], state["best_loss"]


def advance(training: Training, recorder: Recorder) -> None:
    """Take one optimizer step and record it when it is due."""
    own = training.own
    began = time.perf_counter()
    factor = rate_factor(training.step, training.optim.warmup_steps, own.max_steps, training.optim.decay_power)
    set_rates(training.optimizers, factor)
    loss, norm, n_tokens = train_step(training)
    training.step += 1
    due = training.step % own.log_every_steps == 0 or training.step == own.max_steps
    values = {"loss": loss.item(), "gradient_norm": norm.item()} if due else {}  # .item() waits for the device
    seconds = time.perf_counter() - began
    training.seconds += seconds
    n_tokens, seconds = n_tokens + training.unrecorded[0], seconds + training.unrecorded[1]
    training.unrecorded = (0, 0.0) if due else (n_tokens, seconds)
    if due:
        rate = training.optim.learning_rate * factor
        speed = {"tokens_per_second": round(n_tokens / seconds), "seconds": round(training.seconds, 3)}
        recorder.record(training.step, "train", values | {"learning_rate": rate} | speed)


def train_step(training: Training) -> tuple[Tensor, Tensor, int]:
    """Move the weights once; return the mean loss, the gradient's norm before clipping and the tokens read."""
    accumulate, device = training.own.accumulate_steps, training.place.device
    batches = [training.batch_at(training.step * accumulate + part) for part in range(accumulate)]
    n_targets = sum(int((targets >= 0).sum()) for _, targets in batches)
    total = torch.zeros((), device=device)
    for read, targets in batches:
        with training.place.autocast():
            logits = training.forward(*(one.to(device) for one in read))
            loss = training.loss(logits, targets.to(device), n_targets)
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.optim.clip_norm)
    for optimizer in training.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total, norm, sum(read[0].numel() for read, _ in batches)
