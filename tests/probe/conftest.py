"""Three whole studies, each done once: of random weights, of a planted head, and of every family."""

from typing import Any

import pytest

from model.config import ModelConfig
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.study import Reading, study
from tests.probe.story_items import FULL, MODEL, planted, random_model, story_items, vocabulary

Studied = tuple[dict[str, Any], dict[str, Reading]]
SETTINGS = ProbeConfig(seed=0, tokens_per_batch=4096, n_bootstrap=100, n_untrained=2, n_controls=10)


def blank(config: ModelConfig, n_models: int = 2) -> list[Transformer]:
    return [Transformer(config, len(vocabulary()), seed=5 + i).eval() for i in range(n_models)]


@pytest.fixture(scope="session")
def settings() -> ProbeConfig:
    return SETTINGS


@pytest.fixture(scope="session")
def studied() -> Studied:
    """What random weights give, whose heads know nothing."""
    return study(random_model(), blank(MODEL), story_items("dev"), story_items("test"), SETTINGS)


@pytest.fixture(scope="session")
def studied_planted() -> Studied:
    """What a head of coreference gives in layer 1, place 2."""
    dev, test = ([one for one in story_items(split) if one.family in "VN"] for split in ("dev", "test"))
    return study(planted("coreference", layer=1, head=2), blank(MODEL), dev, test, SETTINGS)


@pytest.fixture(scope="session")
def studied_full() -> Studied:
    """What random weights give on every family, with other mentions beside the two."""
    dev, test = (story_items(split, config=FULL) for split in ("dev", "test"))
    return study(random_model(), blank(MODEL), dev, test, SETTINGS)
