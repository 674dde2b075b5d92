"""Matrices moved together are moved as one by one."""

import pytest
import torch

from training.optim import StackedMuon, orthogonalised

SHAPES = [(7, 11), (7, 11), (11, 7), (13, 13), (7, 11)]


def matrices() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def move(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if step == 1:
            parameters[1].grad = None  # one that took no part
        optimizer.step()


def make(kind: type[torch.optim.Muon], parameters: list[torch.nn.Parameter]) -> torch.optim.Muon:
    return kind(parameters, lr=0.02, weight_decay=1.4, momentum=0.9)


def test_the_update_is_that_of_torchs_own_and_so_is_the_state() -> None:
    ours, theirs = matrices(), matrices()
    one, other = make(StackedMuon, ours), make(torch.optim.Muon, theirs)
    start = [parameter.detach().clone() for parameter in ours]
    move(one, ours, range(5))
    move(other, theirs, range(5))
    for mine, reference, before in zip(ours, theirs, start, strict=True):
        assert (reference - before).abs().max() > 0.02
        torch.testing.assert_close(mine, reference, atol=2e-3, rtol=0)  # products are in bfloat16
        torch.testing.assert_close(
            one.state[mine]["momentum_buffer"], other.state[reference]["momentum_buffer"], atol=0, rtol=0
        )
    assert one.state_dict()["state"].keys() == other.state_dict()["state"].keys()


@pytest.mark.parametrize(("first", "second"), [(StackedMuon, torch.optim.Muon), (torch.optim.Muon, StackedMuon)])
def test_each_goes_on_from_what_the_other_saved(first: type, second: type) -> None:
    parameters, unbroken = matrices(), matrices()
    one = make(first, parameters)
    move(one, parameters, range(3))
    saved, other = one.state_dict(), make(second, parameters)
    other.load_state_dict(saved)
    move(other, parameters, range(3, 5))
    move(make(first, unbroken), unbroken, range(5))
    for mine, reference in zip(parameters, unbroken, strict=True):
        torch.testing.assert_close(mine, reference, atol=2e-3, rtol=0)


def test_singular_values_come_near_one_whatever_the_shape() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 7, 19), (2, 19, 7)):
        found = orthogonalised(torch.randn(shape, generator=generator), (3.4445, -4.7750, 2.0315), 5, 1e-7)
        values = torch.linalg.svdvals(found.float())
        assert found.shape == shape and values.min() > 0.3 and values.max() < 1.3
