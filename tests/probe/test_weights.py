"""A head's weights give the numbers that its planted habit implies."""

import numpy as np
import pytest
import torch

from model.observe import HeadWeights, TransformerView
from probe.attention import measure_heads
from probe.results import Head
from probe.weights import ov_auc, ov_logits, type_scores
from tests.probe.factories import noun_pairs, pair_view, three_heads

TYPES = ("previous", "first", "duplicate", "induction")
N = 7  # tokens before the text repeats
KEY = {"previous": -1, "duplicate": -N, "induction": 1 - N}


def test_ov_logits_are_the_change_of_the_models_logits_up_to_one_factor() -> None:
    """Reference: the head output at the word is added to the stream; the MLP is off and the norm's divisor differs."""
    view = pair_view(n_layer=1)
    with torch.no_grad():
        view.model.blocks[0].mlp.down.weight.zero_()
    words = [(5,), (6, 7), (8,)]
    targets = [1, 2, 3, 4, 9]
    logits = ov_logits(view, words, targets, Head(0, 1), start_token=0)
    assert logits is not None
    for row, word in zip(logits, words, strict=True):
        tokens = torch.tensor([[0, *word]])
        value, output = (weight[1] for weight in view.head_weights(0))
        inputs = view.record(tokens)[0].inputs[0, 1:]
        written = (inputs @ value.T @ output.T).mean(0)
        stream = view.residual_stream(tokens)[-1][0, -1]
        norm = view.model.final_norm
        logits_of = [view.unembedding()[targets] @ norm(vector) for vector in (stream + written, stream)]
        scale = [vector.square().mean().add(norm.eps).sqrt() for vector in (stream + written, stream)]
        change = logits_of[0] * scale[0] - logits_of[1] * scale[1]
        factor = (row @ change) / (change @ change)
        assert factor > 0
        torch.testing.assert_close(row, factor * change, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("head", "area"), [(0, 1.0), (1, 0.5), (2, 0.5)])
def test_only_the_head_that_writes_the_verbs_has_an_area_above_chance(head: int, area: float) -> None:
    found = ov_auc(three_heads(), noun_pairs().cells, Head(0, head), seed=0)
    assert (found.value, found.low, found.high) == pytest.approx((area, area, area))


def test_without_known_weights_there_is_no_area_and_no_value_weighted_attention() -> None:
    class Unknown(TransformerView):
        def head_weights(self, layer: int) -> HeadWeights:
            return HeadWeights(None, None)

    view = Unknown(three_heads().model)
    assert np.isnan(ov_auc(view, noun_pairs().cells, Head(0, 0), seed=0).value)
    rows = measure_heads(view, noun_pairs(), 100).rows
    assert np.isnan(rows.value_log_ratio).all() and np.isfinite(rows.log_ratio).all()


def maps_of(kind: str) -> torch.Tensor:
    """Return [L=1, B=2, H=1, T, T] of a head that attends to the key of its type, else to the first token."""
    maps = torch.zeros(1, 2, 1, 1 + 2 * N, 1 + 2 * N)
    for query in range(1 + 2 * N):
        key = query + KEY.get(kind, -query)
        maps[..., query, key if key > 0 and (kind == "previous" or query > N) else 0] = 1
    return maps


@pytest.mark.parametrize("kind", TYPES)
def test_a_pure_head_scores_1_in_its_type_and_0_in_the_others(kind: str) -> None:
    scores = type_scores(maps_of(kind))
    assert scores[kind].tolist() == [[1]]
    assert all(scores[name] == 0 for name in TYPES if name not in (kind, "first"))
