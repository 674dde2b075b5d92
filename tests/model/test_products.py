"""The products that name their library give what torch's own calls give."""

import pytest
import torch
import torch.nn.functional as F

from model import products
from model.products import multiplied_product, product


@pytest.fixture(params=[(2, 17, 29, 31), (1, 41, 64, 192), (3, 53, 257, 7)], ids=str)
def given(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *rows, width, out = request.param
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(*rows, width, generator=generator), torch.randn(out, width, generator=generator)
    return x, weight / width**0.5, torch.randn(*rows, out, generator=generator)


@pytest.mark.skipif(not products._has_onednn(torch.float32), reason="no oneDNN, or none that this processor is fast in")
def test_named_products_equal_the_plain_ones(given: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, by = given
    with torch.no_grad():
        assert products._by_name(x, weight)
        named = product(x, weight), multiplied_product(by, x, weight), product(x.transpose(0, 1), weight)
        monkeypatch.setattr(products, "_has_onednn", lambda numbers: False)
        plain = product(x, weight), multiplied_product(by, x, weight), product(x.transpose(0, 1), weight)
    for one, other in zip(named, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert torch.equal(plain[0], F.linear(x, weight)) and torch.equal(plain[1], by * F.linear(x, weight))


def test_nothing_is_asked_by_name_where_a_gradient_or_another_precision_is_wanted(
    given: tuple[torch.Tensor, ...],
) -> None:
    x, weight, _ = given
    assert not products._by_name(x, weight)
    with torch.no_grad():
        assert not products._by_name(x.double(), weight.double())
        assert not products._by_name(x[:, :3], weight[:, :])  # too few rows
        with torch.autocast("cpu", torch.bfloat16):
            assert not products._by_name(x, weight)
            assert product(x, weight).dtype == torch.bfloat16
    weight.requires_grad_()
    product(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.flatten(0, 1).sum(0).expand_as(weight), atol=1e-5, rtol=1e-5)
