"""The model's own answers at the payoffs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from model.observe import TransformerView
from probe.behaviour import answer_values, measure_payoffs, resolved_share
from tests.probe.factories import SETTINGS, story_model, story_pairs

MODEL = TransformerView(story_model())


def test_margin_and_loss_are_those_of_the_whole_texts_probabilities() -> None:
    cells = [cell for cell in story_pairs("test").cells[::53] if cell.payoff is not None]
    for margin, loss, cell in zip(*measure_payoffs(MODEL, cells, tokens_per_batch=200), cells, strict=True):
        log_p = MODEL.logits(torch.tensor([cell.tokens]))[0, cell.payoff].log_softmax(-1)
        expected = log_p[list(cell.answers)].logsumexp(-1) - log_p[list(cell.foils)].logsumexp(-1)
        assert margin == pytest.approx(expected.item(), abs=1e-4)
        assert loss == pytest.approx(-log_p[cell.target].item(), abs=1e-4)


def test_answer_accuracy_is_the_share_of_positive_margins() -> None:
    items = story_pairs("test").of("number", "headline")
    values = answer_values(MODEL, items, SETTINGS)
    margins, losses = measure_payoffs(MODEL, items.cells, 4096)
    assert values["answer_accuracy"].value == pytest.approx((margins > 0).mean())
    assert values["resolved_share"].value == pytest.approx((math.log(8) - losses.mean()) / math.log(2), abs=1e-3)
    assert answer_values(MODEL, story_pairs("test").of("no_antecedent", "headline"), SETTINGS) == {}


@pytest.mark.parametrize(
    ("loss", "n_fitting", "share"),
    [(math.log(4), (4, 4), 1.0), (math.log(8), (4, 4), 0.0), (1.5 * math.log(2), (1, 4), 0.5), (1.0, (4, 0), None)],
)
def test_the_resolved_share_places_the_loss_between_blind_and_bayes(
    loss: float, n_fitting: tuple[int, int], share: float | None
) -> None:
    cells = [replace(story_pairs("test").cells[0], n_fitting=n) for n in n_fitting]
    found = resolved_share(np.array([loss - 0.5, loss + 0.5]), cells)
    assert found == (None if share is None else pytest.approx(share, abs=1e-9))
