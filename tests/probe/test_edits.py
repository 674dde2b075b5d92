"""Edits of heads give the margins of the texts alone with the edit by hand, and the probe during training uses them."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from data.pairs import Items
from model.edits import cut_link, exchange_links
from model.observe import HeadEdit
from probe import edits
from probe.edits import EditedPairs, Margins, grown
from probe.results import Head
from settings.errors import UserError
from tests.probe import factories as made
from tests.tiny_models import each_variant

PLACE = Head(0, 1)
WHOLE = ("swap", "swap_50", "cut_meant", "cut_other", "zero")


def margin_alone(view, cell, tokens, *edits):
    """Return the margin of the text's answers after `tokens`, read as a batch of one text."""
    probabilities = view.logits(torch.tensor([tokens]), None, edits)[0, cell.payoff].double().softmax(-1)
    return float((probabilities[list(cell.answers)].sum() / probabilities[list(cell.foils)].sum()).log())


def edit_by_hand(view, cell, name):
    """Return the edit of one text, from the scores and outputs of unedited passes."""
    if name == "zero":
        return HeadEdit(*PLACE, output=torch.zeros_like)
    scores = view.record(torch.tensor([cell.tokens]))[PLACE.layer].scores[0, PLACE.head, cell.query].clone()
    weights = scores.softmax(-1)
    right, wrong = map(list, (cell.meant[0], cell.other[0]))
    if name.startswith("swap"):
        row = weights.clone()
        row[right] = weights[right] / weights[right].sum() * weights[wrong].sum()
        row[wrong] = weights[wrong] / weights[wrong].sum() * weights[right].sum()
        row = (row + weights) / 2 if name == "swap_50" else row
    else:
        scores[{"cut_meant": right, "cut_other": wrong, "cut_control": [*cell.control]}[name]] = -torch.inf
        row = scores.softmax(-1)
    return HeadEdit(*PLACE, weights=lambda maps: maps.index_copy(1, torch.tensor([cell.query]), row[None, None]))


def check_by_hand(view, items, names):
    """Check every margin with a head edited against that of the text alone, edited by hand."""
    margins = EditedPairs(view, items, tokens_per_batch=60).margins([[PLACE], [Head(1, 0)]], names)
    totals: dict[int, list[float]] = {}
    for i, text in np.ndindex(len(items), 2):
        own, twin = items.pairs[i].cells[text], items.pairs[i].cells[1 - text]
        expected = {name: margin_alone(view, own, own.tokens, edit_by_hand(view, own, name)) for name in names}
        found = {name: values[i, text, 0] for name, values in margins.edited.items()}
        assert found == pytest.approx(expected, rel=1e-4, abs=3e-5)
        assert margins.clean[i, text] == pytest.approx(margin_alone(view, own, own.tokens), abs=3e-5)
        changed = margin_alone(view, own, own.tokens) - margin_alone(view, own, twin.tokens)
        totals.setdefault(i, []).append(changed)
    assert margins.total == pytest.approx([np.mean(of_pair) for of_pair in totals.values()], abs=5e-5)


@each_variant
def test_each_margin_is_that_of_the_text_edited_by_hand(switches):
    check_by_hand(made.pair_view(**switches), made.random_pairs(), WHOLE)


@pytest.mark.parametrize("n_kept", [0, 60, 2**21])
@pytest.mark.parametrize("n_answers", [1, 2])
def test_so_is_each_margin_right_after_the_query(n_kept, n_answers, monkeypatch):
    """There only the query is computed again, from passes that are kept or not."""
    monkeypatch.setattr(edits, "MAX_KEPT", n_kept)
    pairs = []
    for pair in made.random_pairs().pairs:
        cells = []
        for own in pair.cells:
            sides = {"answers": own.answers[:n_answers], "foils": own.foils[:n_answers]}
            cells.append(replace(own, payoff=own.query, tokens=own.tokens[: own.query + 1], **sides))
        pairs.append(replace(pair, cells=(cells[0], cells[1])))
    check_by_hand(made.pair_view(), Items(pairs), (*WHOLE, "cut_control"))


def test_weights_probabilities_and_direct_effects_at_the_site_are_those_of_the_texts():
    items = made.passage_items().of("next_pronoun_gender", "dev")
    model, pair = made.copying_model([0.5, 2.0]), items.pairs[1]
    sites = EditedPairs(model, items, 100)
    weights, probabilities = sites.shown(Head(0, 1), [Head(0, 1)])
    cell = pair.cells[0]
    row = model.record(torch.tensor([cell.tokens]))[0].scores[0, 1, -1].softmax(-1)
    expected = [float(row[[*sum(words, ())]].sum()) for words in (cell.meant, cell.other)]
    assert weights[1] == pytest.approx(expected, abs=1e-5)
    of_words = model.logits(torch.tensor([cell.tokens]))[0, -1].softmax(-1)[[cell.answers[0], cell.foils[0]]]
    assert probabilities[1, 0] == pytest.approx(of_words.tolist(), abs=1e-5)
    effects = sites.direct_effects()
    assert effects[:, 0, 1] == pytest.approx(4 * effects[:, 0, 0], rel=1e-4)
    assert effects.sum((1, 2)) == pytest.approx(np.abs(sites.clean.mean(axis=1)), abs=1e-5)


def test_the_share_exchanged_is_signed_by_the_models_own_preference():
    clean = np.array([[2.0, 1.0], [-1.0, -2.0], [2.0, 1.0]])
    exchanged = np.array([[-1.0, -2.0], [0.5, -1.5], [3.0, 1.5]])[..., None]
    margins = Margins(clean, {"swap": exchanged})
    moved, total = margins.swaps()
    assert total == pytest.approx([3.0, 3.0, 3.0])
    # Complete; half of the preference for the other side; and in the wrong direction
    assert moved == pytest.approx(np.array([[3.0], [1.0], [-0.75]]))
    assert margins.flips() == pytest.approx(np.array([[1.0], [0.5], [0.0]]))


def test_pairs_whose_answers_cannot_be_compared_are_left_out():
    items = made.random_pairs()
    assert len(items.comparable()) == len(items)
    first, second = items.pairs[0].cells
    wrong: list[dict[str, Any]] = [{"tokens": (1,) * 40}, {"query": 2}, {"meant": ((2,),)}, {"payoff": None}]
    for changes in (*wrong, {"meant": ()}, {"answers": ()}, {"other": ()}, {"payoff": 2}):
        for cells in ((first, replace(second, **changes)), (replace(first, **changes), second)):
            assert not replace(items.pairs[0], cells=cells).is_comparable, changes


@pytest.mark.parametrize("about", [1, 3, 5, 8, 11, 1000])
def test_some_pairs_have_both_pairs_of_a_block_alike(about):
    items = made.story_pairs("test")
    some = items.some(about)
    n_first = sum(pair is items.pairs[2 * pair.block] for pair in some.pairs)
    assert 0 <= 2 * n_first - len(some) <= 1
    assert about * 2 / 3 <= len(some) <= 2 * about or len(some) == len(items) < about


def test_a_set_has_only_heads_that_add():
    view = made.pair_view()
    pairs = EditedPairs(view, made.random_pairs(), 4096)
    shares = [share for _, share in grown(pairs.exchanged, edits.all_heads(view), least_gain=0.02)]
    assert shares == sorted(shares) and 0 < len(shares) < edits.MAX_HEADS


@pytest.mark.parametrize(("token", "targets"), [(3, [4]), (3, [-1]), (3, []), (-1, [0]), (3, 1), (1.5, [1])])
def test_a_link_that_no_text_has_is_refused(token, targets):
    for make in (partial(cut_link, 0, 0, token), partial(exchange_links, 0, 0, token, [0])):
        with pytest.raises(UserError, match=f"^no link from token {token}"):
            make(targets)


def test_links_of_an_absent_token_or_of_overlapping_sets_are_refused():
    with pytest.raises(UserError, match="must not share a token$"):
        exchange_links(0, 0, 4, [1, 2], [2])
    with pytest.raises(UserError, match="^no link from token 5: the text has tokens 0 to 4$"):
        made.pair_view().logits(torch.ones(1, 5, dtype=torch.long), edits=[cut_link(0, 0, 5, [1])])
