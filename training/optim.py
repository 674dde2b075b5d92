"""Muon with few launches: a GPU waits for them, and on a CPU small products are slow one by one."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.plain import PlainAdamW, WithoutCompiler
from training.settings import Optimizer, OptimSettings


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


def rate_factor(step: int, warmup_steps: int, max_steps: int, power: float = 1.0) -> float:
    """Return the share of the peak rate at `step`: up over the warm-up, then (what is left) ** power, 0 at `max_steps`.

    Decay to zero beat cosine to a tenth at these budgets (measured; Bergsma et al. 2025, arXiv 2502.15938). A power of
    2 stays longer at low rates, so that rare words' chances are averaged over more of the text: on the stories it more
    than halved what a model loses on verbs that are equally likely (measured).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return max(0.0, (max_steps - step) / max(1, max_steps - warmup_steps)) ** power


_LAST_DOUBLING = 512  # steps; early on things happen in ratios of steps, later in shares of the whole training


_PROBES = 50  # evenly spaced: a phase change is over within a tenth of training, so it spans five of them


def is_probe_step(step: int, max_steps: int) -> bool:
    """Whether the small probe runs after `step`: at 0, 1, 2, 4 ... 512, at every 2 % of training, and at its end."""
    every = max(1, round(max_steps / _PROBES))
    doubled = step <= _LAST_DOUBLING and step & (step - 1) == 0
    return doubled or step % every == 0 or step == max_steps


def make_optimizers(model: nn.Module, config: OptimSettings, *, sharded: bool = False) -> list[torch.optim.Optimizer]:
    """Return the optimizers: Muon (Jordan et al. 2024) for the blocks' matrices and AdamW for the rest, or AdamW alone.

    Norm gains are not decayed. Every group keeps its peak rate as "peak". `sharded`: each process has a share of every
    weight (run/shards.py).
    """
    muon: type[StackedMuon] = StackedMuon
    adamw: type[torch.optim.AdamW] = torch.optim.AdamW if next(model.parameters()).is_cuda else PlainAdamW
    if sharded:
        from training.shards import ShardedAdamW, ShardedMuon

        muon, adamw = ShardedMuon, ShardedAdamW
    named = list(model.named_parameters())
    gains = [parameter for _, parameter in named if parameter.ndim < 2]
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and name.startswith("blocks.")]
    others = [parameter for name, parameter in named if parameter.ndim == 2 and not name.startswith("blocks.")]
    groups = [
        {"params": others, "lr": config.embedding_learning_rate, "weight_decay": config.embedding_weight_decay},
        {"params": gains, "lr": config.embedding_learning_rate, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if config.name is Optimizer.muon:
        optimizers.append(
            muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay, momentum=config.momentum)
        )
    else:
        groups.append({"params": matrices, "lr": config.learning_rate, "weight_decay": config.weight_decay})
    optimizers.append(adamw(groups, betas=(config.beta_1, config.beta_2), fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
