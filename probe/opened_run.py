"""Open a checkpoint of a run for the probe, and the text that it was trained on."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.corpus import load_corpus
from data.loader import Corpus
from data.tokenizer import end_id, load_tokenizer
from model.observe import TransformerView
from model.transformer import Transformer, draw_outputs, load_weights, n_parameters
from probe.opened_model import OpenedModel
from settings.errors import UserError, damaged_file_error
from settings.files import read_json
from settings.model import departures
from settings.train import CHANGEABLE, TrainSettings, changed_settings, flatten, saved_settings
from training.checkpoint import load_checkpoint
from training.run_dir import RUNS

UNTRAINED_SEED = 10_000  # added to the seed of an untrained model: no training starts there


def open_run(run: Path, device: torch.device, checkpoint: str = "best") -> OpenedModel:
    """Load a checkpoint of a run in float32: best, last or its step; UserError or OSError if that is not possible."""
    if checkpoint not in ("best", "last") and not checkpoint.isdecimal():
        raise UserError(f"checkpoint={checkpoint}: must be best, last or a step")
    settings, config = load_run_settings(run)
    tokenizer = _load_run_tokenizer(run, config)
    weights, step = _load_weights(run, settings, checkpoint)

    transformer = Transformer(settings.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(transformer, weights)
    if not all(weight.isfinite().all() for weight in transformer.parameters()):
        raise UserError(f"{run}: the weights are not finite because training diverged; train again")

    init = settings.run.init
    environment = _load_environment(run)
    began = environment.pop("began")
    began += [f"Its training began with the weights of {init}, which may have seen these sentences."] if init else []

    def untrained(seed: int) -> TransformerView:
        # The layers of a new model write nothing; on a text they would have no effect.
        fresh = Transformer(settings.model, transformer.vocab_size, seed=UNTRAINED_SEED + seed)
        if settings.data.source != "stories":
            draw_outputs(fresh, UNTRAINED_SEED + seed)
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
        **environment,
        step=step,
        settings=settings,
        transformer=transformer,
        began=tuple(began),
    )


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
    """Return the versions that made a run, the arguments of train.py, and notes about its training."""
    path = run / "environment.json"
    with damaged_file_error(path, "delete it"):
        content = json.loads(path.read_text()) if path.exists() else {}
        versions = {
            "python": content.get("python"),
            "torch": content.get("packages", {}).get("torch"),
            "commit": content.get("commit"),
        }
        versions = {name: version for name, version in versions.items() if version}  # a model of a page has none
        return {"environment": versions, "arguments": content.get("arguments"), "began": list(content.get("began", []))}


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
