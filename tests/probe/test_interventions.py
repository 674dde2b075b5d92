"""Items are paired with their partners, and edits change the weights of one head at the query alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from data.errors import UserError
from data.links import LinkItem
from probe.interventions import (
    NO_TOKEN,
    PairBatch,
    answer_ids,
    answer_margins,
    cut_edge,
    cut_link,
    cut_weights,
    edit_query_row,
    edited_margins,
    exchange_links,
    exchange_weights,
    measure_pairs,
    pair_up,
    partner,
    swap_edges,
)
from tests.probe.pair_items import margin_alone, pair_view, random_items


@pytest.mark.parametrize(("token", "targets"), [(3, [4]), (3, [-1]), (3, []), (-1, [0])])
def test_a_link_that_no_text_has_is_refused(token: int, targets: list[int]) -> None:
    with pytest.raises(UserError, match=f"^no link from token {token} to "):
        cut_link(0, 0, token, targets)
    with pytest.raises(UserError, match=f"^no link from token {token} to "):
        exchange_links(0, 0, token, [0], targets)


def test_links_outside_the_text_and_sets_that_overlap_are_refused() -> None:
    tokens = torch.ones(1, 5, dtype=torch.long)
    for edit in (cut_link(0, 0, 5, [1]), exchange_links(0, 0, 5, [1], [2])):
        with pytest.raises(UserError, match="^no link from token 5: the text has tokens 0 to 4$"):
            pair_view().logits(tokens, edits=[edit])
    with pytest.raises(UserError, match="must not share a token$"):
        exchange_links(0, 0, 4, [1, 2], [2])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda item: replace(item, tokens=(*item.tokens, 3)),
        lambda item: replace(item, query=item.query - 1),
        lambda item: replace(item, antecedents=((1,),)),
        lambda item: replace(item, payoff=None),
        lambda item: replace(item, antecedents=()),
        lambda item: replace(item, answers=()),
    ],
    ids=["length", "query", "candidate", "payoff", "antecedent", "answers"],
)
def test_a_pair_that_differs_in_more_than_the_antecedent_is_dropped(spoil) -> None:  # noqa: ANN001
    items = random_items()[:4]
    assert pair_up([items[0], spoil(items[1]), *items[2:]]) == (items[2:], 1)


def test_exchange_moves_the_totals_and_keeps_the_proportions() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.2, 0.0, 0.4], [0.5, 0.5, 0.0, 0.0, 0.0]])
    left = torch.tensor([[True, True, False, False, False]] * 2)
    right = torch.tensor([[False, False, True, True, False]] * 2)
    exchanged = exchange_weights(weights, left, right)
    torch.testing.assert_close(exchanged, torch.tensor([[0.05, 0.15, 0.4, 0.0, 0.4], [0.0, 0.0, 0.5, 0.5, 0.0]]))
    torch.testing.assert_close(exchange_weights(exchanged, left, right)[0], weights[0])


def test_cut_weights_leaves_a_sum_of_1() -> None:
    cut = cut_weights(torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), torch.tensor([[True, False, False]] * 2))
    torch.testing.assert_close(cut, torch.tensor([[0.0, 0.375, 0.625], [0.0, 0.0, 0.0]]))


def test_an_edit_changes_the_row_of_the_query_alone() -> None:
    attention = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0))
    query = torch.tensor([3, 1])
    edited = edit_query_row(query, 0, 1, lambda row: -row).weights(attention)
    changed = (edited != attention).any(-1)
    assert changed.nonzero().tolist() == [[0, 3], [1, 1]]
    assert torch.equal(edited[0, 3], -attention[0, 3])


def test_margins_compare_the_summed_probabilities_of_answers_and_foils() -> None:
    items: list[LinkItem] = random_items()[:2]
    answers, foils = answer_ids(items)
    assert answers.tolist() == [[41, 43, NO_TOKEN], [44, 45, 46]] and torch.equal(foils, partner(answers))
    logits = torch.randn(2, 53, generator=torch.Generator().manual_seed(0))
    p = logits.softmax(-1)
    expected = (p[0, 41] + p[0, 43]).log() - (p[0, 44] + p[0, 45] + p[0, 46]).log()
    assert answer_margins(logits, answers, foils)[0].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("tokens_per_batch", [1, 60, 10**6])
def test_results_come_in_the_order_of_the_items(tokens_per_batch: int) -> None:
    view = pair_view()
    items = random_items()

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        swapped = edited_margins(view, batch, streams, swap_edges(batch, 0, 1))
        cut = edited_margins(view, batch, streams, cut_edge(batch.query, 0, 1, batch.antecedent))
        assert (swapped != cut).any()
        return {"clean": edited_margins(view, batch, streams), "length": (batch.query + 1).float()}

    results = measure_pairs(view, items, tokens_per_batch, measure)
    assert results["length"].tolist() == [item.query + 1 for item in items]
    expected = [margin_alone(view, item, None, item.tokens) for item in items]
    assert results["clean"] == pytest.approx(expected, rel=1e-4, abs=3e-5)
