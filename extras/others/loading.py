"""Open a model of another program for the probe, or as the start of a run (init=)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from data.corpus import corpus_fingerprint
from data.tokenizer import end_id, fast_tokenizer
from extras.others.external import chosen_tokenizer, open_transformers
from extras.others.llama import from_llama, own_model
from extras.others.own_model import check_passes
from extras.others.pretrained_view import PretrainedView
from model.observe import ObservableModel
from model.transformer import n_parameters
from probe.contract import check_observed
from probe.opened_model import OpenedModel
from probe.opened_run import UNTRAINED_SEED, open_run
from probe.saved import EXTERNAL_RESULTS, check_results_folder
from settings.data import DataConfig
from settings.errors import UserError
from settings.train import TrainSettings
from training.start import Initial

INITIAL_RATE = 0.1  # share of a learning rate that a run with init= takes
_ENGLISH = "english"  # in place of a corpus's fingerprint: the shipped English text


def open_initial(settings: TrainSettings, arguments: Sequence[str]) -> tuple[TrainSettings, Initial]:
    """Return the model of init=, a run or an exported folder, and its tokenizer; the settings get its shape.

    A learning rate that is not among `arguments`, those of train.py, becomes a tenth: rates for random weights undo in
    a few steps what the model has learned. Raises UserError or OSError with one line.
    """
    init = str(settings.run.init)
    for argument in arguments:
        if re.match(r"variant=|model\b(?!\.dropout=)|data\.(tokenizer|vocab_size)=", argument):
            raise UserError(f"{argument}: the shape and the tokenizer are those of init={init}")
    device = torch.device("cpu")
    model = None
    if (Path(init) / "checkpoints").is_dir():
        opened = open_run(Path(init), device)
        model, tokenizer = opened.transformer, opened.tokenizer
    elif Path(init).is_dir():
        external = open_transformers(init, device, setting="init")
        try:
            model, tokenizer = own_model(external.view.model), external.tokenizer
            end_id(tokenizer)
        except UserError as problem:
            raise UserError(f"init={init}: {problem}") from problem
    if model is None:
        raise UserError(f"init={init}: is neither a run nor a folder that export has written")
    rates = {}
    for name in ("learning_rate", "embedding_learning_rate"):
        if not any(argument.startswith(f"optim.{name}=") for argument in arguments):
            rates[name] = getattr(settings.optim, name) * INITIAL_RATE
    shape = replace(model.config, dropout=settings.model.dropout)
    settings = replace(settings, model=shape, optim=replace(settings.optim, **rates))
    return settings, (model, tokenizer)


def open_reader(model: str, tokenizer: str | None) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a run or model and its start token, without weights; UserError if there is none."""
    if (Path(model) / "checkpoints").is_dir():
        return chosen_tokenizer(f"{model}/tokenizer.json")
    return chosen_tokenizer(tokenizer) if tokenizer else chosen_tokenizer(model, "model")


def open_external(
    name: str,
    out: str | None,
    stories: DataConfig | None,
    device: torch.device,
    tokenizer: str | None = None,
    setting: str = "model",
) -> OpenedModel:
    """Load a causal language model of another program and its tokenizer, to be tested on `stories`, or on English text.

    `name` is a folder written by save_pretrained or a name on the hub; results go to `out` (default: probes/NAME-HASH).
    UserError or OSError with one line if the model cannot be loaded or observed; `setting` is the one that names it.
    """
    view, own_tokenizer, bos_id, facts = open_transformers(name, device, tokenizer, setting)
    short, place = name, ""
    if Path(name).is_dir():
        folder = Path(name).resolve()
        short = folder.name
        if (folder.parent.name, folder.name) == ("export", "hf"):  # that of a run
            short = folder.parent.parent.name
        # Two folders of one name must not share results.
        place = "-" + sha256(str(folder).encode()).hexdigest()[:6]
    opened = _external(view, (own_tokenizer, bos_id), short, out, stories, facts, place)
    check_results_folder(opened.folder)

    # The observed attention must be what the model computes.
    try:
        _check_attention(view)
    except ValueError as error:
        raise UserError(f"{setting}={name}: {error}") from None
    recorded = {fact: facts[fact] for fact in ("model_type", "sha256", "commit", "transformers")}
    return replace(opened, source=name, environment={"model": name, **recorded})


def open_loaded(model: Any, out: str | None, stories: DataConfig | None, tokenizer: Any) -> OpenedModel:
    """Open a loaded model of transformers, or one with the passes of `ObservableModel`; UserError if they fail."""
    kind = type(model).__name__
    is_source = isinstance(tokenizer, str | Path)
    if not (isinstance(model, nn.Module) or hasattr(model, "logits")):
        raise UserError(f"model={kind}: is no folder, name or module")
    if tokenizer is None:
        raise UserError(f"model={kind}: give its tokenizer too: open_model(model, tokenizer=...)")
    read = chosen_tokenizer(str(tokenizer)) if is_source else fast_tokenizer(tokenizer, "tokenizer")
    try:
        if hasattr(model, "get_output_embeddings"):
            if {weight.dtype for weight in model.parameters()} != {torch.float32}:
                raise UserError("its weights are not float32; open model.float()")
            if model.get_output_embeddings() is None:
                raise UserError("it has no output layer (a ...ForCausalLM has one)")
            model = PretrainedView(model)
        else:
            check_passes(model)
        _check_attention(model)
        return _external(model, read, kind, out, stories, {"source": "python", "model_type": kind})
    except UserError as error:
        raise UserError(f"model={kind}: {error}") from None


def _external(
    model: Any,
    reader: tuple[Tokenizer, int],
    name: str,
    out: str | None,
    stories: DataConfig | None,
    facts: Mapping[str, Any],
    place: str = "",
) -> OpenedModel:
    """Return a model of another program; `reader`: tokenizer and start token, `facts`: what results say of its source.

    `place` ends the name of the default folder of its results.
    """
    items, fingerprint, suffix = _ENGLISH, _ENGLISH, place
    if stories is not None:
        items, fingerprint, suffix = "stories", corpus_fingerprint(stories), f"-stories{place}"
    folder = EXTERNAL_RESULTS / f"{name.replace('/', '--')}{suffix}"
    if out is not None:
        folder = Path(out)
    module = module_of(model)
    n_weights = n_parameters(module) if module else 0
    kind = facts["model_type"]
    width = model.residual_stream(torch.tensor([[reader[1]]], device=model.device))[0].shape[-1]
    shape = dict(
        name=name, items=items, source=facts["source"], model_type=kind, n_layer=model.n_layer, n_head=model.n_head,
        d_model=width, context_length=model.context_length, vocab_size=model.vocab_size,
    )  # fmt: skip
    departures = () if kind == "llama" else (f"model_type={kind}",)
    as_ours = partial(from_llama, model.model) if isinstance(model, PretrainedView) else None
    return OpenedModel(
        folder=folder,
        name=name,
        source=name,
        model=model,
        untrained=lambda seed: model.untrained(UNTRAINED_SEED + seed),
        tokenizer=reader[0],
        bos_id=reader[1],
        data=stories,
        data_fingerprint=fingerprint,
        shape={**shape, **facts},
        n_parameters=n_weights,
        departures=departures,
        environment={"model": name},
        as_ours=as_ours,
    )


def module_of(model: ObservableModel) -> nn.Module | None:
    """Return the module that a view observes; None for an object of the user's own without one."""
    module = getattr(model, "model", getattr(model, "module", None))
    return module if isinstance(module, nn.Module) else None


def _check_attention(model: ObservableModel) -> None:
    """Raise ValueError if the attention that is observed at the middle of a text of all kinds of tokens is wrong."""
    length = min(model.context_length, 32)
    tokens = torch.linspace(0, model.vocab_size - 1, length).long()
    check_observed(model, tokens[None], torch.tensor([[length // 2]]))
