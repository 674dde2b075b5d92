"""Two models on the same items: a removed or changed head is found, and the same model twice shows nothing."""

import copy
from dataclasses import replace

import pytest
import torch

from data.links import LinkItem
from data.next_pronoun import find_passages
from model.observe import TransformerView
from model.transformer import Transformer
from probe import two_models
from probe.next_pronoun import question_items
from probe.results import Head
from probe.two_models import Change, compare_links, compare_passages
from tests.probe.story_items import planted, story_items
from tests.probe.test_next_pronoun import CONFIG, DOCUMENTS, START, TOKENIZER, copying_model

PLACE = Head(1, 2)  # of the planted head


@pytest.fixture(scope="module")
def items() -> tuple[list[LinkItem], list[LinkItem]]:
    dev, test = (story_items(split, "agreement", "pronoun") for split in ("dev", "test"))
    return [item for item in dev if item.holdout == "iid"], [item for item in test if item.holdout == "headline"]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return planted("coreference", layer=PLACE.layer, head=PLACE.head)


def without_head(model: Transformer, place: Head) -> Transformer:
    removed = copy.deepcopy(model)
    width = removed.config.head_dim
    with torch.no_grad():
        removed.blocks[place.layer].attention.output.weight[:, place.head * width : (place.head + 1) * width] = 0
    return removed


def changed(changes: list[Change], measure: str) -> list[Head | None]:
    return [change.head for change in changes if change.measure == measure and change.p < 0.01]


def test_a_head_that_was_removed_is_found_by_its_effect(
    model: Transformer, items: tuple[list[LinkItem], list[LinkItem]]
) -> None:
    changes = compare_links(TransformerView(model), TransformerView(without_head(model, PLACE)), *items, CONFIG)
    assert changed(changes, "answer") == [None]
    assert changed(changes, "effect") == [PLACE]
    assert changed(changes, "attention") == []  # it still looks, and nobody reads what it writes
    (effect,) = [change for change in changes if (change.measure, change.head) == ("effect", PLACE)]
    assert effect.before > 1 and effect.after == pytest.approx(0, abs=1e-5)
    assert effect.difference.value == pytest.approx(effect.after - effect.before)
    assert effect.difference.low <= effect.difference.value <= effect.difference.high < 0


def test_a_head_that_looks_elsewhere_is_found_by_its_attention(
    model: Transformer, items: tuple[list[LinkItem], list[LinkItem]]
) -> None:
    other = planted("uniform", layer=PLACE.layer, head=PLACE.head)
    changes = compare_links(TransformerView(model), TransformerView(other), *items, CONFIG)
    assert changed(changes, "attention") == [PLACE]


def test_the_same_model_twice_has_not_changed(model: Transformer, items: tuple[list[LinkItem], list[LinkItem]]) -> None:
    changes = compare_links(TransformerView(model), TransformerView(model), *items, CONFIG)
    assert len(changes) > 10
    for change in changes:
        assert (change.difference.value, change.p) == (0, 1)


def test_rounding_is_no_change(model: Transformer, items: tuple[list[LinkItem], list[LinkItem]]) -> None:
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for weight in rounded.parameters():
            weight.mul_(1 + 2**-23)
    views = TransformerView(model), TransformerView(rounded)
    tokens = torch.tensor([items[1][0].tokens])
    assert not torch.equal(*(view.logits(tokens, torch.tensor([3])) for view in views))
    for change in compare_links(*views, *items, CONFIG):
        assert (change.difference.value, change.p) == (0, 1), change


def test_of_many_heads_only_candidates_of_either_model_are_edited(
    model: Transformer, items: tuple[list[LinkItem], list[LinkItem]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_models, "MAX_HEADS", 1)
    monkeypatch.setattr(two_models, "MAX_CANDIDATES", 1)
    for models in ((model, without_head(model, PLACE)), (without_head(model, PLACE), model)):
        changes = compare_links(*map(TransformerView, models), *items, CONFIG)
        assert changed(changes, "effect") == [PLACE]
        assert len([change for change in changes if change.measure == "effect"]) <= 2


def test_without_answers_only_attention_is_compared(
    model: Transformer, items: tuple[list[LinkItem], list[LinkItem]]
) -> None:
    dev, test = ([replace(item, payoff=None, answers=(), foils=()) for item in part] for part in items)
    changes = compare_links(TransformerView(model), TransformerView(without_head(model, PLACE)), dev, test, CONFIG)
    assert {change.measure for change in changes} == {"attention"}


def test_a_head_that_no_longer_decides_the_next_pronoun_is_found() -> None:
    passages = [passage for name, text in DOCUMENTS for passage in find_passages(name, text, "gender")]
    before, after = copying_model([0.0, 3.0, 0.0]), copying_model([0.0, 0.0, 0.0])
    items = question_items(before, TOKENIZER, START, "gender", passages, CONFIG)
    assert not items.problem
    changes = compare_passages(before, after, items.choosing, items.tested, CONFIG)
    assert changed(changes, "answer") == [None]
    assert changed(changes, "effect") == [Head(0, 1)]
