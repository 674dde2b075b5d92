"""Muon with few launches: a GPU waits for them, and on a CPU small products are slow one by one."""

from collections.abc import Callable

import torch
from torch import Tensor

from run.plain import WithoutCompiler


def orthogonalised(matrices: Tensor, coefficients: tuple[float, float, float], n_steps: int, eps: float) -> Tensor:
    """Return each matrix with its singular values brought near 1 (Jordan et al. 2024, Newton-Schulz of fifth order).

    Args:
        matrices: [N, A, B].
        coefficients: of x, of (x x^T) x and of (x x^T)^2 x.
        n_steps: of the iteration.
        eps: least norm that is divided by.

    Returns:
        [N, A, B] bfloat16.

    """
    first, second, third = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), x, beta=first)
    return x.mT if tall else x


class StackedMuon(WithoutCompiler, torch.optim.Muon):
    """torch.optim.Muon with all matrices of one shape moved together.

    torch's own takes them one by one: about 25 kernels for each of 42 matrices in model=small, a thousand launches that
    a GPU waits for. Here they are about 30 for each of three shapes. The update is the same to rounding and so is the
    state: each loads what the other has saved.

    As with torch's fused AdamW, `found_inf`, a scalar on the device, may be set before a step: where it is not 0,
    weights and state stay as they are to the bit, and nobody has waited for it.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every matrix that has a gradient; `closure`, if given, is called before and its result returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for parameters in shapes.values():
                self._move(parameters, group)
        return loss

    def _move(self, parameters: list[Tensor], group: dict) -> None:
        """Move parameters of one shape."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = self._own([self.state[parameter]["momentum_buffer"] for parameter in parameters])
        places = self._own(parameters)
        weights, averages = torch.stack(places), torch.stack(buffers)
        gradients = torch.stack(self._own([one.grad for one in parameters if one.grad is not None]))
        averaged = averages.lerp(gradients, 1 - group["momentum"])
        wanted = gradients.lerp(averaged, group["momentum"]) if group["nesterov"] else averaged
        moves = self._moves(wanted, parameters[0], group)
        n_rows, n_columns = parameters[0].shape
        rate = group["lr"] * max(1, n_rows / n_columns) ** 0.5  # as torch's adjust_lr_fn="original"
        moved = (weights * (1 - group["lr"] * group["weight_decay"])).add_(moves.float(), alpha=-rate)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if found_inf is not None:  # chosen between, not multiplied by 0: that would leave nan, and turn -0.0 into 0.0
            averaged, moved = torch.where(found_inf > 0, averages, averaged), torch.where(found_inf > 0, weights, moved)
        torch._foreach_copy_(buffers, list(averaged.unbind()))
        torch._foreach_copy_(places, list(moved.unbind()))

    def _own(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return what of `tensors` is moved here: all of it."""
        return tensors

    def _moves(self, wanted: Tensor, parameter: Tensor, group: dict) -> Tensor:
        """Return the moves, before their rate, of a stack of matrices [N, A, B] shaped as `parameter`."""
        return orthogonalised(wanted, group["ns_coefficients"], group["ns_steps"], group["eps"])
