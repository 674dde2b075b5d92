"""Worked examples of attention with numbers small enough to check by hand, computed by the model's own functions.

docs/attention.md explains them step by step. Letters in shapes as in model/transformer.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.observe import TransformerView
from model.transformer import Attention, Transformer, attention_scores, causal_attention_weights, sum_normalised

RILEY = ("Evan's", "dog", "Riley", "is", "so", "hyper,", "she", "never", "stops", "moving")
BEARS = {"object": "i love bears", "verb": "she bears the pain", "subject": "bears won the game"}
FLIES = ("time flies like an arrow", "fruit flies like a banana")
TIRED_SOFT = ("the cat sat on the mat because it was tired", "the cat sat on the mat because it was soft")

# "Evan's", "dog", "Riley". Keys: owner, name, kind. A query says what the word needs. Values: animal, name, owner.
RILEY_KEYS = torch.tensor([[0.8, 0.6, 0.0], [0.0, 0.6, 0.8], [0.0, 0.8, 0.6]])
RILEY_QUERIES = torch.tensor([[0.8, 0.6, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
RILEY_VALUES = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

# "cat", "mat", "it". Columns: animate, singular, subject, content.
CAT_QUERIES = torch.tensor([[0.1, 0.2, 0.3, 0.1], [0.1, 0.1, 0.2, 0.1], [0.9, 0.8, 0.7, 0.1]])
CAT_KEYS = torch.tensor([[0.9, 0.9, 0.8, 0.2], [0.1, 0.9, 0.2, 0.2], [0.3, 0.9, 0.5, 0.1]])
CAT_VALUES = torch.tensor([[0.7, 0.6, 0.4, 0.9], [0.1, 0.6, 0.3, 0.9], [0.1, 0.5, 0.3, 0.1]])

_SMALL = ModelConfig(
    n_layer=2, n_head=2, d_model=16, d_mlp=32, context_length=16, rope_theta=1e4, norm_eps=1e-5, dropout=0.0,
    scale=Scale.inverse_sqrt, weighting=Weighting.softmax, position=Position.rope, mask=Mask.causal,
    tie_query_key=False, tie_key_value=False, token_shift=False,
)  # fmt: skip


def one_head(key: Tensor, query: Tensor | None = None, value: Tensor | None = None, **switches: Any) -> Attention:
    """Return the model's attention with one head, no positions, no mask, and projections [D, D].

    An input x [T, D] has the keys x @ key, so one-hot inputs have the rows of `key` as keys. `query` is None with
    tie_query_key, `value` with tie_key_value. The output projection is the identity.
    """
    config = replace(_SMALL, n_head=1, d_model=key.shape[0], position=Position.none, mask=Mask.none)
    attention = Attention(replace(config, **switches)).to(key.dtype).requires_grad_(False)
    attention.key.weight.copy_(key.T)
    attention.output.weight.copy_(torch.eye(key.shape[0]))
    if query is not None:
        attention.query.weight.copy_(query.T)
    if value is not None:
        attention.value.weight.copy_(value.T)
    return attention


def fixed_ratio(order: Sequence[int], word: int = 2, ratio: float = 0.75) -> Tensor:
    """Return the share [10] of each word of RILEY in one word's value, after mixing in the others in this order.

    In each step the value so far keeps the share `ratio`.
    """
    words = torch.eye(len(RILEY))
    value = words[word]
    for addition in order:
        value = ratio * value + (1 - ratio) * words[addition]
    return value


class _WordAttention(NamedTuple):
    """Attention among a few words."""

    scores: Tensor  # [T, T] relevance of the column's word to the row's word
    weights: Tensor  # [T, T] rows sum to 1
    output: Tensor  # [T, D] new values


def relevance(*, tie_query_key: bool) -> _WordAttention:
    """Return sum-normalised attention among RILEY's first three words, with keys as queries or with separate queries.

    With keys as queries the scores are symmetric, and the weights differ only by the sums of their rows.
    """
    queries = None if tie_query_key else RILEY_QUERIES
    attention = one_head(RILEY_KEYS, queries, RILEY_VALUES, weighting=Weighting.sum, tie_query_key=tie_query_key)
    words = torch.eye(3)[None]  # one-hot, [1, T, D]
    query, key, _ = attention.project(words)
    scores = attention_scores(query, key, scaled=False, causal=False)[0, 0]
    weights = sum_normalised(attention_scores(query, key, causal=False))[0, 0]
    return _WordAttention(scores, weights, attention(words)[0])


def shared_key_value(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights [3] of "it" on cat, mat and it, and its output [4], if `vectors` are keys and values.

    This is model.tie_key_value. CAT_KEYS as values lose the content; CAT_VALUES as keys separate cat and mat less.
    """
    # A fourth, unused word makes the projections square.
    padding = (0, 0, 0, 1)
    keys = torch.nn.functional.pad(vectors, padding)
    queries = torch.nn.functional.pad(CAT_QUERIES, padding)
    attention = one_head(keys, queries, mask=Mask.causal, tie_key_value=True)
    words = torch.eye(4)[None, :3]  # one-hot, [1, T, D]

    query, key, _ = attention.project(words)
    weights = attention.scores(query, key).softmax(dim=-1)  # [1, 1, T, T]
    return weights[0, 0, -1], attention(words)[0, -1]


class _Context(NamedTuple):
    """Two words, seen from the second."""

    weights: Tensor  # [2]
    norms: Tensor  # [2] length of weight * value, the contribution of each word (Kobayashi et al. 2020)
    output: Tensor  # [2] weights @ values


def equal_outputs() -> tuple[_Context, _Context]:
    """Return two contexts with the same output and opposite weights.

    In the second, both words contribute vectors of about the same length although their weights are .02 and .98.
    """
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # .02 times the first value is [.49, 0], .98 times the second [.49, .02]: their sum is [.98, .02], as above.
    second = torch.tensor([[24.5, 0.0], [0.5, 1 / 49]])
    return _context(first, odds=49.0), _context(second, odds=1 / 49)


def _context(values: Tensor, odds: float) -> _Context:
    query = torch.ones(1, 1, 2, 1)
    key = torch.tensor([[[[odds], [1.0]]]]).log()
    weights = causal_attention_weights(query, key)[0, 0, -1]
    norms = (weights[:, None] * values).norm(dim=-1)
    return _Context(weights, norms, weights @ values)


def bears(position: Position) -> tuple[Tensor, Tensor]:
    """Return the input [3, D] and the first layer's query [3, H * K] of "bears" as object, verb and subject.

    The model is untrained. Sinusoidal and learned positions change the input; RoPE changes the query only.
    """
    model, sentences = untrained(list(BEARS.values()), seed=0, position=position)
    block = model.layers()[0]
    inputs = []
    queries = []
    for sentence, tokens in zip(BEARS.values(), sentences, strict=True):
        index = sentence.split().index("bears")
        x = model.embed(tokens)[:, index : index + 1]  # [1, 1, D]
        query, _, _ = block.attention.project(block.norm_1(x), torch.tensor([index]))
        inputs.append(x.flatten())
        queries.append(query.flatten())
    return torch.stack(inputs), torch.stack(queries)


class _Saturation(NamedTuple):
    """Softmax over random scores at one head dimension."""

    d_k: int
    scaled: bool  # by 1 / sqrt(d_k)
    entropy: float  # mean entropy of the weights in nats; ln(8) for uniform weights
    median_gradient: float  # median norm of the derivative of the weights with respect to the scores


def saturation(widths: Sequence[int] = (4, 16, 64, 256, 1024)) -> list[_Saturation]:
    """Return the softmax with and without scaling at each head dimension (Vaswani et al. 2017, section 3.2.1).

    The 2,000 queries, with eight keys each, are normal with variance 1, so q·k has variance d_k. Without scaling the
    softmax approaches one-hot weights as d_k grows, and its gradient vanishes.
    """
    generator = torch.Generator().manual_seed(0)
    results = []
    for d_k in widths:
        query = torch.randn(2000, 1, 1, d_k, generator=generator)
        key = torch.randn(2000, 1, 8, d_k, generator=generator)
        for scaled in (True, False):
            scores = attention_scores(query, key, scaled=scaled, causal=False)  # [2000, 1, 1, 8]
            weights = scores.softmax(dim=-1)[:, 0, 0].double()
            entropy = torch.special.entr(weights).sum(dim=-1).mean()
            results.append(_Saturation(d_k, scaled, entropy.item(), softmax_gradient(weights).median().item()))
    return results


def softmax_gradient(weights: Tensor) -> Tensor:
    """Return [...] the Frobenius norm of d weights / d scores = diag(w) - w w^T, from softmax weights [..., T]."""
    jacobian = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return jacobian.flatten(-2).norm(dim=-1)


def compare_sentences(first: str, second: str, mask: Mask = Mask.causal) -> list[bool]:
    """Return, per position, whether a small untrained model computes different bits for two sentences.

    With the causal mask, only positions from the first different word on can differ. Both sentences need the same
    number of words.
    """
    model, sentences = untrained([first, second], seed=0, mask=mask)
    view = TransformerView(model)
    streams = [view.residual_stream(tokens)[-1][0] for tokens in sentences]  # separate passes of equal shape
    differs: list[bool] = (streams[0] != streams[1]).any(dim=-1).tolist()
    return differs


def untrained(sentences: Sequence[str], seed: int, **switches: Any) -> tuple[Transformer, list[Tensor]]:
    """Return a small untrained model whose vocabulary is the sentences' words, and the tokens [1, T] of each.

    The output projections, which a new model initialises to 0, are random, so that attention has an effect.
    """
    vocabulary = sorted(set(" ".join(sentences).split()))
    model = Transformer(replace(_SMALL, **switches), len(vocabulary), seed).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed + 1)
    for block in model.layers():
        for linear in (block.attention.output, block.mlp.down):
            linear.weight.normal_(0.0, linear.in_features**-0.5, generator=generator)

    tokens = []
    for sentence in sentences:
        ids = [vocabulary.index(word) for word in sentence.split()]
        tokens.append(torch.tensor([ids]))
    return model, tokens
