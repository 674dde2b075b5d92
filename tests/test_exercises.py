"""The exercises: a right function passes, and each usual mistake is told where it differs first."""

import re

import numpy as np
import pytest
import torch

from antecedent_lab import exercises
from tests.test_docs import cells_of


def masked(scores):
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)


def scores_of(query, key):
    return query @ key.T / query.shape[1] ** 0.5


def attention(query, key, value):
    return masked(scores_of(query, key)).softmax(-1) @ value


def rope(x, theta):
    n_tokens, width = x.shape
    angles = torch.arange(n_tokens)[:, None] * theta ** (-2 * torch.arange(width // 2) / width)
    left, right = x[:, : width // 2], x[:, width // 2 :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=1)


def exchange(weights, query, left, right):
    new = weights.clone()
    new[query, left], new[query, right] = weights[query, right], weights[query, left]
    return new


def score(weights, antecedent, other):
    texts = np.arange(len(weights))
    looks = np.heaviside((weights[texts, antecedent] - weights[texts, other]).numpy(), 0.5).mean()
    nearest = float((antecedent > other).float().mean())
    return [looks, nearest, 1 - nearest]


RIGHT = {
    "attention": attention, "rope": rope, "head_output": lambda weights, value, output: weights @ value @ output.T,
    "exchange": exchange, "score": score,
}  # fmt: skip


def one_of_them(weights, query, left, right):
    new = weights.clone()
    new[query, left] = weights[query, right]
    return new


def in_place(weights, query, left, right):
    weights[query, [left, right]] = weights[query, [right, left]]
    return weights


WRONG = {
    "attention": {
        "no scale": lambda query, key, value: masked(query @ key.T).softmax(-1) @ value,
        "mask after softmax": lambda query, key, value: scores_of(query, key).softmax(-1).tril() @ value,
        "wrong axis": lambda query, key, value: masked(scores_of(query, key)).softmax(0) @ value,
        "transposed": lambda query, key, value: masked(scores_of(key, query)).softmax(-1) @ value,
    },
    "rope": {
        "nothing": lambda x, theta: x,
        "turned back": lambda x, theta: rope(x.flip(0), theta).flip(0),
        "neighbours": lambda x, theta: rope(x[:, torch.randperm(x.shape[1])], theta),
        "its own theta": lambda x, theta: rope(x, 10_000.0),
    },
    "head_output": {
        "no output matrix": lambda weights, value, output: weights @ value,
        "weights transposed": lambda weights, value, output: weights.T @ value @ output.T,
        "output transposed": lambda weights, value, output: (output @ value.T @ weights.T),
        "values unmixed": lambda weights, value, output: value @ output.T,
    },
    "exchange": {
        "in place": in_place,
        "the column": lambda weights, query, left, right: exchange(weights.T, query, left, right).T,
        "one of them": one_of_them,
        "nothing": lambda weights, query, left, right: weights,
    },
    "score": {
        "ties as wrong": lambda weights, a, b: [
            float((weights[range(40), a] > weights[range(40), b]).float().mean()), *score(weights, a, b)[1:]
        ],
        "a mean weight": lambda weights, a, b: [weights[range(40), a].mean(), *score(weights, a, b)[1:]],
        "first and nearest": lambda weights, a, b: [score(weights, a, b)[i] for i in (0, 2, 1)],
        "one number": lambda weights, a, b: score(weights, a, b)[0],
    },
}  # fmt: skip


def checked(name, function, capsys):
    is_right = getattr(exercises, f"check_{name}")(function)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and printed.partition(":")[0].endswith(name.replace("_", " "))
    return is_right, printed


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_passes(name, capsys):
    assert checked(name, RIGHT[name], capsys)[0]


@pytest.mark.parametrize(("name", "mistake"), [(name, mistake) for name, wrong in WRONG.items() for mistake in wrong])
def test_a_mistake_is_told_with_its_place_and_both_values(name, mistake, capsys):
    is_right, printed = checked(name, WRONG[name][mistake], capsys)
    assert not is_right
    place = re.search(r"first difference is at (\[.*?\]): (\S+), ours (\S+) \(", printed)
    if place:
        assert place[2] != place[3]
    else:
        assert re.search(r"its result is \[.*\]; it must be \[.*\]|changes its inputs", printed)


def test_the_first_difference_is_the_first(capsys):
    def late(query, key, value):
        found = attention(query, key, value)
        found[3:, 1] += 1
        return found

    assert "first difference is at [3, 1]" in checked("attention", late, capsys)[1]


@pytest.mark.parametrize("function", [lambda *_: None, lambda *_: 1 / 0, lambda *_: "a", lambda: 1, lambda *_: np.nan])
def test_a_function_that_fails_gets_one_line(function, capsys):
    assert checked("attention", function, capsys)[0] is False


def test_the_notebook_has_the_five_tasks():
    code = "\n".join("".join(cell["source"]) for cell in cells_of("exercises"))
    assert re.findall(r"^check_(\w+)\(\w+\)$", code, re.MULTILINE) == list(RIGHT)
