"""Open a model that another program trained, or refuse it with one line.

No code of the model's folder is run and no pickle is executed: weights are read from safetensors or
by `torch.load(weights_only=True)`.
"""

import hashlib
import json
import re
import sys
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from data.tokenizer import end_id, imported_tokenizer, load_tokenizer
from extras.others.pretrained_view import PretrainedView, check_memory
from settings.errors import UserError, extra, one_line

_FILES = ("*.json", "*.txt", "*.model")  # settings and tokenizer
_MAX_LAYERS = 1000
# Weights in published files that no model uses: masks, frequencies, a copy of the embedding.
_UNUSED = re.compile(r"(attn|attention)\.(masked_)?bias$|inv_freq$|^lm_head\.weight$")


class _ExternalModel(NamedTuple):
    view: PretrainedView
    tokenizer: Tokenizer  # adds nothing around a text
    bos_id: int  # the token before every text
    facts: dict[str, Any]  # about its files, with the names of probe.json; commit None: not from the hub


def open_transformers(
    source: str, device: torch.device, tokenizer_source: str | None = None, setting: str = "model"
) -> _ExternalModel:
    """Load a causal language model in float32; UserError if it cannot be loaded or observed.

    `source` is a folder of `save_pretrained` or a name on the hub, and `setting` the one that names it.
    `tokenizer_source` is such a source too, or a tokenizer.json; None: the tokenizer is in the model's folder.
    """
    named = f"{setting}={source}"
    if find_spec("transformers") is None:
        raise UserError(f"{named}: needs transformers: {sys.executable} -m pip install {extra('export')}")

    path, commit = find_model(source, setting)
    view = _load(path, named, device)
    if tokenizer_source is None:
        tokenizer, bos_id = imported_tokenizer(path, named)
    else:
        tokenizer, bos_id = chosen_tokenizer(tokenizer_source)
    if bos_id >= view.vocab_size:
        raise UserError(f"{named}: its start token {bos_id} is outside its {view.vocab_size:,} tokens")

    facts = dict(
        source="transformers", model_type=view.model.config.model_type, tokenizer=tokenizer_source, commit=commit,
        sha256=_sha256(path), transformers=version("transformers"),
    )  # fmt: skip
    return _ExternalModel(view, tokenizer, bos_id, facts)


def find_model(source: str, setting: str = "model", *, has_weights: bool = True) -> tuple[Path, str | None]:
    """Return the folder of a model and None, or for a name on the hub its snapshot and commit; or UserError."""
    path = Path(source)
    if source and path.is_dir():
        return path, None
    if not source or path.exists() or source.startswith((".", "/", "~")):
        problem = "is a file" if path.is_file() else "no such model"
        raise UserError(f"{setting}={source}: {problem}; give a folder of save_pretrained or a hub name")

    # Everything else is a name on the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    files = [*_FILES, "*.safetensors"] if has_weights else list(_FILES)
    try:
        folder = Path(snapshot_download(source, allow_patterns=files, ignore_patterns="*/*"))
        # Weights in PyTorch's older format only if there are no others.
        if has_weights and not _weight_files(folder):
            snapshot_download(source, allow_patterns="pytorch_model*.bin", ignore_patterns="*/*")
    except (OSError, HFValidationError) as error:  # no network, no such model, private
        problem = "cannot be reached" if "Connect" in str(error) else f"does not provide it: {one_line(error)}"
        raise UserError(f"{setting}={source}: no such folder, and the hub {problem}") from None
    return folder, folder.name


def chosen_tokenizer(source: str, setting: str = "tokenizer") -> tuple[Tokenizer, int]:
    """Return the tokenizer that the user names by `setting` and the token before every text."""
    if Path(source).suffix != ".json":
        folder, _ = find_model(source, setting, has_weights=False)
        return imported_tokenizer(folder, f"{setting}={source}")
    try:
        tokenizer = load_tokenizer(Path(source))
        return tokenizer, end_id(tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(f"{setting}={source}: {one_line(error)}") from None


def _load(path: Path, named: str, device: torch.device) -> PretrainedView:
    """Return the model at `path`; UserError for every problem that transformers or we find."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Every error below is one of the files, except a device without memory.
    try:
        model = _load_folder(path, device)
        for weight in model.parameters():
            if not weight.isfinite().all():
                raise UserError("its weights are not finite")
        return PretrainedView(model.to(device))
    except torch.OutOfMemoryError:
        raise
    except UnpicklingError:
        raise UserError(f"{named}: its weights hold more than tensors and are not loaded") from None
    except Exception as error:  # transformers and the files of others raise exceptions of every type
        raise UserError(f"{named}: {one_line(error)}") from None


def _load_folder(folder: Path, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

    if (folder / "adapter_config.json").is_file():
        raise UserError("is an adapter (LoRA): merge it (merge_and_unload of peft) and save the result")

    if not (folder / "config.json").is_file():
        raise UserError("has no config.json, so it is neither a run of train.py nor a model of transformers")

    # Requests in config.json that are refused.
    values, _ = PretrainedConfig.get_config_dict(folder, local_files_only=True)
    if "tokenizer_sha256" in values:
        raise UserError("is a run of train.py that has no checkpoint yet; continue it with resume=true")
    if values.get("quantization_config"):
        raise UserError("its weights are quantized; use the version that is not")
    if re.search(r'attn_implementation": "[^"]*/', json.dumps(values)):
        raise UserError("its config.json asks for attention code from the hub")
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        if isinstance(values.get(name), int) and values[name] > _MAX_LAYERS:
            raise UserError(f"its config.json asks for more than {_MAX_LAYERS} layers")

    _check_files(folder)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(folder, **options)
    with torch.device("meta"):
        check_memory(AutoModelForCausalLM.from_config(config), device)

    # The weights must be those of config.json.
    options |= {"dtype": torch.float32, "attn_implementation": "eager", "weights_only": True}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    model, info = loaded
    if wrong := {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}:
        raise UserError(f"its weights do not fit its config.json: {min(wrong)} is missing or has another shape")
    for key in sorted(info["unexpected_keys"]):
        if not _UNUSED.search(key):
            raise UserError(f"its config.json does not use all weights: {key}")
    return model


def _check_files(folder: Path) -> None:
    """Raise UserError if weights are compressed, or their index names a file outside the folder."""
    for path in folder.glob("pytorch_model*.bin"):
        # A small compressed file could fill the memory.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                    raise UserError(f"{path.name}: its tensors are larger than the file")
    for index in folder.glob("*.index.json"):
        for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values():
            if Path(name).name != name or name == "..":
                raise UserError(f"{index.name} names a file outside the folder: {name}")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _sha256(path: Path) -> str:
    """Return one digest of settings, tokenizer and weights in a folder."""
    settings = list[Path]()
    for pattern in _FILES:
        settings += path.glob(pattern)
    digest = hashlib.sha256()
    for name in (*sorted(settings), *_weight_files(path)):
        with name.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
