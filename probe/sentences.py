"""Every head's attention between the words of a text, and the words that the model expects next."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from tokenizers import Tokenizer

from data.pairs import Span
from data.tokenizer import encode_text
from data.words import word_spans
from model.observe import ObservableModel, SiteEdit
from probe.batches import progress_bar
from probe.edits import all_heads

START = "(start)"  # shown for the token before every text


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model reads it, with its words."""

    text: str
    tokens: list[int]  # the start token, then those of the text
    spans: list[Span]  # characters of each token of the text; empty for a token without characters
    word_spans: list[Span]  # characters of each word

    @cached_property
    def words(self) -> list[str]:
        """START and the words of the text."""
        return [START, *(self.text[start:end] for start, end in self.word_spans)]

    @cached_property
    def word_of_token(self) -> list[int]:
        """The word of each token as an index into `words`; -1 for a token outside all words."""
        return [0, *(self._word_of(span) for span in self.spans)]

    def tokens_of(self, word: int) -> list[int]:
        return [i for i, of_word in enumerate(self.word_of_token) if of_word == word]

    def _word_of(self, token: Span) -> int:
        """Return the word that shares the most characters with a token; the first of equal ones."""
        overlaps = [min(token[1], end) - max(token[0], start) for start, end in self.word_spans]
        largest = max(overlaps, default=0)
        return 1 + overlaps.index(largest) if largest > 0 else -1


def tokenize_text(tokenizer: Tokenizer, text: str, bos_id: int) -> TokenizedText:
    """Return the tokens and words of `text`, the start token first."""
    encoding = encode_text(tokenizer, text)
    return TokenizedText(text, [bos_id, *encoding.ids], encoding.offsets, word_spans(text))


def word_attention(model: ObservableModel, text: TokenizedText) -> np.ndarray:
    """Return the attention of every head between the words of a text, [L, H, W, W] with W = len(text.words).

    nan in a layer without attention.
    The row of a word is that of its last token, the first that has read the whole word. The weight on a word is the
    sum over its tokens.
    """
    tokens = torch.tensor([text.tokens], device=model.device)
    weights = model.attention_weights(tokens).cpu().numpy()  # [L, 1, H, T, T]
    return between_words(weights[:, 0], text)


def between_words(weights: np.ndarray, text: TokenizedText) -> np.ndarray:
    """Return weights [..., T, T] between tokens as weights [..., W, W] between words; a word without tokens has 0."""
    # Keys: a word's weight is the sum over its tokens. [T, W]
    word_of_token = np.array(text.word_of_token)
    tokens = np.flatnonzero(word_of_token >= 0)
    membership = np.zeros((len(word_of_token), len(text.words)))
    membership[tokens, word_of_token[tokens]] = 1

    # Queries: a word's row is that of its last token. [W]
    last_token = np.full(len(text.words), -1)
    last_token[word_of_token[tokens]] = tokens  # the last assignment stays
    by_word: np.ndarray = weights[..., last_token, :] @ membership
    by_word[..., last_token < 0, :] = 0
    return by_word


def next_tokens(model: ObservableModel, tokens: Sequence[int], n: int) -> list[tuple[int, float]]:
    """Return the `n` most probable next tokens and their probabilities."""
    inputs = torch.tensor([list(tokens)], device=model.device)
    last = torch.tensor([len(tokens) - 1], device=model.device)
    top = model.logits(inputs, last)[0].softmax(-1).topk(min(n, model.vocab_size))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def removal_effects(model: ObservableModel, text: TokenizedText, word: int) -> np.ndarray:
    """Return how much removing each head at a word changes what the model expects after it, [L, H].

    The total variation distance of the two distributions: 0 for no change, 1 if they share no token. A word without
    tokens of its own has 0 everywhere.
    """
    positions = text.tokens_of(word)
    effects = np.zeros((model.n_layer, model.n_head))
    if not positions:
        return effects
    tokens = torch.tensor([text.tokens], device=model.device)
    one_pass = model.site_pass(tokens, torch.tensor(positions[-1:], device=model.device))
    unedited = one_pass.logits().softmax(-1)  # [1, V]
    heads = all_heads(model)
    with progress_bar(len(heads), "head") as bar:
        for head in heads:
            edited = one_pass.logits([SiteEdit(*head, output=torch.zeros_like)]).softmax(-1)
            effects[head] = float((edited - unedited).abs().sum() / 2)
            bar.update()
    return effects
