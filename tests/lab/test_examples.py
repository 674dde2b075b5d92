"""lab.examples: the worked examples give the numbers that follow by hand or from NumPy alone."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from lab import examples
from lab.examples import BEARS, CAT_KEYS, CAT_QUERIES, CAT_VALUES, FLIES, TIRED_SOFT
from model.config import Mask, Position
from model.transformer import attention_scores, causal_attention_weights

OFF_DIAGONAL = ~torch.eye(3, dtype=torch.bool)


def close(actual: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(actual.double().numpy(), np.asarray(expected, dtype=float), atol=atol, rtol=1e-5)


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def test_with_a_fixed_ratio_the_share_of_a_word_depends_on_its_turn_alone() -> None:
    order = [0, 1, *range(3, 10)]
    shares, reversed_shares = examples.fixed_ratio(order), examples.fixed_ratio(order[::-1])
    turns = [0.25 * 0.75 ** (8 - turn) for turn in range(9)]
    close(shares, [*turns[:2], 0.75**9, *turns[2:]])
    close(reversed_shares, [*turns[:6:-1], 0.75**9, *turns[6::-1]])
    assert shares[2] < 0.08 < 0.25 == shares[-1]  # less of Riley is left than of the last word


def test_keys_as_queries_give_symmetric_scores_and_asymmetric_weights() -> None:
    scores, weights, _ = examples.relevance(tie_query_key=True)
    close(scores, [[1.0, 0.36, 0.48], [0.36, 1.0, 0.96], [0.48, 0.96, 1.0]])
    assert torch.equal(scores, scores.T)
    close(weights[2], [0.48 / 2.44, 0.96 / 2.44, 1 / 2.44], atol=1e-4)  # .0001 is added to each score
    close(weights[1], [0.36 / 2.32, 1 / 2.32, 0.96 / 2.32], atol=1e-4)


def test_with_separate_queries_riley_attends_to_dog_and_dog_to_evan() -> None:
    scores, weights, output = examples.relevance(tie_query_key=False)
    close(scores, [[1.0, 0.36, 0.48], [0.8, 0.0, 0.0], [0.0, 0.8, 0.6]])
    close(weights[1:], [[1, 0, 0], [0, 0.8 / 1.4, 0.6 / 1.4]], atol=5e-4)
    close(output[2], [0.8 / 1.4, 0.6 / 1.4, 0.0], atol=5e-4)  # Riley becomes more animal than name


def test_it_finds_the_cat_in_four_numbers() -> None:
    query, key = CAT_QUERIES[None, None], CAT_KEYS[None, None]
    close(attention_scores(query, key, scaled=False)[0, 0, -1], [2.11, 0.97, 1.35])
    close(attention_scores(query, key)[0, 0, -1], [1.055, 0.485, 0.675])
    weights = causal_attention_weights(query, key)[0, 0, -1]
    # e^1.055 = 2.871975, e^.485 = 1.624175, e^.675 = 1.964033, sum 6.460183
    close(weights, [0.4445657, 0.2514131, 0.3040212])
    close(weights @ CAT_VALUES, [0.3667395, 0.5695979, 0.3444566, 0.6567831])


def test_keys_as_values_lose_the_content_and_values_as_keys_some_of_the_cat() -> None:
    separate = causal_attention_weights(CAT_QUERIES[None, None], CAT_KEYS[None, None])[0, 0, -1]
    weights, output = examples.shared_key_value(CAT_KEYS)
    close(weights, separate)
    close(output, [0.5164565, 0.9, 0.5579459, 0.1695979])
    assert output[3] < 0.2 < 0.6 < (separate @ CAT_VALUES)[3]
    weights, output = examples.shared_key_value(CAT_VALUES)
    close(weights, softmax(np.array([0.74, 0.435, 0.355])))  # q·v = 1.48, .87, .71, halved
    close(output, (weights @ CAT_VALUES).numpy())
    assert separate[0] - separate[1] > 0.19 > 0.11 > weights[0] - weights[1]


def test_two_contexts_have_the_same_output_and_opposite_weights() -> None:
    first, second = examples.equal_outputs()
    for context, weights, norms in (
        (first, [0.98, 0.02], [0.98, 0.02]),
        (second, [0.02, 0.98], [0.49, math.hypot(0.49, 0.02)]),
    ):
        close(context.weights, weights)
        close(context.norms, norms)
        close(context.output, [0.98, 0.02])


def test_four_words_of_seed_42_agree_with_numpy() -> None:
    draw = np.random.RandomState(42)
    query, key, value = (draw.randint(3, size=(3, 3)).astype(float) for _ in range(3))
    words = np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    attention, x = examples.one_head(*map(torch.tensor, (key, query, value))), torch.tensor(words)[None]
    scores, output = attention_scores(*attention.project(x)[:2], causal=False)[0], attention(x)[0]
    weights = softmax((words @ query) @ (words @ key).T / math.sqrt(3))
    close(scores.softmax(dim=-1)[0], weights)
    close(output, weights @ (words @ value), atol=1e-12)
    close(output[0], [0.985220, 1.741741, 0.756520])
    close(output[3], [0.995604, 1.904073, 0.908469])
    wrong_weights = scores.softmax(dim=1)[0]  # dim 1 of [B, Tq, T] is the queries: columns sum to 1, rows do not
    close(wrong_weights.sum(0), np.ones(4))
    close(wrong_weights.sum(1), [0.5433, 0.1428, 1.6040, 1.7099], atol=5e-5)


def test_without_positions_bears_is_the_same_vector_in_all_roles() -> None:
    for vectors in examples.bears(Position.none):
        assert torch.equal(vectors[0], vectors[1]) and torch.equal(vectors[0], vectors[2])


def test_sinusoidal_positions_separate_the_inputs_by_the_distance_of_the_sines() -> None:
    assert [sentence.split().index("bears") for sentence in BEARS.values()] == [2, 1, 0]
    inputs, queries = examples.bears(Position.sinusoidal)
    frequencies = 10000.0 ** (-np.arange(8) / 8)
    near, far = (math.sqrt((2 - 2 * np.cos(steps * frequencies)).sum() / 16) for steps in (1, 2))
    close(torch.cdist(inputs, inputs), [[0, near, far], [near, 0, near], [far, near, 0]], atol=1e-5)
    assert torch.cdist(queries, queries)[OFF_DIAGONAL].min() > 0.5


def test_rope_rotates_the_queries_and_leaves_the_inputs_equal() -> None:
    inputs, queries = examples.bears(Position.rope)
    assert torch.equal(inputs[0], inputs[1]) and torch.equal(inputs[0], inputs[2])
    assert torch.cdist(queries, queries)[OFF_DIAGONAL].min() > 0.1
    close(queries.norm(dim=1), [queries[0].norm()] * 3)


def test_the_softmax_saturates_with_the_head_dimension_unless_scores_are_scaled() -> None:
    results = examples.saturation()
    for result in results[::2]:
        assert result.scaled and result.entropy == pytest.approx(1.73, abs=0.03)
        assert result.median_gradient == pytest.approx(0.364, abs=0.007)
    unscaled = results[1::2]
    assert all(wide.entropy < 0.6 * narrow.entropy for narrow, wide in pairwise(unscaled))
    assert all(wide.median_gradient < narrow.median_gradient for narrow, wide in pairwise(unscaled))
    assert unscaled[-1].entropy < 0.1 and unscaled[-1].median_gradient < 1e-4


def test_the_softmax_gradient_agrees_with_autograd() -> None:
    scores = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(0), scores)
    close(examples.softmax_gradient(scores.softmax(0)), jacobian.norm().item(), atol=1e-12)


def test_a_word_changes_the_positions_that_can_attend_to_it() -> None:
    assert examples.compare_sentences(*TIRED_SOFT) == [False] * 9 + [True]  # only the last word differs
    assert examples.compare_sentences(*TIRED_SOFT, Mask.none) == [True] * 10
    assert examples.compare_sentences(*FLIES) == [True] * 5
