"""The model's own answers at the payoffs."""

from dataclasses import replace

import pytest

from data.links import ORACLES
from model.observe import TransformerView
from probe.behaviour import read_losses
from probe.config import ProbeConfig
from probe.scores import read_margins
from probe.study import behaviour
from tests.probe.conftest import Studied
from tests.probe.story_items import random_model, story_items


def test_answer_accuracy_is_the_share_of_positive_margins(studied: Studied, settings: ProbeConfig) -> None:
    for entry in studied[0]["behaviour"]:
        if entry["holdout"] == "headline":
            items = story_items("test", entry["family"], entry["site"])
            items = [item for item in items if item.level == entry["level"] and item.holdout == "headline"]
            items = [item for item in items if item.payoff is not None]
            margins = read_margins(TransformerView(random_model()), items, settings.tokens_per_batch)
            assert entry["n"] == len(items)
            assert entry["accuracy"] == pytest.approx((margins > 0).mean())


@pytest.mark.parametrize(
    ("blind", "bayes", "share"), [(1.5, 0, 1), (0, -1.5, 0), (0.5, -1.5, 0.25), (-0.5, -1.5, -0.5)]
)
def test_the_resolved_share_places_the_loss_between_blind_and_bayes(
    settings: ProbeConfig, blind: float, bayes: float, share: float
) -> None:
    """The oracles' losses are made up: the model's own loss plus these amounts."""
    items = [item for item in story_items("test", "agreement", "pronoun") if item.holdout == "iid"]
    model = random_model()
    losses = read_losses(model, items, settings.tokens_per_batch)
    shifts = dict.fromkeys(ORACLES, 9.0) | {"blind": blind, "bayes": bayes}
    items = [
        replace(item, surprisal=tuple(loss + shifts[name] for name in ORACLES))
        for item, loss in zip(items, losses, strict=True)
    ]
    entries = behaviour(TransformerView(model), items, settings)
    assert {round(entry["resolved_share"], 4) for entry in entries} == {share}
