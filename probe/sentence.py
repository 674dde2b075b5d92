"""One sentence, word by word: what each head looks at, whatever pieces the tokenizer made of the words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from data.links import Span
from model.transformer import Transformer, attention_maps


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
