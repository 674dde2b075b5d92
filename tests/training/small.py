"""A trainer of a tiny model on random tokens, without a run directory."""

import numpy as np

from data.loader import Split
from model.transformer import Transformer
from tests.program import SMALL
from training.device import SINGLE_PROCESS, Distributed, choose_device
from training.settings import compose_settings
from training.trainer import Trainer, make_trainer

VOCAB_SIZE = 23


def small_trainer(*overrides: str, distributed: Distributed = SINGLE_PROCESS) -> Trainer:
    """Returns a trainer at step 0; by default in float32 on the CPU."""
    settings = compose_settings([*SMALL, "device=cpu", "precision=float32", *overrides])
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=3000).astype(np.uint16)
    device = choose_device(settings.run.device, settings.run.precision)
    model = Transformer(settings.model, VOCAB_SIZE, settings.run.seed).to(device.device)
    return make_trainer(settings, model, Split(tokens, 3000), device, distributed)
