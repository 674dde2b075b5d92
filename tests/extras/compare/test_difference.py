"""Two models compared: exactly the heads that were changed are found."""

import copy
from dataclasses import replace

import pytest
import torch

from data.pairs import Items
from extras.compare.difference import difference
from extras.english import edges
from extras.english.questions import NEXT_PRONOUN
from model.observe import TransformerView
from probe import by_attention as attention
from probe.questions import QUESTIONS
from probe.results import Head
from tests.probe.factories import SETTINGS, copying_model, passage_items, planted, story_pairs

PLACE = Head(1, 2)  # place of the planted head
# Questions of both kinds of agreement as one: with the frames of one alone no two-sided p is below .01.
ITEMS = Items([replace(pair, question="number") for pair in story_pairs("study", "number", "gender").pairs])
MODEL = planted("coreference", layer=PLACE.layer, head=PLACE.head)
REMOVED = copy.deepcopy(MODEL)
REMOVED.blocks[PLACE.layer].attention.output.weight.data.unflatten(1, (MODEL.config.n_head, -1))[:, PLACE.head] = 0


def compared(before, after):
    return difference(TransformerView(before), TransformerView(after), ITEMS, QUESTIONS["number"], SETTINGS)


def changed(changes, measure):
    return [change.head for change in changes if change.measure == measure and change.p < 0.01]


def test_exactly_the_head_that_was_changed_is_found():
    changes = compared(MODEL, REMOVED)
    assert changed(changes, "answer") == [None]
    assert changed(changes, "effect") == [PLACE]
    assert changed(changes, "attention") == []  # its attention stays; only its output is removed
    (effect,) = [change for change in changes if (change.measure, change.head) == ("effect", PLACE)]
    assert effect.before > 1 and effect.after == pytest.approx(0, abs=1e-5)
    estimate = effect.difference
    assert estimate.value == pytest.approx(effect.after - effect.before) and effect.t < 0
    assert estimate.low <= estimate.value <= estimate.high < 0
    # One that looks elsewhere is found by its attention.
    assert changed(compared(MODEL, planted("uniform", layer=1, head=2)), "attention") == [PLACE]


def test_the_same_model_twice_has_not_changed_and_rounding_is_no_change():
    assert {(change.difference.value, change.p) for change in compared(MODEL, MODEL)} == {(0, 1)}
    rounded = copy.deepcopy(MODEL)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.mul_(1 + 2**-23)
    tokens = torch.tensor([ITEMS.cells[0].tokens])
    assert not torch.equal(TransformerView(MODEL).logits(tokens), TransformerView(rounded).logits(tokens))
    assert {(change.difference.value, change.p) for change in compared(MODEL, rounded)} == {(0, 1)}


def test_of_many_heads_only_candidates_are_edited(monkeypatch):
    monkeypatch.setattr(attention, "EDIT_ALL", 1)
    monkeypatch.setattr(attention, "MAX_COMPARED", 1)
    for before, after in ((MODEL, REMOVED), (REMOVED, MODEL)):
        changes = compared(before, after)
        assert changed(changes, "effect") == [PLACE]
        assert len([change for change in changes if change.measure == "effect"]) <= 2


@pytest.mark.parametrize("n_heads", [3, edges.EDIT_ALL + 1])
def test_a_head_whose_edges_no_longer_decide_the_next_word_is_found(n_heads):
    before, after = copying_model([0.0, 3.0, *[0.0] * (n_heads - 2)]), copying_model([0.0] * n_heads)
    changes = difference(before, after, passage_items(), NEXT_PRONOUN, SETTINGS)
    assert changed(changes, "answer") == [None] and changed(changes, "effect") == [Head(0, 1)]
