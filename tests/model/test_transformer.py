"""model/transformer.py: the transformer against formulas, hand-made cases and PyTorch's own functions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.errors import UserError
from model.config import Mask, Position
from model.transformer import (
    Attention,
    alibi_slopes,
    attend,
    attention_scores,
    document_positions,
    sinusoids,
    sum_normalised,
)
from tests.tiny_models import H, K, V, config, each_variant, random_model, untrained

B, T = 2, 7
Heads = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def heads() -> Heads:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, B, H, T, K, generator=generator))  # type: ignore[return-value]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (B, 11), generator=torch.Generator().manual_seed(5))


# Attention


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("slopes", [None, alibi_slopes(H)], ids=["no slopes", "alibi"])
def test_attention_on_the_cpu_in_bfloat16_equals_float32_to_eight_bits(
    heads: Heads, scaled: bool, slopes: Tensor | None
) -> None:
    expected = attend(*heads, scaled=scaled, slopes=slopes)
    output = attend(*(head.bfloat16() for head in heads), scaled=scaled, slopes=slopes)
    assert output.dtype == torch.bfloat16
    assert (output.float() - expected).norm() / expected.norm() < 0.02


def test_alibi_lowers_each_score_by_slope_times_distance_and_without_a_scale_it_is_a_product(heads: Heads) -> None:
    query, key, value = heads
    expected = F.scaled_dot_product_attention(query * K**0.5, key, value, is_causal=True)
    torch.testing.assert_close(attend(query, key, value, scaled=False), expected, rtol=1e-4, atol=1e-4)
    difference = attention_scores(query, key) - attention_scores(query, key, slopes=alibi_slopes(H))
    torch.testing.assert_close(difference[1, :, 5, 2], 3 * alibi_slopes(H), rtol=1e-4, atol=1e-5)


def test_sum_weights_by_hand() -> None:
    """Scores 3, 1, -2 give 3/4, 1/4 and about 0; without a positive score all keys get the same weight."""
    scores = torch.tensor([[3.0, 1.0, -2.0], [-1.0, -5.0, -0.5], [2.0, 2.0, float("-inf")]])
    expected = torch.tensor([[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    torch.testing.assert_close(sum_normalised(scores), expected, rtol=0, atol=1e-4)


# Positions


def test_sinusoids_are_the_papers_over_sqrt_width() -> None:
    angles = 3 * 10000.0 ** (-torch.tensor([0.0, 2.0, 4.0]) / 6)
    expected = torch.stack([torch.tensor([0.0, 0, 0, 1, 1, 1]), torch.cat([angles.sin(), angles.cos()])]) / 6**0.5
    torch.testing.assert_close(sinusoids(torch.tensor([0, 3]), 6), expected)


# The whole model


@each_variant
def test_future_tokens_do_not_change_earlier_logits(switches: dict, tokens: Tensor) -> None:
    """By gradient: the logits at position 6 depend on every embedding up to it and on none after."""
    model = random_model(**switches)
    embedded = model.embed(tokens).detach().requires_grad_()
    x = embedded
    for block in model.layers():
        x = block(x)
    model.unembed(x)[:, 6].sum().backward()
    assert embedded.grad is not None
    assert torch.equal(embedded.grad.abs().sum(-1) > 0, (torch.arange(11) <= 6).expand(B, 11))


@each_variant
def test_documents_in_one_row_are_read_as_if_each_stood_alone(switches: dict) -> None:
    model = random_model(**switches)
    documents = torch.randint(V, (12,), generator=torch.Generator().manual_seed(6)).split([3, 5, 4])
    ids = torch.tensor([[0] * 3 + [1] * 5 + [2] * 4])
    logits = model(torch.cat(documents)[None], ids)[0]
    for number, document in enumerate(documents):
        torch.testing.assert_close(logits[ids[0] == number], model(document[None])[0], rtol=1e-4, atol=1e-5)


def test_without_a_mask_the_future_reaches_every_logit_of_the_same_document_only() -> None:
    model, ids = random_model(mask=Mask.none), torch.tensor([[0, 0, 0, 1, 1]])
    first, second = (model(torch.tensor([[5, 7, token, 2, 3]]), ids)[0] for token in (11, 12))
    changed = (first - second).abs().amax(-1)
    assert (changed[:3] > 1e-4).all() and (changed[3:] == 0).all()


@pytest.mark.parametrize("position", [Position.learned, Position.sinusoidal])
def test_added_positions_are_part_of_the_embedding(position: Position, tokens: Tensor) -> None:
    model = random_model(position=position)
    added = model.embed(tokens) - model.token_embedding(tokens)
    table = model.position_embedding.weight[:11] if position is Position.learned else sinusoids(torch.arange(11), H * K)
    torch.testing.assert_close(added, table.expand(B, -1, -1), rtol=1e-4, atol=1e-6)


def test_token_shift_adds_a_share_of_the_previous_embedding_in_the_same_document() -> None:
    model, tokens = random_model(token_shift=True), torch.tensor([[5, 7, 11, 2]])
    embedding = model.token_embedding(tokens)[0]
    shifted = model.embed(tokens, document_positions(torch.tensor([[0, 0, 1, 1]])))[0]
    expected = embedding + model.shift * torch.stack([0 * embedding[0], embedding[0], 0 * embedding[0], embedding[2]])
    torch.testing.assert_close(shifted, expected)


def test_initial_gains_are_1_residual_writes_0_and_other_weights_normal() -> None:
    model = untrained(1009, seed=7, position=Position.learned, token_shift=True)
    for name, weight in model.named_parameters():
        if name.endswith("gain"):
            assert (weight == 1).all()
        elif name.endswith(("output.weight", "down.weight", "shift")):
            assert (weight == 0).all()
        else:
            sd = 0.02 if "embedding" in name else 1 / math.sqrt(H * K)
            assert weight.std().item() == pytest.approx(sd, rel=0.15), name


def test_dropout_applies_to_updates_in_training_only_and_a_model_without_a_mask_has_no_scores(tokens: Tensor) -> None:
    model, plain = random_model(dropout=1 - 1e-9), random_model()
    assert torch.equal(model(tokens), plain(tokens))
    torch.testing.assert_close(model.train()(tokens), model.unembed(model.embed(tokens)))
    attention = Attention(config(mask=Mask.none))
    with pytest.raises(UserError, match="model.mask=none"):
        attention.scores(*attention.project(torch.ones(B, T, H * K))[:2])


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first = untrained(seed=7)
    torch.manual_seed(99)
    second, third = untrained(seed=7), untrained(seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.token_embedding.weight, third.token_embedding.weight)
