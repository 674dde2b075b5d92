"""Whole studies that several tests read, each done once."""

import pytest

from data.links import LinkItem
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.links import LinkStudy, study_links
from tests.probe.story_items import FULL, planted, story_items, story_model, untrained_models

SETTINGS = ProbeConfig(
    seed=0, tokens_per_batch=4096, n_bootstrap=100, n_untrained=2, n_controls=10, holdouts=Holdouts.all
)


def study_model(model: Transformer, dev: list[LinkItem], test: list[LinkItem]) -> LinkStudy:
    return study_links(TransformerView(model), untrained_models(), dev, test, SETTINGS)


@pytest.fixture(scope="session")
def settings() -> ProbeConfig:
    return SETTINGS


@pytest.fixture(scope="session")
def studied() -> LinkStudy:
    """A model of random weights on the default families."""
    return study_model(story_model(), story_items("dev"), story_items("test"))


@pytest.fixture(scope="session")
def studied_planted() -> LinkStudy:
    """A model with a coreference head planted in layer 1, head 2."""
    families = ("agreement", "no_antecedent")
    dev, test = ([item for item in story_items(split) if item.family in families] for split in ("dev", "test"))
    return study_model(planted("coreference", layer=1, head=2), dev, test)


@pytest.fixture(scope="session")
def studied_full() -> LinkStudy:
    """A model of random weights on every family."""
    return study_model(story_model(), *(story_items(split, config=FULL) for split in ("dev", "test")))
