"""The contract accepts sound models and refuses every kind of wrong attention."""

from typing import Any

import pytest
from torch import Tensor

from model.observe import LayerRecord, TransformerView
from probe.contract import LIMITS, check_contract
from tests.probe.factories import story_model, story_pairs
from tests.tiny_models import VARIANTS

CELLS = story_pairs("test").cells


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
def test_a_sound_model_passes(switches: dict) -> None:
    violations = check_contract(TransformerView(story_model(**switches)), CELLS, n_cells=13)
    assert set(violations) == set(LIMITS)
    assert violations["future_weight"] == 0
    assert violations["logits"] < 1e-5


class Recorded(TransformerView):
    """A view whose records are changed."""

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        return [self.change(record, query_positions) for record in super().record(tokens, query_positions)]

    def change(self, record: LayerRecord, query_positions: Tensor | None) -> LayerRecord:
        raise NotImplementedError


class ScaledScores(Recorded):
    def change(self, record: LayerRecord, query_positions: Tensor | None) -> LayerRecord:
        return record._replace(scores=1.01 * record.scores)


class WrongRow(Recorded):
    def change(self, record: LayerRecord, query_positions: Tensor | None) -> LayerRecord:
        if query_positions is None:
            return record
        return record._replace(scores=record.scores.roll(1, -1))


class NoWeights(Recorded):
    def change(self, record: LayerRecord, query_positions: Tensor | None) -> LayerRecord:
        scores = record.scores.clone()
        scores[:, :, 0] = float("-inf")
        return record._replace(scores=scores)


class NoMask(Recorded):
    """The causal mask is lost in the scores and in the heads' outputs."""

    def change(self, record: LayerRecord, query_positions: Tensor | None) -> LayerRecord:
        scores = record.scores.masked_fill(record.scores.isinf(), 0)
        if query_positions is not None:
            return record._replace(scores=scores)
        return record._replace(scores=scores, head_output=scores.softmax(-1) @ record.values)


class ScaledLogits(TransformerView):
    """The usual pass and the edited pass differ."""

    def logits(self, tokens: Tensor, positions: Any = None, edits: Any = (), streams: Any = None) -> Tensor:
        return super().logits(tokens, positions, edits, streams) * (1.001 if edits else 1)


class SeesTheFuture(TransformerView):
    def logits(self, tokens: Tensor, positions: Any = None, edits: Any = (), streams: Any = None) -> Tensor:
        logits = super().logits(tokens, positions, edits, streams)
        return logits + 0.01 * logits.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (ScaledScores, "is not the attention the model uses"),
        (WrongRow, "same row of the whole map"),
        (NoWeights, "error nan"),
        (NoMask, "rests on later tokens"),
        (ScaledLogits, "does not end in the model's logits"),
        (SeesTheFuture, "later tokens change earlier logits"),
    ],
)
def test_a_wrong_view_is_refused_in_one_line(view: type[TransformerView], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        check_contract(view(story_model()), CELLS, n_cells=13)
    assert "\n" not in str(error.value)
