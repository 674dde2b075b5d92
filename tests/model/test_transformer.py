"""The transformer against formulas and PyTorch's own functions, and its view against its own forward pass."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from data.loader import IGNORE
from model.loss import summed_cross_entropy
from model.observe import CachedSitePass, HeadEdit, TransformerView
from model.transformer import draw_outputs, rope_tables, rotate
from settings.model import Position
from tests.model.site_passes import L, check_against_whole_passes, check_refusals
from tests.tiny_models import H, K, V, each_variant, random_model, random_view, untrained

TOKENS = torch.randint(V, (2, 11), generator=torch.Generator().manual_seed(5))


@each_variant
def test_documents_in_one_row_are_read_as_if_each_stood_alone(switches):
    model = random_model(**switches)
    documents = torch.randint(V, (12,), generator=torch.Generator().manual_seed(6)).split([3, 5, 4])
    ids = torch.tensor([[0] * 3 + [1] * 5 + [2] * 4])
    logits = model(torch.cat(documents)[None], ids)[0]
    for number, document in enumerate(documents):
        torch.testing.assert_close(logits[ids[0] == number], model(document[None])[0], rtol=1e-4, atol=1e-5)


def test_initial_gains_are_1_residual_writes_0_and_other_weights_normal_by_the_seed_alone():
    model = untrained(1009, seed=7, position=Position.learned)
    for name, weight in model.named_parameters():
        if name.endswith("gain"):
            assert (weight == 1).all()
        elif name.endswith(("output.weight", "down.weight")):
            assert (weight == 0).all()
        else:
            sd = 0.02 if "embedding" in name else 1 / math.sqrt(H * K)
            assert weight.std().item() == pytest.approx(sd, rel=0.15), name
    first = untrained(seed=7)
    torch.manual_seed(99)
    assert all(map(torch.equal, first.parameters(), untrained(seed=7).parameters()))
    assert not torch.equal(first.token_embedding.weight, untrained(seed=8).token_embedding.weight)


def test_dropout_applies_in_training():
    model, plain = random_model(dropout=1 - 1e-9), random_model()
    assert torch.equal(model(TOKENS), plain(TOKENS))
    torch.testing.assert_close(model.train()(TOKENS), model.unembed(model.embed(TOKENS)))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(function, reference, *inputs, atol=1e-5):
    """Compare the values, and the gradients for a random weighting of the values."""
    found, expected = function(*inputs), reference(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)
    weights = normal(*found.shape, seed=9).detach()
    gradients = torch.autograd.grad(found, inputs, weights)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, inputs, weights), rtol=1e-4, atol=atol)


def test_a_rotation_is_the_product_of_complex_numbers():
    cos, sin = rope_tables(7, 8, theta=100.0)

    def by_complex_numbers(x):
        turned = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(cos[:, :4], sin[:, 4:])
        return torch.cat([turned.real, turned.imag], dim=-1)

    for shape in ((2, 3, 7, 8), (7, 8)):
        assert_same(lambda x: rotate(x, cos, sin), by_complex_numbers, normal(*shape))


# One part, and two parts of which the second is short.
@pytest.mark.parametrize("n_tokens", [6, 700])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_cross_entropy_is_pytorchs(n_tokens, scale):
    """At a scale of 300 the probabilities of most targets underflow to 0, and their losses stay finite."""
    targets = torch.randint(11, (2, n_tokens // 2), generator=torch.Generator().manual_seed(3))
    targets[:, ::3] = IGNORE

    def expected(stream, embedding):
        return F.cross_entropy((stream @ embedding.T).flatten(0, 1), targets.flatten(), reduction="sum")

    inputs = ((normal(2, n_tokens // 2, 5) * scale).detach().requires_grad_(), normal(11, 5, seed=1))
    atol = 1e-4 * scale  # sums of 700 terms in float32
    assert_same(lambda *weights: summed_cross_entropy(*weights, targets), expected, *inputs, atol=atol)


def test_the_cross_entropy_in_bfloat16_has_eight_bits():
    inputs = normal(4, 200, 16), normal(11, 16, seed=1)
    targets = torch.randint(11, (4, 200), generator=torch.Generator().manual_seed(3))
    exact = summed_cross_entropy(*inputs, targets)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = summed_cross_entropy(*inputs, targets)
    assert rounded.dtype == torch.float32 and 0 < abs(rounded.item() / exact.item() - 1) < 2**-8
    for found, expected in zip(*(torch.autograd.grad(loss, inputs) for loss in (rounded, exact)), strict=True):
        assert found.dtype == torch.float32 and (found - expected).norm() / expected.norm() < 2**-6


@each_variant
def test_logits_equal_the_forward_pass_with_edits_also_at_the_site(switches):
    view = random_view(n_layer=L, **switches)
    torch.testing.assert_close(view.logits(TOKENS), view.model(TOKENS))
    same = [HeadEdit(layer, 1, weights=lambda w: w, output=lambda o: o) for layer in range(L)]
    torch.testing.assert_close(view.logits(TOKENS, edits=same), view.logits(TOKENS), rtol=1e-4, atol=1e-4)
    check_against_whole_passes(view, CachedSitePass)
    edited = view.logits(TOKENS, edits=[HeadEdit(1, 1, output=torch.zeros_like)])
    with torch.no_grad():
        view.model.layers()[1].attention.output.weight[:, K : 2 * K] = 0
    torch.testing.assert_close(edited, view.model(TOKENS))


@each_variant
def test_the_record_is_consistent_with_the_streams(switches):
    view = random_view(n_layer=L, **switches)
    check_refusals(view)
    streams = view.residual_stream(TOKENS)
    for layer, record in enumerate(view.record(TOKENS)):
        weights = record.scores.softmax(-1)
        assert (weights.triu(1) == 0).all()
        torch.testing.assert_close(weights @ record.values, record.head_output)
        block = view.model.layers()[layer]
        values = block.attention.value(block.norm_1(streams[layer])).unflatten(-1, (view.n_head, -1))
        torch.testing.assert_close(record.values, values.transpose(1, 2))
        added = torch.einsum("bhtk,hdk->btd", record.head_output, view.output_weights(layer))
        stream = streams[layer] + added
        torch.testing.assert_close(stream + block.mlp(block.norm_2(stream)), streams[layer + 1], rtol=1e-4, atol=1e-4)


def test_drawn_outputs_write_as_much_as_an_embedding():
    model = untrained(seed=1)
    start, *later = TransformerView(model).residual_stream(TOKENS)
    assert all(torch.equal(stream, start) for stream in later)
    draw_outputs(model, seed=1)
    for before, after in pairwise(TransformerView(model).residual_stream(TOKENS)):
        assert 0.2 < (after - before).std() / start.std() < 5
