"""Exercises for a course: write five parts of attention yourself, and see where they first differ from ours.

    from antecedent_lab.exercises import check_attention

    def attention(query, key, value):  # each [T, K]; returns [T, K]
        ...

    check_attention(attention)

A function gets tensors of torch and returns a tensor, an array or a list. A check prints one line, and returns whether
the function is right. It runs the function on a square case too, where a transpose has the right shape.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.transformer import attend, attention_scores, rope_tables, rotate
from settings.errors import one_line

_TOLERANCE = 1e-4  # float32 in another order of sums differs by less than a hundredth of it
_CASES = ((5, 8), (8, 8), (7, 2))  # T tokens and K numbers of a head
_TASK = {
    "self-attention": "softmax(query key^T / sqrt(K)) value, where no token sees a later one",
    "rope": "each pair (x[i], x[i + K/2]) of token t turned by t * theta^(-2 i / K)",
    "head output": "what the head adds to each row of the residual stream: its mixed values times its part of W_O",
    "exchange": "the same weights, but in the row `query` those of `left` and `right` have changed places",
    "score": "three shares: the head looks more at the antecedent; the nearest noun is it; the first noun is it",
}


def check_attention(function: Callable[..., Any]) -> bool:
    """Check function(query, key, value) -> [T, K], each [T, K] (Vaswani et al. 2017, eq. 1, with the causal mask)."""
    inputs = [_random(3, *shape) for shape in _CASES]
    return _check("self-attention", function, [(list(each), attend(*each[:, None, None])[0, 0]) for each in inputs])


def check_rope(function: Callable[..., Any]) -> bool:
    """Check function(x, theta) -> [T, K], x [T, K] of positions 0 to T - 1 (Su et al. 2021, arXiv 2104.09864, eq. 34).

    The two numbers of a pair stand K/2 apart, as in Llama and here; in the paper they are neighbours.
    """
    cases = []
    for theta, (n_tokens, width) in zip((10_000.0, 100.0, 10.0), _CASES, strict=True):
        x = _random(n_tokens, width)
        cases.append(([x, theta], rotate(x.clone(), *rope_tables(n_tokens, width, theta))))
    return _check("rope", function, cases)


def check_head_output(function: Callable[..., Any]) -> bool:
    """Check function(weights, value, output) -> [T, D]: weights [T, T], value [T, K], the head's part of W_O [D, K]."""
    cases = []
    for n_tokens, width in _CASES:
        weights = _weights(n_tokens, width)
        value, output = _random(n_tokens, width), _random(2 * width, width)
        cases.append(([weights, value, output], weights @ value @ output.T))
    return _check("head output", function, cases)


def check_exchange(function: Callable[..., Any]) -> bool:
    """Check function(weights, query, left, right) -> [T, T], of weights [T, T], which stay the same, and places."""
    cases = []
    for n_tokens, width in _CASES:
        weights = _weights(n_tokens, width)
        expected = weights.clone()
        expected[n_tokens - 1, [1, 3]] = weights[n_tokens - 1, [3, 1]]
        cases.append(([weights, n_tokens - 1, 1, 3], expected))
    return _check("exchange", function, cases)


def check_score(function: Callable[..., Any]) -> bool:
    """Check function(weights, antecedent, other) -> three shares, of weights [N, T] at a pronoun, the last token.

    antecedent and other [N] are the positions of the two nouns of each text. An equal weight counts one half.
    """
    cases = []
    for n_tokens, width in _CASES:
        rows = torch.stack([_weights(n_tokens, width, seed)[-1] for seed in range(40)])
        places = torch.from_numpy(np.stack([np.random.default_rng(i).permutation(n_tokens - 1)[:2] for i in range(40)]))
        rows[0] = 1 / n_tokens  # all are equal
        antecedent, other = places.T
        index = torch.arange(len(rows))
        looks = torch.heaviside(rows[index, antecedent] - rows[index, other], torch.tensor(0.5)).mean()
        nearest = (antecedent > other).float().mean()
        cases.append(([rows, antecedent, other], torch.stack([looks, nearest, 1 - nearest])))
    return _check("score", function, cases)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _weights(n_tokens: int, width: int, seed: int = 0) -> Tensor:
    """Return attention weights [T, T]."""
    query, key = torch.randn(2, 1, 1, n_tokens, width, generator=torch.Generator().manual_seed(seed))
    return attention_scores(query, key)[0, 0].softmax(-1)


def _check(name: str, function: Callable[..., Any], cases: list[tuple[list[Any], Tensor]]) -> bool:
    for inputs, expected in cases:
        problem = next(_problems(function, inputs, expected), None)
        if problem:
            print(f"{name}: not yet. {problem} Asked: {_TASK[name]}.")
            return False
    print(f"{name}: right, in {len(cases)} cases.")
    return True


def _problems(function: Callable[..., Any], inputs: list[Any], expected: Tensor) -> Iterator[str]:
    """Yield why a function's result is not the expected one, if it is not."""
    shapes = ", ".join(str(list(each.shape)) if torch.is_tensor(each) else str(each) for each in inputs)
    given = [each.clone() if torch.is_tensor(each) else each for each in inputs]
    try:
        returned = function(*given)
        if returned is None or returned is Ellipsis:
            yield "It returns nothing."
        found = torch.as_tensor(np.asarray(returned, dtype=np.float64))
    except Exception as error:  # a pupil's function raises anything
        yield f"With inputs {shapes} it fails: {type(error).__name__}: {one_line(error)}."
        return
    if found.shape != expected.shape:
        yield f"With inputs {shapes} its result is {list(found.shape)}; it must be {list(expected.shape)}."
        return
    if any(torch.is_tensor(each) and not torch.equal(each, before) for each, before in zip(given, inputs, strict=True)):
        yield "It changes its inputs: work on a copy."
    is_wrong = ~torch.isclose(found, expected.double(), rtol=_TOLERANCE, atol=_TOLERANCE)
    if is_wrong.any():
        place = tuple(is_wrong.nonzero()[0].tolist())
        share = is_wrong.float().mean().item()
        yield (
            f"With inputs {shapes} its first difference is at {list(place)}: {found[place].item():.4f}, "
            f"ours {expected[place].item():.4f} ({share:.0%} of the numbers differ)."
        )
