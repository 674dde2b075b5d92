"""The smallest set of heads that decides the answer, on models whose heads are made by hand."""

from dataclasses import replace

import pytest
import torch

from model.observe import TransformerView
from probe.head_sets import MAX_HEADS, joint_specificity, smallest_set
from probe.results import Head
from tests.probe.pair_items import GAIN, VERB, noun_items, pair_view, random_items, three_heads

SIZES = {"tokens_per_batch": 64, "n_bootstrap": 100, "seed": 0}


def two_writing_heads() -> TransformerView:
    """Return `three_heads` with a head 1 that writes the noun's verb as strongly as head 0."""
    view = three_heads(3.0)
    output = view.model.blocks[0].attention.output.weight
    with torch.no_grad():
        for kind in (0, 1):
            output[VERB[kind], 4 + kind] = GAIN
    return view


def test_one_head_that_decides_alone_is_the_set() -> None:
    found = smallest_set(three_heads(3.0), noun_items(), noun_items(), **SIZES)
    assert found is not None
    assert (found.heads, found.reached) == ([(0, 0)], True)
    assert found.attention_swap == pytest.approx(1.0, abs=1e-4)
    low, high = found.attention_swap_interval
    assert low <= found.attention_swap <= high + 1e-9


def test_heads_that_share_the_work_are_a_set_and_one_alone_moves_half() -> None:
    found = smallest_set(two_writing_heads(), noun_items(), noun_items(), **SIZES)
    assert found is not None
    assert sorted(found.heads) == [(0, 0), (0, 1)]
    first, second = found.curve
    assert first.test == pytest.approx(0.5, abs=0.02) and second.test == pytest.approx(1.0, abs=1e-4)


def test_the_edges_of_a_set_are_cut_together() -> None:
    """One of two heads that share the work carries half of what both together carry."""
    view, items = two_writing_heads(), noun_items()
    one, _ = joint_specificity(view, items, [Head(0, 0)], **SIZES)
    both, (low, high) = joint_specificity(view, items, [Head(0, 0), Head(0, 1)], **SIZES)
    assert both == pytest.approx(2 * one, rel=0.05)
    assert 0 < low <= both <= high + 1e-9


def test_the_curve_is_given_where_no_set_moves_enough() -> None:
    found = smallest_set(pair_view(), random_items(), random_items(), **SIZES)
    assert found is not None and not found.reached
    shares = [step.dev for step in found.curve]
    assert shares == sorted(shares) and 1 < len(shares) < MAX_HEADS  # it ends where no head adds to the set


def test_there_is_no_set_without_partners() -> None:
    items = [replace(item, payoff=None) for item in noun_items()]
    assert smallest_set(three_heads(), items, items, **SIZES) is None
