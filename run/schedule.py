"""The optimizers and how their rates rise and fall: both pure functions of the config and the step."""

import torch
from torch import nn

from run.config import OptimConfig, Optimizer
from run.muon import StackedMuon
from run.plain import PlainAdamW


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


def make_optimizers(model: nn.Module, config: OptimConfig, *, sharded: bool = False) -> list[torch.optim.Optimizer]:
    """Return the optimizers: Muon (Jordan et al. 2024) for the blocks' matrices and AdamW for the rest, or AdamW alone.

    Norm gains are not decayed. Every group keeps its peak rate as "peak". `sharded`: each process has a share of every
    weight (run/shards.py).
    """
    muon: type[StackedMuon] = StackedMuon
    adamw: type[torch.optim.AdamW] = torch.optim.AdamW if next(model.parameters()).is_cuda else PlainAdamW
    if sharded:
        from run.shards import ShardedAdamW, ShardedMuon  # torch.distributed, which one process has no use for

        muon, adamw = ShardedMuon, ShardedAdamW
    named = list(model.named_parameters())
    gains = [parameter for _, parameter in named if parameter.ndim < 2]
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and name.startswith("blocks.")]
    others = [parameter for name, parameter in named if parameter.ndim == 2 and not name.startswith("blocks.")]
    groups = [
        {"params": others, "lr": config.learning_rate_other, "weight_decay": config.weight_decay_other},
        {"params": gains, "lr": config.learning_rate_other, "weight_decay": 0.0},
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
