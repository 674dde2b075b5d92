"""One step after the other: what changes while a model learns, kept so that it can be stopped and gone on with."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor, nn

from training.device import Place
from training.distributed import ALONE, World
from training.logging import Recorder
from training.optim import rate_factor, set_rates
from training.settings import Compile, OptimSettings, RunSettings, Sharding

# Skipped steps in a row that end a run, looked at when a step is recorded. A bad batch is one step, or a few; weights
# that ten batches in a row have found beyond repair stay so, for skipping leaves them as they are.
PATIENCE = 10


@dataclass
class Training:
    """Everything a step needs, and what changes from step to step."""

    model: nn.Module
    summed_loss: Callable[..., Tensor]  # (targets, what the model reads) -> sum in nats, a scalar; compiled if so asked
    # Number of a batch -> what the model reads of this process's rows, tokens first, their targets (below 0: none) and
    # how many targets there are in the rows of all processes.
    batch_at: Callable[[int], tuple[tuple[Tensor, ...], Tensor, int]]
    bits_per_byte: Callable[[float], float]  # of the training text, from nats per token
    optimizers: list[torch.optim.Optimizer]
    place: Place
    own: RunSettings
    optim: OptimSettings
    world: World = ALONE
    spread: nn.Module | None = None  # what sends gradients from process to process (run/shards.py); None: there is one
    gathered: dict[str, Any] | None = None  # of a sharded model, what it has learned up to this step, whole
    step: int = 0  # optimizer steps taken
    seconds: float = 0.0  # spent in steps, evaluations left out
    unrecorded: tuple[int, float] = (0, 0.0)  # tokens and seconds since the last record
    pace: tuple[int, float] = (0, 0.0)  # of this process's steps but the first, which compiles and fills caches
    has_begun: bool = False  # in this process
    looked_step: int = -1  # the last whose evaluation or probe, where one was due, is behind us; -1: none
    saved: tuple[int, int] = (-1, -1)  # step and looked_step of the newest checkpoint
    evaluated_finite: bool = True  # whether the last evaluation gave a finite loss
    best_loss: float = float("inf")  # lowest validation loss so far
    # Steps whose loss or gradient was not finite: in all, and since the last that was. On the device, which counts.
    skipped: Tensor = field(init=False)  # scalar, int64
    skipped_in_row: Tensor = field(init=False)  # scalar, int64

    def __post_init__(self) -> None:
        """Begin to count."""
        self.skipped, self.skipped_in_row = torch.zeros(2, dtype=torch.int64, device=self.place.device).unbind()

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation follows this step."""
        return self.step % self.own.eval_every_steps == 0 or self.step == self.own.max_steps

    @property
    def is_astray(self) -> bool:
        """Whether nobody could go on from these weights: by their loss, or by two skipped steps in a row.

        One is a bad batch; weights that have exploded may still give a loss, but no gradient. Waits for the device.
        """
        return not self.evaluated_finite or bool(self.skipped_in_row > 1)

    @property
    def is_sharded(self) -> bool:
        """Whether this process has but a share of every weight."""
        return self.world.size > 1 and self.own.sharding is Sharding.fsdp

    def gather(self) -> None:
        """Bring a sharded model's weights and optimizers' states together: every process must come here.

        Nothing is to be done where each has all of them.
        """
        if self.is_sharded and self.gathered is None:
            from training.shards import whole

            gathered = whole(self._learned())
            self.gathered = gathered if self.world.is_first else {}  # nobody else saves it

    def _learned(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def part(self, *, is_last: bool) -> AbstractContextManager:
        """Return the context of one forward and backward pass of a step."""
        if self.world.size == 1:
            return nullcontext()
        from training.shards import exchanging

        return exchanging(self.spread, is_last=is_last)

    def rate_factor(self, step: int) -> float:
        """Return the share of the peak rates that the step after `step` of them takes."""
        return rate_factor(step, self.optim.warmup_steps, self.own.max_steps, self.optim.decay_power)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: with the settings, all that the following steps depend on.

        The same whatever number of processes has learned it. Of a sharded model what `gather` has brought together.
        """
        assert self.gathered is not None or not self.is_sharded
        return {
            **(self.gathered or self._learned()),
            "random": torch.get_rng_state(),
            "random_cuda": [torch.cuda.get_rng_state(self.place.device)] if self.place.device.type == "cuda" else [],
            "step": self.step,
            "looked_step": self.looked_step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
            "skipped": self.skipped,
            "skipped_in_row": self.skipped_in_row,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to the moment of `state`."""
        if self.is_sharded:
            from training.shards import cut

            state = state | cut(state, self.model, self.optimizers)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            groups = optimizer.state_dict()["param_groups"]  # rates and the like are the settings', not the state's
            optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and self.place.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"][0], self.place.device)
        self.step, self.seconds, self.best_loss = state["step"], state["seconds"], state["best_loss"]
        self.looked_step = state["looked_step"]
        self.saved = (self.step, self.looked_step)
        if self.step:  # as the last step left them, for a checkpoint without another step must hold the same
            set_rates(self.optimizers, self.rate_factor(self.step - 1))
        self.skipped, self.skipped_in_row = (
            state[name].to(self.place.device) for name in ("skipped", "skipped_in_row")
        )


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
    """Turn a want of memory, the device's or the machine's, into a MemoryError that says what to set."""
    own = training.own
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        raise MemoryError(
            f"{training.place.where} has too little memory for tokens_per_batch={own.tokens_per_batch}: half of it "
            f"with gradient_accumulation_steps={2 * own.gradient_accumulation_steps} reads as much in a step and needs about half as much"
        ) from None


def advance(training: Training, recorder: Recorder | None) -> None:
    """Take one optimizer step and record it when it is due; None: another process does."""
    own = training.own
    began = time.perf_counter()
    factor = training.rate_factor(training.step)
    set_rates(training.optimizers, factor)
    loss, norm, n_tokens = train_step(training)
    training.step, training.gathered = training.step + 1, None
    due = training.step % own.log_every_steps == 0 or training.step == own.max_steps
    values = {}
    if due or training.evaluates:  # what follows must not wait for these steps in our place
        mean = loss.item()  # waits for the device
        values = {"loss": mean, "bits_per_byte": training.bits_per_byte(mean), "gradient_norm": norm.item()}
    seconds = time.perf_counter() - began
    training.seconds += seconds
    if training.has_begun:
        training.pace = (training.pace[0] + n_tokens, training.pace[1] + seconds)
    training.has_begun = True
    n_tokens, seconds = n_tokens + training.unrecorded[0], seconds + training.unrecorded[1]
    training.unrecorded = (0, 0.0) if due else (n_tokens, seconds)
    if due and recorder is not None:
        rate = training.optim.learning_rate * factor
        values |= {"learning_rate": rate, "skipped": int(training.skipped)}
        values |= {"tokens_per_second": round(n_tokens / seconds), "seconds": round(training.seconds, 3)}
        recorder.record(training.step, "train", values)
        if training.skipped_in_row >= PATIENCE:
            raise FloatingPointError(
                f"{int(training.skipped_in_row)} steps in a row, up to step {training.step}, had a loss or a gradient "
                f"that is not finite and were skipped; {what_to_try(training, recorder.run)}"
            )


def what_to_try(training: Training, run: Path) -> str:
    """Return how to go on with a run whose numbers are no longer finite."""
    optim = training.optim
    rates = f"optim.learning_rate (now {optim.learning_rate:g}) or optim.embedding_learning_rate "
    rates += f"(now {optim.embedding_learning_rate:g})"
    precision = ", or precision=float32 (now bfloat16)" if training.place.bfloat16 else ""
    return (
        f"try a lower {rates}{precision}; from the last checkpoint goes on: "
        f"python train.py resume=true optim.learning_rate=... {quote(f'out={run}')}"
    )


def train_step(training: Training) -> tuple[Tensor, Tensor, int]:
    """Move the weights once; return the mean loss, the gradient's norm before clipping and the tokens read.

    A step whose loss or gradient is not finite is skipped: weights and optimizers stay as they are to the bit. Nothing
    here waits for the device: whoever asks for the numbers does.
    """
    accumulate, graphs = training.own.gradient_accumulation_steps, training.own.compile is Compile.graphs
    n_processes = training.world.size
    training.world.reseed(training.own.seed, training.step)
    batches = [training.batch_at(training.step * accumulate + part) for part in range(accumulate)]
    n_targets = sum(count for _, _, count in batches)
    total = torch.zeros((), device=training.place.device, dtype=torch.float32 if n_processes == 1 else torch.float64)
    for part, (read, targets, _) in enumerate(batches, start=1):
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()  # what the last replay returned is no longer needed
        with training.part(is_last=part == accumulate):
            with training.place.autocast():
                # Gradients of several processes are averaged, so each counts its rows so many times.
                loss = training.summed_loss(targets, *read) / (n_targets / n_processes)
            loss.backward()
        total += loss.detach()
    total = training.world.mean(total)
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.optim.clip_norm)
    if training.is_sharded:
        norm = norm.full_tensor()  # type: ignore[attr-defined]
    move(training, ~(total.isfinite() & norm.isfinite()))
    for optimizer in training.optimizers:
        optimizer.zero_grad(set_to_none=not graphs)
    return total, norm, n_processes * sum(targets.numel() for _, targets, _ in batches)


def move(training: Training, is_bad: Tensor) -> None:
    """Let the optimizers step, or skip the step and count it where `is_bad`, a scalar bool, says so."""
    training.skipped = training.skipped + is_bad
    training.skipped_in_row = (training.skipped_in_row + 1) * is_bad
    if training.place.works_ahead:  # the device itself is told not to move anything
        for optimizer in training.optimizers:
            optimizer.grad_scale, optimizer.found_inf = None, is_bad.float()  # type: ignore[attr-defined]
            optimizer.step()
    elif not is_bad:
        for optimizer in training.optimizers:
            optimizer.step()
