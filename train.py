"""Train a decoder-only transformer: python train.py [GROUP=NAME] [NAME=VALUE], --help for what there is."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from configs import TrainSettings, door, one_line_errors, typed_saved, typed_train

if TYPE_CHECKING:
    import torch

    from data.batches import Split, StoryBatches, StreamBatches
    from data.corpus import Corpus
    from data.links import LinkItem
    from model.transformer import Transformer
    from run.device import Place
    from run.logging import Progress, Recorder

PLACES = ("out", "resume", "cache_dir")  # settings that a resumed run need not share with its beginning


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(config: DictConfig) -> None:
    """Check the settings, then train."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    job = HydraConfig.get()
    with one_line_errors():
        settings = typed_train(config)
        if job.mode is RunMode.MULTIRUN:  # each run in a directory of its own: of the sweep's, or under out
            own = job.runtime.output_dir if settings.run.out is None else f"{settings.run.out}/{job.job.num}"
            settings = replace(settings, run=replace(settings.run, out=own))
        if settings.run.resume:
            settings = saved_settings(settings, list(job.overrides.task))
    status = fit(settings)
    if status:
        sys.exit(status)


def saved_settings(asked: TrainSettings, overrides: list[str]) -> TrainSettings:
    """Return the settings of the run in `out`; ValueError if one that was given on the command line is another."""
    from run.directory import find_run, read_json

    saved = typed_saved(read_json(find_run(asked.run.out) / "config.json"))
    saved = replace(saved, run=replace(saved.run, **{name: getattr(asked.run, name) for name in PLACES}))
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    for group in ("run", "model", "data", "optim"):
        wanted = asdict(getattr(asked, group))
        for name, value in asdict(getattr(saved, group)).items():
            where = name if group == "run" else f"{group}.{name}"
            if given & {where, group, "experiment"} and wanted.get(name) != value:
                raise ValueError(f"resume=true keeps the run's settings: {where} is {value}, not {wanted.get(name)}")
    return saved


@dataclass
class Training:
    """Everything a step needs, and what changes from step to step."""

    model: Transformer
    optimizers: list[torch.optim.Optimizer]
    batches: StreamBatches | StoryBatches
    place: Place
    settings: TrainSettings
    forward: Callable[[torch.Tensor], torch.Tensor]  # the model, compiled if so asked
    step: int = 0  # optimizer steps taken
    seconds: float = 0.0  # spent in steps, evaluations left out
    unrecorded: tuple[int, float] = (0, 0.0)  # tokens and seconds since the last record
    best_loss: float = float("inf")  # lowest validation loss so far
    items: dict[str, list[LinkItem]] = field(default_factory=dict)  # of the probe during training

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: with the settings, all that the following steps depend on."""
        import torch

        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.place.device.type == "cuda" else [],
            "step": self.step,
            "seconds": self.seconds,
            "best_loss": self.best_loss,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to the moment of `state`."""
        import torch

        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] and self.place.device.type == "cuda":
            torch.cuda.set_rng_state_all(state["random_cuda"])
        self.step, self.seconds, self.best_loss = state["step"], state["seconds"], state["best_loss"]


def fit(settings: TrainSettings) -> int:
    """Train from start, or from the newest checkpoint, to `max_steps`; return the exit status."""
    from run.logging import Progress, Recorder
    from run.signals import StopRequest

    with one_line_errors():
        training, corpus, run = prepare(settings)
        recorder = Recorder(run, resumed_step=training.step if settings.run.resume else None)
    stop = StopRequest()
    charts = {f"{name}: best head and luck": [f"{name}/sel1", f"{name}/luck"] for name in training.items}
    recorder.overlay({"loss": ["loss/train", "loss/validation"]} | charts)
    progress = Progress(settings.run.max_steps, training.step)
    announce(training, corpus, run, progress)
    if training.step == 0:
        evaluate(training, corpus, run, recorder, progress)
    while training.step < settings.run.max_steps and stop.signal is None:
        advance(training, recorder)
        progress.show(training.step)
        if training.step % settings.run.eval_every_steps == 0 or training.step == settings.run.max_steps:
            evaluate(training, corpus, run, recorder, progress)
    if stop.signal is not None and training.step < settings.run.max_steps:
        save(training, run, best=False)
        progress.say(f"stopped at step {training.step}; go on with: python train.py resume=true out={run}")
    recorder.close()
    return stop.exit_status if stop.signal is not None else 0


def prepare(settings: TrainSettings) -> tuple[Training, Corpus, Path]:
    """Set everything up and write down what was set up; ValueError or OSError for what cannot be."""
    import torch

    from data.batches import StorySplit, training_batches
    from data.corpus import load_corpus, load_split
    from data.links import link_items
    from data.tokenizer import end_id
    from model.transformer import Transformer
    from probe.emergence import choose_items
    from run.checkpoint import load_checkpoint
    from run.device import choose_place
    from run.directory import create_run, environment, read_json, write_json
    from run.schedule import make_optimizers

    own, out = settings.run, settings.run.out
    if own.threads:
        torch.set_num_threads(own.threads)
    place = choose_place(own.device, own.precision)
    torch.manual_seed(own.seed)  # dropout
    state = None
    if own.resume and out:
        state, damaged = load_checkpoint(Path(out) / "checkpoints")
        for line in damaged:
            print(f"warning: {line}", file=sys.stderr)
    corpus = load_corpus(settings.data, Path(own.cache_dir))
    if own.resume and out and read_json(Path(out) / "config.json").get("data_fingerprint") != corpus.fingerprint:
        raise ValueError(f"{out} cannot go on: its data, a text or the generator of the stories, has changed since")
    batches = training_batches(
        corpus.train,
        tokens_per_batch=own.tokens_per_batch,
        context_length=settings.model.context_length,
        seed=own.seed,
    )
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), own.seed).to(place.device)
    forward = torch.compile(model) if own.compile else model
    training = Training(model, make_optimizers(model, settings.optim), batches, place, settings, forward)
    if isinstance(corpus.train, StorySplit) and own.probe_sequences:
        items = link_items(load_split(corpus, "dev"), corpus.tokenizer, end_id(corpus.tokenizer))
        training.items = choose_items(items, own.probe_sequences)
    if state is not None and out:
        training.load(state)
        return training, corpus, Path(out)
    run = create_run(out)
    corpus.tokenizer.save(str(run / "tokenizer.json"))
    write_json(run / "environment.json", environment(place.reason, torch.get_num_threads()))
    config = asdict(settings) | {"vocab_size": model.vocab_size, "data_fingerprint": corpus.fingerprint}
    write_json(run / "config.json", json.loads(json.dumps(config, default=lambda choice: choice.value)))
    return training, corpus, run


def announce(training: Training, corpus: Corpus, run: Path, progress: Progress) -> None:
    """Say what is about to happen."""
    from model.transformer import n_parameters

    config = training.settings.model
    begins = f"step {training.step} of {training.settings.run.max_steps}"
    progress.say(f"device  {training.place.reason}")
    progress.say(
        f"data    {training.settings.data.source}: {len(corpus.train.tokens):,} training and "
        f"{len(corpus.validation.tokens):,} validation tokens, vocabulary {training.model.vocab_size:,}"
    )
    progress.say(
        f"model   {n_parameters(training.model):,} parameters: {config.n_layer} layers x {config.n_head} heads, "
        f"width {config.d_model}, context {config.context_length}"
    )
    progress.say(f"run     {run} (from {begins})")
    progress.say(f"watch   tensorboard --logdir {run.parent}")
    if training.items:
        progress.say(
            "probe   V at S1: how often the best head at the pronoun prefers the antecedent; R at S2: the same at"
        )
        progress.say("        the word that decides; luck: what the best head would reach if none knew anything")


def advance(training: Training, recorder: Recorder) -> None:
    """Take one optimizer step and record it when it is due."""
    from run.schedule import rate_factor, set_rates

    own = training.settings.run
    began = time.perf_counter()
    factor = rate_factor(training.step, training.settings.optim.warmup_steps, own.max_steps)
    set_rates(training.optimizers, factor)
    loss, norm, n_tokens = train_step(training)
    training.step += 1
    due = training.step % own.log_every_steps == 0 or training.step == own.max_steps
    values = {"loss": loss.item(), "gradient_norm": norm.item()} if due else {}  # .item() waits for the device
    seconds = time.perf_counter() - began
    training.seconds += seconds
    n_tokens, seconds = n_tokens + training.unrecorded[0], seconds + training.unrecorded[1]
    training.unrecorded = (0, 0.0) if due else (n_tokens, seconds)
    if due:
        rate = training.settings.optim.learning_rate * factor
        speed = {"tokens_per_second": round(n_tokens / seconds), "seconds": round(training.seconds, 3)}
        recorder.record(training.step, "train", values | {"learning_rate": rate} | speed)


def train_step(training: Training) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Move the weights once; return the mean loss, the gradient's norm before clipping and the tokens read."""
    import torch

    from data.batches import IGNORE
    from model.loss import mean_loss

    accumulate, device = training.settings.run.accumulate_steps, training.place.device
    batches = [training.batches.at(training.step * accumulate + part) for part in range(accumulate)]
    n_targets = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
    total = torch.zeros((), device=device)
    for batch in batches:
        with training.place.autocast():
            loss = mean_loss(training.forward(batch.tokens.to(device)), batch.targets.to(device), n_targets)
        loss.backward()
        total += loss.detach()
    n_tokens = sum(batch.tokens.numel() for batch in batches)
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.settings.optim.clip_norm)
    for optimizer in training.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total, norm, n_tokens


def evaluate(training: Training, corpus: Corpus, run: Path, recorder: Recorder, progress: Progress) -> None:
    """Measure, probe, write a sample, keep a checkpoint, say a line."""
    own, step = training.settings.run, training.step
    last = step == own.max_steps
    training.model.eval()
    part = validation_loss(training, corpus.validation, own.validation_tokens)
    measured = validation_loss(training, corpus.validation, None) if last else part
    glimpses = probe_now(training, recorder)
    if own.sample_tokens:
        recorder.text(step, "sample", sample(training, corpus))
    training.model.train()
    best = part["loss"] <= training.best_loss  # always of the same part, so that steps can be compared
    training.best_loss = min(training.best_loss, part["loss"])
    recorder.record(step, "validation", measured | {"whole": last, "seconds": round(training.seconds, 3)} | glimpses)
    recorder.flush()
    save(training, run, best=best)
    seen = [f"step {step:>5}", f"validation {measured['loss']:.3f} nats/token"]
    seen += [f"{measured['bits_per_byte']:.3f} bits/byte"]
    for name, one in glimpses.items():
        seen.append(
            f"{name.replace('_', ' at ')}: L{one['layer']}H{one['head']} {one['sel1']:.2f} (luck {one['luck']:.2f})"
        )
    progress.say("  ".join(seen))
    if last:
        progress.say(f"done in {training.seconds:.1f} s of training; probe it with: python eval.py run={run}")


def validation_loss(training: Training, split: Split, n_tokens: int | None) -> dict[str, Any]:
    """Return the mean loss of the split, or of its first `n_tokens`, whole and by token class, and bits per byte."""
    import math

    from data.batches import StorySplit, validation_batches
    from data.corpus import CLASSES
    from model.loss import class_losses

    batches = validation_batches(
        split,
        tokens_per_batch=training.settings.run.tokens_per_batch * 4,
        context_length=training.settings.model.context_length,
        n_tokens=n_tokens,
    )
    parts = ((one.tokens, one.targets, one.classes) for one in batches)
    sums, counts = class_losses(training.model, parts, len(CLASSES), training.place.autocast())
    loss = (sums.sum() / counts.sum()).item()
    found: dict[str, Any] = {
        "loss": loss,
        "bits_per_byte": loss / math.log(2) * (len(split.tokens) - 1) / split.n_bytes,
    }
    if isinstance(split, StorySplit) and split.classes is not None:
        by_class = (sums / counts).tolist()
        found["loss_by_class"] = {name: by_class[i] for i, name in enumerate(CLASSES) if counts[i]}
    return found


def probe_now(training: Training, recorder: Recorder) -> dict[str, dict[str, float]]:
    """Probe every head on the dev items, draw the L x H map, return what goes to the records."""
    from probe.emergence import glimpse
    from probe.report import heat_map

    found = {}
    for one in glimpse(training.model, training.items, training.settings.run.tokens_per_batch * 4):
        recorder.image(training.step, f"probe/{one.name}", heat_map(one.heads))
        found[one.name] = {"layer": one.layer, "head": one.head, "sel1": one.sel1, "dd": one.dd, "luck": one.luck}
    return found


def sample(training: Training, corpus: Corpus) -> str:
    """Return the prompt and how the model goes on."""
    import torch

    from data.tokenizer import end_id
    from model.generate import generate

    own = training.settings.run
    start = [end_id(corpus.tokenizer), *corpus.tokenizer.encode(own.sample_prompt).ids]
    tokens = torch.tensor(start, device=training.place.device)
    written = generate(training.model, tokens, own.sample_tokens, temperature=1.0, seed=own.seed)
    return corpus.tokenizer.decode(written[1:].tolist(), skip_special_tokens=False)


def save(training: Training, run: Path, *, best: bool) -> None:
    """Keep a checkpoint of this step."""
    from run.checkpoint import save_checkpoint

    save_checkpoint(run / "checkpoints", training.state(), training.step, best=best)


if __name__ == "__main__":
    with door("train", HydraException):
        main()
