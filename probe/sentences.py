"""Sentences for people: worked examples of the questions, and every head's attention between the words of a text."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from data.links import Span
from model.observe import ObservableModel

START = "(start)"  # shown for the token before every text


@dataclass(frozen=True)
class Example:
    """A sentence, the word at which heads are read (the query), and the two nouns it may refer to."""

    text: str
    query: str
    antecedent: str
    distractor: str


EXAMPLE_BLOCK = tuple(
    Example(f"One sunny day, the {first} sat near the {second}. {pronoun}", pronoun, antecedent, distractor)
    for first, second in (("cat", "buses"), ("buses", "cat"))
    for pronoun, antecedent, distractor in (("It", "cat", "buses"), ("They", "buses", "cat"))
)

TIRED_OR_SOFT = tuple(
    Example(f"One sunny day, the cat lay on the mat because it was {adjective}", query, antecedent, distractor)
    for adjective, antecedent, distractor in (("tired", "cat", "mat"), ("soft", "mat", "cat"))
    for query in ("it", adjective)
)

SHOWCASE = {"number": EXAMPLE_BLOCK, "later_cue": TIRED_OR_SOFT}  # by question


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

    def words_at(self, span: Span) -> list[int]:
        """Returns the indices in `words` of the words that overlap the characters `span`."""
        return [i for i, (start, end) in enumerate(self.word_spans, 1) if start < span[1] and end > span[0]]

    def _word_of(self, token: Span) -> int:
        overlaps = [min(token[1], end) - max(token[0], start) for start, end in self.word_spans]
        best = max(range(len(overlaps)), key=overlaps.__getitem__, default=-1)
        return best + 1 if best >= 0 and overlaps[best] > 0 else -1


def word_attention(model: ObservableModel, texts: Sequence[TokenizedText]) -> list[np.ndarray]:
    """Return the attention of every head between the words of each text, [L, H, W, W] with W = len(text.words).

    The row of a word is that of its last token, the first that has read the whole word. The weight on a word is the
    sum over its tokens. All texts are one batch.
    """
    if not texts:
        return []
    lengths = [len(text.tokens) for text in texts]
    tokens = torch.tensor([text.tokens + [0] * (max(lengths) - len(text.tokens)) for text in texts])
    weights = model.attention_scores(tokens.to(model.device)).softmax(-1).cpu().numpy()  # [L, B, H, T, T]
    return [between_words(weights[:, row, :, :n, :n], texts[row]) for row, n in enumerate(lengths)]


def between_words(weights: np.ndarray, text: TokenizedText) -> np.ndarray:
    """Return weights [..., T, T] between tokens as weights [..., W, W] between words; a word without tokens has 0."""
    word_of_token = np.array(text.word_of_token)
    tokens = np.flatnonzero(word_of_token >= 0)
    membership = np.zeros((len(word_of_token), len(text.words)))
    membership[tokens, word_of_token[tokens]] = 1
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


def pack_weights(weights: np.ndarray) -> str:
    """Pack causal attention weights [L, H, W, W] as base64 for files.

    Row r of each head is stored as its weights on words 0 to r: little-endian uint16, 65535 for a weight of 1.
    """
    causal = weights[..., np.tri(weights.shape[-1], dtype=bool)]
    return b64encode(np.rint(causal * 65535).astype("<u2").tobytes()).decode()
