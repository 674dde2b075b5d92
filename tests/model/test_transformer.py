"""model/transformer.py: the transformer against formulas, hand-made cases and PyTorch's own functions."""

import math

import pytest
import torch
from torch import Tensor

from data.errors import UserError
from model.config import Mask, Position
from model.transformer import (
    Attention,
    alibi_slopes,
    attend,
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
