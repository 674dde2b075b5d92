"""Small models for the tests. Every axis has another size, so that a transposed axis cannot go unnoticed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.transformer import Transformer

PLAIN: dict[str, Any] = {
    "rope_theta": 1e4,
    "norm_eps": 1e-5,
    "dropout": 0.0,
    "scale": Scale.inverse_sqrt,
    "weighting": Weighting.softmax,
    "position": Position.rope,
    "mask": Mask.causal,
    "tie_query_key": False,
    "tie_key_value": False,
    "token_shift": False,
}

# Together these use each switch of the lab that keeps a model causal.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum, learned positions": {"weighting": Weighting.sum, "position": Position.learned},
    "tied query and key, sinusoidal positions": {"tie_query_key": True, "position": Position.sinusoidal},
    "tied key and value, unscaled, no positions": {
        "tie_key_value": True,
        "scale": Scale.none,
        "position": Position.none,
    },
    "alibi, token shift": {"position": Position.alibi, "token_shift": True},
}

each_variant = pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
L, H, K, M, T, V = 2, 3, 10, 41, 13, 29  # layers, heads, head dimension, d_mlp, context length, vocabulary


def config(**changes: object) -> ModelConfig:
    shape = {"n_layer": L, "n_head": H, "d_model": H * K, "d_mlp": M, "context_length": T}
    return ModelConfig(**{**PLAIN, **shape, **changes})


def random_model(**changes: object) -> Transformer:
    """Return a model in eval mode none of whose weights are 0: new models have output projections of 0."""
    model = Transformer(config(**changes), V, seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("output.weight", "down.weight", "shift")):
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def exchange(weights: Tensor, query: int, keys: list[int]) -> Tensor:
    """Return the attention weights [B, T, T] in which two keys of the query have exchanged theirs."""
    changed = weights.clone()
    changed[:, query, keys] = weights[:, query, keys[::-1]]
    return changed
