"""The contract accepts sound models and refuses every kind of wrong attention."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model.observe import LayerRecord, TransformerView
from probe.contract import LIMITS, check_contract
from tests.probe.factories import story_model, story_pairs
from tests.tiny_models import each_variant

CELLS = story_pairs("test").cells


@each_variant
def test_a_sound_model_passes(switches: dict) -> None:
    violations = check_contract(TransformerView(story_model(**switches)), CELLS, n_cells=13)
    assert set(violations) == set(LIMITS)
    assert violations["future_weight"] == 0
    assert violations["logits"] < 1e-5


class Changed(TransformerView):
    """A view whose records are changed by a function, which is told whether they are of one row."""

    def __init__(self, change: Callable[[LayerRecord, bool], LayerRecord]) -> None:
        super().__init__(story_model())
        self.change = change

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        is_row = query_positions is not None
        return [self.change(record, is_row) for record in super().record(tokens, query_positions)]


def of_scores(change: Callable[[Tensor], Tensor], of_maps: bool = True) -> Changed:
    """Return a view with other scores, those of whole maps too or those of single rows alone."""

    def changed(record: LayerRecord, is_row: bool) -> LayerRecord:
        return record._replace(scores=change(record.scores)) if is_row or of_maps else record

    return Changed(changed)


def no_mask(record: LayerRecord, is_row: bool) -> LayerRecord:
    scores = record.scores.masked_fill(record.scores.isinf(), 0)
    output = record.head_output if is_row else scores.softmax(-1) @ record.values
    return record._replace(scores=scores, head_output=output)


def shifted_values(record: LayerRecord, is_row: bool) -> LayerRecord:
    """Return a record that agrees with itself, but not with what the model computes."""
    values = record.values.roll(1, 2)
    output = record.head_output if is_row else record.scores.softmax(-1) @ values
    return record._replace(values=values, head_output=output)


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
        (of_scores(lambda scores: 1.01 * scores), "is not the attention the model uses"),
        (of_scores(lambda scores: scores.roll(1, -1), of_maps=False), "same row of the whole map"),
        (of_scores(lambda scores: scores.index_fill(2, torch.tensor([0]), -torch.inf)), "error nan"),
        (Changed(no_mask), "rests on later tokens"),
        (Changed(shifted_values), "does not end in the model's logits"),
        (ScaledLogits(story_model()), "does not end in the model's logits"),
        (SeesTheFuture(story_model()), "later tokens change earlier logits"),
    ],
)
def test_a_wrong_view_is_refused_in_one_line(view: TransformerView, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        check_contract(view, CELLS, n_cells=13)
    assert "\n" not in str(error.value)
