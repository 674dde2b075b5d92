"""A run, set up: from settings, and what a checkpoint holds, to everything that training needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.config import DataConfig
from training.describing import describe, describe_resume, described, mend_tokenizer
from training.distributed import ALONE, World
from training.settings import (
    TrainSettings,
    changed_settings,
    check_changes,
    flat,
    result_settings,
    saved_settings,
)

if TYPE_CHECKING:
    from io import FileIO

    from torch import nn

    from data.corpus import Corpus
    from data.links import LinkItem
    from data.loader import Split
    from model.transformer import Transformer
    from probe.snapshots import Film
    from training.device import Place
    from training.logging import Progress, Recorder
    from training.trainer import Training


@dataclass(frozen=True)
class Run:
    """What is trained, on what, and where it is written down."""

    settings: TrainSettings
    path: Path
    training: Training
    model: Transformer
    corpus: Corpus
    items: dict[str, list[LinkItem]]  # of the probe during training
    film: Film | None  # what is kept of the probe's attention; None where there are no items
    recorder: Recorder
    progress: Progress
    config: dict[str, Any]  # as config.json holds it, and each checkpoint
    claim: FileIO  # nobody else writes to `path` while it is open


@dataclass(frozen=True)
class Plan:
    """What rank 0 tells the others once nothing speaks against the run."""

    settings: TrainSettings
    data: DataConfig  # with the commit of what was the newest
    data_fingerprint: str
    state: dict[str, Any] | None  # of the checkpoint that is gone on from: its file need be on no other machine
    device: str
    bfloat16: bool


def prepare(settings: TrainSettings, label: str = "", world: World = ALONE) -> Run:
    """Set everything up and write down what was set up; ValueError or OSError for what cannot be.

    Of several processes rank 0 does, and the others `follow` it.
    """
    from data.corpus import load_corpus
    from model.transformer import Transformer
    from training.logging import Progress
    from training.run_dir import check_new, create_run, lock
    from training.watching import showcase_film

    own, path = settings.run, Path(settings.run.out or "")
    place = settle(settings)
    check_processes(settings, world)
    if own.resume:
        claimed = lock(path)
    else:
        check_new(own.out)  # said before anything takes time
    corpus = load_corpus(settings.data, Path(own.cache_dir))
    settings = replace(settings, data=corpus.config)  # the newest revision has become a commit
    config = described(settings, corpus)
    state = load_state(path, config, settings) if own.resume else None
    world.tell(Plan(settings, corpus.config, corpus.fingerprint, state, place.device.type, place.bfloat16))
    world.agree(0)  # one process of every machine has its corpus
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), own.seed).to(place.device)
    training = make_training(settings, model, corpus.train, place, world)
    items = probe_items(settings, corpus)
    if state is not None:
        restore(training, state, path)
        describe_resume(path, config, state, settings, place, world.size)
        mend_tokenizer(path, corpus)
    else:
        if not own.resume:
            path, claimed = create_run(own.out)
        describe(path, config, corpus, place, world.size)
    world.tell_run(path)
    film = showcase_film(corpus, settings.model.context_length) if items else None
    began = -1 if state is None else training.step  # what was recorded later is written again
    looked = state is None or training.looked_step == training.step
    recorder = open_records(settings, path, corpus, items, film, began if own.resume else None, looked=looked)
    progress = Progress(own.max_steps, training.step, label)
    return Run(settings, path, training, model, corpus, items, film, recorder, progress, config, claimed)


def settle(settings: TrainSettings) -> Place:
    """Choose where this process computes, and begin there; ValueError for what this machine cannot do."""
    import torch

    from training.device import choose_place, keep_freed_memory

    own = settings.run
    if own.threads:
        torch.set_num_threads(own.threads)
    place = choose_place(own.device, own.precision)
    keep_freed_memory()
    torch.manual_seed(own.seed)  # dropout
    return place


def check_processes(settings: TrainSettings, world: World) -> None:
    """Raise ValueError for what several processes cannot do, or where there are more of them than rows to share."""
    from training.settings import Compile

    if world.size == 1:
        return
    own, context = settings.run, settings.model.context_length
    if own.compile is Compile.graphs:
        raise ValueError("compile=graphs is for one process: use compile=default or compile=none under torchrun")
    n_rows = max(1, own.tokens_per_batch // context)
    if n_rows < world.size:
        raise ValueError(
            f"tokens_per_batch={own.tokens_per_batch} is {n_rows} of the rows of model.context_length={context}, and "
            f"there are {world.size} processes to share them: start fewer, or raise it"
        )


def follow(world: World) -> Training:
    """Set up, on a rank above 0, what rank 0 trains; ValueError or OSError for what only this machine lacks."""
    from socket import gethostname

    from data.corpus import load_corpus
    from model.transformer import Transformer

    plan: Plan = world.tell(None)  # type: ignore[assignment]
    settings = replace(plan.settings, data=plan.data)
    place = settle(settings)
    here = f"rank {world.rank} on {gethostname()}"
    if place.device.type != plan.device:
        raise ValueError(f"{here} computes on {place.where}, and rank 0 on {plan.device}: device= says on which all do")
    place = replace(place, bfloat16=plan.bfloat16)
    cache = Path(settings.run.cache_dir)
    corpus = load_corpus(settings.data, cache) if world.local_rank == 0 else None
    world.agree(0)
    corpus = corpus or load_corpus(settings.data, cache)  # that the one before has written, or one on another machine
    if corpus.fingerprint != plan.data_fingerprint:
        raise ValueError(f"{here} has other data than rank 0, a text or the generator of the stories")
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), settings.run.seed).to(place.device)
    training = make_training(settings, model, corpus.train, place, world)
    if plan.state is not None:
        training.load(plan.state)
    world.tell_run(None)
    return training


def load_state(path: Path, config: dict[str, Any], settings: TrainSettings) -> dict[str, Any] | None:
    """Return the newest whole checkpoint of a run that is gone on with; None where it was killed before its first.

    Raises ValueError in one line where `config` differs from the run's or from the checkpoint's in what may not change.
    """
    from training.checkpoint import load_checkpoint
    from training.run_dir import read_json

    if read_json(path / "config.json").get("data_fingerprint") != config["data_fingerprint"]:
        raise ValueError(f"{path} cannot go on: its data, a text or the generator of the stories, has changed since")
    try:
        state, damaged = load_checkpoint(path / "checkpoints")
    except FileNotFoundError:
        if n_steps := steps_recorded(path):
            raise ValueError(
                f"{path} cannot go on: its checkpoints are gone, though metrics.jsonl tells of {n_steps} steps: copy "
                "them from where the run was made, or begin another run"
            ) from None
        return None
    for line in damaged:
        print(f"warning: {line}", file=sys.stderr)
    if not isinstance(state.get("config"), dict):
        raise ValueError(f"{path} cannot go on: its checkpoint does not hold its settings, another version wrote it")
    changes = changed_settings(flat(saved_settings(state["config"])), flat(settings))
    check_changes(changes)
    step, last = state.get("step"), settings.run.max_steps
    if type(step) is not int or step < 0:
        raise ValueError(f"{path} cannot go on: its checkpoint does not say after how many steps it was made")
    if step > last or (step == last and "max_steps" in changes):
        raise ValueError(f"{path} cannot go on: max_steps is {last}, and {step} steps have been taken")
    return state


def steps_recorded(path: Path) -> int:
    """Return the last step that a run's metrics.jsonl tells of, 0 where it is gone or holds none."""
    from training.logging import read_records

    if not (path / "metrics.jsonl").exists():
        return 0
    return max((record["step"] for record in read_records(path)), default=0)


def restore(training: Training, state: dict[str, Any], path: Path) -> None:
    """Bring `training` to the moment of `state`; ValueError where that is of another program, whatever it says."""
    from torch import OutOfMemoryError

    try:
        training.load(state)
    except OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        raise ValueError(f"{path} cannot go on: its checkpoint is not one of this training") from None


def make_training(
    settings: TrainSettings, model: Transformer, split: Split, place: Place, world: World = ALONE
) -> Training:
    """Bring model, batches, loss and optimizers together at step 0; `model` itself is trained unless it is sharded."""
    from copy import deepcopy

    from data.loader import BatchLoader, training_batches
    from training.device import resident_room
    from training.evaluate import SummedLoss
    from training.optim import make_optimizers
    from training.settings import Compile, Sharding
    from training.trainer import Training, compiled

    own = settings.run
    batches = training_batches(
        split,
        tokens_per_batch=own.tokens_per_batch,
        context_length=settings.model.context_length,
        seed=own.seed,
    )

    full = own.compile is not Compile.none  # each shape would be compiled anew
    supply = BatchLoader(batches, place.device, pad=full, resident_bytes=resident_room(place.device), rows=world.share)
    cut = world.size > 1 and own.sharding is Sharding.fsdp
    learner: nn.Module = model
    spread: nn.Module | None = None
    if cut:
        from training.shards import sharded

        learner = deepcopy(model) if world.is_first else model  # rank 0 looks at a whole one
        spread = sharded(learner, place.device)
    loss: nn.Module = SummedLoss(learner, exact=world.size > 1)
    if world.size > 1 and not cut:
        from training.shards import replicated

        loss = spread = replicated(loss)
    summed_loss = compiled(loss, own.compile, place.device)
    optimizers, scale = make_optimizers(learner, settings.optim, sharded=cut), batches.split.bits_per_byte
    return Training(
        learner, summed_loss, supply, scale, optimizers, place, own, settings.optim, world=world, spread=spread
    )


def probe_items(settings: TrainSettings, corpus: Corpus) -> dict[str, list[LinkItem]]:
    """Return the dev items to probe on while training; none for a text without gold links, or a model that cheats."""
    from data.corpus import load_rows
    from data.links import link_items
    from data.loader import StorySplit
    from data.tokenizer import end_id
    from probe.emergence import choose_items

    if not isinstance(corpus.train, StorySplit) or not settings.run.probe_sequences or not settings.model.is_causal:
        return {}
    items = link_items(load_rows(corpus, "dev"), corpus.tokenizer, end_id(corpus.tokenizer))
    return choose_items(items, settings.run.probe_sequences)


def open_records(
    settings: TrainSettings,
    path: Path,
    corpus: Corpus,
    items: dict[str, list[LinkItem]],
    film: Film | None,
    resumed_step: int | None,
    *,
    looked: bool,
) -> Recorder:
    """Open what a run writes as it goes, and lay out how TensorBoard shows it; what came after `resumed_step` goes."""
    from data.corpus import CLASSES
    from data.links import ORACLES
    from data.loader import StorySplit
    from probe.items import QUESTIONS
    from probe.snapshots import FILM
    from training.board import charts, measures
    from training.logging import Recorder

    split = corpus.validation
    known = isinstance(split, StorySplit) and split.classes is not None
    floor = isinstance(split, StorySplit) and split.floor is not None
    recorder = Recorder(path, resumed_step, looked=looked)
    recorder.board.overlay(charts(CLASSES if known else (), list(items), ORACLES, floor=floor))
    named = {question.name: question.name for question in QUESTIONS if question.name in items}
    recorder.board.settings(result_settings(settings), measures(named, floor=floor))
    if film is not None:
        recorder.beside(FILM, film.header(settings.model.n_layer, settings.model.n_head))
    for line in recorder.lost:
        print(f"warning: {line}", file=sys.stderr)
    return recorder
