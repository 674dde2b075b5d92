"""Matrix products for who only looks: the one place where their speed took more than torch's own call.

In float32 on a CPU torch multiplies by MKL, which on processors that are not Intel's leaves half of the speed unused
(measured on an AMD EPYC with AVX-512: 105 GFLOP/s, oneDNN 230). oneDNN is asked here by name; it multiplies and adds
the same float32 numbers, from about 200 columns on in another order. Wherever it cannot be asked, or gradients are
wanted, torch's own calls serve. tests/model/test_products.py holds both together.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST_ROWS = 32  # of `x`: below there is little to gain


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight' [..., out] of `x` [..., in] and `weight` [out, in]."""
    if _by_name(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def multiplied_product(by: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return by * (x @ weight'), all [..., out]; nothing is changed."""
    if _by_name(x, weight) and by.dtype == x.dtype:
        return torch.ops.mkldnn._linear_pointwise.binary(x, by, weight, None, "mul")
    return by * F.linear(x, weight)


def _by_name(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can be asked for x @ weight' and nobody wants its gradient."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() >= _LEAST_ROWS * weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and _has_onednn(x.dtype)
    )


@cache
def _has_onednn(numbers: torch.dtype) -> bool:
    """Whether this torch has the calls and they do what they are used for: they are not among what torch promises."""
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, by = (torch.rand(shape, generator=generator).to(numbers) for shape in ((3, 8), (5, 8), (3, 5)))
    plain = F.linear(x, weight)
    try:
        one = torch.ops.mkldnn._linear_pointwise
        found = (
            (one(x, weight, None, "none", [], ""), plain),
            (one.binary(x, by, weight, None, "mul"), by * plain),
        )
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return all(
        torch.allclose(this, that, atol=1e-5, rtol=1e-5 if numbers is torch.float32 else 1e-2) for this, that in found
    )
