"""Small models for the tests, and a trainer. Every axis has another size, so that a transposed axis is noticed."""

from typing import Any

import numpy as np
import pytest
import torch

from data.loader import Split
from extras.gpu.graph import record_step
from model.observe import TransformerView
from model.transformer import Transformer
from settings.model import ModelConfig, Position, Scale, Weighting
from settings.train import compose_settings
from tests.program import SMALL
from training.device import SINGLE_PROCESS, Distributed, choose_device
from training.trainer import Trainer, make_trainer

L, H, K, M, T, V = 2, 3, 10, 41, 13, 29  # layers, heads, head dimension, d_mlp, context length, vocabulary
SIZES: dict[str, Any] = {"n_layer": L, "n_head": H, "d_model": H * K, "d_mlp": M, "context_length": T}
SIZES |= {"rope_theta": 1e4, "norm_eps": 1e-5, "dropout": 0.0}

# Together these use each switch of the lab.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum, learned positions": {"weighting": Weighting.sum, "position": Position.learned},
    "tied query and key, sinusoidal positions": {"tie_query_key": True, "position": Position.sinusoidal},
    "tied key and value, unscaled": {"tie_key_value": True, "scale": Scale.none, "position": Position.none},
}
each_variant = pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)


def config(**changes: Any) -> ModelConfig:
    return ModelConfig(**(SIZES | changes))


def untrained(vocab_size: int = V, seed: int = 0, **changes: Any) -> Transformer:
    """Return a model in eval mode whose layers write nothing yet: its output projections are 0."""
    return Transformer(config(**changes), vocab_size, seed).eval()


def random_model(vocab_size: int = V, seed: int = 1, **changes: Any) -> Transformer:
    """Return a model in eval mode with random weights, none of them 0 and no gain 1."""
    model = untrained(vocab_size, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            mean, std = (0.0, 0.3) if parameter.ndim == 2 else (1.0, 0.2)
            parameter.normal_(mean, std, generator=generator)
    return model


def random_view(vocab_size: int = V, seed: int = 1, **changes: Any) -> TransformerView:
    return TransformerView(random_model(vocab_size, seed, **changes))


VOCAB_SIZE = 23


def small_trainer(*overrides: str, distributed: Distributed = SINGLE_PROCESS) -> Trainer:
    """Returns a trainer at step 0; by default in float32 on the CPU."""
    settings = compose_settings([*SMALL, "device=cpu", "precision=float32", *overrides])
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=3000).astype(np.uint16)
    device = choose_device(settings.run.device, settings.run.precision)
    model = Transformer(settings.model, VOCAB_SIZE, settings.run.seed).to(device.device)
    return make_trainer(settings, model, Split(tokens, 3000), device, distributed, record_step)
