"""A run, set up: from settings, and what a checkpoint holds, to everything that training needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs import TrainSettings, check_same, of_result
from run.commands.describing import describe, describe_resume, described, mend_tokenizer

if TYPE_CHECKING:
    from io import FileIO

    from data.batches import Split
    from data.corpus import Corpus
    from data.links import LinkItem
    from model.transformer import Transformer
    from probe.record import Film
    from run.device import Place
    from run.logging import Progress, Recorder
    from run.training import Training


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


def prepare(settings: TrainSettings, label: str = "") -> Run:
    """Set everything up and write down what was set up; ValueError or OSError for what cannot be."""
    import torch

    from configs.memory import check_data_memory, check_training_memory
    from data.corpus import load_corpus
    from model.transformer import Transformer
    from run.commands.watching import showcase_film
    from run.device import choose_place, keep_freed_memory
    from run.directory import check_new, claim, create_run
    from run.logging import Progress

    own, path = settings.run, Path(settings.run.out or "")
    if own.threads:
        torch.set_num_threads(own.threads)
    place = choose_place(own.device, own.precision)
    keep_freed_memory()
    torch.manual_seed(own.seed)  # dropout
    if own.resume:
        claimed = claim(path)
    else:
        check_new(own.out)  # said before anything takes time
    on_cpu = place.device.type == "cpu"
    check_data_memory(settings)
    check_training_memory(settings, 1, 1, on_cpu=on_cpu)
    corpus = load_corpus(settings.data, Path(own.cache_dir))
    check_training_memory(settings, corpus.tokenizer.get_vocab_size(), len(corpus.train.tokens), on_cpu=on_cpu)
    settings = replace(settings, data=corpus.config)  # the newest revision has become a commit
    config = described(settings, corpus)
    state = load_state(path, config, settings) if own.resume else None
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), own.seed).to(place.device)
    training = make_training(settings, model, corpus.train, place)
    items = probe_items(settings, corpus)
    if state is not None:
        restore(training, state, path)
        describe_resume(path, config, state, settings, place)
        mend_tokenizer(path, corpus)
    else:
        if not own.resume:
            path, claimed = create_run(own.out)
        describe(path, config, corpus, place)
    film = showcase_film(corpus, settings.model.context_length) if items else None
    began = -1 if state is None else training.step  # what was recorded later is written again
    looked = state is None or training.looked_step == training.step
    recorder = open_records(settings, path, corpus, items, film, began if own.resume else None, looked=looked)
    progress = Progress(own.max_steps, training.step, label)
    return Run(settings, path, training, model, corpus, items, film, recorder, progress, config, claimed)


def load_state(path: Path, config: dict[str, Any], settings: TrainSettings) -> dict[str, Any] | None:
    """Return the newest whole checkpoint of a run that is gone on with; None where it was killed before its first.

    Raises ValueError in one line where `config` differs from the run's or from the checkpoint's in what may not change.
    """
    from run.checkpoint import load_checkpoint
    from run.directory import differences, read_json

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
    changes = check_same(differences(state["config"], config), settings.run)
    step, last = state.get("step"), settings.run.max_steps
    if type(step) is not int or step < 0:
        raise ValueError(f"{path} cannot go on: its checkpoint does not say after how many steps it was made")
    if step > last or (step == last and "max_steps" in changes):
        raise ValueError(f"{path} cannot go on: max_steps is {last}, and {step} steps have been taken")
    return state


def steps_recorded(path: Path) -> int:
    """Return the last step that a run's metrics.jsonl tells of, 0 where it is gone or holds none."""
    from run.logging import read_records

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


def make_training(settings: TrainSettings, model: Transformer, split: Split, place: Place) -> Training:
    """Bring model, batches, loss and optimizers together at step 0."""
    from data.batches import training_batches
    from data.supply import Supply
    from model.loss import SummedLoss
    from run.config import Compile
    from run.device import resident_room
    from run.schedule import make_optimizers
    from run.training import Training, compiled

    own = settings.run
    batches = training_batches(
        split,
        tokens_per_batch=own.tokens_per_batch,
        context_length=settings.model.context_length,
        seed=own.seed,
    )

    full = own.compile is not Compile.none  # each shape would be compiled anew
    supply = Supply(batches, place.device, full=full, room=resident_room(place.device))
    summed_loss = compiled(SummedLoss(model), own.compile, place.device)
    optimizers, scale = make_optimizers(model, settings.optim), batches.split.bits_per_byte
    return Training(model, summed_loss, supply, scale, optimizers, place, own, settings.optim)


def probe_items(settings: TrainSettings, corpus: Corpus) -> dict[str, list[LinkItem]]:
    """Return the dev items to probe on while training; none for a text without gold links, or a model that cheats."""
    from data.batches import StorySplit
    from data.corpus import load_rows
    from data.links import link_items
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
    from data.batches import StorySplit
    from data.corpus import CLASSES
    from data.links import ORACLES
    from probe.questions import QUESTIONS
    from probe.record import FILM
    from run.board import charts, measures
    from run.logging import Recorder

    split = corpus.validation
    known = isinstance(split, StorySplit) and split.classes is not None
    floor = isinstance(split, StorySplit) and split.floor is not None
    recorder = Recorder(path, resumed_step, looked=looked)
    recorder.board.overlay(charts(CLASSES if known else (), list(items), ORACLES, floor=floor))
    named = {question.curve: question.name for question in QUESTIONS if question.curve in items}
    recorder.board.settings(of_result(settings), measures(named, floor=floor))
    if film is not None:
        recorder.beside(FILM, film.header(settings.model.n_layer, settings.model.n_head))
    for line in recorder.lost:
        print(f"warning: {line}", file=sys.stderr)
    return recorder
