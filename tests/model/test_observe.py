"""model/observe.py: the view of our Transformer against its own forward pass, and single heads edited."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from model.observe import HeadEdit, TransformerSitePass, TransformerView
from model.transformer import draw_outputs
from tests.model.site_passes import L, check_against_whole_passes, check_refusals
from tests.tiny_models import K, V, each_variant, random_view, untrained


def make_view(**switches: Any) -> TransformerView:
    return random_view(n_layer=L, **switches)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (4, 7), generator=torch.Generator().manual_seed(2))


@each_variant
def test_logits_equal_the_forward_pass_also_with_an_edit_that_changes_nothing(switches: dict, tokens: Tensor) -> None:
    view = make_view(**switches)
    torch.testing.assert_close(view.logits(tokens), view.model(tokens))
    same = [HeadEdit(layer, 1, weights=lambda w: w, output=lambda o: o) for layer in range(L)]
    torch.testing.assert_close(view.logits(tokens, edits=same), view.logits(tokens), rtol=1e-4, atol=1e-4)


def test_an_output_edit_equals_removing_the_heads_columns_of_the_output_projection(tokens: Tensor) -> None:
    view = make_view()
    check_refusals(view)
    edited = view.logits(tokens, edits=[HeadEdit(1, 1, output=torch.zeros_like)])
    with torch.no_grad():
        view.model.layers()[1].attention.output.weight[:, K : 2 * K] = 0
    torch.testing.assert_close(edited, view.model(tokens))


@each_variant
def test_the_record_is_consistent_with_itself_and_with_the_streams(switches: dict, tokens: Tensor) -> None:
    view = make_view(**switches)
    streams = view.residual_stream(tokens)
    for layer, record in enumerate(view.record(tokens)):
        weights = record.scores.softmax(-1)
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights @ record.values, record.head_output)
        values = torch.einsum("btd,hkd->bhtk", record.inputs, view.head_weights(layer).value)
        torch.testing.assert_close(record.values, values)
        added = torch.einsum("bhtk,hdk->btd", record.head_output, view.head_weights(layer).output)
        block = view.model.layers()[layer]
        stream = streams[layer] + added
        torch.testing.assert_close(stream + block.mlp(block.norm_2(stream)), streams[layer + 1], rtol=1e-4, atol=1e-4)


def test_layers_of_an_untrained_model_write_as_much_as_an_embedding_once_their_outputs_are_drawn(
    tokens: Tensor,
) -> None:
    model = untrained(seed=1)
    start, *later = TransformerView(model).residual_stream(tokens)
    assert all(torch.equal(stream, start) for stream in later)
    draw_outputs(model, seed=1)
    streams = TransformerView(model).residual_stream(tokens)
    written = [(after - before).std() / start.std() for before, after in pairwise(streams)]
    assert all(0.2 < size < 5 for size in written), written


# The pass over the site alone


@each_variant
def test_the_site_pass_equals_whole_passes_with_the_same_edits(switches: dict[str, Any]) -> None:
    check_against_whole_passes(make_view(**switches), TransformerSitePass)
