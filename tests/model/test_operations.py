"""model/operations.py: values and gradients of the hand-written operations against PyTorch's own."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.loader import IGNORE
from model.operations import rms_norm, rotate, summed_cross_entropy
from model.transformer import rope_tables


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(
    function: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor, atol: float = 1e-5
) -> None:
    """Compare the values, and the gradients for a random weighting of the values."""
    found, expected = function(*inputs), reference(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)
    weights = normal(*found.shape, seed=9).detach()
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, weights),
        torch.autograd.grad(expected, inputs, weights),
        rtol=1e-4,
        atol=atol,
    )


def test_rms_norm_is_pytorchs() -> None:
    def norm(x: Tensor, gain: Tensor) -> Tensor:
        return rms_norm(x, gain, 1e-2)

    assert_same(norm, lambda x, gain: F.rms_norm(x, (8,), gain, 1e-2), normal(3, 5, 8), normal(8, seed=1))


@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (7, 8)])
def test_a_rotation_is_the_product_of_complex_numbers(shape: tuple[int, ...]) -> None:
    cos, sin = rope_tables(7, 8, theta=100.0)

    def by_complex_numbers(x: Tensor) -> Tensor:
        turned = torch.complex(*x.chunk(2, dim=-1)) * torch.complex(cos[:, :4], sin[:, 4:])
        return torch.cat([turned.real, turned.imag], dim=-1)

    assert_same(lambda x: rotate(x, cos, sin), by_complex_numbers, normal(*shape))


# One part, and two parts of which the second is short.
@pytest.mark.parametrize("n_tokens", [6, 700])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_cross_entropy_is_pytorchs(n_tokens: int, scale: float) -> None:
    """At a scale of 300 the probabilities of most targets underflow to 0, and their losses stay finite."""
    targets = torch.randint(11, (2, n_tokens // 2), generator=torch.Generator().manual_seed(3))
    targets[:, ::3] = IGNORE

    def expected(stream: Tensor, embedding: Tensor) -> Tensor:
        return F.cross_entropy((stream @ embedding.T).flatten(0, 1), targets.flatten(), reduction="sum")

    inputs = ((normal(2, n_tokens // 2, 5) * scale).detach().requires_grad_(), normal(11, 5, seed=1))
    atol = 1e-4 * scale  # sums of 700 terms in float32
    assert_same(lambda *weights: summed_cross_entropy(*weights, targets), expected, *inputs, atol=atol)


def test_the_cross_entropy_in_bfloat16_has_eight_bits() -> None:
    stream, embedding = normal(4, 200, 16), normal(11, 16, seed=1)
    targets = torch.randint(11, (4, 200), generator=torch.Generator().manual_seed(3))
    exact = summed_cross_entropy(stream, embedding, targets)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = summed_cross_entropy(stream, embedding, targets)
    assert rounded.dtype == torch.float32 and 0 < abs(rounded.item() / exact.item() - 1) < 2**-8
    for found, expected in zip(
        torch.autograd.grad(rounded, (stream, embedding)),
        torch.autograd.grad(exact, (stream, embedding)),
        strict=True,
    ):
        assert found.dtype == torch.float32 and (found - expected).norm() / expected.norm() < 2**-6
