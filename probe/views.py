"""Every head's attention over one whole sentence, small enough to keep: what a picture of lines is drawn from."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from model.transformer import Transformer, attention_maps
from probe.sentence import Sentence, owners

START = "(start)"  # what stands for the token before the text
_DENSE = 64  # tokens; of a longer text only the largest weights of each row are kept
_SPARSE_BYTES = 500_000  # of one long text's pieces, and as many of its words
_LEAST_KEPT = 4  # weights of a row


@dataclass(frozen=True, slots=True)
class Layout:
    """How a sentence is written down: what each token is and which word it is part of."""

    pieces: list[str]  # the text of each token, START first
    words: list[str]  # START first
    owner: list[int]  # of each token, the place in `words`; -1 for one that belongs to none


def layout(sentence: Sentence, text: str) -> Layout:
    """Return the pieces and words of `text` as `sentence` has cut it."""
    owner = [-1 if word is None else word + 1 for word in owners(sentence)]
    pieces = [text[slice(*span)] for span in sentence.offsets]
    return Layout([START, *pieces], [START, *(word for word, _ in sentence.words)], [0, *owner])


def by_word(weights: np.ndarray, layout: Layout) -> np.ndarray:
    """Return weights [..., T, T] from token to token as [..., W, W] from word to word.

    A word's row is that of its last token, the first that has read it whole; the weight on a word is the sum over its
    tokens. A word without tokens has no weight.
    """
    owner = np.array(layout.owner)
    tokens, n_words = np.flatnonzero(owner >= 0), len(layout.words)
    belongs = np.zeros((len(owner), n_words))
    belongs[tokens, owner[tokens]] = 1
    last = np.full(n_words, -1)
    last[owner[tokens]] = tokens  # of several the last
    found: np.ndarray = weights[..., last, :] @ belongs
    found[..., last < 0, :] = 0
    return found


@torch.no_grad()
def view(model: Transformer, sentence: Sentence) -> np.ndarray:
    """Return every head's weights over a whole sentence: [L, H, T, T] float32, rows that look, columns looked at."""
    tokens = torch.tensor([sentence.ids], device=model.token_embedding.weight.device)
    return attention_maps(model, tokens)[:, 0].cpu().numpy()


def dense(weights: np.ndarray, kind: type[np.unsignedinteger]) -> bytes:
    """Pack weights [L, H, T, T] as whole numbers, the past alone: [L, H, T (T + 1) / 2], row after row.

    Args:
        weights: 0 to 1, 0 in the future.
        kind: np.uint8 or np.uint16, whose largest number stands for a weight of 1; written little-endian.

    """
    rows, columns = np.tril_indices(weights.shape[-1])
    scaled = np.rint(weights[..., rows, columns] * np.iinfo(kind).max)
    return scaled.astype(np.dtype(kind).newbyteorder("<")).tobytes()


def sparse(weights: np.ndarray, kept: int) -> bytes:
    """Pack the `kept` largest weights of each row of [L, H, T, T]: [L, H, T, kept] pairs (key, weight) of uint16.

    Largest first; a row with fewer than `kept` keys is filled up with weights of 0.
    """
    keys = np.argsort(-weights, axis=-1, kind="stable")[..., :kept]
    largest = np.rint(np.take_along_axis(weights, keys, axis=-1) * 65535)
    return np.stack([keys, largest], axis=-1).astype("<u2").tobytes()


def written(weights: np.ndarray) -> dict[str, Any]:
    """Return what the page holds of the weights [L, H, T, T] of one sentence.

    {"kept": None, "data": base64 of `dense` in uint16}, or of a text of more than 64 tokens
    {"kept": k, "data": base64 of `sparse`}, k falling with its length so that it takes half a megabyte.
    """
    n_layer, n_head, length = weights.shape[:3]
    if length <= _DENSE:
        return {"kept": None, "data": b64encode(dense(weights, np.uint16)).decode()}
    kept = min(length, max(_LEAST_KEPT, _SPARSE_BYTES // (4 * n_layer * n_head * length)))
    return {"kept": kept, "data": b64encode(sparse(weights, kept)).decode()}


def written_words(weights: np.ndarray, layout: Layout) -> dict[str, Any] | None:
    """Return `written` of the weights between words; None where they can be summed from those of the tokens, all kept.

    Of a long text they cannot: the many small weights on the pieces of a word, none of which is kept, may add up.
    """
    return written(by_word(weights, layout)) if len(layout.owner) > _DENSE else None


def unwritten(held: Mapping[str, Any], shape: tuple[int, int, int]) -> np.ndarray:
    """Return the weights [L, H, T, T] that `written` has packed, of a long text those that it has kept.

    Args:
        held: what `written` returned.
        shape: L, H and T.

    """
    n_layer, n_head, length = shape
    packed = np.frombuffer(b64decode(held["data"]), dtype="<u2")
    weights = np.zeros((n_layer, n_head, length, length))
    if held["kept"] is None:
        weights[..., *np.tril_indices(length)] = packed.reshape(n_layer, n_head, -1) / 65535
        return weights
    pairs = packed.reshape(n_layer, n_head, length, held["kept"], 2)
    np.put_along_axis(weights, pairs[..., 0].astype(int), pairs[..., 1] / 65535, axis=-1)
    return weights
