"""The model's own answers at the payoffs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import ORACLES
from model.observe import TransformerView
from probe.behaviour import behaviour_study, measure_payoffs, oracle_losses, resolved_share
from probe.config import ProbeConfig
from tests.probe.story_items import story_items, story_model


def test_margin_and_loss_are_those_of_the_whole_texts_probabilities() -> None:
    model = TransformerView(story_model())
    items = story_items("test")[::53]
    for margin, loss, item in zip(*measure_payoffs(model, items, tokens_per_batch=200), items, strict=True):
        if item.payoff is None:
            assert np.isnan(margin)
            assert np.isnan(loss)
        else:
            log_p = model.logits(torch.tensor([item.tokens]))[0, item.payoff].log_softmax(-1)
            expected = log_p[list(item.answers)].logsumexp(-1) - log_p[list(item.foils)].logsumexp(-1)
            assert margin == pytest.approx(expected.item(), abs=1e-4)
            assert loss == pytest.approx(-log_p[item.target].item(), abs=1e-4)


def test_answer_accuracy_is_the_share_of_positive_margins(settings: ProbeConfig) -> None:
    model = TransformerView(story_model())
    items = story_items("test", "agreement", "pronoun")
    group = ("number", "headline")
    [result] = [result for result in behaviour_study(model, items, settings) if (result.level, result.holdout) == group]
    items = [item for item in items if (item.level, item.holdout) == group and item.payoff is not None]
    margins, losses = measure_payoffs(model, items, 4096)
    assert result.n == len(items)
    assert result.accuracy == pytest.approx((margins > 0).mean())
    assert result.loss == pytest.approx(losses.mean(), abs=1e-4)
    assert (result.bayes_loss, result.blind_loss) == tuple(oracle_losses(items)[name] for name in ("bayes", "blind"))


@pytest.mark.parametrize(
    ("blind", "bayes", "share"), [(1.5, 0, 1), (0, -1.5, 0), (0.5, -1.5, 0.25), (-0.5, -1.5, -0.5)]
)
def test_the_resolved_share_places_the_loss_between_blind_and_bayes(
    settings: ProbeConfig, blind: float, bayes: float, share: float
) -> None:
    """The oracles' losses are made up: the model's own loss plus these amounts."""
    items = [item for item in story_items("test", "agreement", "pronoun") if item.holdout == "iid"]
    model = TransformerView(story_model())
    _, losses = measure_payoffs(model, items, settings.tokens_per_batch)
    shifts = dict.fromkeys(ORACLES, 9.0) | {"blind": blind, "bayes": bayes}
    of_oracles = []
    for item, loss in zip(items, losses, strict=True):
        of_oracles.append(replace(item, surprisal=tuple(loss + shifts[name] for name in ORACLES)))
    for result in behaviour_study(model, of_oracles, settings):
        assert result.resolved_share == pytest.approx(share, abs=1e-4)


def test_the_share_is_unknown_without_oracles_or_if_the_antecedent_does_not_matter() -> None:
    assert resolved_share(1.0, {}) is None
    assert resolved_share(1.0, {"blind": 2.0, "bayes": 2.0}) is None
