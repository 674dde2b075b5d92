"""model/config.py: impossible models are refused, and the tests cover every switch."""

import pytest

from model.config import ModelConfig, Position, Scale, Weighting
from tests.tiny_models import VARIANTS, config


@pytest.mark.parametrize(
    ("switches", "setting"),
    [
        ({"weighting": Weighting.sum, "scale": Scale.none}, "model.scale=none"),
        ({"weighting": Weighting.sum, "position": Position.alibi}, "model.position=alibi"),
        ({"n_head": 6, "d_model": 30}, "model.d_model=30"),
        ({"n_head": 1, "d_model": 15, "position": Position.sinusoidal}, "model.d_model=15"),
        ({"n_head": 7}, "model.d_model=30"),
        ({"context_length": 1}, "model.context_length=1"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
        ({"norm_eps": 0.0}, "model.norm_eps=0.0"),
    ],
)
def test_impossible_settings_are_refused_by_name(switches: dict, setting: str) -> None:
    with pytest.raises(ValueError, match=setting):
        config(**switches)


def test_every_switch_of_the_lab_has_a_variant() -> None:
    switches = {name for variant in VARIANTS.values() for name in variant} | {"mask"}
    others = set("n_layer n_head d_model d_mlp context_length rope_theta norm_eps dropout".split())
    assert ModelConfig.__dataclass_fields__.keys() - switches == others
