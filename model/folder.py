"""A folder as transformers' save_pretrained writes it: what it holds is checked by name, and then loaded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor

from model.imported import TYPES, Imported

_COUNTS = (
    "num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_size max_position_embeddings "
    "intermediate_size n_layer n_head n_embd n_positions n_inner vocab_size"
).split()
# What a file may hold without being asked for it, for nothing is computed from it: old GPT-2s' triangle and its filling
# (now made from the places), a second copy of an embedding that is tied, and old Llamas' angles (now made from theta).
_NOT_MISSED = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight|"
    r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)


def check_installed() -> None:
    """Raise ValueError, in one line, where transformers is not installed."""
    if find_spec("transformers") is None:
        raise ValueError("model= takes transformers: pip install '.[export]'")


def load(folder: Path, name: str, device: torch.device) -> Imported:
    """Load a model from a folder as `save_pretrained` writes it, in float32 whatever it is kept in.

    No code of the folder is run and no pickle opened: of weights only tensors are read.

    Args:
        folder: with config.json and weights, safetensors where there are some.
        name: what to call it in errors.
        device: where to put it.

    Raises:
        ValueError: in one line, why it cannot be loaded or read.

    """
    kept = _their_config(folder, name)
    _check_config(kept, folder, name)
    files = weights_of(folder)
    _check_files(files, name)
    theirs = _loaded(folder, name, is_safe=files[0].suffix == ".safetensors").to(device)
    try:
        return Imported(theirs)
    except torch.OutOfMemoryError:
        raise  # it is the device that is at fault
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"{name} cannot be read: {_short(error)}") from None


def _check_config(kept: Mapping[str, Any], folder: Path, name: str) -> None:
    """Raise ValueError for a config.json of something else, or of what is not read here."""
    if "model_type" not in kept and ({"run", "data", "optim"} <= kept.keys() or (folder / "checkpoints").is_dir()):
        raise ValueError(f"{name} is a run: run={name} probes it")
    if kept.get("model_type") not in TYPES:
        raise ValueError(f"{name}: model_type={kept.get('model_type')} cannot be probed: only {', '.join(TYPES)} can")
    if kept.get("quantization_config"):
        raise ValueError(f"{name}: its weights are quantized: take the ones that are not")
    for count in _COUNTS:
        if isinstance(kept.get(count), int) and kept[count] < 1:
            raise ValueError(f"{name}: {count}={kept[count]} cannot be probed: it is 1 or more")


def _check_files(files: Sequence[Path], name: str) -> None:
    """Raise ValueError where there are no weights, or a pickle of more than weights."""
    if not files:
        raise ValueError(f"{name} has no weights: neither *.safetensors nor pytorch_model*.bin")
    for path in files:
        if path.suffix == ".bin" and not _holds_tensors(path):
            raise ValueError(f"{name}: its weights hold more than tensors, which is not opened, or are damaged")


def _loaded(folder: Path, name: str, *, is_safe: bool) -> Any:
    """Return transformers' model with every weight of the folder and no other; ValueError where that cannot be."""
    import transformers

    transformers.utils.logging.set_verbosity_error()  # what it would warn of is an error here
    transformers.utils.logging.disable_progress_bar()
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False,
            use_safetensors=is_safe, weights_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are looked at below, where they have a name
        )  # fmt: skip
    except Exception as error:  # of any kind: whoever wrote the folder decides
        raise ValueError(f"transformers cannot load {name}: {_short(error)}") from None
    theirs, info = loaded
    held = {key for key in info["unexpected_keys"] if not _NOT_MISSED.fullmatch(key)}
    for what, some, why in (
        ("lacks", info["missing_keys"], "it is not whole"),
        ("has another size of", {key for key, *_ in info["mismatched_keys"]}, "config.json asks for other weights"),
        ("holds", held, "config.json does not ask for that"),
    ):
        if some:
            more = f", and {len(some) - 1} more of its weights" if len(some) > 1 else ""
            raise ValueError(f"{name} {what} {min(some)}{more}: {why}")
    if not all(one.isfinite().all() for one in theirs.parameters()):
        raise ValueError(f"{name} has weights that are not finite: there is nothing to read")
    return theirs


def _their_config(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{name} is no model of transformers: it has no config.json")
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: its config.json is damaged")
    return found


def _holds_tensors(path: Path) -> bool:
    """Say whether a pickle holds tensors by name and nothing else; what PyTorch says of others is how to run them."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception:  # of any kind: whoever wrote the file decides
        return False
    return isinstance(held, dict) and all(isinstance(one, Tensor) for one in held.values())


def weights_of(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, in order: safetensors, and only where there are none others."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def sha256_of(files: list[Path]) -> str:
    """Return one digest of the contents of some files, in their order."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def _short(error: Exception) -> str:
    """Return of what kind an error is and what it says, in one line of 200 characters at most."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
