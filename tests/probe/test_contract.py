"""A view whose recorded attention is not the attention that the model uses is refused."""

import pytest
import torch

from model.observe import TransformerView
from probe.contract import LIMITS, check_contract
from tests.probe.factories import story_model, story_pairs
from tests.tiny_models import each_variant

CELLS = story_pairs("test").cells


@each_variant
def test_a_sound_model_passes(switches):
    violations = check_contract(TransformerView(story_model(**switches)), CELLS, n_cells=13)
    assert set(violations) == set(LIMITS)
    assert violations["future_weight"] == 0
    assert violations["logits"] < 1e-5


class Changed(TransformerView):
    """A view with changed records or logits; the second argument is whether it is one row, or an edited pass."""

    def __init__(self, of_records=lambda record, _: record, of_logits=lambda logits, _: logits):
        super().__init__(story_model())
        self.of_records, self.of_logits = of_records, of_logits

    def record(self, tokens, query_positions=None):
        is_row = query_positions is not None
        return [self.of_records(record, is_row) for record in super().record(tokens, query_positions)]

    def logits(self, tokens, positions=None, edits=(), streams=None):
        return self.of_logits(super().logits(tokens, positions, edits, streams), bool(edits))


def rolled_rows(record, is_row):
    return record._replace(scores=record.scores.roll(1, -1)) if is_row else record


def consistent(record, is_row, **changes):
    """Return a changed record that agrees with itself, but not with what the model computes."""
    changed = record._replace(**changes)
    return changed if is_row else changed._replace(outputs=lambda: changed.scores.softmax(-1) @ changed.values)


SCALED = Changed(of_logits=lambda logits, is_edited: logits * (1.001 if is_edited else 1))


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (Changed(lambda record, _: record._replace(scores=1.01 * record.scores)), "not the attention the model uses"),
        (Changed(rolled_rows), "same row of the whole map"),
        (Changed(lambda record, _: record._replace(scores=record.scores * torch.nan)), "error nan"),
        (Changed(lambda *of: consistent(*of, scores=of[0].scores.clamp(min=-9))), "rests on later tokens"),
        (Changed(lambda *of: consistent(*of, values=of[0].values.roll(1, 2))), "does not end in the model's logits"),
        (SCALED, "does not end in the model's logits"),
        (Changed(of_logits=lambda logits, _: logits + logits.mean(1, True) / 100), "later tokens change"),
    ],
)
def test_a_wrong_view_is_refused(view, problem):
    with pytest.raises(ValueError, match=problem):
        check_contract(view, CELLS, n_cells=13)
