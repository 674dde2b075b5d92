"""One sentence, word by word: what each head looks at, whatever pieces the tokenizer made of the words."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from data.links import Span
from model.observe import attention_maps
from model.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text as a tokenizer cut it."""

    ids: list[int]  # the token before the text, then its own
    offsets: list[Span]  # the characters of each token of the text; empty for one that stands for none
    words: list[tuple[str, Span]]  # with their characters


@dataclass(frozen=True, slots=True)
class WordRow:
    """Every head's attention from one word. The first place stands for the token before the text."""

    word: str
    weights: np.ndarray  # [L, H, n_words + 1], to each word up to and including this one; later ones 0


@torch.no_grad()
def word_rows(model: Transformer, sentence: Sentence, asked: list[Span]) -> list[WordRow]:
    """Return the rows of the words whose spans are `asked`.

    A word's row is that of its LAST token, the first that has read it whole; the weight on a word is the sum over
    its tokens. Tokens belong to words by overlapping characters, spaces left aside.

    Args:
        model: in eval mode.
        sentence: the text.
        asked: spans of some of its words.

    """
    ids, words, owner = sentence.ids, sentence.words, owners(sentence)
    positions = [
        1 + max(i for i, word in enumerate(owner) if word is not None and words[word][1] == span) for span in asked
    ]
    device = model.token_embedding.weight.device
    tokens = torch.tensor([ids], device=device)
    maps = attention_maps(model, tokens, torch.tensor([positions], device=device))[:, 0].cpu().numpy()  # [L, H, Tq, Tk]
    rows = []
    for place, span in enumerate(asked):
        weights = np.zeros((*maps.shape[:2], len(words) + 1))
        weights[..., 0] = maps[:, :, place, 0]
        for i, word in enumerate(owner):
            if word is not None:
                weights[..., word + 1] += maps[:, :, place, i + 1]
        name = next(word for word, where in words if where == span)
        rows.append(WordRow(name, weights))
    return rows


def owners(sentence: Sentence) -> list[int | None]:
    """Return, for each token of the text, the place of the word that it is part of; None for one that is of none."""
    return [_owner(span, sentence.words) for span in sentence.offsets]


def _owner(token: Span, words: list[tuple[str, Span]]) -> int | None:
    overlaps = [min(token[1], span[1]) - max(token[0], span[0]) for _, span in words]
    best = max(range(len(words)), key=overlaps.__getitem__, default=None)
    return best if best is not None and overlaps[best] > 0 else None


@torch.no_grad()
def next_words(model: Transformer, ids: list[int], n: int) -> list[tuple[int, float]]:
    """Return the `n` likeliest next tokens and their probabilities."""
    logits = model(torch.tensor([ids], device=model.token_embedding.weight.device))[0, -1].float()
    chosen = logits.softmax(-1).topk(min(n, logits.shape[-1]))
    return list(zip(chosen.indices.tolist(), chosen.values.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Reader:
    """A model and how it is given a text."""

    model: Transformer  # in eval mode
    cut: Callable[[str], Sentence]
    name: Callable[[int], str | None]  # of a token


@dataclass(frozen=True, slots=True)
class Asked:
    """A sentence, the word at which a head is read, and the two it may look at there."""

    text: str
    word: str
    candidates: tuple[str, str]
    meant: int  # which of them the word, or the pronoun it decides about, stands for

    @property
    def antecedent(self) -> str:
        """The candidate that is meant."""
        return self.candidates[self.meant]

    @property
    def distractor(self) -> str:
        """The other one."""
        return self.candidates[1 - self.meant]


FOUR_CELLS = [
    Asked(f"One sunny day, the {first} sat near the {second}. {pronoun}", pronoun, ("cat", "buses"), meant)
    for first, second in (("cat", "buses"), ("buses", "cat"))
    for meant, pronoun in enumerate(("It", "They"))
]


TWINS = [
    Asked(f"One sunny day, the cat lay on the mat because it was {adjective}", word, ("cat", "mat"), meant)
    for meant, adjective in enumerate(("tired", "soft"))
    for word in ("it", adjective)
]


SHOWCASE = {
    "number": (
        "it→cat in all four cells (a head that follows position or a taste for one noun is right in two)",
        FOUR_CELLS,
    ),
    "later_cue": (
        'decided later: at "it" both rows are the same to the last bit; only the adjective tells them apart',
        TWINS,
    ),
}


def cells(reader: Reader, asked: list[Asked], head: tuple[int, int]) -> list[dict[str, Any]]:
    """Return of each sentence what `head` at its word gives each candidate, and what the model expects next.

    The last only where the word ends the text.
    """
    found = []
    for one in asked:
        sentence = reader.cut(one.text)
        names = [name for name, _ in sentence.words]
        span = sentence.words[names.index(one.word)][1]
        row = word_rows(reader.model, sentence, [span])[0].weights[head]
        likely = next_words(reader.model, sentence.ids, 3) if one.text.endswith(one.word) else []
        weights = {name: round(float(row[1 + names.index(name)]), 4) for name in one.candidates}
        following = [(reader.name(token), round(chance, 4)) for token, chance in likely]
        found.append({"text": one.text, "word": one.word, "weights": weights, "next": following})
    return found


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
