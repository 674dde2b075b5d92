"""The worked examples give the numbers that one gets by hand or from NumPy alone."""

import math

import numpy as np
import pytest
import torch

from lab import examples
from lab.examples import BEARS, FLIES, TIRED_SOFT
from model.config import Mask, Position, Weighting
from model.transformer import causal_attention_weights


def close(found: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(found.double().numpy(), np.asarray(expected, dtype=float), atol=atol, rtol=0)


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(scores - scores.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def test_a_fixed_ratio_mixes_two_words_well_and_ten_by_their_turn() -> None:
    found = examples.fixed_ratio()
    close(found.pair, [0.25, 0.75, 0.0])
    turns = [0.25 * 0.75 ** (8 - turn) for turn in range(9)]
    close(found.shares, [*turns[:2], 0.75**9, *turns[2:]])
    close(found.reversed_shares, [*turns[:6:-1], 0.75**9, *turns[6::-1]])
    assert found.shares[2] < 0.08 < 0.25 == found.shares[-1]  # the last word has more of Riley than Riley
    assert found.shares[1] < 0.04 < 0.18 < found.reversed_shares[1]  # and "dog" what its turn gives


def test_relevance_from_keys_alone_is_symmetric_until_it_is_divided() -> None:
    found = examples.relevance(tie_query_key=True)
    close(found.scores, [[1.0, 0.36, 0.48], [0.36, 1.0, 0.96], [0.48, 0.96, 1.0]])
    assert torch.equal(found.scores, found.scores.T)
    close(found.weights[2], [0.48 / 2.44, 0.96 / 2.44, 1 / 2.44], atol=1e-4)  # .0001 is added to each score
    close(found.weights[1], [0.36 / 2.32, 1 / 2.32, 0.96 / 2.32], atol=1e-4)


def test_a_query_of_its_own_lets_riley_look_at_dog_and_dog_at_evan() -> None:
    found = examples.relevance(tie_query_key=False)
    close(found.scores, [[1.0, 0.36, 0.48], [0.8, 0.0, 0.0], [0.0, 0.8, 0.6]])
    close(found.weights[1:], [[1, 0, 0], [0, 0.8 / 1.4, 0.6 / 1.4]], atol=5e-4)
    close(found.mixed[2], [0.8 / 1.4, 0.6 / 1.4, 0.0], atol=5e-4)  # Riley is now more an animal than a name


@pytest.mark.parametrize("tie_query_key", [True, False])
def test_shares_of_a_sum_are_rows_that_sum_to_one_and_mix_the_values(tie_query_key: bool) -> None:
    found = examples.relevance(tie_query_key=tie_query_key)
    scores = found.scores.double().numpy() / math.sqrt(3) + 1e-4
    weights = scores / scores.sum(1, keepdims=True)
    close(found.weights, weights)
    close(found.weights.sum(1), np.ones(3))
    close(found.mixed, weights @ np.array([[0, 1, 1], [1, 0, 0], [0, 1, 0]]))


def test_sums_without_keepdim_divide_columns_and_rows_do_not_sum_to_one() -> None:
    found = examples.relevance(tie_query_key=False)
    close(found.wrong_row_sums, [1 / 1.84 + 0.36 / 0.8 + 0.48 / 1.4, 0.8 / 1.84, 0.8 / 0.8 + 0.6 / 1.4])


def test_it_finds_the_cat_in_four_numbers() -> None:
    found = examples.four_numbers()
    close(found.raw, [2.11, 0.97, 1.35])
    close(found.scaled, [1.055, 0.485, 0.675])
    # e^1.055 = 2.871975, e^.485 = 1.624175, e^.675 = 1.964033; together 6.460183
    close(found.weights, [0.4445657, 0.2514131, 0.3040212])
    close(found.output, [0.3667395, 0.5695979, 0.3444566, 0.6567831])


def test_one_vector_for_key_and_value_loses_the_content_or_some_of_the_cat() -> None:
    apart, (key, value) = examples.four_numbers(), examples.shared_key_value()
    close(key.weights, apart.weights)
    close(key.output, [0.5164565, 0.9, 0.5579459, 0.1695979])
    # q·v = 1.48, .87, .71; halved .74, .435, .355
    close(value.weights, softmax(np.array([0.74, 0.435, 0.355])))
    close(value.output[3], 0.9 * (value.weights[0] + value.weights[1]) + 0.1 * value.weights[2])
    close(value.weights, [0.4136378, 0.3049021, 0.2814601])
    assert key.output[3] < 0.2 < 0.6 < apart.output[3]
    assert apart.weights[0] - apart.weights[1] > 0.19 > 0.11 > value.weights[0] - value.weights[1]


def test_two_contexts_give_one_output_from_opposite_weights() -> None:
    first, second = examples.equal_outputs()
    close(first.weights, [0.98, 0.02])
    close(second.weights, [0.02, 0.98])
    close(first.output, [0.98, 0.02])
    close(second.output, [0.98, 0.02])
    close(first.norms, [0.98, 0.02])
    close(second.norms, [0.49, math.hypot(0.49, 0.02)])
    assert not torch.allclose(first.values, second.values)


def test_four_words_of_seed_42_come_out_as_numpy_has_them() -> None:
    np.random.seed(42)  # the text's own three draws
    query, key, value = (np.random.randint(3, size=(3, 3)) for _ in range(3))
    words = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    weights = softmax((words @ query) @ (words @ key).T / math.sqrt(3))
    found = examples.four_words()
    close(found.weights, weights)
    close(found.attention, weights @ (words @ value), atol=1e-12)
    close(found.attention[0], [0.985220, 1.741741, 0.756520])
    close(found.attention[3], [0.995604, 1.904073, 0.908469])


def test_softmax_over_dim_1_of_a_batch_leaves_rows_that_do_not_sum_to_one() -> None:
    found = examples.four_words()
    close(found.wrong_column_sums, np.ones(4))
    close(found.wrong_row_sums.sum(), 4)
    close(found.wrong_row_sums, [0.5433, 0.1428, 1.6040, 1.7099], atol=5e-5)
    close(found.weights.sum(1), np.ones(4))


def test_the_root_of_an_int_with_a_dtype_is_a_type_error() -> None:
    assert examples.root_of_an_int() == "TypeError"


def test_without_positions_bears_is_one_vector_in_all_its_roles() -> None:
    found = examples.bears(Position.none)
    assert torch.equal(found.inputs[0], found.inputs[1]) and torch.equal(found.inputs[0], found.inputs[2])
    assert found.input_distances.eq(0).all() and found.query_distances.eq(0).all()


def test_added_positions_tell_the_three_bears_apart_by_as_much_as_the_sines_differ() -> None:
    found = examples.bears(Position.sinusoidal)
    assert [sentence.split().index("bears") for sentence in BEARS.values()] == [2, 1, 0]
    rates = 10000.0 ** (-np.arange(8) / 8)

    def apart(steps: int) -> float:
        return math.sqrt((2 - 2 * np.cos(steps * rates)).sum() / 16)

    one, two = apart(1), apart(2)
    close(found.input_distances, [[0, one, two], [one, 0, one], [two, one, 0]])
    assert found.query_distances[~torch.eye(3, dtype=torch.bool)].min() > 0.5


def test_rope_leaves_the_input_alone_and_turns_the_query() -> None:
    found = examples.bears(Position.rope)
    assert found.input_distances.eq(0).all()
    off = ~torch.eye(3, dtype=torch.bool)
    assert found.query_distances[off].min() > 0.1
    close(found.queries.norm(dim=1), [found.queries[0].norm()] * 3, atol=1e-5)


def test_learned_positions_tell_the_three_bears_apart() -> None:
    found = examples.bears(Position.learned)
    off = ~torch.eye(3, dtype=torch.bool)
    assert found.input_distances[off].min() > 0.01 and found.query_distances[off].min() > 0.1


def test_without_scaling_the_softmax_saturates_with_width_and_with_it_does_not() -> None:
    found = list(examples.saturation())
    assert [one.d_k for one in found] == [4, 4, 16, 16, 64, 64, 256, 256, 1024, 1024]
    scaled, bare = [one for one in found if one.scaled], [one for one in found if not one.scaled]
    for one in scaled:
        assert one.entropy == pytest.approx(1.73, abs=0.03) and one.gradient == pytest.approx(0.364, abs=0.006)
        assert one.gradient_median == pytest.approx(one.gradient, abs=0.003)
    for narrow, wide in zip(bare, bare[1:], strict=False):
        assert wide.entropy + 4 * wide.entropy_error < narrow.entropy - 4 * narrow.entropy_error
        assert wide.gradient + 4 * wide.gradient_error < narrow.gradient - 4 * narrow.gradient_error
    assert bare[-1].entropy < 0.1 and bare[-1].gradient < 0.06
    assert bare[-1].gradient_median < 1e-4  # and the gradient of a query, sqrt(1024) times that, is small too


def test_saturation_agrees_with_other_draws_and_numpy() -> None:
    draw, n = np.random.default_rng(7), 4000
    query, key = draw.standard_normal((n, 1, 64)), draw.standard_normal((n, 8, 64))
    weights = softmax((query * key).sum(-1))
    entropy = -(weights * np.log(weights)).sum(-1)
    squares = (weights**2).sum(-1)
    multiplied_out = squares - 2 * (weights**3).sum(-1) + squares**2  # |diag(w) - w w^T|^2
    gradient = np.sqrt(multiplied_out.clip(0))
    (found,) = [one for one in examples.saturation([64]) if not one.scaled]
    errors = math.hypot(found.entropy_error, entropy.std() / math.sqrt(n))
    assert abs(found.entropy - entropy.mean()) < 4 * errors
    errors = math.hypot(found.gradient_error, gradient.std() / math.sqrt(n))
    assert abs(found.gradient - gradient.mean()) < 4 * errors
    assert found.entropy_error == pytest.approx(entropy.std() / math.sqrt(2000), rel=0.1)
    assert found.gradient_error == pytest.approx(gradient.std() / math.sqrt(2000), rel=0.1)


def test_the_softmax_gradient_is_that_of_autograd() -> None:
    scores = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda one: one.softmax(0), scores)
    close(examples.softmax_gradient(scores.softmax(0)), jacobian.norm().item(), atol=1e-12)


def test_a_hundred_times_the_scores_leaves_one_of_eight() -> None:
    scores = np.array(
        [0.49671415, -0.1382643, 0.64768854, 1.52302986, -0.23415337, -0.23413696, 1.57921282, 0.76743473]
    )
    plain, hundred = examples.times_hundred()
    close(plain, softmax(scores))
    close(hundred, softmax(100 * scores))
    assert plain.max() < 0.28 and plain.min() > 0.04
    close(hundred[[3, 6]], [0.0036177, 0.9963823])


def test_the_mask_leaves_exactly_nothing_for_the_future() -> None:
    found = examples.masked()
    close(found, [[1, 0, 0, 0], [1 / 3, 2 / 3, 0, 0], [1 / 6, 2 / 6, 3 / 6, 0], [0.1, 0.2, 0.3, 0.4]])
    assert found.triu(1).eq(0).all()
    close(found.sum(1), np.ones(4))


def test_flies_is_read_differently_because_the_other_word_comes_before_it() -> None:
    rows = examples.rows_that_differ(*FLIES)
    assert [one.words for one in rows][:2] == [("time", "fruit"), ("flies", "flies")]
    assert all(one.stream for one in rows)
    assert [one.weights for one in rows] == [False, True, True, True, True]  # the first row has but one key


def test_it_is_read_alike_to_the_last_bit_where_the_clue_comes_after_it() -> None:
    rows = examples.rows_that_differ(*TIRED_SOFT)
    assert rows[7].words == ("it", "it") and rows[-1].words == ("tired", "soft")
    assert [(one.weights, one.stream) for one in rows] == [(False, False)] * 9 + [(True, True)]


def test_without_the_mask_the_clue_reaches_back_to_it() -> None:
    rows = examples.rows_that_differ(*TIRED_SOFT, mask=Mask.none)
    assert all(one.stream for one in rows) and all(one.weights is None for one in rows)


def test_a_head_set_by_hand_gives_weights_times_values_in_every_variant() -> None:
    generator = torch.Generator().manual_seed(5)
    key, query, value, x = torch.randn(4, 3, 3, generator=generator)
    plain = examples.one_head(key, query, value, mask=Mask.causal)
    weights = causal_attention_weights((x @ query)[None, None], (x @ key)[None, None])[0, 0]
    close(plain(x[None])[0], weights @ (x @ value))
    tied = examples.one_head(key, value=value, tie_query_key=True, mask=Mask.causal)
    weights = causal_attention_weights((x @ key)[None, None], (x @ key)[None, None])[0, 0]
    close(tied(x[None])[0], weights @ (x @ value))
    summed = examples.one_head(key, query, value, weighting=Weighting.sum)
    scores = ((x @ query) @ (x @ key).T / 3**0.5).relu() + 1e-4
    close(summed(x[None])[0], scores / scores.sum(1, keepdim=True) @ (x @ value))
