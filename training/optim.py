"""Muon and AdamW, and the learning-rate schedule.

- Muon moves the matrices of the blocks, AdamW the embeddings and gains, as Jordan et al. 2024 advise.
- Plain classes: the base class of torch.optim imports torch's compiler, which takes a second of every start. The tests
  compare both with torch.optim.
- torch.optim.Muon always iterates in bfloat16; here a run in float32 iterates in float32.
- A step without a finite gradient multiplies every change by 0, on the device, so that no step waits for a check.
- Learning rates fall to 0, on the stories by a power above 1: with a linear fall the last batches count too much.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from settings.train import Optimizer, OptimSettings

# Coefficients and steps of the Newton-Schulz iteration (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
# Not taken: three steps save 5 % of a training step (docs/log.md).
# Polar Express (Amsel et al. 2025, arXiv 2505.16932, algorithm 1), five steps, singular values from .001 on, after
# nanochat. They lower no loss, but with the constant (3.4445, -4.7750, 2.0315) of Muon some seeds find no gender head.
COEFFICIENTS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
MARGIN = 1.02  # the largest singular value must stay below 1
_EPSILON = 1e-7  # that of torch.optim.Muon
_ADAM_EPSILON = 1e-8  # that of torch.optim.AdamW


@dataclass
class WeightGroup:
    """Weights with one learning rate."""

    weights: list[Tensor]
    peak_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        # [], the learning rate at the next step: on the device, as a CUDA graph would never change a Python number.
        self.rate = torch.zeros((), device=self.weights[0].device)


class WeightOptimizer:
    """The common part of Muon and AdamW: groups of weights, and a state of each weight."""

    def __init__(self, groups: list[WeightGroup]) -> None:
        self.groups = groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}

    def step(self, is_finite: Tensor) -> None:
        """Update weights and state; `is_finite` [], on the device: 1, or 0 if nothing may change."""
        raise NotImplementedError


class AdamW(WeightOptimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2)."""

    def __init__(self, groups: list[WeightGroup], betas: tuple[float, float]) -> None:
        super().__init__(groups)
        self.betas = betas
        for group in groups:
            for weight in group.weights:
                self.state[weight] = {
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                    "step": torch.zeros((), device=weight.device),
                }

    @torch.no_grad()
    def step(self, is_finite: Tensor) -> None:
        beta_1, beta_2 = self.betas
        for group in self.groups:
            rate = group.rate * is_finite
            for weight in group.weights:
                state = self.state[weight]
                assert weight.grad is not None
                gradient = torch.where(is_finite > 0, weight.grad, 0)
                state["step"] += is_finite
                state["exp_avg"].lerp_(gradient, (1 - beta_1) * is_finite)
                state["exp_avg_sq"].lerp_(gradient.square_(), (1 - beta_2) * is_finite)

                # Both averages start at 0: dividing by the sum of their weights removes that bias.
                n_steps = state["step"].clamp(min=1)
                deviation = (state["exp_avg_sq"] / (1 - beta_2**n_steps)).sqrt_().add_(_ADAM_EPSILON)
                weight.mul_(1 - rate * group.weight_decay)
                weight.sub_((state["exp_avg"] / deviation).mul_(rate / (1 - beta_1**n_steps)))


class Muon(WeightOptimizer):
    """Nesterov momentum whose update of each matrix is made orthogonal (Jordan et al. 2024).

    Matrices of one shape, or of its transpose, are orthogonalised together: a default CPU step is 15 % faster.
    """

    def __init__(self, group: WeightGroup, momentum: float, matrix_type: torch.dtype = torch.float32) -> None:
        """`matrix_type` is the number format of the iteration."""
        super().__init__([group])
        self.momentum = momentum
        self.matrix_type = matrix_type
        by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for weight in group.weights:
            by_shape[tuple(sorted(weight.shape))].append(weight)

        # One buffer [N, A, B], A <= B, for all matrices of a shape; the state of a weight is its part of it.
        self._batches: list[tuple[list[Tensor], Tensor]] = []
        for shape, weights in by_shape.items():
            buffer = torch.zeros(len(weights), *shape, device=weights[0].device)
            self._batches.append((weights, buffer))
            for weight, momenta in zip(weights, buffer, strict=True):
                self.state[weight] = {"momentum_buffer": _wide(momenta, weight)}

    @torch.no_grad()
    def step(self, is_finite: Tensor) -> None:
        (group,) = self.groups
        rate = group.rate * is_finite
        for weights, buffer in self._batches:
            gradients = []
            for weight in weights:
                assert weight.grad is not None
                gradients.append(_wide(weight.grad, weight))
            gradient = torch.where(is_finite > 0, torch.stack(gradients), 0)  # [N, A, B]
            buffer.lerp_(gradient, (1 - self.momentum) * is_finite)
            nesterov = gradient.lerp_(buffer, self.momentum)
            updates = _orthogonalise(nesterov.to(self.matrix_type)).float()
            for weight, update in zip(weights, updates, strict=True):
                # Jordan's scale: matrices with more rows than columns take larger updates.
                scale = max(1, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.mul_(1 - rate * group.weight_decay)
                weight.sub_(_wide(update, weight) * (rate * scale))


def _wide(matrix: Tensor, weight: Tensor) -> Tensor:
    """Return `matrix` transposed if `weight` has more rows than columns: from the shape of one to that of the other."""
    return matrix.mT if weight.shape[0] > weight.shape[1] else matrix


def _orthogonalise(matrices: Tensor) -> Tensor:
    """Return `matrices` [N, A, B], A <= B, with singular values near 1, by the Newton-Schulz iteration of Muon.

    Each is divided by its norm; a step is x <- a x + (b x xT + c (x xT)^2) x.
    """
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = matrices / (norms * MARGIN).clamp(min=_EPSILON)
    for a, b, c in COEFFICIENTS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def make_optimizers(model: nn.Module, settings: OptimSettings, matrix_type: torch.dtype) -> list[WeightOptimizer]:
    """Return AdamW and, if it is chosen for the matrices of the blocks, Muon in `matrix_type`."""
    matrices: list[Tensor] = []
    embeddings: list[Tensor] = []
    gains: list[Tensor] = []
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            gains.append(weight)
        elif name.startswith("blocks."):
            matrices.append(weight)
        else:
            embeddings.append(weight)

    rate = settings.embedding_learning_rate
    matrix_group = WeightGroup(matrices, settings.learning_rate, settings.weight_decay)
    groups = [WeightGroup(embeddings, rate, settings.embedding_weight_decay), WeightGroup(gains, rate, 0.0)]
    betas = (settings.beta_1, settings.beta_2)
    if settings.name is Optimizer.adamw:
        return [AdamW([*groups, matrix_group], betas)]
    return [Muon(matrix_group, settings.momentum, matrix_type), AdamW(groups, betas)]


def learning_rate_factor(step: int, warmup_steps: int, max_steps: int, decay_power: float) -> float:
    """Return learning rate / peak at `step`: linear warm-up, then (remaining fraction of the steps) ** decay_power.

    Decay to 0 was better than cosine decay to a tenth of the peak (measured; also Bergsma et al. 2025, arXiv
    2502.15938).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    factor: float = max(0.0, (max_steps - step) / max(1, max_steps - warmup_steps)) ** decay_power
    return factor


def set_learning_rates(optimizers: list[WeightOptimizer], factor: float) -> None:
    """Set the learning rate of every parameter group to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.groups:
            group.rate.fill_(factor * group.peak_rate)
