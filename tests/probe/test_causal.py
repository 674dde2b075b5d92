"""The effects of edits of one head are those computed by hand, text by text."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import LinkItem
from data.typed_json import to_json
from model.config import Position, Weighting
from model.observe import HeadEdit, TransformerView
from probe.causal import EditedMargins, causal_effects, causal_study, measure_margins
from tests.probe.pair_items import (
    GAIN,
    SETTINGS,
    margin_alone,
    noun_items,
    pair_view,
    random_items,
    three_heads,
    weights_by_hand,
)
from tests.tiny_models import K

LAYER = 0
HEAD = 1
EFFECTS = (
    *("attention_swap", "edge_ablation", "distractor_edge_ablation", "edge_specificity"),
    *("head_effect", "zero_ablation", "denoising_patch"),
)
VARIANTS = [{}, {"weighting": Weighting.sum, "position": Position.learned}, {"position": Position.alibi}]


@pytest.fixture(scope="module", params=VARIANTS, ids=["rope", "sum", "alibi"])
def view(request: pytest.FixtureRequest) -> TransformerView:
    return pair_view(**request.param)


def edit_by_hand(view: TransformerView, item: LinkItem, partner: LinkItem, name: str) -> HeadEdit:
    """Return the edit of one text, from the scores and outputs of unedited passes."""
    scores = view.attention_scores(torch.tensor([item.tokens]))[LAYER, 0, HEAD, item.query].clone()  # [T]
    weights = scores.softmax(-1)
    right = list(item.antecedents[0])
    wrong = list(partner.antecedents[0])
    if name == "attention_swap":
        row = weights.clone()
        row[right] = weights[right] / weights[right].sum() * weights[wrong].sum()
        row[wrong] = weights[wrong] / weights[wrong].sum() * weights[right].sum()
    elif name in ("edge_ablation", "distractor_edge_ablation"):
        scores[right if name == "edge_ablation" else wrong] = -torch.inf
        row = scores.softmax(-1)
    else:
        output = torch.zeros(1, len(item.tokens), K)
        if name in ("head_effect", "denoising_patch"):
            output = view.record(torch.tensor([partner.tokens]))[LAYER].head_output[:, HEAD]
        return HeadEdit(LAYER, HEAD, output=lambda _: output)

    def weights_edit(attention: torch.Tensor) -> torch.Tensor:
        attention = attention.clone()
        attention[0, item.query] = row
        return attention

    return HeadEdit(LAYER, HEAD, weights=weights_edit)


@pytest.mark.parametrize("name", ["clean", "partner", *(name for name in EFFECTS if name != "edge_specificity")])
def test_each_margin_equals_that_of_the_text_alone_with_the_edit_by_hand(view: TransformerView, name: str) -> None:
    items = random_items()
    margins = measure_margins(view, items, LAYER, HEAD, [0, 2], tokens_per_batch=60)
    for i, item in enumerate(items):
        partner = items[i ^ 1]
        if name in ("clean", "partner"):
            expected = margin_alone(view, item, None, item.tokens if name == "clean" else partner.tokens)
        elif name == "denoising_patch":  # the partner's text with this head's output from the item's text
            expected = margin_alone(view, item, edit_by_hand(view, partner, item, name), partner.tokens)
        else:
            expected = margin_alone(view, item, edit_by_hand(view, item, partner, name), item.tokens)
        assert getattr(margins, name)[i] == pytest.approx(expected, rel=1e-4, abs=3e-5)


def test_batch_size_does_not_change_a_study() -> None:
    view = three_heads()
    items = noun_items()
    small, large = (causal_study(view, items, 0, 0, **SETTINGS | {"tokens_per_batch": n}) for n in (1, 10**6))
    assert small is not None and large is not None
    for name in EFFECTS:
        for field in (name, f"{name}_interval"):
            assert getattr(small, field) == pytest.approx(getattr(large, field), rel=1e-4)
    json.dumps(to_json(small), allow_nan=False)


def test_without_pairs_there_is_no_study() -> None:
    alone = [replace(item, payoff=None) for item in noun_items()]
    assert causal_study(three_heads(), alone, 0, 0, **SETTINGS) is None


def test_effects_are_ratios_of_means_by_hand() -> None:
    items = noun_items()
    ones = np.ones(len(items))
    margins = EditedMargins(
        clean=3 * ones,
        partner=-1 * ones,
        attention_swap=2 * ones,
        edge_ablation=0 * ones,
        distractor_edge_ablation=2 * ones,
        head_effect=2 * ones,
        zero_ablation=2 * ones,
        denoising_patch=1 * ones,
        controls=np.empty((len(items), 0)),
    )
    effects = causal_effects(margins, items, 101, 0)
    assert (effects["margin"], effects["answer_difference"]) == (3, 2)
    assert effects["attention_swap"] == effects["zero_ablation"] == 0.25  # (3 - 2) / (3 + 1)
    assert effects["edge_ablation"] == 0.75 and effects["edge_specificity"] == 0.5
    assert effects["denoising_patch"] == 0.5  # (1 + 1) / (3 + 1)
    assert effects["head_effect_interval"] == pytest.approx((0.25, 0.25))


def test_the_effects_of_a_head_that_alone_decides_are_those_by_hand() -> None:
    """Head 0 writes GAIN x (weight on the antecedent - weight on the distractor) into the difference of the verbs."""
    strength = 2.0
    right, wrong = weights_by_hand(strength).T
    study = causal_study(three_heads(strength), noun_items(), 0, 0, **SETTINGS)
    assert study is not None and (study.n_pairs, study.n_dropped, study.n_frames) == (8, 0, 4)
    difference = GAIN * (right - wrong).mean()
    assert study.answer_difference == study.margin == pytest.approx(difference, rel=1e-4)
    for name in ("attention_swap", "head_effect", "denoising_patch"):
        assert getattr(study, name) == pytest.approx(1, rel=1e-4)
    assert study.zero_ablation == pytest.approx(0.5, rel=1e-4)
    cut_right = GAIN * ((right - wrong) + wrong / (1 - right)).mean() / (2 * difference)
    cut_wrong = GAIN * ((right - wrong) - right / (1 - wrong)).mean() / (2 * difference)
    assert study.edge_ablation == pytest.approx(cut_right, rel=1e-3)
    assert study.distractor_edge_ablation == pytest.approx(cut_wrong, rel=1e-3)
    assert study.edge_specificity == pytest.approx(cut_right - cut_wrong, rel=1e-3)


@pytest.mark.parametrize("head", [1, 2])
def test_a_head_that_writes_no_answer_has_no_effect_and_its_controls_are_the_other_heads(head: int) -> None:
    study = causal_study(three_heads(), noun_items(), 0, head, **SETTINGS)
    assert study is not None
    for name in EFFECTS:
        assert getattr(study, name) == pytest.approx(0, abs=1e-6), name
    assert study.controls.heads == [0, 3 - head]
    assert study.controls.attention_swap == pytest.approx([1, 0], abs=1e-4)


def test_effects_are_none_if_the_model_does_not_distinguish_the_partners() -> None:
    items = random_items()
    same = [replace(item, tokens=items[i - i % 2].tokens) for i, item in enumerate(items)]
    study = causal_study(pair_view(), same, 0, 1, **SETTINGS)
    assert study is not None and abs(study.answer_difference) < 1e-6
    assert {getattr(study, name) for name in EFFECTS} == {None} and study.controls is None
