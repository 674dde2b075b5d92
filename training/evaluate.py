"""The loss, outside the model: how surprised it is by the tokens that come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from shlex import quote
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from probe.emergence import Glimpse
    from training.run_dir import StopRequest
    from training.setup import Run


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log p(target) in nats for each position, 0 where the target is negative (nothing to predict).

    Args:
        logits: [B, T, V], any float type; the loss is computed in float32.
        targets: [B, T].

    Returns:
        [B, T] float32.

    """
    flat = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    return flat.view_as(targets)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of `token_losses` over the positions that have a target, in nats per token."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


class SummedLoss(nn.Module):
    """A model and its loss as one function, so that torch.compile sees both and the logits need not be written out."""

    def __init__(self, model: nn.Module, *, exact: bool = False) -> None:
        """Hold `model`, whose weights these stay.

        `exact`: add up in float64, so that the parts of a batch give its loss however it is parted. In float32 the last
        two bits of a sum of some thousand hang on the order.
        """
        super().__init__()
        self.model, self.exact = model, exact

    def forward(self, targets: Tensor, *read: Tensor) -> Tensor:
        """Return the sum of `token_losses` in nats, a scalar: of parts of one batch they add up.

        Args:
            targets: [B, T].
            read: what the model is called with, tokens [B, T] first.

        """
        logits = self.model(*read)
        if self.exact:
            return token_losses(logits, targets).sum(dtype=torch.float64)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


@dataclass(frozen=True, slots=True)
class RowLosses:
    """Sums over each row of a split, by token class. Axes: R rows, each a story or a window of text; C classes."""

    losses: Tensor  # [R, C] float64, nats
    counts: Tensor  # [R, C] float64, tokens
    floors: Tensor | None  # [R, C] float64, nats that the best possible reader would lose on the very same tokens


@torch.no_grad()
def row_losses(
    model: nn.Module,
    batches: Iterable[tuple[tuple[Tensor, ...], Tensor, Tensor | None, Tensor | None]],
    n_classes: int,
    autocast: AbstractContextManager | None = None,
) -> RowLosses:
    """Add up the losses of a whole split by row and token class, on the CPU.

    Args:
        model: in eval mode.
        batches: (what the model reads, targets, classes of the targets, floor of the targets in nats), each [B, T];
            without classes everything is class 0.
        n_classes: how many classes there are.
        autocast: the precision of the forward pass; None for the weights' own.

    """
    device = next(model.parameters()).device
    losses, counts, floors = [], [], []
    for read, targets, classes, floor in batches:
        with autocast or nullcontext():
            logits = model(*(one.to(device) for one in read))
        kinds = torch.zeros_like(targets) if classes is None else classes
        real = (targets >= 0).double()
        nothing = torch.zeros(len(targets), n_classes, dtype=torch.float64)
        losses.append(nothing.scatter_add(1, kinds, token_losses(logits, targets.to(device)).cpu().double()))
        counts.append(nothing.scatter_add(1, kinds, real))
        if floor is not None:
            floors.append(nothing.scatter_add(1, kinds, floor.double() * real))
    return RowLosses(torch.cat(losses), torch.cat(counts), torch.cat(floors) if floors else None)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean per token and its standard error, rows being independent of each other and tokens of one not.

    The mean is a ratio of two sums over rows, its error that of the ratio (Cochran 1977, Sampling Techniques,
    eq. 6.13): the scatter over rows of what a row's sum has beyond the mean times its count.

    Args:
        sums: [R, ...] over the tokens of each row.
        counts: [R, ...] tokens of each row.

    Returns:
        each [...]; nan where there is no token, and for the error where there is one row only.

    """
    n_rows, total = len(sums), counts.sum(0)
    mean = sums.sum(0) / total
    beyond = sums - mean * counts
    return mean, (beyond.square().sum(0) * n_rows / (n_rows - 1 or float("nan"))).sqrt() / total


def summarise(rows: RowLosses, classes: Sequence[str]) -> dict[str, Any]:
    """Return the mean loss in nats per token, whole and by class and, where it is known, the floor and the gap to it.

    Args:
        rows: of a split.
        classes: their names, none where classes are not known; one that has no token is left out.

    Returns:
        "loss", "floor", "gap" and each with "_by_class"; "gap_error" and "gap_error_by_class", the gap's standard
        error over rows.

    """
    sums = {"loss": rows.losses}
    if rows.floors is not None:
        sums |= {"floor": rows.floors, "gap": rows.losses - rows.floors}
    there = {name: i for i, name in enumerate(classes) if rows.counts[:, i].any()}
    found: dict[str, Any] = {}
    for name, some in sums.items():
        whole = mean_and_error(some.sum(1), rows.counts.sum(1))
        by_class = mean_and_error(some, rows.counts)
        for key, value, values in zip((name, f"{name}_error"), whole, by_class, strict=True):
            found |= {key: value.item(), f"{key}_by_class": {one: values[i].item() for one, i in there.items()}}
    unwanted = ("loss_error", "floor_error")  # of the gap alone: windows of one text are not independent
    return {key: value for key, value in found.items() if value != {} and not key.startswith(unwanted)}


_FEW = 3  # questions; more are counted and not listed


def announce(run: Run) -> None:
    """Say what is about to happen."""
    from model.transformer import n_parameters

    config, corpus, say = run.settings.model, run.corpus, run.progress.say
    say(f"device  {run.training.place.reason}")
    if run.training.world.size > 1:
        shared = "a share of every weight in each" if run.training.is_sharded else "the whole model in each"
        say(f"ranks   {run.training.world.size} processes, {shared}; a step reads as many tokens as with one")
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
    folder = quote(str(run.path.parent))
    say(f"watch   tensorboard --logdir {folder} --samples_per_plugin images=100")  # it shows 10 otherwise
    if len(run.items) > _FEW:
        say(f"probe   {len(run.items)} questions, each with its best head; above luck: it prefers the antecedent more")
        say("        often than the best head would if none knew anything. TensorBoard draws each")
    elif run.items:
        say(
            "probe   number: how often the best head at the pronoun prefers the antecedent; later_cue: the same at the word"
        )
        say("        that decides; luck: what the best head would reach if none knew anything")


def show_whole(run: Run) -> None:
    """Let `run.model` be what the training has learned, where that trains a sharded one."""
    if run.training.gathered is not None:
        run.model.load_state_dict(run.training.gathered["model"])


def evaluate(run: Run, stop: StopRequest) -> None:
    """Measure, probe, write a sample, keep a checkpoint, say a line; Stopped, before anything is written, by a signal.

    Raises FloatingPointError where the last step leaves a model whose loss is not finite.
    """
    from training.trainer import what_to_try

    own, training, recorder = run.settings.run, run.training, run.recorder
    step, last = training.step, training.step == own.max_steps
    run.model.eval()
    part = validation_loss(run, own.validation_tokens, stop)
    measured = validation_loss(run, None, stop) | counted_grams(run) if last else part
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
        above = [one.name for one in glimpses if one.accuracy[one.layer, one.head] > one.luck]
        said.append(f"above luck: {len(above)} of {len(glimpses)}")
    for one in glimpses if len(glimpses) <= _FEW else []:
        where = f"L{one.layer}H{one.head} {one.accuracy[one.layer, one.head]:.2f}"
        said.append(f"{one.name}: {where} (luck {one.luck:.2f})")
    return "  ".join(said)


def conclude(run: Run, measured: dict[str, Any], speed: str) -> None:
    """Mark the run as ended, and say what has come of it and what to do next."""
    from training.logging import gap_lines
    from training.watching import show_embedding

    if run.settings.data.source == "stories":  # whose words have kinds
        show_embedding(run.path, run.model, run.corpus.tokenizer)
    run.recorder.board.ended(run.training.step)
    known = [*gap_lines(measured, cheats=not run.settings.model.is_causal), *counted_lines(measured)]
    for line in [*known, *best_lines(run), speed]:
        run.progress.say(line)
    run.progress.say(f"done in {run.training.seconds:.1f} s of training; {probe_it(run)}")


def probe_it(run: Run) -> str:
    """Return what to do with a run that has ended."""
    return f"probe it with: python eval.py {quote(f'run={run.path}')}"


def counted_grams(run: Run) -> dict[str, Any]:
    """Return what counted 5-grams make of the same validation text: below it lies what a model has learned on its own.

    Nothing for stories, whose floor says more. A side figure: for want of memory it is left out, and the run goes on.
    """
    from data.loader import StorySplit
    from data.ngrams import MOST_TOKENS, counted_loss

    training, validation = run.corpus.train, run.corpus.validation
    if isinstance(validation, StorySplit):
        return {}
    try:
        loss = counted_loss(training.tokens, validation.tokens, run.model.vocab_size)
    except MemoryError:
        run.progress.say("note    too little memory left to count 5-grams")
        return {}
    n_tokens = len(training.tokens)
    read = {"tokens": min(n_tokens, MOST_TOKENS), "of_tokens": n_tokens}
    return {"counted_5grams": {"loss": loss, "bits_per_byte": validation.bits_per_byte(loss), **read}}


def counted_lines(measured: dict[str, Any]) -> list[str]:
    """Return what to say of counted 5-grams beside the model."""
    if "counted_5grams" not in measured:
        return []
    found = measured["counted_5grams"]
    what = "the same text"
    if found["tokens"] < found["of_tokens"]:
        what = f"the first {found['tokens']:,} of its {found['of_tokens']:,} training tokens"
    return [
        f"counted 5-grams of {what}: {found['loss']:.3f} nats/token, {found['bits_per_byte']:.3f} bits/byte; "
        f"this model {measured['loss']:.3f}, {measured['bits_per_byte']:.3f}"
    ]


def leave(run: Run) -> None:
    """Keep what was learned since the last checkpoint, where a run is asked to stop before its end, and say so."""
    training = run.training
    if training.looked_step == run.settings.run.max_steps:
        return
    if training.saved != (training.step, training.looked_step) and not training.is_astray:
        save(run, best=False)
    where = f"step {max(0, training.saved[0])}"
    where += f" (by {training.step} its numbers were not finite)" if training.is_astray else ""
    run.progress.say(f"stopped at {where}; go on with: python train.py resume=true {quote(f'out={run.path}')}")


def best_lines(run: Run) -> list[str]:
    """Return which step eval.py will read where that is not the last: training on had begun to learn by heart."""
    from training.checkpoint import read_manifest

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
    from training.ceiling import matmul_ceiling, speed_line

    training = run.training
    n_tokens, seconds = training.pace
    if not n_tokens:
        return "speed   not measured: the first step of a process does not count"
    rate, flops, bfloat16 = n_tokens / seconds, flops_per_token(run.model), training.place.bfloat16
    # Of all processes, where each has as much as this one.
    ceiling = training.world.size * matmul_ceiling(training.place.device, bfloat16=bfloat16)
    found = {"tokens_per_second": round(rate), "flops_per_token": flops, "ceiling_flops": ceiling}
    run.recorder.record(training.step, "speed", found | {"utilisation": rate * flops / ceiling})
    return speed_line(rate, flops, ceiling, bfloat16=bfloat16)


def validation_loss(run: Run, n_tokens: int | None, stop: StopRequest | None = None) -> dict[str, Any]:
    """Return the mean loss of validation, or of its first `n_tokens`, whole and by token class, and bits per byte.

    Where the least possible loss of every token is known, also that floor, the gap to it over the very same tokens,
    and the gap's standard error over stories. Raises Stopped between two batches where `stop` has heard a signal.
    """
    from data.corpus import CLASSES
    from data.loader import StorySplit, validation_batches

    pass

    split = run.corpus.validation
    batches = validation_batches(
        split,
        # Without gradients more fits; on a GPU the logits alone may not, and there a batch fills the machine anyway.
        tokens_per_batch=tokens_at_once(run) * (4 if run.training.place.device.type == "cpu" else 1),
        context_length=run.settings.model.context_length,
        n_tokens=n_tokens,
    )
    alone = run.settings.model.is_causal  # stories are rows of their own; who sees the future must not see the padding
    heard = batches if stop is None else stop.before_each(batches)
    parts = ((one.model_inputs(single_document=alone), one.targets, one.classes, one.floor) for one in heard)
    rows = row_losses(run.model, parts, len(CLASSES), run.training.place.autocast())
    known = isinstance(split, StorySplit) and split.classes is not None
    found = summarise(rows, CLASSES if known else ())
    return {**found, "bits_per_byte": split.bits_per_byte(found["loss"])}


def tokens_at_once(run: Run) -> int:
    """Return the tokens of a batch that is only looked at: of a GPU's share of a step, for rank 0 looks alone."""
    n_tokens, world = run.settings.run.tokens_per_batch, run.training.world
    return n_tokens if run.training.place.device.type == "cpu" else max(1, n_tokens // world.size)


def probe(run: Run, stop: StopRequest) -> list[Glimpse]:
    """Probe every head and the loss on a few dev stories, record it and draw the L x H maps; nothing for a text.

    Nothing either of a model that gives no finite numbers. Raises Stopped, before anything is written, by a signal.
    """
    import numpy as np

    from data.loader import StorySplit
    from data.tokenizer import end_id
    from probe.emergence import glimpse, type_maxima
    from training.watching import keep_attention, show_cells, show_heads

    own, split, step = run.settings.run, run.corpus.validation, run.training.step
    if not run.items or not isinstance(split, StorySplit):
        return []
    run.model.eval()
    half = split.starts[: own.probe_sequences // 2 + 1]  # of as many stories: the whole would double the cost
    measured = validation_loss(run, int(half[-1]), stop)
    found = glimpse(run.model, run.items, tokens_at_once(run)) if isfinite(measured["loss"]) else []
    if not found or any(np.isnan(one.pronoun_contrast).any() for one in found):
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
    from training.checkpoint import save_checkpoint

    run.recorder.sync()  # first: what goes on from a checkpoint keeps the records up to it
    state, own = run.training.state() | {"config": run.config}, run.settings.run
    save_checkpoint(run.path / "checkpoints", state, run.training.step, best=best, keep=own.keep_checkpoints)
    run.training.saved = (run.training.step, run.training.looked_step)
