"""The model's own answers at the payoffs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import ORACLES
from model.observe import TransformerView
from probe.behaviour import behaviour_study, read_payoffs
from probe.config import ProbeConfig
from tests.probe.conftest import Studied
from tests.probe.story_items import story_items, story_model


def test_margin_and_loss_are_those_of_the_whole_texts_probabilities() -> None:
    model, items = TransformerView(story_model()), story_items("test")[::53]
    for margin, loss, item in zip(*read_payoffs(model, items, tokens_per_batch=200), items, strict=True):
        if item.payoff is None:
            assert np.isnan(margin)
            assert np.isnan(loss)
        else:
            log_p = model.logits(torch.tensor([item.tokens]))[0, item.payoff].log_softmax(-1)
            expected = log_p[list(item.answers)].logsumexp(-1) - log_p[list(item.foils)].logsumexp(-1)
            assert margin == pytest.approx(expected.item(), abs=1e-4)
            assert loss == pytest.approx(-log_p[item.target].item(), abs=1e-4)


def test_answer_accuracy_is_the_share_of_positive_margins(studied: Studied) -> None:
    group = {"family": "agreement", "level": "number", "holdout": "headline"}
    [entry] = [entry for entry in studied[0]["behaviour"] if group.items() <= entry.items()]
    items = story_items("test", "agreement", "pronoun")
    items = [item for item in items if (item.level, item.holdout) == ("number", "headline") and item.payoff is not None]
    margins, losses = read_payoffs(TransformerView(story_model()), items, 4096)
    assert entry["n"] == len(items)
    assert entry["accuracy"] == pytest.approx((margins > 0).mean())
    assert entry["loss"] == pytest.approx(losses.mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("blind", "bayes", "share"), [(1.5, 0, 1), (0, -1.5, 0), (0.5, -1.5, 0.25), (-0.5, -1.5, -0.5)]
)
def test_the_resolved_share_places_the_loss_between_blind_and_bayes(
    settings: ProbeConfig, blind: float, bayes: float, share: float
) -> None:
    """The oracles' losses are made up: the model's own loss plus these amounts."""
    items = [item for item in story_items("test", "agreement", "pronoun") if item.holdout == "iid"]
    model = TransformerView(story_model())
    _, losses = read_payoffs(model, items, settings.tokens_per_batch)
    shifts = dict.fromkeys(ORACLES, 9.0) | {"blind": blind, "bayes": bayes}
    items = [
        replace(item, surprisal=tuple(loss + shifts[name] for name in ORACLES))
        for item, loss in zip(items, losses, strict=True)
    ]
    assert {round(entry["resolved_share"], 4) for entry in behaviour_study(model, items, settings)} == {share}
