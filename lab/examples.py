"""The examples by which attention is explained, in numbers that the model's own attention gives.

All are small enough to check by hand, and tests/probe/lab/test_examples.py does. Axes as in model/__init__.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.observe import attention_maps, streams
from model.transformer import Attention, Transformer, causal_attention_scores, causal_attention_weights, log_shares

RILEY = ("Evan's", "dog", "Riley", "is", "so", "hyper,", "she", "never", "stops", "moving")


BEARS = {"object": "i love bears", "verb": "she bears the pain", "subject": "bears won the game"}


FLIES = ("time flies like an arrow", "fruit flies like a banana")


TIRED_SOFT = ("the cat sat on the mat because it was tired", "the cat sat on the mat because it was soft")


WIDTHS = (4, 16, 64, 256, 1024)


# "Evan's dog Riley": keys of length 1; a query says what the word would like to know; values are animal, name, owner.
RILEY_KEYS = torch.tensor([[0.8, 0.6, 0.0], [0.0, 0.6, 0.8], [0.0, 0.8, 0.6]])


RILEY_QUERIES = torch.tensor([[0.8, 0.6, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


RILEY_VALUES = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


# cat, mat, it: animate, singular, subject, content.
CAT_QUERIES = torch.tensor([[0.1, 0.2, 0.3, 0.1], [0.1, 0.1, 0.2, 0.1], [0.9, 0.8, 0.7, 0.1]])


CAT_KEYS = torch.tensor([[0.9, 0.9, 0.8, 0.2], [0.1, 0.9, 0.2, 0.2], [0.3, 0.9, 0.5, 0.1]])


CAT_VALUES = torch.tensor([[0.7, 0.6, 0.4, 0.9], [0.1, 0.6, 0.3, 0.9], [0.1, 0.5, 0.3, 0.1]])


_SMALL = ModelConfig(
    n_layer=2,
    n_head=2,
    d_model=16,
    d_mlp=32,
    context_length=16,
    rope_theta=1e4,
    norm_eps=1e-5,
    dropout=0.0,
    scale=Scale.inverse_sqrt,
    weighting=Weighting.softmax,
    position=Position.rope,
    mask=Mask.causal,
    tie_query_key=False,
    tie_key_value=False,
    token_shift=False,
)


def one_head(key: Tensor, query: Tensor | None = None, value: Tensor | None = None, **switches: Any) -> Attention:
    """Return the model's attention with one head, no positions, no mask, and weights set by hand.

    Args:
        key: [D, D]; an input x [.., D] has the key x @ key, so that words which enter as one-hot have its rows.
        query: [D, D]; None where model.tie_query_key makes it the key's.
        value: [D, D]; None where model.tie_key_value makes it the key's.
        switches: fields of ModelConfig.

    Returns:
        An Attention of the type of `key` whose output projection changes nothing.

    """
    plain = replace(_SMALL, n_head=1, d_model=key.shape[0], position=Position.none, mask=Mask.none)
    attention = Attention(replace(plain, **switches)).to(key.dtype).requires_grad_(False)
    attention.key.weight.copy_(key.T)
    attention.output.weight.copy_(torch.eye(key.shape[0]))
    if query is not None:
        attention.query.weight.copy_(query.T)
    if value is not None:
        attention.value.weight.copy_(value.T)
    return attention


def unmasked_scores(query: Tensor, key: Tensor, *, scaled: bool = True) -> Tensor:
    """Return `causal_attention_scores` [B, H, T, T] as seen from the last place, where nothing lies in the future."""
    last = torch.full((1, query.shape[-2]), key.shape[-2] - 1)
    return causal_attention_scores(query, key, last, scaled=scaled)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedRatio:
    """What is in a word's value after it was mixed with the others, by one ratio, one after the other."""

    pair: Tensor  # [3] "Riley" mixed with "dog" alone: animal, name, owner
    shares: Tensor  # [T] of each word in "Riley", mixed with the other words from left to right
    reversed_shares: Tensor  # [T] the same from right to left


def fixed_ratio(ratio: float = 0.75) -> FixedRatio:
    """Mix "Riley" with "dog", and then with the whole sentence, keeping `ratio` of it each time.

    With the whole sentence little is left of the word itself, and the others count by their turn alone.
    """
    everyone, riley = torch.eye(len(RILEY)), RILEY.index("Riley")
    others = [place for place in range(len(RILEY)) if place != riley]

    def mixed(order: Sequence[int]) -> Tensor:
        value = everyone[riley]
        for place in order:
            value = ratio * value + (1 - ratio) * everyone[place]
        return value

    _, dog, name = RILEY_VALUES
    return FixedRatio(pair=ratio * name + (1 - ratio) * dog, shares=mixed(others), reversed_shares=mixed(others[::-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Relevance:
    """How much the words "Evan's", "dog", "Riley" matter to one another."""

    scores: Tensor  # [T, T] relevances, from the word of the row to that of the column
    weights: Tensor  # [T, T] the same, each divided by the sum of its row
    mixed: Tensor  # [T, 3] the new values
    wrong_row_sums: Tensor  # [T] of scores / scores.sum(axis=1), which divides columns: broadcasting wants keepdim


def relevance(*, tie_query_key: bool) -> Relevance:
    """Divide relevances by their sum (model.weighting=sum), from keys alone or with a query of each word's own.

    From keys alone the scores are symmetric, and weights differ only by what they were divided by.
    """
    queries = None if tie_query_key else RILEY_QUERIES
    attention = one_head(RILEY_KEYS, queries, RILEY_VALUES, weighting=Weighting.sum, tie_query_key=tie_query_key)
    words = torch.eye(3)[None]
    query, key, _ = attention.project(words)
    scores = unmasked_scores(query, key, scaled=False)[0, 0]
    return Relevance(
        scores=scores,
        weights=log_shares(unmasked_scores(query, key)).softmax(dim=-1)[0, 0],
        mixed=attention(words)[0],
        wrong_row_sums=(scores / scores.sum(dim=1)).sum(dim=1),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FourNumbers:
    """What "it" makes of cat, mat and itself."""

    raw: Tensor  # [3] q·k
    scaled: Tensor  # [3] q·k / sqrt(4)
    weights: Tensor  # [3]
    output: Tensor  # [4] the mixed values


def four_numbers() -> FourNumbers:
    """Let "it", in four numbers a word, look at cat, mat and itself.

    The words stand in the order cat, mat, it: the causal mask lets "it" see all three.
    """
    query, key = CAT_QUERIES[None, None], CAT_KEYS[None, None]
    weights = causal_attention_weights(query, key)[0, 0, -1]
    return FourNumbers(
        raw=causal_attention_scores(query, key, scaled=False)[0, 0, -1],
        scaled=causal_attention_scores(query, key)[0, 0, -1],
        weights=weights,
        output=weights @ CAT_VALUES,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What "it" gets where each word has one vector for key and value."""

    weights: Tensor  # [3] on cat, mat, it
    output: Tensor  # [4]


def shared_key_value() -> tuple[Shared, Shared]:
    """Give each word one vector as key and as value (model.tie_key_value): first its key, then its value.

    The key finds the cat as before, and the fourth number, content, is lost on the way; the value keeps the content and
    finds the cat less surely. (That fourth number is .9 for the cat and for the mat: it says how much, not what.)
    """
    return _shared(CAT_KEYS), _shared(CAT_VALUES)


def _shared(vectors: Tensor) -> Shared:
    padding = (0, 0, 0, 1)  # a fourth word which does not occur makes the table of three square
    key, query = torch.nn.functional.pad(vectors, padding), torch.nn.functional.pad(CAT_QUERIES, padding)
    attention = one_head(key, query, mask=Mask.causal, tie_key_value=True)
    words = torch.eye(4)[None, :3]
    return Shared(weights=attention.scores(words).softmax(dim=-1)[0, 0, -1], output=attention(words)[0, -1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Two words as the second of them sees them."""

    values: Tensor  # [2, 2]
    weights: Tensor  # [2]
    norms: Tensor  # [2] ||weight * value||, how much each word adds (Kobayashi et al. 2020)
    output: Tensor  # [2] weights @ values


def equal_outputs() -> tuple[Context, Context]:
    """Return two contexts with one output, nearly all weight on the first word in one, on the second in the other.

    The output cannot tell them apart, the weights can; and by what they add, the second context's words matter nearly
    alike.
    """
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    # .02 times the first value is [.49, 0], .98 times the second [.49, .02]: together [.98, .02], as above.
    second = torch.tensor([[24.5, 0.0], [0.5, 1 / 49]])
    return _context(first, odds=49.0), _context(second, odds=1 / 49)


def _context(values: Tensor, odds: float) -> Context:
    query, key = torch.ones(1, 1, 2, 1), torch.tensor([[[[odds], [1.0]]]]).log()
    weights = causal_attention_weights(query, key)[0, 0, -1]
    norms = (weights[:, None] * values).norm(dim=-1)
    return Context(values=values, weights=weights, norms=norms, output=weights @ values)


@dataclass(frozen=True, kw_only=True, slots=True)
class FourWords:
    """Four words of three numbers, and what softmax over the wrong axis makes of them in a batch."""

    weights: Tensor  # [4, 4] float32, rows sum to 1
    attention: Tensor  # [4, 3] float64, what comes out
    wrong_row_sums: Tensor  # [4] of what softmax over dim 1 makes of scores [B, T, T]
    wrong_column_sums: Tensor  # [4]


def four_words() -> FourWords:
    """Draw query, key and value matrices of integers below 3 from NumPy's seed 42 and look at four words with them.

    Over dim 1 a softmax is right for scores [Tq, Tk]; with a batch before them, dim 1 is the queries, and what each
    query gives no longer sums to 1.
    """
    draw = np.random.RandomState(42)
    query, key, value = (torch.tensor(draw.randint(3, size=(3, 3)), dtype=torch.float64) for _ in range(3))
    words = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    attention = one_head(key, query, value)
    queries, keys, _ = attention.project(words[None])
    scores = unmasked_scores(queries, keys)[:, 0]  # [B, T, T]
    wrong = scores.softmax(dim=1)[0]
    return FourWords(
        weights=scores.softmax(dim=-1)[0],
        attention=attention(words[None])[0],
        wrong_row_sums=wrong.sum(dim=1),
        wrong_column_sums=wrong.sum(dim=0),
    )


def root_of_an_int(width: int = 3) -> str:
    """Return the kind of error that torch.sqrt of an int with a dtype raises: it takes tensors, and no dtype."""
    try:
        torch.sqrt(width, dtype=torch.float32)  # type: ignore[arg-type, call-arg]
    except Exception as error:
        return type(error).__name__
    return "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bears:
    """One word in three places: last, second and first of its sentence."""

    inputs: Tensor  # [3, D] what enters the first block, by role as in BEARS
    queries: Tensor  # [3, H * K] the first layer's
    input_distances: Tensor  # [3, 3]
    query_distances: Tensor  # [3, 3]


def bears(position: Position, seed: int = 0) -> Bears:
    """Read "bears" as object, verb and subject with an untrained model that is told where words stand in this way.

    Without positions the three are one and the same vector; sines and learned vectors are added to it; RoPE leaves the
    input alone and turns the query.
    """
    model, tokens = untrained(list(BEARS.values()), seed, position=position)
    block = next(model.layers())
    inputs, queries = [], []
    for sentence, row in zip(BEARS.values(), tokens, strict=True):
        place = sentence.split().index("bears")
        x = model.embed(row)[:, place : place + 1]
        inputs.append(x.flatten())
        queries.append(block.attention.project(block.norm_1(x), first=place)[0].flatten())
    entering, asking = torch.stack(inputs), torch.stack(queries)
    return Bears(
        inputs=entering, queries=asking, input_distances=_distances(entering), query_distances=_distances(asking)
    )


def _distances(vectors: Tensor) -> Tensor:
    return (vectors[:, None] - vectors[None]).norm(dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Saturation:
    """How decided a softmax over random scores is, at one width of query and key."""

    d_k: int
    scaled: bool  # by 1 / sqrt(d_k)
    entropy: float  # nats of the weights, mean over draws; ln(n_keys) where all weigh alike
    entropy_error: float  # standard error of that mean
    gradient: float  # Frobenius norm of the weights' derivative by the scores, mean over draws
    gradient_error: float
    gradient_median: float


def saturation(
    widths: Sequence[int] = WIDTHS, n_keys: int = 8, n_draws: int = 2000, seed: int = 0
) -> Iterator[Saturation]:
    """Yield, for each width, what becomes of the softmax with and without 1 / sqrt(d_k) (Vaswani et al. 2017, 3.2.1).

    Queries and keys are normal with variance 1, so q·k has variance d_k: unscaled, the softmax falls on one key, and of
    the gradient next to nothing passes. The mean lives by the few draws in which two keys come close, the median not.

    Args:
        widths: the d_k.
        n_keys: 1 or more.
        n_draws: of one query and its keys, 2 or more.
        seed: of the draws.

    """
    generator = torch.Generator().manual_seed(seed)
    for d_k in widths:
        query = torch.randn(n_draws, 1, 1, d_k, generator=generator)
        key = torch.randn(n_draws, 1, n_keys, d_k, generator=generator)
        for scaled in (True, False):
            weights = unmasked_scores(query, key, scaled=scaled).softmax(dim=-1)[:, 0, 0].double()
            entropy, gradient = torch.special.entr(weights).sum(dim=-1), softmax_gradient(weights)
            yield Saturation(
                d_k=d_k,
                scaled=scaled,
                entropy=entropy.mean().item(),
                entropy_error=entropy.std().item() / n_draws**0.5,
                gradient=gradient.mean().item(),
                gradient_error=gradient.std().item() / n_draws**0.5,
                gradient_median=gradient.median().item(),
            )


def softmax_gradient(weights: Tensor) -> Tensor:
    """Return [...] the Frobenius norm of d weights / d scores = diag(w) - w w^T, from softmax weights [..., Tk]."""
    jacobian = weights.diag_embed() - weights[..., :, None] * weights[..., None, :]
    return jacobian.flatten(-2).norm(dim=-1)


def times_hundred() -> tuple[Tensor, Tensor]:
    """Return the softmax of eight numbers drawn with NumPy's seed 42, and of 100 times those numbers, each [8]."""
    scores = torch.tensor(np.random.RandomState(42).randn(8))
    return scores.softmax(dim=-1), (100 * scores).softmax(dim=-1)


def masked() -> Tensor:
    """Return the weights [4, 4] of four words whose keys score log 1, 2, 3, 4 with every query, the future hidden.

    Exp(-inf) is 0 and not merely small, and each row is divided by what it may see.
    """
    key = torch.tensor([1.0, 2.0, 3.0, 4.0]).log()
    return causal_attention_weights(torch.ones(1, 1, 4, 1), key[None, None, :, None])[0, 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One place in two sentences that are read side by side."""

    words: tuple[str, str]
    weights: bool | None  # whether any head's weights differ, bit for bit; None where they cannot be observed
    stream: bool  # whether what the model knows there differs, bit for bit


def rows_that_differ(first: str, second: str, mask: Mask = Mask.causal, seed: int = 0) -> list[Row]:
    """Return, place by place, whether a small untrained model reads two sentences differently.

    With the causal mask only rows from the first other word on can differ. The first row has one key to look at, so its
    weights are [1] whatever it is. Without a mask every row may differ.

    Args:
        first: words with spaces between them.
        second: as many words.
        mask: the model's.
        seed: of its weights.

    """
    model, tokens = untrained([first, second], seed, mask=mask)
    # Each is read by itself, through the same shapes: in a batch, where a row stands could change its last bit.
    here, there = ([*streams(model, one)][-1][0] for one in tokens)
    other_stream = (here != there).any(dim=-1).tolist()
    other_weights = [None] * len(other_stream)
    if model.config.is_causal:
        one, other = (attention_maps(model, row)[:, 0] for row in tokens)  # [L, H, T, T]
        other_weights = (one != other).any(dim=-1).flatten(0, 1).any(dim=0).tolist()
    pairs = zip(first.split(), second.split(), strict=True)
    return [
        Row(words=words, weights=weights, stream=stream)
        for words, weights, stream in zip(pairs, other_weights, other_stream, strict=True)
    ]


def untrained(sentences: Sequence[str], seed: int, **switches: Any) -> tuple[Transformer, list[Tensor]]:
    """Return a small model whose vocabulary are the sentences' words, and the tokens [1, T] of each.

    A fresh model's blocks add nothing (model/init.py); their outputs are drawn too, or no word would hear of another.
    """
    vocabulary = sorted({word for sentence in sentences for word in sentence.split()})
    model = Transformer(replace(_SMALL, **switches), len(vocabulary), seed).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed + 1)
    for block in model.layers():
        for linear in (block.attention.output, block.mlp.down):
            linear.weight.normal_(0.0, linear.in_features**-0.5, generator=generator)
    return model, [torch.tensor([[vocabulary.index(word) for word in sentence.split()]]) for sentence in sentences]
