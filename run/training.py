"""One step after the other: what changes while a model learns, kept so that it can be stopped and gone on with."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from run.config import Compile, OptimConfig, RunConfig
from run.device import Place
from run.logging import Recorder
from run.schedule import rate_factor, set_rates


@dataclass
class Training:
    """Everything a step needs, and what changes from step to step."""

    model: nn.Module
    summed_loss: Callable[..., Tensor]  # (targets, what the model reads) -> sum in nats, a scalar; compiled if so asked
    # Number of a batch -> what the model reads, tokens first, the targets (below 0: none) and how many there are.
    batch_at: Callable[[int], tuple[tuple[Tensor, ...], Tensor, int]]
    bits_per_byte: Callable[[float], float]  # of the training text, from nats per token
    optimizers: list[torch.optim.Optimizer]
    place: Place
    own: RunConfig
    optim: OptimConfig
    step: int = 0  # optimizer steps taken
    seconds: float = 0.0  # spent in steps, evaluations left out
    unrecorded: tuple[int, float] = (0, 0.0)  # tokens and seconds since the last record
    pace: tuple[int, float] = (0, 0.0)  # of this process's steps but the first, which compiles and fills caches
    has_begun: bool = False  # in this process
    best_loss: float = float("inf")  # lowest validation loss so far

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: with the settings, all that the following steps depend on."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "random": torch.get_rng_state(),
            "random_cuda": [torch.cuda.get_rng_state(self.place.device)] if self.place.device.type == "cuda" else [],
            "step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to the moment of `state`."""
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            groups = optimizer.state_dict()["param_groups"]  # rates and the like are the settings', not the state's
            optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and self.place.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"][0], self.place.device)
        self.step, self.seconds, self.best_loss = state["step"], state["seconds"], state["best_loss"]


def compiled(summed_loss: nn.Module, how: Compile, device: torch.device) -> Callable[..., Tensor]:
    """Return `summed_loss` as torch.compile makes it, or as it is; ValueError for CUDA graphs without a CUDA device."""
    if how is Compile.none:
        return summed_loss
    if how is Compile.graphs and device.type != "cuda":
        raise ValueError("compile=graphs needs a CUDA device: use compile=default or compile=none")
    if how is Compile.graphs:
        # A graph writes each result where it wrote the last one. Gradients added up in memory of their own, and never
        # taken from the graph, are not overwritten by the next part of an accumulated step.
        for parameter in summed_loss.parameters():
            parameter.grad = torch.zeros_like(parameter)
    # dynamic=False: every batch has one shape (data/supply.py, full), and kernels for that shape alone are faster.
    mode = "reduce-overhead" if how is Compile.graphs else None
    return torch.compile(summed_loss, dynamic=False, mode=mode)


@contextmanager
def enough_memory(training: Training) -> Iterator[None]:
    """Turn a device's want of memory into a MemoryError that says what to set."""
    own = training.own
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryError(
            f"{training.place.where} has too little memory for tokens_per_batch={own.tokens_per_batch}: half of it "
            f"with accumulate_steps={2 * own.accumulate_steps} reads as much in a step and needs about half as much"
        ) from None


def advance(training: Training, recorder: Recorder) -> None:
    """Take one optimizer step and record it when it is due."""
    own = training.own
    began = time.perf_counter()
    factor = rate_factor(training.step, training.optim.warmup_steps, own.max_steps, training.optim.decay_power)
    set_rates(training.optimizers, factor)
    loss, norm, n_tokens = train_step(training)
    training.step += 1
    due = training.step % own.log_every_steps == 0 or training.step == own.max_steps
    values = {}
    if due or training.step % own.eval_every_steps == 0:  # what follows must not wait for these steps in our place
        mean = loss.item()  # waits for the device
        values = {"loss": mean, "bits_per_byte": training.bits_per_byte(mean), "gradient_norm": norm.item()}
    seconds = time.perf_counter() - began
    training.seconds += seconds
    if training.has_begun:
        training.pace = (training.pace[0] + n_tokens, training.pace[1] + seconds)
    training.has_begun = True
    n_tokens, seconds = n_tokens + training.unrecorded[0], seconds + training.unrecorded[1]
    training.unrecorded = (0, 0.0) if due else (n_tokens, seconds)
    if due:
        rate = training.optim.learning_rate * factor
        speed = {"tokens_per_second": round(n_tokens / seconds), "seconds": round(training.seconds, 3)}
        recorder.record(training.step, "train", values | {"learning_rate": rate} | speed)


def train_step(training: Training) -> tuple[Tensor, Tensor, int]:
    """Move the weights once; return the mean loss, the gradient's norm before clipping and the tokens read.

    Nothing here waits for the device: whoever asks for the numbers does.
    """
    accumulate, graphs = training.own.accumulate_steps, training.own.compile is Compile.graphs
    batches = [training.batch_at(training.step * accumulate + part) for part in range(accumulate)]
    n_targets = sum(count for _, _, count in batches)
    total = torch.zeros((), device=training.place.device)
    for read, targets, _ in batches:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()  # what the last replay returned is no longer needed
        with training.place.autocast():
            loss = training.summed_loss(targets, *read) / n_targets
        loss.backward()
        total += loss.detach()
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.optim.clip_norm)
    for optimizer in training.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=not graphs)
    return total, norm, sum(targets.numel() for _, targets, _ in batches)
