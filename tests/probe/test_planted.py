"""Heads of known habits have the scores that these imply."""

import pytest

from model.observe import TransformerView
from probe.attention import measure_heads
from tests.planted import KINDS
from tests.probe.factories import planted, story_pairs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["number", "gender", "later_cue"])
def test_a_planted_transformer_has_the_scores_of_its_habit(kind: str, question: str) -> None:
    model = TransformerView(planted(kind, layer=1, head=2, seed=5))
    scores = measure_heads(model, story_pairs("test").of(question, "headline"), 4096).scores()
    expected = {"coreference": (1, 1, 1, 2), "coreference+first": (0.5, 0, 0, 1.5)}.get(kind, (0.5, 0, 0, 0))
    fields = (scores.accuracy, scores.pair_accuracy, scores.block_accuracy, scores.contrast)
    assert [values.mean(axis=0)[1, 2] for values in fields] == pytest.approx(expected, abs=0.005)
