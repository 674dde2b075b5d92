"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE], --help for what there is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from configs import TrainSettings, check_same, door, of_result, one_line_errors, resumed, typed_train

if TYPE_CHECKING:
    from data.batches import Split
    from data.corpus import Corpus
    from data.links import LinkItem
    from model.transformer import Transformer
    from probe.emergence import Glimpse
    from probe.record import Film
    from run.device import Place
    from run.logging import Progress, Recorder
    from run.signals import StopRequest
    from run.training import Training


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(config: DictConfig) -> None:
    """Check the settings, then train."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    job, label = HydraConfig.get(), ""
    several = job.mode is RunMode.MULTIRUN
    with no_trace(Path(job.runtime.output_dir), Path(job.sweep.dir)) if several else nullcontext():
        with one_line_errors():
            settings = typed_train(config)
            if several:  # each run in a directory of its own: of the sweep's, or under out
                own = job.runtime.output_dir if settings.run.out is None else f"{settings.run.out}/{job.job.num}"
                settings = replace(settings, run=replace(settings.run, out=own))
                label = f"[{job.job.num}] "  # runs may be going on side by side
            if settings.run.resume:
                from run.directory import find_run, read_json

                saved = read_json(find_run(settings.run.out) / "config.json")
                settings = resumed(settings, saved, list(job.overrides.task))
        status = fit(settings, label)
    if status:
        sys.exit(status)


@contextmanager
def no_trace(output: Path, sweep: Path) -> Iterator[None]:
    """Remove what Hydra has made for a run of a sweep where that is refused: empty folders, and its own note of it."""
    try:
        yield
    except SystemExit:
        with suppress(OSError):  # a folder that holds anything stays
            output.rmdir()
            if [path.name for path in sweep.iterdir()] == ["multirun.yaml"]:
                (sweep / "multirun.yaml").unlink()
            for folder in (sweep, *sweep.parents):
                folder.rmdir()
        raise


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
    claim: IO[str]  # nobody else writes to `path` while it is open


def fit(settings: TrainSettings, label: str = "") -> int:
    """Train from start, or from the newest checkpoint, to `max_steps`; return the exit status.

    `label` stands before every line that is said.
    """
    from run.signals import StopRequest
    from run.training import enough_memory

    with one_line_errors():
        run = prepare(settings, label)
    stop, training = StopRequest(), run.training
    announce(run)
    with (
        one_line_errors(MemoryError, OSError, FloatingPointError),
        closing(run.claim),
        closing(run.recorder),
        enough_memory(training),
    ):
        steps(run, stop)
        if stop.signal is not None and training.looked_step < settings.run.max_steps:
            if training.saved != (training.step, training.looked_step) and not training.is_astray:
                save(run, best=False)
            where = f"step {max(0, training.saved[0])}"
            where += f" (by {training.step} its numbers were not finite)" if training.is_astray else ""
            run.progress.say(f"stopped at {where}; go on with: python train.py resume=true out={run.path}")
    return stop.exit_status if stop.signal is not None else 0


def steps(run: Run, stop: StopRequest) -> None:
    """Take every step that is left, and look at what was learned where that is due, until asked to stop."""
    from run.signals import Stopped
    from run.training import advance

    training = run.training
    try:
        look(run, stop)
        while training.step < run.settings.run.max_steps and stop.signal is None:
            advance(training, run.recorder)
            run.progress.show(training.step)
            look(run, stop)
    except Stopped:  # nothing of this look is written down: who goes on begins with it
        pass


def look(run: Run, stop: StopRequest) -> None:
    """Evaluate or probe after this step, where that is due and not yet behind us; Stopped where a signal is heard."""
    from run.schedule import is_probe_step

    training = run.training
    if training.looked_step == training.step:
        return
    if training.evaluates:
        evaluate(run, stop)
    elif is_probe_step(training.step, run.settings.run.max_steps):
        probe(run, stop)
    training.looked_step = training.step


def prepare(settings: TrainSettings, label: str = "") -> Run:
    """Set everything up and write down what was set up; ValueError or OSError for what cannot be."""
    import torch

    from configs.memory import check_data_memory, check_training_memory
    from data.corpus import load_corpus
    from model.transformer import Transformer
    from probe.commands.watching import showcase_film
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
        training.load(state)
        describe_resume(path, config, state, settings, place)
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
        return None
    for line in damaged:
        print(f"warning: {line}", file=sys.stderr)
    if not isinstance(state.get("config"), dict):
        raise ValueError(f"{path} cannot go on: its checkpoint does not hold its settings, another version wrote it")
    check_same(differences(state["config"], config), settings.run)
    return state


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
    from data.corpus import load_split
    from data.links import link_items
    from data.tokenizer import end_id
    from probe.emergence import choose_items

    if not isinstance(corpus.train, StorySplit) or not settings.run.probe_sequences or not settings.model.is_causal:
        return {}
    items = link_items(load_split(corpus, "dev"), corpus.tokenizer, end_id(corpus.tokenizer))
    return choose_items(items, settings.run.probe_sequences)


def described(settings: TrainSettings, corpus: Corpus) -> dict[str, Any]:
    """Return config.json of a run: its settings, and what the data make of them."""
    from hashlib import sha256

    tokenizer = sha256(tokenizer_file(corpus)).hexdigest()
    known = {"vocab_size": corpus.tokenizer.get_vocab_size(), "data_fingerprint": corpus.fingerprint}
    fresh = replace(settings, run=replace(settings.run, resume=False, resume_with_changes=False))
    config = asdict(fresh) | known | {"tokenizer_sha256": tokenizer}
    return json.loads(json.dumps(config, default=lambda choice: choice.value))


def tokenizer_file(corpus: Corpus) -> bytes:
    """Return the content of a run's tokenizer.json."""
    return corpus.tokenizer.to_str(pretty=True).encode()


def describe(path: Path, config: dict[str, Any], corpus: Corpus, place: Place) -> None:
    """Write into a new run's directory what is needed to read it; settings first, with which it can go on."""
    import torch

    from run.checkpoint import write_atomically
    from run.directory import environment, write_json

    write_json(path / "config.json", config)
    write_atomically(path / "tokenizer.json", tokenizer_file(corpus))
    write_json(path / "environment.json", environment(place.reason, torch.get_num_threads()))


def describe_resume(
    path: Path, config: dict[str, Any], state: dict[str, Any], settings: TrainSettings, place: Place
) -> None:
    """Write down that a run goes on from `state`, and what is no longer as it was; say what may change its losses."""
    from datetime import UTC, datetime

    import torch

    from run.checkpoint import go_back, save_checkpoint
    from run.directory import add_resume, clear_left_overs, differences, environment, read_json, write_json

    step, folder = state["step"], path / "checkpoints"
    changes = check_same(differences(state["config"], config), settings.run)
    here = environment(place.reason, torch.get_num_threads())
    moved = differences(read_json(path / "environment.json"), here)
    clear_left_overs(path)
    go_back(folder, step)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    add_resume(path, {"step": step, "time": when, "environment": moved, "settings": changes})
    if changes:  # a checkpoint always holds the settings that it is gone on with
        save_checkpoint(folder, state | {"config": config}, step, best=False, keep=settings.run.keep_checkpoints)
    if read_json(path / "config.json") != config:
        write_json(path / "config.json", config)
    said = [f"{name.removeprefix('packages.')} is {now}, not {before}" for name, (before, now) in moved.items()]
    if said:
        print(f"warning: losses may differ in their last bits: {'; '.join(said)}", file=sys.stderr)
    for name, (before, now) in changes.items():
        print(f"warning: from step {step} on {name} is {now}, not {before}", file=sys.stderr)


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
    return recorder


_FEW = 3  # questions; more are counted and not listed


def announce(run: Run) -> None:
    """Say what is about to happen."""
    from model.transformer import n_parameters

    config, corpus, say = run.settings.model, run.corpus, run.progress.say
    say(f"device  {run.training.place.reason}")
    say(
        f"data    {run.settings.data.source}: {len(corpus.train.tokens):,} training and "
        f"{len(corpus.validation.tokens):,} validation tokens, vocabulary {run.model.vocab_size:,}"
    )
    for note in corpus.notes:
        say(f"note    {note}")
    say(
        f"model   {n_parameters(run.model):,} parameters: {config.n_layer} layers x {config.n_head} heads, "
        f"width {config.d_model}, context {config.context_length}"
    )
    say(f"run     {run.path} (from step {run.training.step} of {run.settings.run.max_steps})")
    say(f"watch   tensorboard --logdir {run.path.parent} --samples_per_plugin images=100")  # it shows 10 otherwise
    if len(run.items) > _FEW:
        say(f"probe   {len(run.items)} questions, each with its best head; above luck: it prefers the antecedent more")
        say("        often than the best head would if none knew anything. TensorBoard draws each")
    elif run.items:
        say("probe   V_S1: how often the best head at the pronoun prefers the antecedent; R_S2: the same at the word")
        say("        that decides; luck: what the best head would reach if none knew anything")


def evaluate(run: Run, stop: StopRequest) -> None:
    """Measure, probe, write a sample, keep a checkpoint, say a line; Stopped, before anything is written, by a signal.

    Raises FloatingPointError where the last step leaves a model whose loss is not finite.
    """
    from run.training import what_to_try

    own, training, recorder = run.settings.run, run.training, run.recorder
    step, last = training.step, training.step == own.max_steps
    run.model.eval()
    part = validation_loss(run, own.validation_tokens, stop)
    measured = validation_loss(run, None, stop) if last else part
    run.model.train()
    glimpses = probe(run, stop)
    training.evaluated_finite = isfinite(part["loss"] + measured["loss"])
    if own.sample_tokens and training.evaluated_finite:
        recorder.board.text(step, "sample", sample(run))
    is_kept = training.evaluated_finite if last else not training.is_astray
    best = is_kept and part["loss"] <= training.best_loss  # of the same part, so that steps can be compared
    training.best_loss = part["loss"] if best else training.best_loss
    speed = measure_speed(run) if last and is_kept else ""
    recorder.record(step, "validation", measured | {"whole": last, "seconds": round(training.seconds, 3)})
    training.looked_step = step
    if is_kept:
        save(run, best=best)
    run.progress.say(seen(run, measured, glimpses) + ("" if is_kept else "  no checkpoint is kept"))
    if last and not is_kept:
        raise FloatingPointError(
            f"the validation loss at the last step is not finite; {what_to_try(training, run.path)}"
        )
    if last:
        conclude(run, measured, speed)


def seen(run: Run, measured: dict[str, Any], glimpses: list[Glimpse]) -> str:
    """Return an evaluation in one line."""
    training, skipped = run.training, int(run.training.skipped)
    said = [f"step {training.step:>5}", "validation not finite"]
    if training.evaluated_finite:
        said[1:] = [f"validation {measured['loss']:.3f} nats/token", f"{measured['bits_per_byte']:.3f} bits/byte"]
    if skipped:
        said.append(f"skipped {skipped} step{'s' * (skipped > 1)}")
    if len(glimpses) > _FEW:
        above = [one.name for one in glimpses if one.sel1[one.layer, one.head] > one.luck]
        said.append(f"above luck: {len(above)} of {len(glimpses)}")
    for one in glimpses if len(glimpses) <= _FEW else []:
        where = f"L{one.layer}H{one.head} {one.sel1[one.layer, one.head]:.2f}"
        said.append(f"{one.name}: {where} (luck {one.luck:.2f})")
    return "  ".join(said)


def conclude(run: Run, measured: dict[str, Any], speed: str) -> None:
    """Mark the run as ended, and say what has come of it and what to do next."""
    from probe.commands.watching import show_embedding
    from run.logging import gap_lines

    if run.settings.data.source == "stories":  # whose words have kinds
        show_embedding(run.path, run.model, run.corpus.tokenizer)
    run.recorder.board.ended(run.training.step)
    for line in [*gap_lines(measured, cheats=not run.settings.model.is_causal), *best_lines(run), speed]:
        run.progress.say(line)
    seconds = run.training.seconds
    run.progress.say(f"done in {seconds:.1f} s of training; probe it with: python eval.py run={run.path}")


def best_lines(run: Run) -> list[str]:
    """Return which step eval.py will read where that is not the last: training on had begun to learn by heart."""
    from run.checkpoint import read_manifest

    (best,) = [one["step"] for one in read_manifest(run.path / "checkpoints") if one["best"]] or [run.training.step]
    if best == run.training.step:
        return []
    split, loss = run.corpus.validation, run.training.best_loss
    n_tokens = run.settings.run.validation_tokens
    where = "all" if n_tokens >= len(split.tokens) else f"the first {n_tokens:,} tokens"
    return [
        f"best    step {best}: {loss:.3f} nats/token, {split.bits_per_byte(loss):.3f} bits/byte on {where} of "
        "validation, the lowest; eval.py reads it"
    ]


def measure_speed(run: Run) -> str:
    """Record how fast training was and how much of this machine's ceiling that is; return it as a line."""
    from model.transformer import flops_per_token
    from run.ceiling import matmul_ceiling, speed_line

    training = run.training
    n_tokens, seconds = training.pace
    if not n_tokens:
        return "speed   not measured: the first step of a process does not count"
    rate, flops, bfloat16 = n_tokens / seconds, flops_per_token(run.model), training.place.bfloat16
    ceiling = matmul_ceiling(training.place.device, bfloat16=bfloat16)
    found = {"tokens_per_second": round(rate), "flops_per_token": flops, "ceiling_flops": ceiling}
    run.recorder.record(training.step, "speed", found | {"utilisation": rate * flops / ceiling})
    return speed_line(rate, flops, ceiling, bfloat16=bfloat16)


def validation_loss(run: Run, n_tokens: int | None, stop: StopRequest | None = None) -> dict[str, Any]:
    """Return the mean loss of validation, or of its first `n_tokens`, whole and by token class, and bits per byte.

    Where the least possible loss of every token is known, also that floor, the gap to it over the very same tokens,
    and the gap's standard error over stories. Raises Stopped between two batches where `stop` has heard a signal.
    """
    from data.batches import StorySplit, validation_batches
    from data.corpus import CLASSES
    from model.loss import row_losses, summarise

    split = run.corpus.validation
    batches = validation_batches(
        split,
        # Without gradients more fits; on a GPU the logits alone may not, and there a batch fills the machine anyway.
        tokens_per_batch=run.settings.run.tokens_per_batch * (4 if run.training.place.device.type == "cpu" else 1),
        context_length=run.settings.model.context_length,
        n_tokens=n_tokens,
    )
    alone = run.settings.model.is_causal  # stories are rows of their own; who sees the future must not see the padding
    heard = batches if stop is None else stop.before_each(batches)
    parts = ((one.read(alone=alone), one.targets, one.classes, one.floor) for one in heard)
    rows = row_losses(run.model, parts, len(CLASSES), run.training.place.autocast())
    known = isinstance(split, StorySplit) and split.classes is not None
    found = summarise(rows, CLASSES if known else ())
    return {**found, "bits_per_byte": split.bits_per_byte(found["loss"])}


def probe(run: Run, stop: StopRequest) -> list[Glimpse]:
    """Probe every head and the loss on a few dev stories, record it and draw the L x H maps; nothing for a text.

    Nothing either of a model that gives no finite numbers. Raises Stopped, before anything is written, by a signal.
    """
    import numpy as np

    from data.batches import StorySplit
    from data.tokenizer import end_id
    from probe.commands.watching import keep_attention, show_cells, show_heads
    from probe.emergence import glimpse, type_maxima

    own, split, step = run.settings.run, run.corpus.validation, run.training.step
    if not run.items or not isinstance(split, StorySplit):
        return []
    run.model.eval()
    half = split.starts[: own.probe_sequences // 2 + 1]  # of as many stories: the whole would double the cost
    measured = validation_loss(run, int(half[-1]), stop)
    found = glimpse(run.model, run.items, own.tokens_per_batch) if isfinite(measured["loss"]) else []
    if not found or any(np.isnan(one.dd).any() for one in found):
        run.model.train()
        return []
    types = type_maxima(run.model, end_id(run.corpus.tokenizer))
    if run.film is not None:
        every = keep_attention(run.recorder, step, run.film, run.model)
        if run.training.evaluates:
            show_cells(run.recorder, step, run.film, every, found[0])
    run.model.train()
    kinds = [kind for kind in ("loss", "gap") if f"{kind}_by_class" in measured]
    values: dict[str, Any] = {f"probe_{kind}": measured[f"{kind}_by_class"] for kind in kinds} | {"head_types": types}
    for one in found:
        values |= one.record()
    run.recorder.record(step, "probe", values)
    if len(found) <= _FEW or run.training.evaluates:  # of more questions, pictures were most of a run
        show_heads(run.recorder, step, found)
    return found


def sample(run: Run) -> str:
    """Return the prompt and how the model goes on."""
    import torch

    from data.tokenizer import with_end
    from model.generate import generate

    own, tokenizer = run.settings.run, run.corpus.tokenizer
    start, _ = with_end(tokenizer, own.sample_prompt)
    tokens = torch.tensor(start, device=run.training.place.device)
    run.model.eval()
    written = generate(run.model, tokens, own.sample_tokens, temperature=1.0, seed=own.seed)
    run.model.train()
    return tokenizer.decode(written[1:].tolist(), skip_special_tokens=False)


def save(run: Run, *, best: bool) -> None:
    """Keep a checkpoint of this step."""
    from run.checkpoint import save_checkpoint

    run.recorder.sync()  # first: what goes on from a checkpoint keeps the records up to it
    state, own = run.training.state() | {"config": run.config}, run.settings.run
    save_checkpoint(run.path / "checkpoints", state, run.training.step, best=best, keep=own.keep_checkpoints)
    run.training.saved = (run.training.step, run.training.looked_step)


if __name__ == "__main__":
    with door("train", HydraException):
        main()
