"""head_test: p equals that of eval.py, scipy and MNE; bad arrays are refused."""

import numpy as np
import pytest
from scipy import stats

from antecedent_lab import UserError, head_test
from probe.attention import measure_heads
from probe.by_attention import _p_values
from probe.config import ProbeConfig
from probe.statistics import Sample
from tests.probe import factories as made


def test_p_is_that_of_the_probe_on_the_same_items():
    items = made.random_pairs()
    view = made.pair_view()
    scores = measure_heads(view, items, 4096).scores()
    expected, _ = _p_values(scores, items, ProbeConfig(n_bootstrap=500))
    clusters = items.clusterings(len(scores.accuracy))
    found = head_test(scores.pair_accuracy, *clusters, n_bootstrap=500)
    np.testing.assert_array_equal(found.p, expected["p_pair_accuracy"])
    assert found.head == np.unravel_index(scores.pair_accuracy.mean(axis=0).argmax(), found.p.shape)


def test_with_one_head_and_one_item_a_cluster_p_is_that_of_scipy():
    values = np.random.default_rng(0).normal(0.4, 1, 11)  # 2,048 sign patterns, all used

    def t(sample, axis):
        return sample.mean(axis) / sample.std(axis, ddof=1)

    exact = stats.permutation_test((values,), t, permutation_type="samples", alternative="greater", n_resamples=5000)
    assert head_test(values[:, None], centre=0, n_bootstrap=5000).p[0] == pytest.approx(exact.pvalue, abs=1e-12)


def test_p_of_many_heads_is_that_of_mne():
    values = np.random.default_rng(0).normal(0.3, 1, (11, 6))
    # mne.stats.permutation_t_test(values, n_permutations="all", tail=0)[1] of MNE 1.13.2
    of_mne = np.array([0.96480938, 0.16422287, 0.52883675, 0.96871945, 1.0, 0.07917889])
    labels = [np.arange(11).astype(str)]
    p = Sample(values, labels, [labels]).test(ProbeConfig(n_bootstrap=5000), two_sided=True).p
    np.testing.assert_allclose(p, (1 + 1023 * of_mne) / 1024, atol=1e-7)  # MNE leaves out the unflipped pattern


def test_a_clear_head_is_found_with_its_rival_and_noise_is_not_chosen_again():
    rng = np.random.default_rng(2)
    scores = (rng.random((200, 2, 3)) < 0.5).astype(float)
    scores[:, 1, 2] = rng.random(200) < 0.9
    scores[:, 0, 1] = rng.random(200) < 0.7
    clear = head_test(scores)
    assert clear.head == (1, 2) and clear.rival == (0, 1) and clear.chosen_again == 1
    assert clear.p[1, 2] < 0.001 < 0.05 < clear.p[0, 0] and clear.mean.value > clear.bar > 0.5
    assert str(clear).startswith("head (1, 2): mean 0.")
    noise = head_test((rng.random((200, 5, 8)) < 0.5).astype(float))
    assert noise.chosen_again < 0.5
    certain = np.ones((6, 1, 1))
    assert head_test(certain, list("aabbcc"), list("abcabc"), list("aabbcc")).bar == 1


@pytest.mark.parametrize(("scores", "clusters", "problem"), [
    ([0.5, 1.0], [], "scores"),
    (0.5, [], "scores"),
    ([[]], [], "no head"),
    ([["a"], ["b"]], [], "real numbers"),
    ([[1j], [0j]], [], "real numbers"),
    ([[0.5], [np.inf]], [], "finite"),
    (np.ma.masked_equal([[0.0], [1.0]], 0), [], "mask"),
    ([[0.5, 1.0], [1.0]], [], "numbers"),
    ([[0.5, 0.1], [np.nan, 0.2]], [], "nan in all items"),
    ([[np.nan], [np.nan]], [], "no head"),
    ([[0.5], [-0.1]], [], "centre=0"),
    ([[0.5], [1.0]], [["a"]], "2 labels"),
    ([[0.5], [1.0]], [["a", "a"]], "two of them different"),
    ([[0.5], [1.0]], [["a", None]], "None, nan or an empty"),
    ([[0.5], [1.0]], [[None, None]], "None, nan or an empty"),
    ([[0.5], [1.0]], [["a", ""]], "None, nan or an empty"),
    ([[0.5], [1.0]], [np.ma.masked_equal([0, 1], 0)], "no mask"),
    ([[0.5], [1.0]], [np.array(["2026-01-01", "NaT"], "datetime64[D]")], "None, nan or an empty"),
    ([[0.5], [1.0]], [[["a", "b"], ["a", float("nan")]]], "None, nan or an empty"),
])  # fmt: skip
def test_arrays_that_cannot_be_tested_are_refused(scores, clusters, problem):
    with pytest.raises(UserError, match=problem):
        head_test(scores, *clusters)


def test_settings_of_the_test_are_checked_as_those_of_the_probe():
    for name, value in (("n_bootstrap", "many"), ("seed", "x")):
        with pytest.raises(UserError, match=f"head_test: {name}={value}: must be an integer"):
            head_test([[0.0], [1.0]], **{name: value})


def test_weights_that_are_never_below_0_are_no_differences():
    """Random weights would have a p of .001 in every head."""
    weights = np.random.default_rng(0).dirichlet(np.ones(9), (60, 2, 3))[..., 0]
    with pytest.raises(UserError, match="no score is below 0.* differences"):
        head_test(weights, centre=0)
    with pytest.raises(UserError, match="centre must be a finite"):
        head_test(weights, centre=np.nan)


def test_the_smallest_possible_p_is_told():
    scores = np.random.default_rng(0).normal(5, 0.1, (12, 1, 2)) - [[0, 5.05]]
    found = head_test(scores, np.arange(12) % 6, centre=0)
    assert found.smallest_p == 2.0**-6 == found.p[0, 0]
    assert f"(smallest possible p {found.smallest_p:.4f})" in str(found)


def test_a_layer_without_attention_has_no_head():
    """The effects of a hybrid are nan there."""
    scores = np.random.default_rng(0).normal(0.3, 1, (40, 3, 2))
    without = scores.copy()
    without[:, 1] = np.nan
    found = head_test(without, centre=0)
    known = head_test(scores[:, [0, 2]], centre=0)
    assert (found.head, found.rival) == tuple((2 * place[0], place[1]) for place in (known.head, known.rival))
    np.testing.assert_array_equal(found.p[[0, 2]], known.p)
    assert np.isnan(found.p[1]).all() and (found.bar, found.chosen_again) == (known.bar, known.chosen_again)
