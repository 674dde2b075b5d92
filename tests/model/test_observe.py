"""The view of our Transformer against its own forward pass, and single heads edited."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from model.observe import HeadEdit, TransformerView
from model.transformer import Transformer, draw_outputs
from tests.model.standard import H, K, V, config, each_variant, exchange, random_model

L = 3
make_model = partial(random_model, n_layer=L)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (4, 7), generator=torch.Generator().manual_seed(2))


@each_variant
def test_logits_equal_the_forward_pass_also_with_an_edit_that_changes_nothing(switches: dict, tokens: Tensor) -> None:
    view = TransformerView(make_model(**switches))
    torch.testing.assert_close(view.logits(tokens), view.model(tokens))
    same = [HeadEdit(layer, 1, weights=lambda w: w, output=lambda o: o) for layer in range(L)]
    torch.testing.assert_close(view.logits(tokens, edits=same), view.logits(tokens), rtol=1e-4, atol=1e-4)


def test_positions_select_one_row_of_logits_per_text(tokens: Tensor) -> None:
    view, positions = TransformerView(make_model()), torch.tensor([6, 0, 3, 5])
    expected = view.logits(tokens)[torch.arange(4), positions]
    torch.testing.assert_close(view.logits(tokens, positions), expected)


def test_a_pass_started_at_the_edited_layer_or_after_the_last_equals_the_whole_pass(tokens: Tensor) -> None:
    view = TransformerView(make_model())
    edits = [HeadEdit(2, 0, output=torch.zeros_like), HeadEdit(1, 1, weights=lambda w: w.flip(0))]
    complete, streams = view.logits(tokens, edits=edits), view.residual_stream(tokens)
    torch.testing.assert_close(view.logits(tokens, edits=edits, streams=streams), complete)
    torch.testing.assert_close(view.logits(tokens, streams=streams), view.logits(tokens))  # only the last stream
    assert not torch.allclose(complete, view.logits(tokens), atol=1e-2)


def test_an_output_edit_equals_removing_the_heads_columns_of_the_output_projection(tokens: Tensor) -> None:
    model = make_model()
    edited = TransformerView(model).logits(tokens, edits=[HeadEdit(1, 1, output=torch.zeros_like)])
    with torch.no_grad():
        model.layers()[1].attention.output.weight[:, K : 2 * K] = 0
    torch.testing.assert_close(edited, model(tokens))


def test_exchanging_two_weights_of_one_query_changes_no_earlier_logits(tokens: Tensor) -> None:
    view = TransformerView(make_model())
    edit = HeadEdit(0, 0, weights=lambda weights: exchange(weights, 5, [1, 2]))
    difference = (view.logits(tokens, edits=[edit]) - view.logits(tokens)).abs().amax(-1)
    assert (difference[:, :5] < 1e-5).all() and (difference[:, 5] > 1e-4).all()


@each_variant
def test_the_record_is_consistent_with_itself_and_with_the_streams(switches: dict, tokens: Tensor) -> None:
    view = TransformerView(make_model(**switches))
    streams = view.residual_stream(tokens)
    for layer, record in enumerate(view.record(tokens)):
        torch.testing.assert_close(record.scores.softmax(-1) @ record.values, record.head_output)
        values = torch.einsum("btd,hkd->bhtk", record.inputs, view.head_weights(layer).value)
        torch.testing.assert_close(record.values, values)
        added = torch.einsum("bhtk,hdk->btd", record.head_output, view.head_weights(layer).output)
        block = view.model.layers()[layer]
        stream = streams[layer] + added
        torch.testing.assert_close(stream + block.mlp(block.norm_2(stream)), streams[layer + 1], rtol=1e-4, atol=1e-4)


def test_scores_at_chosen_queries_are_rows_of_all_scores(tokens: Tensor) -> None:
    view, queries = TransformerView(make_model()), torch.tensor([[6, 2], [0, 1], [3, 3], [4, 5]])
    scores, rows = view.attention_scores(tokens), view.attention_scores(tokens, queries)
    assert scores.shape == (L, 4, H, 7, 7) and rows.shape == (L, 4, H, 2, 7)
    torch.testing.assert_close(rows, torch.stack([scores[:, b, :, queries[b]] for b in range(4)], 1))
    torch.testing.assert_close(torch.stack([record.scores for record in view.record(tokens, queries)]), rows)


def test_padding_on_the_right_changes_no_logits_of_the_text(tokens: Tensor) -> None:
    view = TransformerView(make_model())
    padded = torch.cat([tokens[:, :4], torch.zeros(4, 3, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(view.logits(padded)[:, :4], view.logits(tokens[:, :4]))


def test_contributions_pulled_back_through_the_final_norm_add_up_to_a_logit(tokens: Tensor) -> None:
    view = TransformerView(make_model())
    stream, token = view.residual_stream(tokens)[-1], 3
    direction = view.final_norm_pullback(view.unembedding()[token].expand_as(stream), stream)
    torch.testing.assert_close((direction * stream).sum(-1), view.logits(tokens)[..., token], rtol=1e-4, atol=1e-4)


def test_layers_of_an_untrained_model_write_as_much_as_an_embedding_once_their_outputs_are_drawn() -> None:
    model = Transformer(config(), V, seed=1)
    tokens = torch.randint(V, (3, 11), generator=torch.Generator().manual_seed(2))
    start, *later = TransformerView(model).residual_stream(tokens)
    assert all(torch.equal(stream, start) for stream in later)
    draw_outputs(model, seed=1)
    streams = TransformerView(model).residual_stream(tokens)
    written = [(after - before).std() / start.std() for before, after in pairwise(streams)]
    assert all(0.2 < size < 5 for size in written), written
