"""Two models on the same items: a removed or changed head is found, and the same model twice shows nothing."""

import copy
from dataclasses import replace

import pytest
import torch

from data.pairs import Items
from model.observe import TransformerView
from model.transformer import Transformer
from probe import difference as module
from probe.difference import difference
from probe.edge_study import EDIT_ALL
from probe.questions import PASSAGE_QUESTIONS, QUESTIONS
from probe.results import Change, Head
from tests.probe.factories import SETTINGS, chosen, copying_model, passage_items, planted, story_pairs

PLACE = Head(1, 2)  # place of the planted head
# Questions of both kinds of agreement as one: with the frames of one alone no two-sided p is below .01.
ITEMS = Items([replace(pair, question="number") for pair in chosen(story_pairs("study"), "number", "gender").pairs])


@pytest.fixture(scope="module")
def model() -> Transformer:
    return planted("coreference", layer=PLACE.layer, head=PLACE.head)


def without_head(model: Transformer, place: Head) -> Transformer:
    removed = copy.deepcopy(model)
    width = removed.config.head_dim
    with torch.no_grad():
        removed.blocks[place.layer].attention.output.weight[:, place.head * width : (place.head + 1) * width] = 0
    return removed


def compared(before: Transformer, after: Transformer, items: Items = ITEMS) -> list[Change]:
    return difference(TransformerView(before), TransformerView(after), items, QUESTIONS["number"], SETTINGS)


def changed(changes: list[Change], measure: str) -> list[Head | None]:
    return [change.head for change in changes if change.measure == measure and change.p < 0.01]


def test_exactly_the_head_that_was_removed_is_found_by_its_effect(model: Transformer) -> None:
    changes = compared(model, without_head(model, PLACE))
    assert changed(changes, "answer") == [None]
    assert changed(changes, "effect") == [PLACE]
    assert changed(changes, "attention") == []  # its attention stays; only its output is removed
    (effect,) = [change for change in changes if (change.measure, change.head) == ("effect", PLACE)]
    assert effect.before > 1 and effect.after == pytest.approx(0, abs=1e-5)
    estimate = effect.difference
    assert estimate.value == pytest.approx(effect.after - effect.before) and effect.t < 0
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low <= estimate.value <= estimate.high < 0


def test_a_head_that_looks_elsewhere_is_found_by_its_attention(model: Transformer) -> None:
    assert changed(compared(model, planted("uniform", layer=1, head=2)), "attention") == [PLACE]


def test_the_same_model_twice_has_not_changed_and_rounding_is_no_change(model: Transformer) -> None:
    assert {(change.difference.value, change.p) for change in compared(model, model)} == {(0, 1)}
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.mul_(1 + 2**-23)
    tokens = torch.tensor([ITEMS.cells[0].tokens])
    assert not torch.equal(TransformerView(model).logits(tokens), TransformerView(rounded).logits(tokens))
    assert {(change.difference.value, change.p) for change in compared(model, rounded)} == {(0, 1)}


def test_of_many_heads_only_candidates_are_edited(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HEADS", 1)
    monkeypatch.setattr(module, "MAX_CANDIDATES", 1)
    removed = without_head(model, PLACE)
    for before, after in ((model, removed), (removed, model)):
        changes = compared(before, after)
        assert changed(changes, "effect") == [PLACE]
        assert len([change for change in changes if change.measure == "effect"]) <= 2


@pytest.mark.parametrize("n_heads", [3, EDIT_ALL + 1])
def test_a_head_whose_edges_no_longer_decide_the_next_word_is_found(n_heads: int) -> None:
    gains = [0.0, 3.0, *[0.0] * (n_heads - 2)]
    before, after = copying_model(gains), copying_model([0.0] * n_heads)
    changes = difference(before, after, passage_items(), PASSAGE_QUESTIONS["gender"], SETTINGS)
    assert changed(changes, "answer") == [None]
    assert changed(changes, "effect") == [Head(0, 1)]
    same = difference(before, before, passage_items(), PASSAGE_QUESTIONS["gender"], SETTINGS)
    assert {(change.difference.value, change.p) for change in same} == {(0, 1)}
