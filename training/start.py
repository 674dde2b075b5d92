"""Prepare a run for its first step: processes, device, data, model, folder, and the watchers of rank 0."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from data.corpus import load_corpus
from data.loader import Corpus
from data.text import print_files
from data.tokenizer import load_tokenizer
from model.transformer import Transformer, load_weights
from settings.errors import UserError
from settings.files import lock, naming
from settings.train import Device, TrainSettings
from training.checkpoint import Checkpoints, drop_checkpoints_after, load_resumable
from training.device import Distributed, StopRequest, choose_device, keep_freed_memory, process_group
from training.evaluate import MakeProbe
from training.logging import Console, ProbeCurves, RunLog, print_unless_raised_again
from training.loop import Watcher
from training.run_dir import check_out_is_free, create_run, environment, run_config, write_run_files
from training.trainer import Recorder, Trainer, check_batch, make_trainer
from training.weight_history import pack_parameters

Initial = tuple[Transformer, Tokenizer]  # the model and tokenizer to start from


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a run, the same on every rank."""

    settings: TrainSettings  # with the commit of a hub dataset
    corpus: Corpus
    config: dict[str, Any]  # the content of config.json
    state: dict[str, Any] | None  # the newest checkpoint of a resumed run; None: training starts at step 0


@contextmanager
def open_training(
    settings: TrainSettings,
    make_probe: MakeProbe,
    record: Recorder,
    arguments: Sequence[str],
    label: str = "",
    initial: Initial | None = None,
) -> Iterator[tuple[Trainer, Corpus, list[Watcher], StopRequest]]:
    """Yield what `training.loop.train` takes, at step 0 or, with resume=true, at the newest checkpoint.

    `arguments` are those of train.py that give the settings; `label` precedes every line that is printed; `initial` is
    that of init= at step 0. The run is locked in the body.
    """
    run = settings.run
    with process_group(use_cuda=run.device is not Device.cpu) as distributed, ExitStack() as stack:
        device = choose_device(run.device, run.precision, run.threads)
        check_batch(settings, distributed)  # before the data and the model are made
        keep_freed_memory()
        threading.excepthook = print_unless_raised_again
        inputs = _load_inputs(settings, initial[1] if initial else None, distributed)
        settings, corpus = inputs.settings, inputs.corpus
        model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), settings.run.seed)
        if initial:
            load_weights(model, initial[0].state_dict())
        trainer = make_trainer(settings, model.to(device.device), corpus.train, device, distributed, record)
        if inputs.state is not None:
            trainer.load(inputs.state)

        watchers = []
        if distributed.is_main:
            watchers = stack.enter_context(_watchers(trainer, inputs, make_probe, arguments, label))
        yield trainer, corpus, watchers, stack.enter_context(closing(StopRequest()))


def _load_inputs(settings: TrainSettings, tokenizer: Tokenizer | None, distributed: Distributed) -> _Inputs:
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
    return _Inputs(settings, corpus, config, state)


@contextmanager
def _watchers(
    trainer: Trainer, inputs: _Inputs, make_probe: MakeProbe, arguments: Sequence[str], label: str
) -> Iterator[list[Watcher]]:
    """Yield the watchers of a run, whose folder is created or resumed, and locked in the body."""
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
            weights = pack_parameters(trainer.model.parameters(), torch.float32)
            machine["init_sha256"] = sha256(weights.encode()).hexdigest()
        probe = make_probe(inputs.corpus, inputs.settings)  # before a file is written: it may refuse the stories
        if state is not None:
            drop_checkpoints_after(folder / "checkpoints", trainer.step)
        # A finished run that is resumed trains nothing, so its files stay as they are, whatever was changed.
        if trainer.step < run.max_steps:
            write_run_files(folder, inputs.config, inputs.corpus.tokenizer, machine, is_new=state is None)

        before = state["config"] if state else inputs.config
        with (
            closing(RunLog(folder, trainer.saved_step, before["run"]["log_every_steps"])) as log,
            closing(Console(inputs.corpus, folder, label)) as console,
        ):
            # A checkpoint is saved when the records of its step are on the disk, and named when it is saved.
            watchers: list[Watcher] = [log, Checkpoints(folder / "checkpoints", inputs.config, state), console]
            yield [ProbeCurves(probe, log, console), *watchers] if probe else watchers
