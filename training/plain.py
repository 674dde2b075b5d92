"""torch's own optimizers, to the bit, without torch._dynamo, which their methods import before they do anything.

It takes 1.3 s of a CPU to import (torch 2.13), as long as torch itself, and a step that is not compiled has no use for
it. What is called here is what torch's own methods call behind it.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer


class WithoutCompiler(Optimizer):
    """An optimizer whose methods are torch's without what they are wrapped into."""

    add_param_group = Optimizer.add_param_group.__wrapped__  # type: ignore[attr-defined]
    zero_grad = Optimizer.zero_grad.__wrapped__  # type: ignore[attr-defined]
    state_dict = Optimizer.state_dict.__wrapped__  # type: ignore[attr-defined]
    load_state_dict = Optimizer.load_state_dict.__wrapped__  # type: ignore[attr-defined]


class PlainAdamW(WithoutCompiler, torch.optim.AdamW):
    """torch.optim.AdamW with fused=True, on a CPU.

    As there, `found_inf`, a scalar, may be set before a step: where it is not 0, nothing moves.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient; a closure is not taken."""
        assert closure is None
        for group in self.param_groups:
            lists: list[list[Tensor]] = [[], [], [], [], [], []]  # weights, gradients, two means, none, steps taken
            self._init_group(group, *lists)
            if not lists[0]:
                continue
            torch._foreach_add_(lists[-1], 1)
            (beta1, beta2), names = group["betas"], ("lr", "weight_decay", "eps", "amsgrad", "maximize")
            found_inf: Tensor | None = getattr(self, "found_inf", None)
            how = {name: group[name] for name in names} | {"found_inf": found_inf}
            torch._fused_adamw_(*lists, beta1=beta1, beta2=beta2, **how)
            if found_inf is not None:
                torch._foreach_sub_(lists[-1], [found_inf] * len(lists[-1]))
        return None
