"""The model's own answers at the payoffs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.pairs import ORACLES, Items
from model.observe import TransformerView
from probe.behaviour import behaviour_study, measure_payoffs, oracle_losses, resolved_share
from tests.probe.factories import SETTINGS, chosen, story_model, story_pairs

MODEL = TransformerView(story_model())


def test_margin_and_loss_are_those_of_the_whole_texts_probabilities() -> None:
    cells = [*story_pairs("test").cells[::53], replace(story_pairs("test").cells[0], payoff=None)]
    for margin, loss, cell in zip(*measure_payoffs(MODEL, cells, tokens_per_batch=200), cells, strict=True):
        if cell.payoff is None:
            assert np.isnan(margin) and np.isnan(loss)
        else:
            log_p = MODEL.logits(torch.tensor([cell.tokens]))[0, cell.payoff].log_softmax(-1)
            expected = log_p[list(cell.answers)].logsumexp(-1) - log_p[list(cell.foils)].logsumexp(-1)
            assert margin == pytest.approx(expected.item(), abs=1e-4)
            assert loss == pytest.approx(-log_p[cell.target].item(), abs=1e-4)


def test_answer_accuracy_is_the_share_of_positive_margins() -> None:
    items = chosen(story_pairs("test"), "number", "gender")
    results = behaviour_study(MODEL, items, SETTINGS)
    [result] = [result for result in results if (result.question, result.part) == ("number", "headline")]
    cells = items.of("number", "headline").cells
    margins, losses = measure_payoffs(MODEL, cells, 4096)
    assert (result.n, result.accuracy.value) == (len(cells), pytest.approx((margins > 0).mean()))
    assert result.loss == pytest.approx(losses.mean(), abs=1e-4)
    assert {"bayes": result.bayes_loss, "blind": result.blind_loss}.items() <= oracle_losses(cells).items()


@pytest.mark.parametrize(
    ("blind", "bayes", "share"), [(1.5, 0, 1), (0, -1.5, 0), (0.5, -1.5, 0.25), (-0.5, -1.5, -0.5)]
)
def test_the_resolved_share_places_the_loss_between_blind_and_bayes(blind: float, bayes: float, share: float) -> None:
    """The oracles' losses are made up: the model's own loss plus these amounts."""
    items = story_pairs("test").of("number", "iid")
    _, losses = measure_payoffs(MODEL, items.cells, SETTINGS.tokens_per_batch)
    shifts = {"blind": blind, "bayes": bayes}
    pairs = []
    for pair, of_pair in zip(items.pairs, losses.reshape(-1, 2), strict=True):
        first, second = (
            replace(cell, surprisal=tuple(loss + shifts[name] for name in ORACLES))
            for cell, loss in zip(pair.cells, of_pair, strict=True)
        )
        pairs.append(replace(pair, cells=(first, second)))
    [result] = behaviour_study(MODEL, Items(pairs), SETTINGS)
    assert result.resolved_share == pytest.approx(share, abs=1e-4)


def test_the_share_is_unknown_without_oracles_or_if_the_antecedent_does_not_matter() -> None:
    assert resolved_share(1.0, {}) is None
    assert resolved_share(1.0, {"blind": 2.0, "bayes": 2.0}) is None
    cells = story_pairs("test").of("number", "iid").cells
    assert set(oracle_losses(cells)) == set(ORACLES)
    assert oracle_losses([*cells, replace(cells[0], surprisal=())]) == {}
