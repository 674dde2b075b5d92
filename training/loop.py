"""Training: `train` sets up a run and loops over step, record, evaluation, probe and checkpoint until the last step."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer

from data.corpus import load_corpus
from data.loader import Corpus, Split
from data.text import print_files
from data.tokenizer import load_tokenizer
from model.transformer import Transformer, load_weights, n_parameters
from settings.command_line import next_command
from settings.errors import UserError
from settings.files import lock, naming
from settings.train import Device, TrainSettings
from training.checkpoint import drop_checkpoints_after, load_resumable, read_manifest, save_checkpoint
from training.device import Distributed, StopRequest, choose_device, keep_freed_memory, process_group
from training.evaluate import LossSummary, MakeProbe, Probe, validation_loss
from training.logging import Console, RunLog, gap_lines, print_unless_raised_again, start_lines, step_line
from training.run_dir import check_out_is_free, create_run, environment, run_config, write_run_files
from training.trainer import StepStats, Trainer, check_batch, make_trainer, train_step, wait_for_device
from training.weight_history import MAX_HISTORY_WEIGHTS, pack_parameters

Initial = tuple[Transformer, Tokenizer]  # what a run starts from

LAST_VALIDATION = 64  # the last evaluation reads up to this many times validation_tokens
MAX_SKIPPED_STEPS = 10  # in a row: not one bad batch, but diverged weights


@dataclass(frozen=True)
class _RunInputs:
    """What a run starts from, the same on every rank."""

    settings: TrainSettings  # with the commit of a hub dataset
    corpus: Corpus
    config: dict[str, Any]  # the content of config.json
    # The newest checkpoint of a resumed run; None: training starts at step 0.
    state: dict[str, Any] | None


@dataclass
class RunContext:
    """What only rank 0 has: the run directory and its open files, and the validation data."""

    folder: Path  # the run directory
    inputs: _RunInputs
    probe: Probe | None
    log: RunLog
    console: Console


def _load_inputs(settings: TrainSettings, tokenizer: Tokenizer | None, distributed: Distributed) -> _RunInputs:
    """Return what the run starts from; with several processes the settings of rank 0 count."""
    run = settings.run
    if run.init and run.resume:  # that of init= is no longer needed
        tokenizer = load_tokenizer(Path(run.out or "") / "tokenizer.json")
    corpus: Corpus | None = None
    config: dict[str, Any] = {}
    state = None

    # Rank 0 prepares the data, so that the others find them in the cache, and reads the checkpoint.
    if distributed.is_main:
        if not run.resume:
            check_out_is_free(run.out)  # before the data are prepared, which can take long
        print_files(settings.data)
        corpus = load_corpus(settings.data, Path(run.cache_dir), tokenizer)
        settings = replace(settings, data=corpus.config)
        config = run_config(settings, corpus.tokenizer, corpus.fingerprint)
        if run.resume:
            state = load_resumable(Path(run.out or ""), config)
            if state is None and run.init:
                raise UserError(f"{run.out}: was stopped before its first checkpoint; start a new run")
    settings, config, state = distributed.broadcast((settings, config, state))

    if corpus is None:
        corpus = load_corpus(settings.data, Path(settings.run.cache_dir), tokenizer)
    if corpus.fingerprint != config["data_fingerprint"]:
        problem = f"rank {distributed.rank} has other data than rank 0"
        raise UserError(f"data: {problem}; copy them from its machine")
    return _RunInputs(settings, corpus, config, state)


@contextmanager
def _open_run(
    trainer: Trainer, inputs: _RunInputs, make_probe: MakeProbe, arguments: Sequence[str], label: str
) -> Iterator[RunContext | None]:
    """Yield what rank 0 needs to evaluate and to write, None on the other ranks; the run is locked in the body."""
    if not trainer.distributed.is_main:
        yield None
        return
    run, state = inputs.settings.run, inputs.state
    if run.resume:
        folder = Path(run.out or "")
        run_lock = lock(folder)
    else:
        folder, run_lock = create_run(run.out)

    with closing(run_lock), naming(folder):
        machine = environment(trainer.device.description, torch.get_num_threads(), trainer.distributed.world_size)
        machine["arguments"] = list(arguments)
        if run.init and state is None:
            machine["init_sha256"] = sha256(
                pack_parameters(trainer.model.parameters(), torch.float32).encode()
            ).hexdigest()
        probe = make_probe(inputs.corpus, inputs.settings)  # before a file is written: it may refuse the stories
        if state is not None:
            drop_checkpoints_after(folder / "checkpoints", trainer.step)
        # A finished run that is resumed trains nothing, so its files stay as they are, whatever was changed.
        if trainer.step < run.max_steps:
            write_run_files(folder, inputs.config, inputs.corpus.tokenizer, machine, is_new=state is None)

        before = state["config"] if state else inputs.config
        with (
            closing(RunLog(folder, trainer.saved_step, before["run"]["log_every_steps"])) as log,
            closing(Console(trainer.step, run.max_steps, label)) as console,
        ):
            yield RunContext(folder, inputs, probe, log, console)


def train(
    settings: TrainSettings, make_probe: MakeProbe, arguments: Sequence[str], label: str, initial: Initial | None
) -> int:
    """Train to max_steps, from the newest checkpoint with resume=true; return 0, or 128 + the number of a signal.

    `arguments` are those of train.py that give the settings; `label` precedes every line that is printed; `initial` is
    that of init= at step 0.
    """
    run = settings.run
    with process_group(use_cuda=run.device is not Device.cpu) as distributed:
        device = choose_device(run.device, run.precision, run.threads)
        check_batch(settings, distributed)  # before the data and the model are made
        keep_freed_memory()
        threading.excepthook = print_unless_raised_again
        inputs = _load_inputs(settings, initial[1] if initial else None, distributed)
        settings, corpus = inputs.settings, inputs.corpus
        model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), settings.run.seed)
        if initial:
            load_weights(model, initial[0].state_dict())
        model = model.to(device.device)
        trainer = make_trainer(settings, model, corpus.train, device, distributed)
        if inputs.state is not None:
            trainer.load(inputs.state)

        with _open_run(trainer, inputs, make_probe, arguments, label) as context, closing(StopRequest()) as stop:
            _train(trainer, corpus.validation, context, stop)
    return stop.exit_status


def _train(trainer: Trainer, validation: Split, context: RunContext | None, stop: StopRequest) -> None:
    """Take the steps that are left, unless a signal stops the run."""
    run = trainer.settings.run

    # A new run begins with an evaluation and a checkpoint.
    if context:
        context.console.print(*start_lines(trainer, context.inputs.corpus, context.folder))
    if trainer.saved_step < 0:
        _evaluate_and_save(trainer, validation, context)

    while trainer.step < run.max_steps and not _is_stopped(stop, trainer):
        stats = train_step(trainer)
        if context:
            context.console.advance(trainer.step)
        if is_due(trainer.step, run.log_every_steps, run.max_steps):
            log_step(trainer, context, stats)
        _evaluate_and_save(trainer, validation, context)

    if trainer.step < run.max_steps:
        _stop_early(trainer, context)
    elif context:
        command = next_command("eval", f"run={context.folder}", run.cache_dir)
        context.console.print(f"done    {trainer.seconds:.0f} s of training; next: {command}")


def _is_stopped(stop: StopRequest, trainer: Trainer) -> bool:
    """Return True if a signal was received; several processes stop together, at the next step that is logged."""
    if trainer.distributed.world_size > 1:
        if trainer.step % trainer.settings.run.log_every_steps:
            return False
        stop.receive(max(trainer.distributed.gather(stop.signal or 0)))
    return stop.signal is not None


def log_step(trainer: Trainer, context: RunContext | None, stats: StepStats) -> None:
    """Record a training step, and stop a run that cannot learn. Between evaluations the only wait for the device."""
    wait_for_device(trainer)
    loss = fmean(trainer.distributed.gather(stats.loss.item()))

    # Losses and norms are of this step, the speed is of all steps since the last record. The first step has none.
    speed = None
    if trainer.n_tokens:
        speed = round(trainer.n_tokens / (trainer.seconds - trainer.recorded_seconds))
    if context:
        values = {
            "loss": loss,
            "bits_per_byte": context.inputs.corpus.train.bits_per_byte(loss),
            "gradient_norm": stats.gradient_norm.item(),
            "learning_rate": stats.learning_rate,
            "skipped": int(trainer.skipped),
            "tokens_per_second": speed,
            "seconds": round(trainer.seconds, 3),
        }
        context.log.record(trainer.step, "train", values)
        context.console.show_loss(loss)
    trainer.recorded_seconds = trainer.seconds
    trainer.n_tokens = 0

    if stats.gradient_norm == 0:  # a wrong compilation does this, and weights that are all 0
        raise UserError(f"step {trainer.step}: the gradient is exactly 0; try compile=none, or a lower learning rate")
    if trainer.skipped_in_row >= MAX_SKIPPED_STEPS:
        raise _diverged(trainer, f"{MAX_SKIPPED_STEPS} steps in a row had a loss or gradient that is not finite")


def _diverged(trainer: Trainer, problem: str) -> FloatingPointError:
    optim = trainer.settings.optim
    return FloatingPointError(
        f"step {trainer.step}: {problem}; try a lower optim.learning_rate (now {optim.learning_rate:g}) or "
        f"optim.embedding_learning_rate (now {optim.embedding_learning_rate:g}), or precision=float32"
    )


def is_due(step: int, interval: int, max_steps: int) -> bool:
    """Return True at multiples of `interval` and at max_steps."""
    return step % interval == 0 or step == max_steps


def is_probe_step(step: int, max_steps: int) -> bool:
    """Return True at step 0, at max_steps / 2^i, i = 0 to 8, and at 3 max_steps / 2^i, i = 2 to 5."""
    due = {0} | {round(max_steps / 2**i) for i in range(9)} | {round(3 * max_steps / 2**i) for i in range(2, 6)}
    return step in due


def _evaluate_and_save(trainer: Trainer, validation: Split, context: RunContext | None) -> None:
    """Probe the model, measure its validation loss (on all ranks) and save a checkpoint, if they are due now."""
    run, step = trainer.settings.run, trainer.step
    is_evaluation = is_due(step, run.eval_every_steps, run.max_steps)
    if not is_evaluation and not is_probe_step(step, run.max_steps):
        return
    wait_for_device(trainer)  # or the steps in its queue would count as time of the evaluation

    trainer.model.eval()
    summary = _probe(trainer, context) if context else []
    if is_evaluation or 16 * step >= run.max_steps:  # earlier the loss of the batches says enough
        first, measured = _validation_losses(trainer, validation)
        if context:
            _record_and_save(trainer, context, first, measured, summary)
    trainer.model.train()


def _probe(trainer: Trainer, context: RunContext) -> list[str]:
    """Record the weights of a small model, probe it, record the result, and return its summary."""
    step, model = trainer.step, trainer.model
    if n_parameters(model) <= MAX_HISTORY_WEIGHTS:
        context.log.weights(step, pack_parameters(model.parameters(), torch.float16))
    record = context.probe(model, step) if context.probe else None
    if record is None:
        return []
    if record.values:
        context.log.record(step, "probe", record.values)
    context.log.show(step, record.images, record.lines)
    context.console.status = record.summary[0] if record.summary else ""
    return record.summary


def _validation_losses(trainer: Trainer, validation: Split) -> tuple[float, LossSummary]:
    """Return the loss on the first `validation_tokens`, which chooses the best checkpoint, and the one to record.

    They are the same but at the last step, which measures the whole split, or its first tokens if it is very long.
    """
    run = trainer.settings.run
    tokens_per_batch = run.tokens_per_batch // trainer.distributed.world_size  # what fits one device in training
    measure = partial(
        validation_loss, trainer.model, validation, tokens_per_batch,
        autocast=trainer.device.autocast(), distributed=trainer.distributed,
    )  # fmt: skip
    measured = measure(run.validation_tokens)
    loss = measured.loss
    if trainer.step == run.max_steps:
        measured = measure(run.validation_tokens * LAST_VALIDATION)
    return loss, measured


def _record_and_save(
    trainer: Trainer, context: RunContext, loss: float, measured: LossSummary, summary: list[str]
) -> None:
    """Record, at an evaluation also print and save; FloatingPointError at the end of a run that has diverged."""
    run, step, corpus = trainer.settings.run, trainer.step, context.inputs.corpus
    is_last = step == run.max_steps
    is_whole = is_last and len(corpus.validation.tokens) <= run.validation_tokens * LAST_VALIDATION
    is_finite = isfinite(loss) and isfinite(measured.loss)

    values = measured.known() | {"whole": is_whole, "seconds": round(trainer.seconds, 3)}
    context.log.record(step, "validation", values)
    # The steps between evaluations only make the curve finer.
    if not is_due(step, run.eval_every_steps, run.max_steps):
        return
    context.console.print(step_line(step, measured.loss, summary, int(trainer.skipped)))
    if is_last and not is_whole:
        n_tokens = run.validation_tokens * LAST_VALIDATION
        context.console.print(f"the loss is that of the first {n_tokens:,} of {len(corpus.validation.tokens):,} tokens")
    if is_last and not is_finite:
        raise _diverged(trainer, "the validation loss is not finite")

    # Save.
    if isfinite(loss) and not trainer.has_diverged:
        # The weights that init= begins with are another run's: never the best ones of this one.
        is_best = loss <= trainer.best_loss and not (run.init and step == 0)
        if is_best:
            trainer.best_loss = loss
        _save(trainer, context, is_best=is_best)
    if is_last:
        context.console.print(*gap_lines(measured.gap, measured.gap_error))


def _save(trainer: Trainer, context: RunContext, *, is_best: bool) -> None:
    """Save a checkpoint; the records of its step are on the disk by then."""
    content = trainer.state() | {"config": context.inputs.config}
    keep = trainer.settings.run.keep_checkpoints
    save_checkpoint(context.folder / "checkpoints", content, best=is_best, keep=keep)
    trainer.saved_step = trainer.step


def _has_measured_best(context: RunContext) -> bool:
    """Whether the part of the run before this one left a best checkpoint whose loss was measured."""
    state = context.inputs.state
    best = [entry.step for entry in read_manifest(context.folder / "checkpoints") if entry.best]
    if state is None or not any(best):
        return False
    before = state["config"]["run"]
    return best != [state["step"]] or is_due(best[0], before["eval_every_steps"], before["max_steps"])


def _stop_early(trainer: Trainer, context: RunContext | None) -> None:
    """Save a checkpoint when a signal stops the run, if training has not diverged."""
    wait_for_device(trainer)
    if context is None:
        return
    if trainer.saved_step != trainer.step and not trainer.has_diverged:
        # Before the first evaluation only untrained weights have been measured, and they are not the best.
        every = trainer.settings.run.eval_every_steps
        start = context.inputs.state["step"] if context.inputs.state else 0
        is_early = trainer.step // every == start // every
        _save(trainer, context, is_best=is_early and not _has_measured_best(context))
    cache_dir = trainer.settings.run.cache_dir
    command = next_command("train", f"out={context.folder}", cache_dir, "resume=true")
    context.console.print(f"stopped at step {max(0, trainer.saved_step)}; resume with: {command}")
