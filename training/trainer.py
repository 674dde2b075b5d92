"""Training: `train` sets up a run and loops over step, evaluation, probe and checkpoint until the last step."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from data.corpus import Corpus, load_corpus
from data.loader import BatchLoader, Split, training_batches
from model.transformer import Transformer, n_parameters
from training.checkpoint import drop_checkpoints_after, load_resumable, read_manifest, save_checkpoint
from training.device import ComputeDevice, choose_device, keep_freed_memory
from training.distributed import (
    SINGLE_PROCESS,
    Distributed,
    full_state,
    gradient_sync,
    load_full_state,
    process_group,
    replicate,
    shard,
)
from training.evaluate import SummedLoss, sample_text, validation_loss
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

MAX_SKIPPED_STEPS = 10  # in a row; a bad batch is one step or a few, and diverged weights stay diverged


@dataclass(frozen=True)
class ProbeReading:
    """Result of the probe at one step."""

    values: dict[str, Any]  # recorded in metrics.jsonl with split "probe"
    images: dict[str, np.ndarray] = field(default_factory=dict)  # TensorBoard tag -> [height, width, 3] uint8
    snapshot: dict[str, Any] | None = None  # recorded in attention.jsonl
    summary: list[str] = field(default_factory=list)  # per question: "number L1H0 accuracy 0.98 (chance level 0.61)"


Probe = Callable[[Transformer, int], ProbeReading | None]  # model in eval mode, step
MakeProbe = Callable[[Corpus, TrainSettings], Probe | None]  # None: the text has no gold links


# Set-up


@dataclass
class Training:
    """Model, loss, batches and optimizers, and the counters that a checkpoint holds."""

    settings: TrainSettings
    model: nn.Module
    loss: Callable[..., Tensor]  # (targets, *model inputs) -> summed loss, a scalar
    synchronised: nn.Module  # the module whose backward pass averages gradients over ranks
    loader: BatchLoader
    optimizers: list[torch.optim.Optimizer]
    device: ComputeDevice
    distributed: Distributed
    step: int = 0  # optimizer steps taken, skipped steps included
    seconds: float = 0.0  # in training steps
    best_loss: float = float("inf")  # lowest validation loss
    skipped: int = 0  # steps whose loss or gradient was not finite
    skipped_in_row: int = 0
    saved_step: int = -1  # step of the newest checkpoint; -1: none

    @property
    def is_sharded(self) -> bool:
        """True if this rank has only a shard of the weights."""
        return self.distributed.world_size > 1 and self.settings.run.sharding is Sharding.fsdp

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint holds; a collective call if the model is sharded."""
        counters = ("step", "seconds", "best_loss", "skipped", "skipped_in_row")
        return full_state(self.model, self.optimizers) | {name: getattr(self, name) for name in counters}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the result of `state`. Learning rates and other settings stay as they are."""
        load_full_state(self.model, self.optimizers, state)
        for name in ("step", "seconds", "best_loss", "skipped", "skipped_in_row"):
            setattr(self, name, state[name])
        self.saved_step = self.step


def make_training(
    settings: TrainSettings,
    model: Transformer,
    split: Split,
    device: ComputeDevice,
    distributed: Distributed = SINGLE_PROCESS,
) -> Training:
    """Returns the training of `model`, which is on `device`, on `split`, at step 0; it needs no run directory."""
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
        pad=run.compile is not Compile.none,  # torch.compile would compile each batch shape again
        rows=distributed.rows,
    )
    loss: nn.Module = SummedLoss(model)
    if distributed.world_size > 1 and run.sharding is Sharding.fsdp:
        shard(model, device.device)
    elif distributed.world_size > 1:
        loss = replicate(loss)
    optimizers = make_optimizers(model, settings.optim)
    compiled = compile_loss(loss, run.compile, device, distributed)
    return Training(settings, model, compiled, loss, loader, optimizers, device, distributed)


def compile_loss(
    loss: nn.Module, mode: Compile, device: ComputeDevice, distributed: Distributed
) -> Callable[..., Tensor]:
    """Returns `loss` compiled by torch.compile in the mode of the settings."""
    if mode is Compile.none:
        return loss
    if mode is Compile.graphs:
        if device.device.type != "cuda" or distributed.world_size > 1:
            raise ValueError("compile=graphs: needs a CUDA device and a single process; use compile=default")
        for weight in loss.parameters():  # a graph may not own the gradients: its next replay would overwrite them
            weight.grad = torch.zeros_like(weight)
    return torch.compile(loss, dynamic=False, mode="reduce-overhead" if mode is Compile.graphs else None)


@dataclass
class Output:
    """The run directory and its open files, and the model to evaluate; on rank 0 only."""

    run: Path  # the directory
    config: dict[str, Any]  # the content of config.json
    corpus: Corpus
    model: Transformer  # the trained model; with FSDP an unsharded copy, updated before each evaluation
    probe: Probe | None
    log: RunLog
    console: Console


@contextmanager
def set_up(
    settings: TrainSettings, make_probe: MakeProbe | None, label: str, distributed: Distributed
) -> Iterator[tuple[Training, Output | None]]:
    """Yields the training, at step 0 or at the newest checkpoint, and on rank 0 the output.

    Every rank comes this way. Rank 0 prepares the data and reads the checkpoint first, and broadcasts the rest.
    """
    run = settings.run
    device = choose_device(run.device, run.precision, run.threads)
    keep_freed_memory()
    if distributed.is_first and not run.resume:
        check_new(run.out)  # before the data are prepared, which can take long
    corpus = load_corpus(settings.data, Path(run.cache_dir)) if distributed.is_first else None
    state, config = None, {}
    if corpus is not None:
        settings = replace(settings, data=corpus.config)  # names the commit of a dataset
        config = run_config(settings, corpus.tokenizer, corpus.fingerprint)
        state = load_resumable(Path(run.out or ""), config) if run.resume else None
    settings, state, config = distributed.broadcast((settings, state, config))
    corpus = corpus or load_corpus(settings.data, Path(run.cache_dir))
    if corpus.fingerprint != config["data_fingerprint"]:
        raise ValueError(f"data: rank {distributed.rank} has other data than rank 0; copy them from its machine")
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), run.seed).to(device.device)
    is_sharded_copy = distributed.world_size > 1 and run.sharding is Sharding.fsdp and distributed.is_first
    training = make_training(settings, deepcopy(model) if is_sharded_copy else model, corpus.train, device, distributed)
    if state is not None:
        load_or_refuse(training, state)
    if not distributed.is_first:
        yield training, None
        return
    path, run_lock = (Path(run.out or ""), lock(Path(run.out or ""))) if run.resume else create_run(run.out)
    with closing(run_lock):
        machine = environment(device.description, torch.get_num_threads(), distributed.world_size)
        if state is not None:
            drop_checkpoints_after(path / "checkpoints", state["step"])
            record_resume(path, state["step"], state["config"], config, machine)
        describe_run(path, config, corpus.tokenizer, machine, is_new=state is None)
        probe = make_probe(corpus, settings) if make_probe and run.probe_sequences else None
        with (
            closing(RunLog(path, training.saved_step)) as log,
            closing(Console(training.step, run.max_steps, label)) as console,
        ):
            yield training, Output(path, config, corpus, model, probe, log, console)


def load_or_refuse(training: Training, state: dict[str, Any]) -> None:
    """Loads a checkpoint; raises ValueError if its tensors do not fit the model."""
    try:
        training.load(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"the checkpoint does not fit the model ({problem}); start a new run") from None


# The loop


def train(settings: TrainSettings, make_probe: MakeProbe | None = None, label: str = "") -> int:
    """Trains from the start, or from the newest checkpoint (resume=true), to max_steps.

    Args:
        settings: settings of the run; with several processes those of rank 0 count.
        make_probe: returns the probe to run while training (default: no probe).
        label: precedes every printed line.

    Returns:
        The exit status: 0, or 128 + the number of the signal that stopped the run.

    """
    with (
        process_group(use_cuda=settings.run.device is not Device.cpu) as distributed,
        set_up(settings, make_probe, label, distributed) as (training, output),
        closing(StopRequest()) as stop,
    ):
        max_steps = training.settings.run.max_steps
        if output:
            print_start(training, output)
        if training.saved_step < 0:
            evaluate(training, output)
        while training.step < max_steps and not is_stopped(stop, distributed):
            step = train_step(training)
            log_step(training, output, step)
            evaluate(training, output)
        if training.step < max_steps:
            stop_early(training, output)
        elif output:
            next_command = f"python eval.py {quote(f'run={output.run}')}"
            output.console.print(f"done    {training.seconds:.0f} s of training; next: {next_command}")
    return stop.exit_status


def is_stopped(stop: StopRequest, distributed: Distributed) -> bool:
    """Returns True on every rank if any of them has received a signal, so that all stop after the same step."""
    stop.receive(distributed.max(stop.signal or 0))
    return stop.signal is not None


class Step(NamedTuple):
    """Measurements of one training step."""

    loss: float  # nats per token
    gradient_norm: float  # before clipping
    n_tokens: int  # read by all ranks
    seconds: float


def train_step(training: Training) -> Step:
    """Takes one optimizer step; if the loss or the gradient is not finite, weights and optimizer stay as they are."""
    settings, world_size = training.settings, training.distributed.world_size
    start, n_micro_batches = time.perf_counter(), settings.run.gradient_accumulation_steps
    use_graphs = settings.run.compile is Compile.graphs
    optim = settings.optim
    factor = learning_rate_factor(training.step, optim.warmup_steps, settings.run.max_steps, optim.decay_power)
    set_learning_rates(training.optimizers, factor)
    seed_dropout(settings.run.seed, training.step, training.distributed.rank)
    micro_batches = [training.loader(training.step * n_micro_batches + i) for i in range(n_micro_batches)]
    n_targets = sum(batch.n_targets for batch in micro_batches)

    # Accumulate the gradient of the mean loss; the ranks synchronise in the last backward pass only.
    loss = torch.zeros((), device=training.device.device)
    for i, batch in enumerate(micro_batches):
        if use_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        with gradient_sync(training.synchronised, enabled=i == n_micro_batches - 1):
            with training.device.autocast():
                micro_loss = training.loss(batch.targets, *batch.inputs) / n_targets
            (micro_loss * world_size).backward()  # DDP and FSDP average gradients over ranks
        loss += micro_loss.detach() * world_size
    loss = training.distributed.mean(loss)

    # Clip the gradient.
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), optim.clip_norm)
    norm = norm.full_tensor() if training.is_sharded else norm  # type: ignore[attr-defined]

    # Step the optimizers, or skip.
    step_loss, step_norm = loss.item(), norm.item()
    is_finite = isfinite(step_loss) and isfinite(step_norm)
    if is_finite:
        for optimizer in training.optimizers:
            optimizer.step()
    training.skipped += not is_finite
    training.skipped_in_row = 0 if is_finite else training.skipped_in_row + 1

    # Free the gradients.
    for optimizer in training.optimizers:
        optimizer.zero_grad(set_to_none=not use_graphs)  # a graph needs them at the same addresses

    training.step += 1
    seconds = time.perf_counter() - start
    training.seconds += seconds
    n_tokens = world_size * sum(batch.targets.numel() for batch in micro_batches)
    return Step(step_loss, step_norm, n_tokens, seconds)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Makes dropout a function of (seed, step, rank), so that a checkpoint needs no state of the random generator."""
    (value,) = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(value >> np.uint64(1)))


def log_step(training: Training, output: Output | None, step: Step) -> None:
    """Records a training step when it is due, and stops a run that has diverged."""
    run = training.settings.run
    if output:
        output.console.progress(training.step)
        if training.step % run.log_every_steps == 0 or training.step == run.max_steps:
            values = {
                "loss": step.loss,
                "bits_per_byte": output.corpus.train.bits_per_byte(step.loss),
                "gradient_norm": step.gradient_norm,
                "learning_rate": training.optimizers[0].param_groups[0]["lr"],
                "skipped": training.skipped,
                "tokens_per_second": round(step.n_tokens / step.seconds),
                "seconds": round(training.seconds, 3),
            }
            output.log.record(training.step, "train", values)
    if training.skipped_in_row >= MAX_SKIPPED_STEPS:
        raise diverged(training, f"{MAX_SKIPPED_STEPS} steps in a row had a loss or gradient that is not finite")


def diverged(training: Training, problem: str) -> FloatingPointError:
    """Returns the error of a run that cannot be continued."""
    optim, run = training.settings.optim, training.settings.run
    precision = " or precision=float32" if training.device.dtype is torch.bfloat16 else ""
    resume = f"with resume=true {quote(f'out={run.out}')} " if run.out else ""
    return FloatingPointError(
        f"step {training.step}: {problem}; try {resume}a lower optim.learning_rate (now {optim.learning_rate:g}) or "
        f"optim.embedding_learning_rate (now {optim.embedding_learning_rate:g}){precision}"
    )


# Evaluation, probe and checkpoints


def is_probe_step(step: int, max_steps: int) -> bool:
    """Returns True at the steps 0, 1, 2, 4 ... 512, at every 2 % of the training, and at its end."""
    interval = max(1, round(max_steps / 50))
    is_power_of_two = step <= 512 and step & (step - 1) == 0
    return is_power_of_two or step % interval == 0 or step == max_steps


def evaluate(training: Training, output: Output | None) -> None:
    """Probes the model, measures its validation loss and saves a checkpoint, if they are due after this step."""
    run, step = training.settings.run, training.step
    is_last = step == run.max_steps
    is_evaluation = step % run.eval_every_steps == 0 or is_last
    if not is_evaluation and not is_probe_step(step, run.max_steps):
        return
    state = training.state() if is_evaluation or training.is_sharded else None  # a collective call with FSDP
    if output is None:
        return
    if training.is_sharded and state is not None:
        output.model.load_state_dict(state["model"])
    output.model.eval()
    summary = run_probe(output, step)
    if is_evaluation and state is not None:
        validate(training, output, state, summary, is_last=is_last)
    output.model.train()


def run_probe(output: Output, step: int) -> list[str]:
    """Probes the model, records the result, and returns its summary."""
    reading = output.probe(output.model, step) if output.probe else None
    if reading is None:
        return []
    if step == 0:
        output.log.layout(
            name for name, value in reading.values.items() if isinstance(value, dict) and "chance_level" in value
        )
    output.log.record(step, "probe", reading.values)
    output.log.images(step, reading.images)
    if reading.snapshot is not None:
        output.log.attention(step, reading.snapshot)
    return reading.summary


def validate(training: Training, output: Output, state: dict[str, Any], summary: list[str], *, is_last: bool) -> None:
    """Measures the validation loss, prints it with the probe's summary, and saves a checkpoint."""
    run, split, model = training.settings.run, output.corpus.validation, output.model
    tokens_per_batch = run.tokens_per_batch // training.distributed.world_size  # what fits one device in training
    loss = validation_loss(model, split, tokens_per_batch, run.validation_tokens, training.device.autocast())
    measured = loss  # on the same tokens each time, so that steps can be compared; the last evaluation reads all
    if is_last:
        measured = validation_loss(model, split, tokens_per_batch, None, training.device.autocast())
    is_finite = isfinite(loss["loss"]) and isfinite(measured["loss"])
    if run.sample_tokens and is_finite:
        text = sample_text(model, output.corpus.tokenizer, run.sample_prompt, run.sample_tokens, run.seed)
        output.log.text(training.step, "sample", text)
    output.log.record(training.step, "validation", measured | {"whole": is_last, "seconds": round(training.seconds, 3)})
    output.console.print(step_line(training.step, measured["loss"], summary, training.skipped))
    if not is_finite and is_last:
        raise diverged(training, "the validation loss is not finite")
    if is_finite and training.skipped_in_row < 2:  # else the weights have diverged
        is_best = loss["loss"] <= training.best_loss
        training.best_loss = min(training.best_loss, loss["loss"])
        save(training, output, state | {"best_loss": training.best_loss}, is_best=is_best)
    if is_last:
        print_result(training, output, measured)


def save(training: Training, output: Output, state: dict[str, Any], *, is_best: bool) -> None:
    """Saves a checkpoint; the records of its step are on the disk by then."""
    folder, keep = output.run / "checkpoints", training.settings.run.keep_checkpoints
    save_checkpoint(folder, state | {"config": output.config}, training.step, best=is_best, keep=keep)
    training.saved_step = training.step


def stop_early(training: Training, output: Output | None) -> None:
    """Saves a checkpoint when a signal stops the run, if training has not diverged."""
    state = training.state()
    if output is None:
        return
    if training.saved_step != training.step and training.skipped_in_row < 2:
        save(training, output, state, is_best=False)
    resume = f"python train.py resume=true {quote(f'out={output.run}')}"
    output.console.print(f"stopped at step {max(0, training.saved_step)}; resume with: {resume}")


# Printed lines


def print_start(training: Training, output: Output) -> None:
    """Prints device, data, model and run directory."""
    settings, corpus, n_ranks = training.settings, output.corpus, training.distributed.world_size
    shape, n_tokens = settings.model, [len(split.tokens) for split in (corpus.train, corpus.validation)]
    sharding = f"; {n_ranks} processes, model {'sharded (FSDP)' if training.is_sharded else 'replicated (DDP)'}"
    for line in [
        f"device  {training.device.description}{sharding if n_ranks > 1 else ''}",
        f"data    {settings.data.source}: {n_tokens[0]:,} training and {n_tokens[1]:,} validation tokens, "
        f"vocabulary {output.model.vocab_size:,}",
        *(f"note    {note}" for note in corpus.notes),
        f"model   {n_parameters(output.model):,} parameters: {shape.n_layer} layers x {shape.n_head} heads, "
        f"width {shape.d_model}, context {shape.context_length}",
        f"run     {output.run}, step {training.step} of {settings.run.max_steps:,}; watch it with: "
        f"tensorboard --logdir {quote(str(output.run.parent))}",
    ]:
        output.console.print(line)


def step_line(step: int, loss: float, summary: list[str], n_skipped: int) -> str:
    """Returns the line of an evaluation, with at most three questions of the probe."""
    phrases = [f"step {step:>5}", f"validation loss {loss:.3f}", *summary[:3]]
    if len(summary) > 3:
        phrases.append(f"(TensorBoard shows {len(summary) - 3} more questions)")
    if n_skipped:
        phrases.append(f"skipped steps {n_skipped}")
    return "  ".join(phrases)


def print_result(training: Training, output: Output, measured: dict[str, Any]) -> None:
    """Prints the gap to the entropy lower bound, and adds the run to TensorBoard's table of hyperparameters."""
    for line in gap_lines(measured, is_causal=training.settings.model.is_causal):
        output.console.print(line)
    best = [entry["step"] for entry in read_manifest(output.run / "checkpoints") if entry["best"]]
    if best and best[0] != training.step:
        output.console.print(f"best validation loss {training.best_loss:.3f} at step {best[0]}; eval.py reads that one")
    names = [name for name in ("loss", "bits_per_byte", "gap") if name in measured]
    output.log.hyperparameters(
        training.step, result_settings(training.settings), {name: measured[name] for name in names}
    )
