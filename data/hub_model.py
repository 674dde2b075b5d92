"""A model on the Hugging Face hub: what of it transformers opens, kept where the hub's own library keeps it."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data.download import DEADLINE, FIRST_ANSWER, Kind, Unreachable, patiently, within

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_MODEL = Kind(
    "",
    "model={name} is neither a folder nor a model of {hub}, or a private one: then `hf auth login`",
    "a folder (model=FOLDER), or a filled cache or a mirror (HF_HUB_OFFLINE=1, HF_ENDPOINT=URL; docs/data.md)",
)


def hub_model(name: str) -> tuple[Path, str]:
    """Return the folder in which the hub's own library keeps a model, fetched if need be, and its commit.

    Fetched are the files that transformers opens: settings, the tokenizer, weights in safetensors, or where there are
    none in PyTorch's own format.

    Args:
        name: OWNER/NAME, or NAME of the oldest ones.

    Raises:
        ValueError: there is no such model, or it cannot be had.
        Unreachable: the hub does not answer and the library's cache does not hold it.

    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name, re.ASCII):
        raise ValueError(f"model={name} is neither a folder nor the name of a model on the hub")

    def ask() -> ModelInfo:
        return HfApi().model_info(name, timeout=FIRST_ANSWER, expand=["sha", "siblings"])

    disable_progress_bars()
    try:
        info = patiently(name, None, lambda: within(DEADLINE, ask), _MODEL)
    except Unreachable:
        if (kept := _kept_model(name)) is None:
            raise
        return kept, kept.name
    first, *others = _opened_by_transformers([one.rfilename for one in info.siblings or []], name)
    # By no commit, so that the library notes which one is the newest, for those who are offline later.
    folder = Path(patiently(name, None, lambda: hf_hub_download(name, first), _MODEL)).parent
    for one in others:
        patiently(name, folder.name, partial(hf_hub_download, name, one, revision=folder.name), _MODEL)
    return folder, folder.name


def _kept_model(name: str) -> Path | None:
    """Return the folder in which the library keeps the newest of a model that it has seen; None where it has none."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except OSError:
        return None


def _opened_by_transformers(names: list[str], model: str) -> list[str]:
    """Return those of a repository's files that a model and its tokenizer are loaded from, config.json first."""
    own = [name for name in names if "/" not in name and name != "config.json"]
    if "config.json" not in names:
        raise ValueError(f"{model} is no model of transformers: it has no config.json")
    weights = [name for name in own if fnmatch(name, "model*.safetensors")]
    weights = weights or [name for name in own if fnmatch(name, "pytorch_model*.bin")]
    return ["config.json", *(name for name in own if name.endswith((".json", ".txt", ".model"))), *weights]
