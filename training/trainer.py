"""The trainer: model, loss, batches, optimizers and counters, and the training step that changes them.

- No step waits for a GPU: loss, gradient norm and the counters of skipped steps stay on the device.
- A gradient that is not finite changes no weight and no state; the step is counted as skipped.
- Batches and dropout depend on seed, step and rank alone, so a resumed run takes the same steps.
- The loss is the mean over the targets of all micro-batches and ranks, not the mean of their means.
- On a GPU one step is recorded and then repeated as a whole (extras/gpu), if train.py gives a `Recorder`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.loader import BatchLoader, LoadedBatch, Split, training_batches
from model.transformer import Transformer
from settings.errors import UserError
from settings.train import Compile, TrainSettings
from training.device import ComputeDevice, Distributed, average_gradients
from training.optim import WeightOptimizer, learning_rate_factor, make_optimizers, set_learning_rates

# Batches -> loss [] and gradient norm []; changes the weights
Update = Callable[[Sequence[LoadedBatch]], tuple[Tensor, Tensor]]
# Records an update with some batches, the tensors that it changes, and a relative tolerance; None, after a warning, if
# that is not possible (extras/gpu)
Recorder = Callable[[Update, Sequence[LoadedBatch], Sequence[Tensor], float], Update | None]


@dataclass
class Trainer:
    """The state of a training step: model, loss, batches, optimizers and counters."""

    settings: TrainSettings
    model: Transformer
    # The model, called with targets: the summed loss [], compiled if the settings say so.
    loss_fn: Callable[..., Tensor]
    # The same before compilation; with several processes it averages the gradients.
    ddp_model: Any
    loader: BatchLoader
    optimizers: list[WeightOptimizer]
    device: ComputeDevice
    distributed: Distributed
    # [] float32 on the device: steps whose gradient was not finite, and those since the last finite one.
    skipped: Tensor
    skipped_in_row: Tensor
    record: Recorder | None = None  # on a GPU; None: each step starts its kernels one by one
    recorded: Update | None = None  # the record, which every step runs
    step: int = 0  # optimizer steps taken, skipped steps included
    seconds: float = 0.0  # in training steps
    best_loss: float = float("inf")  # lowest validation loss after step 0

    @property
    def has_diverged(self) -> bool:
        """True if the newest weights are not worth a checkpoint. Waits for the device."""
        return bool(self.skipped_in_row >= 2)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that all ranks read in a step; the last batch of an epoch of stories may have fewer."""
        n_rows = self.loader.batches.n_rows * self.settings.run.gradient_accumulation_steps
        return n_rows * self.settings.model.context_length

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: weights and states of the optimizers by name, and the counters."""
        return {
            "model": _copied(self.model.state_dict()),
            "optimizer": {name: _copied(state) for name, state in self._optimizer_states().items()},
            "step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
            "skipped": int(self.skipped),
            "skipped_in_row": int(self.skipped_in_row),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore the result of `state`, or raise UserError if it does not fit; the optimizers keep their settings."""
        if "optimizer" not in saved:
            raise UserError("a model that a page has trained has no state of the optimizer: begin a run with init=")
        try:
            self.model.load_state_dict(saved["model"])
            for name, state in self._optimizer_states().items():
                for key, tensor in state.items():
                    tensor.copy_(saved["optimizer"][name][key])
            self.step, self.seconds, self.best_loss = saved["step"], saved["seconds"], saved["best_loss"]
            self.skipped.fill_(saved["skipped"])
            self.skipped_in_row.fill_(saved["skipped_in_row"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            problem = str(error).partition("\n")[0] or type(error).__name__
            raise UserError(f"the checkpoint does not fit the model ({problem}); start a new run") from None

    def changed_tensors(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        tensors = [*self.model.parameters(), self.skipped, self.skipped_in_row]
        for state in self._optimizer_states().values():
            tensors += state.values()
        return tensors

    def _optimizer_states(self) -> dict[str, dict[str, Tensor]]:
        """Return the states of the optimizers, not copied, by the name of their weight."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for optimizer in self.optimizers:
            states |= optimizer.state
        return {name: states[weight] for name, weight in self.model.named_parameters()}


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}


def check_batch(settings: TrainSettings, distributed: Distributed) -> None:
    """Raise UserError if a process would get no row of a batch: every one reads its own rows."""
    context_length, n_tokens = settings.model.context_length, settings.run.tokens_per_batch
    smallest = distributed.world_size * context_length
    if n_tokens < smallest:
        problem = f"must be {smallest} or more, a row of model.context_length={context_length} for each process"
        raise UserError(f"tokens_per_batch={n_tokens}: {problem}")


def make_trainer(
    settings: TrainSettings,
    model: Transformer,
    split: Split,
    device: ComputeDevice,
    distributed: Distributed,
    record: Recorder | None = None,
) -> Trainer:
    """Return the trainer of `model`, on `device`, at step 0; UserError if the text is too short for its context.

    `record` is used on a GPU by a single process.
    """
    run = settings.run
    n_ranks = distributed.world_size
    batches = training_batches(
        split, tokens_per_batch=run.tokens_per_batch, context_length=settings.model.context_length, seed=run.seed
    )
    is_cuda = device.device.type == "cuda"
    pad = is_cuda or run.compile is not Compile.none  # a graph has one shape, torch.compile compiles once per shape
    loader = BatchLoader(batches, device.device, pad=pad, rows=slice(distributed.rank, None, n_ranks))

    ddp_model: Any = model
    if n_ranks > 1:
        ddp_model = average_gradients(model, device.device)
    optimizers = make_optimizers(model, settings.optim, device.dtype)
    loss_fn = ddp_model if run.compile is Compile.none else torch.compile(ddp_model, dynamic=False)

    # The counters stay on the device, so that no step has to wait for it.
    skipped, skipped_in_row = torch.zeros(2, device=device.device).unbind()
    if not is_cuda or n_ranks > 1:
        record = None
    return Trainer(
        settings, model, loss_fn, ddp_model, loader, optimizers, device, distributed, skipped, skipped_in_row, record
    )


class StepStats(NamedTuple):
    """Measurements of one training step. The tensors stay on the device, so that no step waits for it."""

    # [] float32, nats per token: the mean over all ranks is minimised, and logged as the training loss.
    loss: Tensor
    gradient_norm: Tensor  # [] float32, before clipping
    learning_rate: float  # that of the weight matrices


def train_step(trainer: Trainer) -> StepStats:
    """Take one optimizer step without waiting for the device; a gradient that is not finite changes no weight."""
    start = time.perf_counter()
    run, optim = trainer.settings.run, trainer.settings.optim

    n_micro_batches = run.gradient_accumulation_steps
    first = trainer.step * n_micro_batches
    batches = [trainer.loader(index) for index in range(first, first + n_micro_batches)]
    factor = learning_rate_factor(trainer.step, optim.warmup_steps, run.max_steps, optim.decay_power)
    set_learning_rates(trainer.optimizers, factor)

    if trainer.record:
        # Every step runs the record, also the first one after a resume: so they are the same steps.
        # The record may add in another order, and round otherwise.
        tolerance = 2e-2 if trainer.device.dtype is torch.bfloat16 else 1e-3
        changed = trainer.changed_tensors()
        trainer.recorded = trainer.record(partial(update, trainer), batches, changed, tolerance)
        trainer.record = None
    if trainer.settings.model.dropout:
        seed_dropout(run.seed, trainer.step, trainer.distributed.rank)  # 0.1 ms on a CPU
    loss, norm = trainer.recorded(batches) if trainer.recorded else update(trainer, batches)

    trainer.step += 1
    trainer.seconds += time.perf_counter() - start
    return StepStats(loss, norm, factor * optim.learning_rate)


def wait_for_device(trainer: Trainer) -> None:
    """Wait until a GPU has finished the steps in its queue, and count the time as that of training."""
    start = time.perf_counter()
    if trainer.device.device.type == "cuda":
        torch.cuda.synchronize(trainer.device.device)
    trainer.seconds += time.perf_counter() - start


def update(trainer: Trainer, batches: Sequence[LoadedBatch]) -> tuple[Tensor, Tensor]:
    """Change the weights by the gradient of the mean loss of `batches`; return that loss [] and the gradient norm [].

    A record of it repeats everything but the values of tensors.
    """
    # Accumulate the gradient. The ranks average their gradients, in the last backward pass only, and n_targets counts
    # the targets of all ranks: so each rank's loss is multiplied by world_size.
    world_size = trainer.distributed.world_size
    n_targets = sum(batch.n_targets for batch in batches)
    loss = torch.zeros((), device=trainer.device.device)
    for batch in batches:
        is_last = batch is batches[-1]
        with trainer.ddp_model.no_sync() if world_size > 1 and not is_last else nullcontext():
            with trainer.device.autocast():
                micro_loss = trainer.loss_fn(*batch.inputs, targets=batch.targets) / n_targets
            (micro_loss * world_size).backward()
        loss += micro_loss.detach() * world_size

    # The norm is the same on every rank, and not finite if a loss is not. Reading this flag here would make every
    # step wait for the GPU.
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.settings.optim.clip_norm)
    is_finite = norm.isfinite().float()
    for optimizer in trainer.optimizers:
        optimizer.step(is_finite)
    trainer.model.zero_grad()
    trainer.skipped += 1 - is_finite
    trainer.skipped_in_row.add_(1).mul_(1 - is_finite)
    return loss, norm


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make dropout a function of (seed, step, rank), so that a checkpoint needs no state of the random generator."""
    (value,) = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(value >> np.uint64(1)))
