"""Prepare a run for its first step: processes, device, data, model, folder, and the watchers of rank 0."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from data.corpus import load_corpus
from data.loader import Corpus, Split
from data.text import print_files
from data.tokenizer import load_tokenizer
from model.transformer import Transformer, load_weights
from settings.errors import UserError
from settings.files import read_json, remove_unfinished_files, write_atomically, write_json
from settings.train import Device, TrainSettings
from training.checkpoint import Checkpoints, drop_checkpoints_after, load_checkpoint
from training.device import Distributed, StopRequest, choose_device, keep_freed_memory, process_group
from training.evaluate import MakeProbe, Probe
from training.logging import Console, RunLog, print_unless_raised_again
from training.loop import Watcher
from training.run_dir import check_out_is_free, environment, locked_run, run_config
from training.trainer import Recorder, Trainer, check_batch, make_trainer
from training.weight_history import pack_parameters

Initial = tuple[Transformer, Tokenizer]  # the model and tokenizer to start from
Training = tuple[Trainer, Split, Probe | None, list[Watcher], StopRequest]  # what `training.loop.train` takes
State = dict[str, Any]  # what a checkpoint holds: `Trainer.state`


@contextmanager
def open_training(
    settings: TrainSettings,
    make_probe: MakeProbe,
    record: Recorder,
    arguments: Sequence[str],
    label: str,
    initial: Initial | None,
) -> Iterator[Training]:
    """Yield a training at step 0 or, with resume=true, at the newest checkpoint. The run is locked in the body.

    `arguments` are those of train.py that give the settings; `label` precedes every line that is printed; `initial` is
    that of init= at step 0.
    """
    run = settings.run
    with process_group(use_cuda=run.device is not Device.cpu) as distributed, ExitStack() as stack:
        device = choose_device(run.device, run.precision, run.threads)
        check_batch(settings, distributed)  # before the data and the model are made
        keep_freed_memory()
        threading.excepthook = print_unless_raised_again
        settings, corpus, state = _load_inputs(settings, initial, distributed)
        model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), run.seed)
        if initial:
            load_weights(model, initial[0].state_dict())
        trainer = make_trainer(settings, model.to(device.device), corpus.train, device, distributed, record)
        if state:
            trainer.load(state)
            if trainer.step > run.max_steps:
                raise UserError(f"max_steps={run.max_steps}: the run has already taken {trainer.step} steps")

        probe = None
        watchers: list[Watcher] = []
        if distributed.is_main:
            folder = stack.enter_context(locked_run(run.out, resume=run.resume))
            probe = make_probe(corpus, settings)  # before a file is written: it may refuse the stories
            config = _write_files(folder, trainer, corpus, arguments, is_new=state is None)
            first_step = trainer.step + 1 if trainer.step else 0  # step 0 is measured again
            log = stack.enter_context(closing(RunLog(folder, first_step)))
            console = stack.enter_context(closing(Console(trainer, corpus, folder, label)))
            watchers = [log, Checkpoints(folder / "checkpoints", config), console]
        yield trainer, corpus.validation, probe, watchers, stack.enter_context(closing(StopRequest()))


def _load_inputs(
    settings: TrainSettings, initial: Initial | None, distributed: Distributed
) -> tuple[TrainSettings, Corpus, State | None]:
    """Return the settings with the commit of a hub dataset, the data, and the newest checkpoint of a resumed run.

    With several processes the settings of rank 0 count. It prepares the data, so that the others find them in the
    cache, and reads the checkpoint.
    """
    run = settings.run
    tokenizer = initial[1] if initial else None
    if run.init and run.resume:  # that of init= is no longer needed
        tokenizer = load_tokenizer(Path(run.out or "") / "tokenizer.json")
    corpus: Corpus | None = None
    fingerprint, state = "", None
    if distributed.is_main:
        if not run.resume:
            check_out_is_free(run.out)  # before the data are prepared, which can take long
        print_files(settings.data)
        corpus = load_corpus(settings.data, Path(run.cache_dir), tokenizer)
        settings = replace(settings, data=corpus.config)
        fingerprint = corpus.fingerprint
        if run.resume:
            state = _load_state(settings, fingerprint)
    settings, fingerprint, state = distributed.broadcast((settings, fingerprint, state))

    if corpus is None:
        corpus = load_corpus(settings.data, Path(settings.run.cache_dir), tokenizer)
    if corpus.fingerprint != fingerprint:
        raise UserError(f"data: rank {distributed.rank} has other data than rank 0; copy them from its machine")
    return settings, corpus, state


def _load_state(settings: TrainSettings, fingerprint: str) -> State | None:
    """Return the newest checkpoint, None before the first; UserError if it is lost, or if the data have changed."""
    folder = Path(settings.run.out or "")
    if read_json(folder / "config.json").get("data_fingerprint") != fingerprint:
        raise UserError(f"{folder}: the text, or the generator of the stories, has changed; start a new run")
    try:
        return load_checkpoint(folder / "checkpoints")
    except FileNotFoundError:
        # A run that has recorded steps had a checkpoint, of step 0 at least.
        metrics = folder / "metrics.jsonl"
        if metrics.exists() and b'"split": "train"' in metrics.read_bytes():
            raise UserError(f"{folder}: the checkpoints are lost; restore them, or start a new run") from None
        if settings.run.init:
            raise UserError(f"{folder}: was stopped before its first checkpoint; start a new run") from None
        return None


def _write_files(
    folder: Path, trainer: Trainer, corpus: Corpus, arguments: Sequence[str], *, is_new: bool
) -> dict[str, Any]:
    """Write what a run begins with, and return the content of its config.json."""
    run = trainer.settings.run
    tokenizer = corpus.tokenizer.to_str(pretty=True).encode()
    config = run_config(trainer.settings, tokenizer, corpus.fingerprint)
    if not is_new:
        drop_checkpoints_after(folder / "checkpoints", trainer.step)
    # A finished run that is resumed trains nothing, so its files stay as they are, whatever was changed.
    if trainer.step == run.max_steps:
        return config

    remove_unfinished_files(folder)  # it is locked
    if is_new:
        machine = environment(trainer.device.description, torch.get_num_threads(), trainer.distributed.world_size)
        machine["arguments"] = list(arguments)
        if run.init:
            weights = pack_parameters(trainer.model.parameters(), torch.float32)
            machine["init_sha256"] = sha256(weights.encode()).hexdigest()
        write_json(folder / "environment.json", machine)
    write_json(folder / "config.json", config)
    write_atomically(folder / "tokenizer.json", tokenizer)
    return config
