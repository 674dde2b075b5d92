import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import LinkItem
from model.config import Position, Weighting
from model.observe import HeadEdit, TransformerView
from probe.causal import EFFECTS, causal_study, measure_margins, summarise
from probe.interventions import exchange, pair_up
from tests.probe.pair_items import (
    GAIN,
    SETTINGS,
    noun_items,
    pair_view,
    random_items,
    three_heads,
    weights_by_hand,
)
from tests.tiny_models import K

LAYER, HEAD = 0, 1
VARIANTS = [{}, {"weighting": Weighting.sum, "position": Position.learned}, {"position": Position.alibi}]


@pytest.fixture(scope="module", params=VARIANTS, ids=["rope", "sum", "alibi"])
def view(request: pytest.FixtureRequest) -> TransformerView:
    return pair_view(**request.param)


def margin_alone(view: TransformerView, item: LinkItem, edit: HeadEdit | None, tokens: tuple[int, ...]) -> float:
    """Return the margin of the item's answers after `tokens`, read as a batch of one text."""
    logits = view.logits(torch.tensor([tokens]), None, (edit,) if edit else ())[0, item.payoff]
    probabilities = logits.double().softmax(-1)
    return float((probabilities[list(item.answers)].sum() / probabilities[list(item.foils)].sum()).log())


def edit_by_hand(view: TransformerView, item: LinkItem, partner: LinkItem, name: str) -> HeadEdit:
    """Return the edit of one text, from the scores and outputs of unedited passes."""
    scores = view.attention_scores(torch.tensor([item.tokens]))[LAYER, 0, HEAD, item.query].clone()  # [T]
    weights = scores.softmax(-1)
    right, wrong = list(item.antecedents[0]), list(partner.antecedents[0])
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
        assert margins[name][i] == pytest.approx(expected, rel=1e-4, abs=3e-5)


def test_batch_size_does_not_change_a_study() -> None:
    view, items = three_heads(), noun_items()
    small, large = (causal_study(view, items, 0, 0, **SETTINGS | {"tokens_per_batch": n}) for n in (1, 10**6))
    assert small is not None and large is not None
    for name in EFFECTS:
        assert small[name] == pytest.approx(large[name], rel=1e-4)
        assert small[f"{name}_interval"] == pytest.approx(large[f"{name}_interval"], rel=1e-4)
    json.dumps(small, allow_nan=False)


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
    assert pair_up([items[0], spoil(items[1]), *items[2:]]) == ([2, 3], 1)


def test_without_pairs_there_is_no_study() -> None:
    alone = [replace(item, payoff=None) for item in noun_items()]
    assert causal_study(three_heads(), alone, 0, 0, **SETTINGS) is None


def test_exchange_moves_the_totals_and_keeps_the_proportions() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.2, 0.0, 0.4], [0.5, 0.5, 0.0, 0.0, 0.0]])
    left = torch.tensor([[True, True, False, False, False]] * 2)
    right = torch.tensor([[False, False, True, True, False]] * 2)
    exchanged = exchange(weights, left, right)
    torch.testing.assert_close(exchanged, torch.tensor([[0.05, 0.15, 0.4, 0.0, 0.4], [0.0, 0.0, 0.5, 0.5, 0.0]]))
    torch.testing.assert_close(exchange(exchanged, left, right)[0], weights[0])


def test_effects_are_ratios_of_means_by_hand() -> None:
    items = noun_items()
    ones = np.ones(len(items))
    margins = {name: 2 * ones for name in EFFECTS if name != "edge_specificity"}
    margins |= {"clean": 3 * ones, "partner": -1 * ones, "edge_ablation": 0 * ones, "denoising_patch": 1 * ones}
    entry = summarise(margins, items, 101, 0)
    assert (entry["margin"], entry["answer_difference"]) == (3, 2)
    assert entry["attention_swap"] == entry["zero_ablation"] == 0.25  # (3 - 2) / (3 + 1)
    assert entry["edge_ablation"] == 0.75 and entry["edge_specificity"] == 0.5
    assert entry["denoising_patch"] == 0.5  # (1 + 1) / (3 + 1)
    assert entry["head_effect_interval"] == pytest.approx([0.25, 0.25])


def test_the_effects_of_a_head_that_alone_decides_are_those_by_hand() -> None:
    """Head 0 writes GAIN x (weight on the antecedent - weight on the distractor) into the difference of the verbs."""
    strength = 2.0
    right, wrong = weights_by_hand(strength).T
    study = causal_study(three_heads(strength), noun_items(), 0, 0, **SETTINGS)
    assert study is not None and (study["n_pairs"], study["n_dropped"], study["n_frames"]) == (8, 0, 4)
    difference = GAIN * (right - wrong).mean()
    assert study["answer_difference"] == study["margin"] == pytest.approx(difference, rel=1e-4)
    for name in ("attention_swap", "head_effect", "denoising_patch"):
        assert study[name] == pytest.approx(1, rel=1e-4)
    assert study["zero_ablation"] == pytest.approx(0.5, rel=1e-4)
    cut_right = GAIN * ((right - wrong) + wrong / (1 - right)).mean() / (2 * difference)
    cut_wrong = GAIN * ((right - wrong) - right / (1 - wrong)).mean() / (2 * difference)
    assert study["edge_ablation"] == pytest.approx(cut_right, rel=1e-3)
    assert study["distractor_edge_ablation"] == pytest.approx(cut_wrong, rel=1e-3)
    assert study["edge_specificity"] == pytest.approx(cut_right - cut_wrong, rel=1e-3)


@pytest.mark.parametrize("head", [1, 2])
def test_a_head_that_writes_no_answer_has_no_effect_and_its_controls_are_the_other_heads(head: int) -> None:
    study = causal_study(three_heads(), noun_items(), 0, head, **SETTINGS)
    assert study is not None
    for name in EFFECTS:
        assert study[name] == pytest.approx(0, abs=1e-6), name
    assert study["controls"]["heads"] == [0, 3 - head]
    assert study["controls"]["attention_swap"] == pytest.approx([1, 0], abs=1e-4)


def test_effects_are_none_if_the_model_does_not_distinguish_the_partners() -> None:
    items = random_items()
    same = [replace(item, tokens=items[i - i % 2].tokens) for i, item in enumerate(items)]
    study = causal_study(pair_view(), same, 0, 1, **SETTINGS)
    assert study is not None and abs(study["answer_difference"]) < 1e-6
    assert {study[name] for name in EFFECTS} == {None} and study["controls"] is None
