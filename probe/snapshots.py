"""What training keeps of the showcase's attention: every head's weights, step after step, so that it can be replayed.

attention.jsonl of a run holds one object a line. The first, of step -1, says what is seen: {"step": -1, "version",
"n_layer", "n_head", "texts": [{"text", "words"}]}. Every other is one step: {"step", "data": [for each text the base64
of `sentences.pack_rows` in uint8]}.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.observe import attention_maps
from model.transformer import Transformer
from probe.sentences import FOUR_CELLS, TIRED_OR_SOFT, Example, TokenizedText, pack_rows

FILM = "attention.jsonl"


_VERSION = 1


@dataclass(frozen=True, slots=True)
class Film:
    """The sentences that are looked at again at every step."""

    examples: tuple[Example, ...]
    texts: tuple[TokenizedText, ...]

    def header(self, n_layer: int, n_head: int) -> dict[str, Any]:
        """Return the first line, without its step."""
        texts = [{"text": text.text, "words": text.words} for text in self.texts]
        return {"version": _VERSION, "n_layer": n_layer, "n_head": n_head, "texts": texts}


def choose_film(tokenize: Callable[[str], TokenizedText], unknown: int | None, context_length: int) -> Film:
    """Return the film of the showcase's different texts that a model can read.

    Args:
        tokenize: returns the tokens of a text.
        unknown: the token of what the tokenizer cannot write; None where it can write anything.
        context_length: tokens; of a longer text nothing is kept.

    """
    examples = {example.text: example for example in (*FOUR_CELLS, *TIRED_OR_SOFT)}.values()
    texts = [(example, tokenize(example.text)) for example in examples]
    read = [
        (example, text) for example, text in texts if len(text.tokens) <= context_length and unknown not in text.tokens
    ]
    return Film(tuple(example for example, _ in read), tuple(text for _, text in read))


@torch.no_grad()
def shoot(model: Transformer, film: Film) -> list[np.ndarray]:
    """Return every head's weights over each sentence of `film`: [L, H, T, T] float32.

    Args:
        model: causal, in eval mode: shorter sentences are filled up behind, where no word looks.
        film: one sentence or more.

    """
    lengths = [len(text.tokens) for text in film.texts]
    filled = [text.tokens + [0] * (max(lengths) - len(text.tokens)) for text in film.texts]
    maps = attention_maps(model, torch.tensor(filled, device=model.token_embedding.weight.device))
    every = maps.float().cpu().numpy()  # [L, B, H, T, T]
    return [every[:, place, :, :length, :length] for place, length in enumerate(lengths)]


def frame(weights: list[np.ndarray]) -> dict[str, Any]:
    """Return what a step's line holds of the weights [L, H, T, T] of each sentence."""
    return {"data": [pack_rows(weight, range(weight.shape[-1]), np.uint8) for weight in weights]}


def read_film(path: Path) -> dict[str, Any] | None:
    """Read attention.jsonl: {"n_layer", "n_head", "texts": [layouts], "steps": [...], "data": [[base64 per text]]}.

    Args:
        path: of the file. Its last line may be cut off, for training may still be going on: it is left out.

    Returns:
        None where there is no file.

    Raises:
        ValueError: in one line, that the file is damaged.

    """
    if not path.is_file():
        return None
    try:
        lines = path.read_text().splitlines(keepends=True)
        header, *frames = [json.loads(line) for line in lines if line.endswith("\n")]
        sizes = [_size(header, one) for one in header["texts"]]
        steps = [one["step"] for one in frames]
        known = header["version"] == _VERSION and header["step"] == -1
        in_order = all(type(step) is int for step in steps) and steps == sorted({-1, *steps})[1:]
        whole = all([len(b64decode(some, validate=True)) for some in one["data"]] == sizes for one in frames)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = in_order = whole = False
    if not (known and in_order and whole):
        raise ValueError(f"{path} is damaged: delete it to go without the pictures of training")
    about = {name: header[name] for name in ("n_layer", "n_head", "texts")}
    return {**about, "steps": steps, "data": [one["data"] for one in frames]}


def _size(header: dict[str, Any], text: dict[str, Any]) -> int:
    """Return how many bytes a step keeps of one text; ValueError where its layout does not fit together."""
    length = len(text["words"])
    if not all(isinstance(word, str) for word in [text["text"], *text["words"]]):
        raise ValueError("not a layout")
    return int(header["n_layer"] * header["n_head"] * length * (length + 1) // 2)
