"""The measures of the next pronoun by hand, and margins of single texts by whole passes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from model.observe import HeadEdit
from probe.interventions import cut_weights, exchange_weights
from probe.margins import Margins, Sites, decision, exchange_terms, flips, role_cuts, signed_edge_effects
from probe.passage_items import PassageItem
from probe.results import Head
from tests.probe.pair_items import random_view


def item(meant: int, kind: str = "two", n_texts: int = 2) -> PassageItem:
    """Return an item whose first class is mentioned at position 1, and the second at 2 if there are two entities."""
    passage: Any = SimpleNamespace(meant=meant)
    if kind == "two":
        mentions = (((1,), (2,)), ((2,), (1,)))
    else:
        mentions = (((1,), ()), ((), (1,))) if meant == 0 else (((), (1,)), ((1,), ()))
    return PassageItem(passage, ((0, 1, 2),) * n_texts, (3, 4), mentions[:n_texts], ((),) * n_texts)


def margins_of(clean: Any, cut: Any = None, exchanged: Any = None) -> Margins:
    """Return the margins of items with one head; margins that are not given are nan."""
    values = np.array(clean, dtype=float)
    unknown = np.full((*values.shape, 1), np.nan)
    of_cut = np.full((*values.shape, 2, 1), np.nan) if cut is None else np.array(cut, dtype=float)[..., None]
    of_exchange = unknown if exchanged is None else np.array(exchanged, dtype=float)[..., None]
    return Margins(values, of_cut, of_exchange, unknown, unknown)


# Passage and twin; in each, the margin with the edge to the first class cut, and to the second.
TWO = [[0.5, 3.0], [-2.0, 1.0]]


def test_the_edge_effect_is_how_far_edges_move_the_margin_to_their_class() -> None:
    measured = margins_of([[2.0, -1.0]], [TWO])
    # Passage: ((2 - 0.5) - (2 - 3)) / 2 = 1.25. Twin: ((-1 + 2) - (-1 - 1)) / 2 = 1.5.
    for meant in (0, 1):  # the author's pronoun does not matter
        assert signed_edge_effects([item(meant)], measured) == pytest.approx(np.array([[1.375]]))
    # One entity: only the edge to it counts, which in the twin is of the other class. (1 - 0.25) and -(-2 + 0.5).
    first = margins_of([[1.0, -2.0]], [[[0.25, 1.0], [-2.0, -0.5]]])
    assert signed_edge_effects([item(0, "one")], first) == pytest.approx(np.array([[1.125]]))
    # The second class: passage -(1 - 1) = 0, twin (-2 + 2) = 0.
    assert signed_edge_effects([item(1, "one")], first) == pytest.approx(np.array([[0.0]]))
    # Without a twin only the passage counts.
    alone = margins_of([[2.0, np.nan]], [[TWO[0], [np.nan, np.nan]]])
    assert signed_edge_effects([item(0, n_texts=1)], alone) == pytest.approx(np.array([[1.25]]))


def test_the_decision_is_half_the_difference_of_passage_and_twin_towards_the_author() -> None:
    clean = np.array([[2.0, -1.0], [2.0, -1.0], [2.0, np.nan], [2.0, np.nan]])
    items = [item(0), item(1), item(0, n_texts=1), item(1, n_texts=1)]
    assert decision(items, clean) == pytest.approx(np.array([1.5, -1.5, 2.0, -2.0]))


def test_in_the_twin_the_entity_in_the_same_place_is_the_meant_one() -> None:
    meant, other = role_cuts([item(0), item(1)], margins_of([[2.0, -1.0]] * 2, [TWO, TWO]))
    # Meant first: passage without its edge to the first class 0.5, twin without that to the second 1; (0.5 - 1) / 2.
    assert meant == pytest.approx(np.array([[-0.25], [-2.5]]))
    assert other == pytest.approx(np.array([[2.5], [0.25]]))


def test_the_share_exchanged_is_signed_by_the_models_own_preference() -> None:
    measured = margins_of([[2.0, -1.0], [-1.0, 2.0], [2.0, -1.0]], exchanged=[[-1.0, 2.0], [0.5, 1.5], [3.0, -1.5]])
    numerator, denominator = exchange_terms(measured)
    assert denominator == pytest.approx(np.array([3.0, 3.0, 3.0]))
    # Complete; ((-1.5) - 0.5) / 2 = -1 against a difference of -3; and in the wrong direction.
    assert numerator == pytest.approx(np.array([[3.0], [1.0], [-0.75]]))
    assert flips(measured) == pytest.approx(np.array([[1.0], [0.5], [0.0]]))


# Margins of a model

FORMS = (9, 11)
PASSAGES = [  # passage and twin, in which the entities change places
    PassageItem(
        SimpleNamespace(meant=0), ((0, 5, 7, 3, 2), (0, 6, 7, 8, 2)), FORMS, (((1,), (3,)), ((3,), (1,))), ((2,), (2,))
    ),
    PassageItem(
        SimpleNamespace(meant=1),
        ((0, 5, 1, 7, 4, 3), (0, 6, 1, 7, 4, 3)),
        FORMS,
        (((1, 4), ()), ((), (1, 4))),
        ((3,), (3,)),
    ),
    PassageItem(SimpleNamespace(meant=1), ((0, 3, 3, 8, 7, 1, 2),), FORMS, (((1,), (3, 4)),), ((5,),)),
]


def mask_of(positions: tuple[int, ...], n_tokens: int) -> torch.Tensor:
    mask = torch.zeros(1, n_tokens, dtype=torch.bool)
    mask[0, list(positions)] = True
    return mask


@pytest.mark.parametrize("tokens_per_batch", [1, 100])
def test_each_margin_is_that_of_the_text_alone(tokens_per_batch: int) -> None:
    view = random_view()
    heads = [Head(0, 1), Head(1, 2)]
    sites = Sites(view, PASSAGES, tokens_per_batch)
    measured = sites.measure([heads], ["cut", "exchanged", "content_cut", "interchanged"])
    weights = sites.entity_weights(heads[1])
    probabilities = sites.probabilities(heads)
    for i, item in enumerate(PASSAGES):
        for text, tokens in enumerate(item.texts):
            batch = torch.tensor([tokens])
            first, second, content = (
                mask_of(positions, len(tokens)) for positions in (*item.mentions[text], item.content_word[text])
            )

            def logits(change: Any = None, batch: torch.Tensor = batch) -> torch.Tensor:
                def at_site(weights: torch.Tensor) -> torch.Tensor:
                    weights = weights.clone()
                    weights[:, -1] = change(weights[:, -1])
                    return weights

                edits = [HeadEdit(*head, weights=at_site) for head in heads] if change else []
                return view.logits(batch, None, edits)[0, -1]

            def margin(logits: torch.Tensor) -> float:
                return float(logits[FORMS[0]] - logits[FORMS[1]])

            for side, mask in enumerate((first, second)):
                cut = margin(logits(lambda row, mask=mask: cut_weights(row, mask)))
                assert measured.cut[i, text, side, 0] == pytest.approx(cut, abs=1e-3)
            content_cut = margin(logits(lambda row, mask=content: cut_weights(row, mask)))
            assert measured.content_cut[i, text, 0] == pytest.approx(content_cut, abs=1e-3)
            assert measured.clean[i, text] == sites.clean[i, text] == pytest.approx(margin(logits()), abs=1e-3)
            row = view.record(batch)[1].scores[0, 2, -1].softmax(-1)
            assert weights[i, text] == pytest.approx([float(row[mask[0]].sum()) for mask in (first, second)], abs=1e-4)
            if first.any() and second.any():
                exchanged = logits(lambda row, masks=(first, second): exchange_weights(row, *masks))
                assert measured.exchanged[i, text, 0] == pytest.approx(margin(exchanged), abs=1e-3)
                expected = exchanged.softmax(-1)[list(FORMS)].tolist()
                assert probabilities[i, text, 1] == pytest.approx(expected, abs=1e-4)
    assert np.isnan(measured.clean[2, 1]) and np.isnan(weights[2, 1]).all()
    assert measured.interchanged[2, 0, 0] == pytest.approx(measured.clean[2, 0], abs=1e-3)  # it has no twin
