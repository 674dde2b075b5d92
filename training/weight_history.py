"""The weights of a model during training: the report page computes with those of some steps.

A small model has them in weights.jsonl, one JSON object per line: the step, and all weights as base64 of little-endian
float16, in the order of `named_parameters`. A tied projection is stored once. A larger one has its kept checkpoints.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from settings.errors import damaged_file_error
from training.checkpoint import read_checkpoint, read_manifest
from training.metrics import WeightHistory

HISTORY_FILE = "weights.jsonl"
MAX_HISTORY_WEIGHTS = 500_000  # larger models are not recorded: 1.3 MB per step


def pack_parameters(parameters: Iterable[Tensor], kind: torch.dtype) -> str:
    """Return the weights of a model as base64: little-endian numbers of `kind` (float16 or float32)."""
    numbers = parameters_to_vector(parameters).detach().cpu().to(kind).numpy()
    return b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()


def pack_rows(parameters: Iterable[Tensor], width: int) -> str:
    """Return the weights of a model as base64 of rows of `width` numbers: a float32 scale, then int8 in its units."""
    rows = parameters_to_vector(parameters).detach().view(-1, width)
    scales = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    units = (rows / scales).round().to(torch.int8).numpy()
    parts = [scales.numpy().astype("<f4").view(np.uint8), units.view(np.uint8)]
    return b64encode(np.concatenate(parts, axis=1).tobytes()).decode()


def kept_weights(folder: Path, names: Iterable[str], width: int, last: int) -> WeightHistory | None:
    """Return the weights of two checkpoints in `folder` from the first half of training up to step `last`.

    They are the first after step 0 and the one nearest to the middle between it and `last` on a log scale. `names`: of
    the parameters; `width`: d_model. None: no such checkpoint was kept.
    """
    kept = [entry for entry in read_manifest(folder) if 0 < entry.step <= last / 2]
    if not kept:
        return None
    middle = (kept[0].step * last) ** 0.5
    nearest = min(kept, key=lambda entry: max(entry.step / middle, middle / entry.step))
    history = WeightHistory([], [], "int8")
    for entry in dict.fromkeys([kept[0], nearest]):
        state = read_checkpoint(folder, entry)
        if state is not None:
            history.steps.append(entry.step)
            history.data.append(pack_rows((state["model"][name] for name in names), width))
    return history if history.steps else None


def load_weight_history(path: Path, n_weights: int) -> WeightHistory | None:
    """Return weights.jsonl without an incomplete last line, None if it has no line; UserError if it is damaged."""
    if not path.is_file():
        return None
    history = WeightHistory([], [])
    with damaged_file_error(path, "delete it to continue without the weights during training"):
        # The weights stay base64, as the page needs them.
        for text in path.read_text().splitlines(keepends=True):
            if not text.endswith("\n"):
                continue
            line = json.loads(text)
            if len(b64decode(line["weights"], validate=True)) != 2 * n_weights or type(line["step"]) is not int:
                raise ValueError("weights of another model, or without a step")
            history.steps.append(line["step"])
            history.data.append(line["weights"])
        if history.steps != sorted(set(history.steps)):
            raise ValueError("steps out of order")
    return history if history.steps else None
