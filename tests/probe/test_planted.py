"""Planted heads have the scores that their habit implies."""

import pytest

from model.observe import TransformerView
from probe.attention import HeadScores
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
