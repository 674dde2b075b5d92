"""Open a trained model for the probe: the best checkpoint of a run, or a model of another program."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from antecedent_lab.eval_settings import EvalSettings
from antecedent_lab.notebook import sentence_view
from data.corpus import corpus_fingerprint, load_corpus
from data.loader import Corpus
from data.tokenizer import end_id, fast_tokenizer, load_tokenizer
from model.export import own_model
from model.external import chosen_tokenizer, open_transformers
from model.observe import ObservableModel, TransformerView
from model.pretrained_view import PretrainedView
from model.transformer import Transformer, draw_outputs, load_weights, n_parameters
from probe.contract import check_observed, check_passes
from probe.opened_model import OpenedModel
from settings.data import DataConfig
from settings.errors import UserError, damaged_file_error
from settings.files import read_json
from settings.model import departures
from settings.train import CHANGEABLE, TrainSettings, changed_settings, flatten, saved_settings
from training.checkpoint import load_checkpoint
from training.loop import Initial
from training.run_dir import RUNS

INITIAL_RATE = 0.1  # share of a learning rate that a run with init= takes
LARGE_MODEL = 50_000_000  # parameters; every pass of such a model is slow on a CPU
EXTERNAL_RESULTS = Path("probes")  # results about external models, next to runs/
_ENGLISH = "english"  # in place of a corpus's fingerprint: the shipped English text
_UNTRAINED_SEED = 10_000  # added to the seed of an untrained model: no training starts there


def open_run(run: Path, device: torch.device, checkpoint: str = "best") -> OpenedModel:
    """Load a checkpoint of a run in float32: best, last or its step; UserError or OSError if that is not possible."""
    settings, config = load_run_settings(run)
    tokenizer = _load_run_tokenizer(run, config)
    weights, step = _load_weights(run, settings, checkpoint)

    transformer = Transformer(settings.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(transformer, weights)
    if not all(weight.isfinite().all() for weight in transformer.parameters()):
        raise UserError(f"{run}: the weights are not finite because training diverged; train again")

    init = settings.run.init
    began = [f"Its training began with the weights of {init}, which may have seen these sentences."] if init else []

    def untrained(seed: int) -> TransformerView:
        # The layers of a new model write nothing; on a text they would have no effect.
        fresh = Transformer(settings.model, transformer.vocab_size, seed=_UNTRAINED_SEED + seed)
        if settings.data.source != "stories":
            draw_outputs(fresh, _UNTRAINED_SEED + seed)
        return TransformerView(fresh.to(device).eval())

    return OpenedModel(
        folder=run,
        name=_run_name(run),
        source=str(run),
        checkpoint=checkpoint,
        model=TransformerView(transformer.to(device).eval()),
        untrained=untrained,
        tokenizer=tokenizer,
        bos_id=end_id(tokenizer),
        data=settings.data,
        data_fingerprint=str(config.get("data_fingerprint")),
        shape=asdict(settings.model),
        n_parameters=n_parameters(transformer),
        departures=tuple(departures(settings.model)),
        **_load_environment(run),
        view=sentence_view,
        step=step,
        settings=settings,
        transformer=transformer,
        began=tuple(began),
    )


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


def _run_name(run: Path) -> str:
    """Return the name of a run's directory; for a numbered run of a sweep, with the sweep's name."""
    folder = run.resolve()
    if folder.name.isdecimal() and folder.parent.name not in ("", RUNS.name):
        return f"{folder.parent.name}/{folder.name}"
    return folder.name


def load_run_settings(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """Return the settings of a run and its config.json; UserError names a damaged file."""
    config = read_json(run / "config.json")
    try:
        return saved_settings(config), config
    except ValueError as error:
        raise UserError(f"{run}/{error}") from None


def _load_run_tokenizer(run: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of a run; UserError if it is missing or not the one the run was trained with."""
    path = run / "tokenizer.json"
    content = path.read_bytes() if path.is_file() else b""
    if config.get("tokenizer_sha256") not in (None, sha256(content).hexdigest()):
        raise UserError(
            f"{path}: missing or damaged, another sha256 than recorded; copy it from where the run was made"
        )
    return load_tokenizer(path)


def open_reader(settings: EvalSettings) -> tuple[Tokenizer, int]:
    """Return the tokenizer of run= or model= and its start token, without weights; UserError if there is none."""
    if not settings.is_external:
        return chosen_tokenizer(f"{settings.run or settings.model}/tokenizer.json")
    if settings.tokenizer:
        return chosen_tokenizer(settings.tokenizer)
    return chosen_tokenizer(str(settings.model), "model")


def _load_weights(run: Path, settings: TrainSettings, checkpoint: str) -> tuple[dict[str, Tensor], int]:
    """Return the weights and the step of a checkpoint; UserError if it is not of these `settings`."""
    folder = run / "checkpoints"
    state = load_checkpoint(folder, checkpoint)
    weights = state.get("model")
    step = state.get("step")
    if not (isinstance(weights, dict) and isinstance(step, int) and all(map(torch.is_tensor, weights.values()))):
        raise UserError(f"{folder}: not checkpoints of a model; another program or version wrote them")

    # Another config.json would build another model.
    with damaged_file_error(folder, "train again"):
        saved = flatten(saved_settings(state["config"]))
    for name, (earlier, value) in changed_settings(saved, flatten(settings)).items():
        if name.startswith(("model.", "data.")) and name not in CHANGEABLE:
            problem = f"{name}={value}, but the checkpoint was trained with {earlier}"
            raise UserError(f"{run / 'config.json'}: {problem}; restore the file")
    return weights, step


def _load_environment(run: Path) -> dict[str, Any]:
    """Return the versions that made a run, and the arguments of train.py."""
    path = run / "environment.json"
    with damaged_file_error(path, "delete it"):
        content = json.loads(path.read_text()) if path.exists() else {}
        versions = {
            "python": content.get("python"),
            "torch": content.get("packages", {}).get("torch"),
            "commit": content.get("commit"),
        }
        return {"environment": versions, "arguments": content.get("arguments")}


def load_data(opened: OpenedModel, cache_dir: str) -> Corpus:
    """Return the corpus of a model; UserError or OSError if it is not the one that the run was trained on."""
    assert opened.data is not None
    try:
        began_elsewhere = opened.settings is not None and opened.settings.run.init
        corpus = load_corpus(opened.data, Path(cache_dir), opened.tokenizer if began_elsewhere else None)
    except FileNotFoundError as error:
        problem = "the run names its text as in the folder where it was trained; start eval.py there"
        raise FileNotFoundError(f"{error} ({problem})") from None
    if corpus.fingerprint != opened.data_fingerprint:
        raise UserError(f"{opened.source}: the training data has changed (text or generator); train again")
    return corpus


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
    external = open_transformers(name, device, tokenizer, setting)
    facts = external.facts

    is_folder = Path(name).is_dir()
    short = _folder_name(external.path) if is_folder else name
    opened = _external(external.view, (external.tokenizer, external.bos_id), short, out, stories, facts)
    results = opened.folder
    if is_folder and out is None:
        # Two folders of one name must not share results.
        place = sha256(str(external.path.resolve()).encode()).hexdigest()[:6]
        results = results.with_name(f"{results.name}-{place}")
    check_results_folder(results)

    # The observed attention must be what the model computes.
    try:
        _check_attention(external.view)
    except ValueError as error:
        raise UserError(f"{setting}={name}: {error}") from None
    environment = {"model": name, **{fact: facts[fact] for fact in ("model_type", "sha256", "commit", "transformers")}}
    return replace(opened, folder=results, source=name, environment=environment)


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
        width = model.residual_stream(torch.tensor([[read[1]]], device=model.device))[0].shape[-1]
    except UserError as error:
        raise UserError(f"model={kind}: {error}") from None

    facts = dict(
        source="python", model_type=kind, n_layer=model.n_layer, n_head=model.n_head, d_model=width,
        context_length=model.context_length, vocab_size=model.vocab_size,
    )  # fmt: skip
    return _external(model, read, kind, out, stories, facts)


def _external(
    model: Any,
    reader: tuple[Tokenizer, int],
    name: str,
    out: str | None,
    stories: DataConfig | None,
    facts: Mapping[str, Any],
) -> OpenedModel:
    """Return a model of another program; `reader`: tokenizer and start token, `facts`: what results say about it."""
    items = _ENGLISH if stories is None else "stories"
    default = name.replace("/", "--") + ("" if stories is None else "-stories")
    module = module_of(model)
    kind = facts["model_type"]
    return OpenedModel(
        folder=EXTERNAL_RESULTS / default if out is None else Path(out),
        name=name,
        source=name,
        model=model,
        untrained=lambda seed: model.untrained(_UNTRAINED_SEED + seed),
        tokenizer=reader[0],
        bos_id=reader[1],
        data=stories,
        data_fingerprint=_ENGLISH if stories is None else corpus_fingerprint(stories),
        shape={"name": name, "items": items, **facts},
        n_parameters=n_parameters(module) if module else 0,
        departures=() if kind == "llama" else (f"model_type={kind}",),
        environment={"model": name},
        view=sentence_view,
    )


def module_of(model: ObservableModel) -> nn.Module | None:
    """Return the module that a view observes; None for an object of the user's own without one."""
    module = getattr(model, "model", getattr(model, "module", None))
    return module if isinstance(module, nn.Module) else None


def _folder_name(folder: Path) -> str:
    """Return the name of a model's folder; for the export of a run, the run's name."""
    path = folder.resolve()
    if (path.parent.name, path.name) == ("export", "hf"):
        return path.parent.parent.name
    return path.name


def check_results_folder(folder: Path) -> None:
    """Raise UserError if `folder` is one of a run or a model, whose results would be lost."""
    if (folder / "config.json").exists() or folder.resolve() == RUNS.resolve():
        raise UserError(f"out={folder}: holds a run or a model; choose another folder")


def _check_attention(model: ObservableModel) -> None:
    """Raise ValueError if the attention that is observed at the middle of a text of all kinds of tokens is wrong."""
    length = min(model.context_length, 32)
    tokens = torch.linspace(0, model.vocab_size - 1, length).long()
    check_observed(model, tokens[None], torch.tensor([[length // 2]]))
