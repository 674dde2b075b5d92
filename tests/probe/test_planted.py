"""Planted heads have the scores that their habit implies."""

import pytest

from model.observe import TransformerView
from probe.attention import HeadScores
from probe.behaviour import measure_payoffs
from probe.contract import check_contract
from tests.planted import KINDS
from tests.probe.factories import planted, story_pairs

ITEMS = story_pairs("test").of("number", "headline")


def scores_of(kind: str, question: str = "number", **options: float) -> HeadScores:
    items = story_pairs("test").of(question, "headline")
    return HeadScores.of_model(TransformerView(planted(kind, **options)), items, 4096)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["number", "gender", "later_cue"])
def test_a_planted_transformer_has_the_scores_of_its_habit(kind: str, question: str) -> None:
    scores = scores_of(kind, question, layer=1, head=2, seed=5).scores()
    expected = {"coreference": (1, 1, 2), "coreference+first": (0.5, 0, 1.5)}.get(kind, (0.5, 0, 0))
    found = [values.mean(axis=0)[1, 2] for values in (scores.accuracy, scores.block_accuracy, scores.contrast)]
    assert found == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_transformer_keeps_the_contract(kind: str) -> None:
    check_contract(TransformerView(planted(kind, layer=1)), ITEMS.cells, n_cells=8)


@pytest.mark.parametrize(("kind", "low", "high"), [("coreference", 0.97, 1), ("first", 0.45, 0.55)])
def test_the_planted_head_decides_the_models_answer(kind: str, low: float, high: float) -> None:
    margins, _ = measure_payoffs(TransformerView(planted(kind)), ITEMS.cells, 4096)
    assert low <= (margins > 0).mean() <= high
