"""Training: `train` sets up a run and loops over step, evaluation, probe and checkpoint until the last step."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data.corpus import Corpus, load_corpus
from data.loader import BatchLoader, Split, training_batches
from model.transformer import Transformer, n_parameters
from training.checkpoint import drop_checkpoints_after, load_resumable, read_manifest, save_checkpoint
from training.command_line import shell_command
from training.device import ComputeDevice, choose_device, keep_freed_memory
from training.distributed import (
    SINGLE_PROCESS,
    Distributed,
    full_state,
    gradient_sync,
    load_full_state,
    process_group,
    shard,
)
from training.evaluate import MakeProbe, Probe, SummedLoss, sample_text, validation_loss
from training.logging import Console, RunLog, gap_lines
from training.optim import learning_rate_factor, make_optimizers, set_learning_rates
from training.run_dir import (
    StopRequest,
    check_new,
    create_run,
    describe_run,
    environment,
    lock,
    record_resume,
    run_config,
)
from training.settings import Compile, Device, Sharding, TrainSettings, result_settings

MAX_SKIPPED_STEPS = 10  # in a row: not one bad batch, but diverged weights


# Set-up


@dataclass
class Trainer:
    """What a training step reads and changes: model, loss, batches, optimizers and counters."""

    settings: TrainSettings
    model: nn.Module
    loss: Callable[..., Tensor]  # (targets, *model inputs) -> summed loss, a scalar; compiled if the settings say so
    loss_module: nn.Module  # the same before compilation; with several processes it averages the gradients
    loader: BatchLoader
    optimizers: list[torch.optim.Optimizer]
    device: ComputeDevice
    distributed: Distributed
    skipped: Tensor  # [] float32 on the device: number of steps whose loss or gradient was not finite
    skipped_in_row: Tensor  # [] float32 on the device: number of these since the last finite step
    step: int = 0  # optimizer steps taken, skipped steps included
    seconds: float = 0.0  # in training steps
    n_tokens: int = 0  # read by all ranks since the last record
    recorded_seconds: float = 0.0  # `seconds` at the last record
    best_loss: float = float("inf")  # lowest validation loss
    saved_step: int = -1  # step of the newest checkpoint; -1: none

    @property
    def is_sharded(self) -> bool:
        """True if this rank has only a shard of the weights."""
        return self.distributed.world_size > 1 and self.settings.run.sharding is Sharding.fsdp

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds; a collective call if the model is sharded."""
        return full_state(self.model, self.optimizers) | {
            "step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
            "skipped": int(self.skipped),
            "skipped_in_row": int(self.skipped_in_row),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores the result of `state`, or raises ValueError if it does not fit; learning rates stay as they are."""
        try:
            load_full_state(self.model, self.optimizers, state)
            self.step = state["step"]
            self.seconds = self.recorded_seconds = state["seconds"]
            self.best_loss = state["best_loss"]
            self.skipped.fill_(state["skipped"])
            self.skipped_in_row.fill_(state["skipped_in_row"])
        except torch.OutOfMemoryError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            problem = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(f"the checkpoint does not fit the model ({problem}); start a new run") from None
        self.saved_step = self.step


def make_trainer(
    settings: TrainSettings,
    model: Transformer,
    split: Split,
    device: ComputeDevice,
    distributed: Distributed = SINGLE_PROCESS,
) -> Trainer:
    """Returns the trainer of `model`, which is on `device`, on `split`, at step 0; it needs no run directory."""
    run, context_length = settings.run, settings.model.context_length
    n_rows = max(1, run.tokens_per_batch // context_length)
    if n_rows < distributed.world_size:
        raise ValueError(
            f"tokens_per_batch={run.tokens_per_batch}: {n_rows} rows of model.context_length={context_length} for "
            f"{distributed.world_size} processes; raise it, or start fewer processes"
        )
    batches = training_batches(
        split, tokens_per_batch=run.tokens_per_batch, context_length=context_length, seed=run.seed
    )
    loader = BatchLoader(
        batches,
        device.device,
        pad=run.compile is not Compile.none,  # torch.compile compiles once per shape
        rows=slice(distributed.rank, None, distributed.world_size),
    )
    loss: nn.Module = SummedLoss(model)
    if distributed.world_size > 1 and run.sharding is Sharding.fsdp:
        shard(model, device.device)
    elif distributed.world_size > 1:
        loss = DistributedDataParallel(loss, gradient_as_bucket_view=True)  # avoids a copy of the gradients
    optimizers = make_optimizers(model, settings.optim)
    compiled = compile_loss(
        loss, run.compile, is_single_cuda=device.device.type == "cuda" and distributed.world_size == 1
    )
    skipped, skipped_in_row = torch.zeros(2, device=device.device).unbind()
    return Trainer(settings, model, compiled, loss, loader, optimizers, device, distributed, skipped, skipped_in_row)


def compile_loss(loss: nn.Module, mode: Compile, *, is_single_cuda: bool) -> Callable[..., Tensor]:
    """Returns `loss` compiled by torch.compile in the mode of the settings."""
    if mode is Compile.none:
        return loss
    if mode is Compile.default:
        return torch.compile(loss, dynamic=False)
    if not is_single_cuda:
        raise ValueError("compile=graphs: needs a CUDA device and a single process; use compile=default")
    for weight in loss.parameters():  # outside the graph, whose next replay would overwrite them
        weight.grad = torch.zeros_like(weight)
    return torch.compile(loss, dynamic=False, mode="reduce-overhead")


@dataclass
class RankZero:
    """What only rank 0 has: the run directory and its open files, the validation data, and the model to evaluate."""

    folder: Path  # the run directory
    config: dict[str, Any]  # the content of config.json
    corpus: Corpus
    model: Transformer  # the trained model; with FSDP an unsharded copy, updated before each evaluation
    probe: Probe | None
    log: RunLog
    console: Console


@contextmanager
def set_up(
    settings: TrainSettings, make_probe: MakeProbe, label: str, distributed: Distributed
) -> Iterator[tuple[Trainer, RankZero | None]]:
    """Yields the trainer, at step 0 or at the newest checkpoint, and on rank 0 what only rank 0 has.

    Every rank calls this. Rank 0 prepares the data and reads the checkpoint first, and broadcasts the rest.
    """
    run = settings.run
    device = choose_device(run.device, run.precision, run.threads)
    keep_freed_memory()
    if distributed.is_first and not run.resume:
        check_new(run.out)  # before the data are prepared, which can take long
    corpus = load_corpus(settings.data, Path(run.cache_dir)) if distributed.is_first else None
    state, config = None, {}
    if corpus is not None:
        settings = replace(settings, data=corpus.config)  # with the commit of a hub dataset
        config = run_config(settings, corpus.tokenizer, corpus.fingerprint)
        state = load_resumable(Path(run.out or ""), config) if run.resume else None
    settings, state, config = distributed.broadcast((settings, state, config))
    run = settings.run
    corpus = corpus or load_corpus(settings.data, Path(run.cache_dir))
    if corpus.fingerprint != config["data_fingerprint"]:
        raise ValueError(f"data: rank {distributed.rank} has other data than rank 0; copy them from its machine")
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), run.seed).to(device.device)
    is_sharded_copy = distributed.world_size > 1 and run.sharding is Sharding.fsdp and distributed.is_first
    trainer = make_trainer(settings, deepcopy(model) if is_sharded_copy else model, corpus.train, device, distributed)
    if state is not None:
        trainer.load(state)
    if not distributed.is_first:
        yield trainer, None
        return
    folder, run_lock = (Path(run.out or ""), lock(Path(run.out or ""))) if run.resume else create_run(run.out)
    with closing(run_lock):
        machine = environment(device.description, torch.get_num_threads(), distributed.world_size)
        if state is not None:
            drop_checkpoints_after(folder / "checkpoints", state["step"])
            if state["step"] < run.max_steps:  # otherwise nothing is trained
                record_resume(folder, state["step"], state["config"], config, machine)
        describe_run(folder, config, corpus.tokenizer, machine, is_new=state is None)
        probe = make_probe(corpus, settings)
        with (
            closing(RunLog(folder, trainer.saved_step)) as log,
            closing(Console(trainer.step, run.max_steps, label)) as console,
        ):
            yield trainer, RankZero(folder, config, corpus, model, probe, log, console)


# The loop


def train(settings: TrainSettings, make_probe: MakeProbe, label: str = "") -> int:
    """Trains from the start, or from the newest checkpoint (resume=true), to max_steps; `label` precedes printed lines.

    With several processes the settings of rank 0 count. Returns the exit status: 0, or 128 + the number of the signal
    that stopped the run.
    """
    with (
        process_group(use_cuda=settings.run.device is not Device.cpu) as distributed,
        set_up(settings, make_probe, label, distributed) as (trainer, rank_zero),
        closing(StopRequest()) as stop,
    ):
        max_steps = trainer.settings.run.max_steps
        if rank_zero:
            print_start(trainer, rank_zero)
        if trainer.saved_step < 0:
            evaluate_and_save(trainer, rank_zero)
        while trainer.step < max_steps and not is_stopped(stop, distributed):
            stats = train_step(trainer)
            if rank_zero:
                rank_zero.console.advance(trainer.step)
            if is_due(trainer.step, trainer.settings.run.log_every_steps, max_steps):
                log_step(trainer, rank_zero, stats)
            evaluate_and_save(trainer, rank_zero)
        if trainer.step < max_steps:
            stop_early(trainer, rank_zero)
        elif rank_zero:
            command = shell_command("eval.py", f"run={rank_zero.folder}", settings.run.cache_dir)
            rank_zero.console.print(f"done    {trainer.seconds:.0f} s of training; next: {command}")
    return stop.exit_status


def is_stopped(stop: StopRequest, distributed: Distributed) -> bool:
    """Returns True on every rank if any of them has received a signal, so that all stop after the same step."""
    stop.receive(distributed.max(stop.signal or 0))
    return stop.signal is not None


class StepStats(NamedTuple):
    """Measurements of one training step. The tensors stay on the device, so that no step waits for it."""

    loss: Tensor  # [] float32, nats per token
    gradient_norm: Tensor  # [] float32, before clipping
    n_tokens: int  # read by all ranks


def train_step(trainer: Trainer) -> StepStats:
    """Take one optimizer step without waiting for the device.

    If the loss or the gradient is not finite, the optimizers skip the update, on the device: weights and state stay as
    they are.
    """
    start = time.perf_counter()
    stats = compute_gradient(trainer)

    # Reading this flag here would empty the queue of a GPU in every step.
    found_inf = (~(stats.loss.isfinite() & stats.gradient_norm.isfinite())).float()

    # Update the weights.
    run, optim = trainer.settings.run, trainer.settings.optim
    factor = learning_rate_factor(trainer.step, optim.warmup_steps, run.max_steps, optim.decay_power)
    set_learning_rates(trainer.optimizers, factor)
    for optimizer in trainer.optimizers:
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        optimizer.step()
        optimizer.zero_grad(set_to_none=run.compile is not Compile.graphs)  # a graph needs them at the same addresses

    # Count.
    trainer.skipped += found_inf
    trainer.skipped_in_row = (trainer.skipped_in_row + 1) * found_inf
    trainer.step += 1
    trainer.n_tokens += stats.n_tokens
    trainer.seconds += time.perf_counter() - start
    return stats


def wait_for_device(trainer: Trainer) -> None:
    """Wait until a GPU has finished the steps in its queue, and count the time as that of training."""
    start = time.perf_counter()
    if trainer.device.device.type == "cuda":
        torch.cuda.synchronize(trainer.device.device)
    trainer.seconds += time.perf_counter() - start


def compute_gradient(trainer: Trainer) -> StepStats:
    """Compute and clip the gradient of the next step."""
    run, optim, world_size = trainer.settings.run, trainer.settings.optim, trainer.distributed.world_size
    n_micro_batches = run.gradient_accumulation_steps
    seed_dropout(run.seed, trainer.step, trainer.distributed.rank)
    first = trainer.step * n_micro_batches
    micro_batches = [trainer.loader(index) for index in range(first, first + n_micro_batches)]
    n_targets = sum(batch.n_targets for batch in micro_batches)

    # Accumulate the gradient of the mean loss. The ranks average their gradients, in the last backward pass only, and
    # n_targets counts the targets of all ranks: so each rank's loss is multiplied by world_size.
    loss = torch.zeros((), device=trainer.device.device)
    for i, batch in enumerate(micro_batches):
        if run.compile is Compile.graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with gradient_sync(trainer.loss_module, enabled=i == n_micro_batches - 1):
            with trainer.device.autocast():
                micro_loss = trainer.loss(batch.targets, *batch.inputs) / n_targets
            (micro_loss * world_size).backward()
        loss += micro_loss.detach() * world_size
    loss = trainer.distributed.mean(loss)

    # Clip the gradient.
    norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), optim.clip_norm)
    norm = norm.full_tensor() if trainer.is_sharded else norm  # type: ignore[attr-defined]
    n_tokens = world_size * sum(batch.targets.numel() for batch in micro_batches)
    return StepStats(loss, norm, n_tokens)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Makes dropout a function of (seed, step, rank), so that a checkpoint needs no state of the random generator."""
    (value,) = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(value >> np.uint64(1)))


def log_step(trainer: Trainer, rank_zero: RankZero | None, stats: StepStats) -> None:
    """Record a training step, and stop a run that has diverged. Between evaluations the only wait for the device."""
    wait_for_device(trainer)
    if rank_zero:
        loss = stats.loss.item()
        seconds = trainer.seconds - trainer.recorded_seconds
        values = {
            "loss": loss,
            "bits_per_byte": rank_zero.corpus.train.bits_per_byte(loss),
            "gradient_norm": stats.gradient_norm.item(),
            "learning_rate": trainer.optimizers[0].param_groups[-1]["lr"],  # that of the matrices is last
            "skipped": int(trainer.skipped),
            "tokens_per_second": round(trainer.n_tokens / seconds),
            "seconds": round(trainer.seconds, 3),
        }
        rank_zero.log.record(trainer.step, "train", values)
        rank_zero.console.show_loss(loss)
    trainer.recorded_seconds = trainer.seconds
    trainer.n_tokens = 0
    if trainer.skipped_in_row >= MAX_SKIPPED_STEPS:
        raise diverged(trainer, f"{MAX_SKIPPED_STEPS} steps in a row had a loss or gradient that is not finite")


def diverged(trainer: Trainer, problem: str) -> FloatingPointError:
    """Returns the error of a run that cannot be continued."""
    optim, run = trainer.settings.optim, trainer.settings.run
    precision = " or precision=float32" if trainer.device.dtype is torch.bfloat16 else ""
    resume = f"with resume=true {quote(f'out={run.out}')} " if run.out else ""
    return FloatingPointError(
        f"step {trainer.step}: {problem}; try {resume}a lower optim.learning_rate (now {optim.learning_rate:g}) or "
        f"optim.embedding_learning_rate (now {optim.embedding_learning_rate:g}){precision}"
    )


# Evaluation, probe and checkpoints


def is_due(step: int, interval: int, max_steps: int) -> bool:
    """Returns True at multiples of `interval` and at max_steps."""
    return step % interval == 0 or step == max_steps


def is_probe_step(step: int, max_steps: int) -> bool:
    """Returns True at step 0 and at max_steps / 2^(i / 2), i = 0 to 16."""
    return step == 0 or step in {round(max_steps * 2 ** (-i / 2)) for i in range(17)}


def evaluate_and_save(trainer: Trainer, rank_zero: RankZero | None) -> None:
    """Probes the model, measures its validation loss and saves a checkpoint, if they are due after this step."""
    run, step = trainer.settings.run, trainer.step
    is_evaluation = is_due(step, run.eval_every_steps, run.max_steps)
    if not is_evaluation and not is_probe_step(step, run.max_steps):
        return
    wait_for_device(trainer)
    state = trainer.state() if is_evaluation or trainer.is_sharded else {}  # a collective call with FSDP
    if rank_zero is None:
        return
    if trainer.is_sharded:
        rank_zero.model.load_state_dict(state["model"])
    rank_zero.model.eval()
    summary = run_probe(rank_zero, step)
    if is_evaluation:
        loss, recorded = validate(trainer, rank_zero, summary)
        if isfinite(loss) and trainer.skipped_in_row < 2:  # else the weights have diverged
            is_best = loss <= trainer.best_loss
            trainer.best_loss = min(trainer.best_loss, loss)
            save(trainer, rank_zero, state, is_best=is_best)
        if step == run.max_steps:
            print_result(trainer, rank_zero, recorded)
    rank_zero.model.train()


def run_probe(rank_zero: RankZero, step: int) -> list[str]:
    """Probes the model, records the result, and returns its summary."""
    reading = rank_zero.probe(rank_zero.model, step) if rank_zero.probe else None
    if reading is None:
        return []
    rank_zero.log.record(step, "probe", reading.values)
    rank_zero.log.images(step, reading.images)
    if reading.snapshot is not None:
        rank_zero.log.attention(step, reading.snapshot)
    rank_zero.console.status = reading.summary[0] if reading.summary else ""
    return reading.summary


def validate(trainer: Trainer, rank_zero: RankZero, summary: list[str]) -> tuple[float, dict[str, Any]]:
    """Measures the validation loss, records it with a sample of text, and prints it with the probe's summary.

    Returns the loss on the first validation_tokens, the same at each step, and the recorded result. They differ in the
    last evaluation only, which records the loss on the whole split.
    """
    run, split, model = trainer.settings.run, rank_zero.corpus.validation, rank_zero.model
    tokens_per_batch = run.tokens_per_batch // trainer.distributed.world_size  # what fits one device in training
    is_last = trainer.step == run.max_steps
    measured = validation_loss(model, split, tokens_per_batch, run.validation_tokens, trainer.device.autocast())
    loss = measured["loss"]
    if is_last:
        measured = validation_loss(model, split, tokens_per_batch, None, trainer.device.autocast())
    is_finite = isfinite(loss) and isfinite(measured["loss"])
    if run.sample_tokens and is_finite:
        text = sample_text(model, rank_zero.corpus.tokenizer, run.sample_prompt, run.sample_tokens, run.seed)
        rank_zero.log.text(trainer.step, "sample", text)
    values = measured | {"whole": is_last, "seconds": round(trainer.seconds, 3)}
    rank_zero.log.record(trainer.step, "validation", values)
    rank_zero.console.print(step_line(trainer.step, measured["loss"], summary, int(trainer.skipped)))
    if is_last and not is_finite:
        raise diverged(trainer, "the validation loss is not finite")
    return loss, measured


def save(trainer: Trainer, rank_zero: RankZero, state: dict[str, Any], *, is_best: bool) -> None:
    """Saves a checkpoint; the records of its step are on the disk by then."""
    folder, keep = rank_zero.folder / "checkpoints", trainer.settings.run.keep_checkpoints
    content = state | {"best_loss": trainer.best_loss, "config": rank_zero.config}
    save_checkpoint(folder, content, best=is_best, keep=keep)
    trainer.saved_step = trainer.step


def stop_early(trainer: Trainer, rank_zero: RankZero | None) -> None:
    """Saves a checkpoint when a signal stops the run, if training has not diverged."""
    state = trainer.state()
    if rank_zero is None:
        return
    if trainer.saved_step != trainer.step and trainer.skipped_in_row < 2:
        save(trainer, rank_zero, state, is_best=False)
    command = shell_command("train.py", f"out={rank_zero.folder}", trainer.settings.run.cache_dir, "resume=true")
    rank_zero.console.print(f"stopped at step {max(0, trainer.saved_step)}; resume with: {command}")


# Printed lines


def print_start(trainer: Trainer, rank_zero: RankZero) -> None:
    """Prints device, data, model and run directory."""
    settings, corpus, n_ranks = trainer.settings, rank_zero.corpus, trainer.distributed.world_size
    shape, n_tokens = settings.model, [len(split.tokens) for split in (corpus.train, corpus.validation)]
    sharding = f"; {n_ranks} processes, model {'sharded (FSDP)' if trainer.is_sharded else 'replicated (DDP)'}"
    for line in [
        f"device  {trainer.device.description}{sharding if n_ranks > 1 else ''}",
        f"data    {settings.data.source}: {n_tokens[0]:,} training and {n_tokens[1]:,} validation tokens, "
        f"vocabulary {rank_zero.model.vocab_size:,}",
        *(f"note    {note}" for note in corpus.notes),
        f"model   {n_parameters(rank_zero.model):,} parameters: {shape.n_layer} layers x {shape.n_head} heads, "
        f"width {shape.d_model}, context {shape.context_length}",
        f"run     {rank_zero.folder}, step {trainer.step} of {settings.run.max_steps:,}; watch it with: "
        f"tensorboard --logdir {quote(str(rank_zero.folder.parent))}",
    ]:
        rank_zero.console.print(line)


def step_line(step: int, loss: float, summary: list[str], n_skipped: int) -> str:
    """Returns the line of an evaluation, with at most three questions of the probe."""
    phrases = [f"step {step:>5}", f"validation loss {loss:.3f}", *summary[:3]]
    if len(summary) > 3:
        n_more = len(summary) - 3
        phrases.append(f"(TensorBoard shows {n_more} more question{'s' if n_more > 1 else ''})")
    if n_skipped:
        phrases.append(f"skipped steps {n_skipped}")
    return "  ".join(phrases)


def print_result(trainer: Trainer, rank_zero: RankZero, measured: dict[str, Any]) -> None:
    """Prints the gap to the entropy lower bound, and adds the run to TensorBoard's table of hyperparameters."""
    for line in gap_lines(measured, is_causal=trainer.settings.model.is_causal):
        rank_zero.console.print(line)
    best = [entry["step"] for entry in read_manifest(rank_zero.folder / "checkpoints") if entry["best"]]
    if best and best[0] != trainer.step:
        line = f"best validation loss {trainer.best_loss:.3f} at step {best[0]}; eval.py reads that one"
        rank_zero.console.print(line)
    results = {name: value for name, value in measured.items() if name in ("loss", "bits_per_byte", "gap")}
    rank_zero.log.hyperparameters(trainer.step, result_settings(trainer.settings), results)
