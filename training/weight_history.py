"""The weights of a model during training: the report page computes with those of some steps.

A small model has them in weights.jsonl, one JSON object per line: the step, and all weights as base64 of little-endian
float16, in the order of `named_parameters`. A tied projection is stored once. A larger model has no such file.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from settings.errors import damaged_file_error
from training.metrics import WeightHistory

HISTORY_FILE = "weights.jsonl"
MAX_HISTORY_WEIGHTS = 500_000  # larger models are not recorded: 1.3 MB per step


def pack_parameters(parameters: Iterable[Tensor], kind: torch.dtype) -> str:
    """Return the weights of a model as base64: little-endian numbers of `kind` (float16 or float32)."""
    numbers = parameters_to_vector(parameters).detach().cpu().to(kind).numpy()
    return b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()


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
