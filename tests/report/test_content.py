"""The content of the page: sizes are bounded, values are finite, records of training become curves."""

import json

import numpy as np
import pytest

from report.content import (
    MAX_SENTENCE_CHARACTERS,
    MAX_SNAPSHOT_CHARACTERS,
    effects_content,
    jsonable,
    thinned,
    training_content,
    within_size,
)


def probe_record(step: int, accuracy: float) -> dict:
    reading = {"accuracy_heads": [[accuracy]], "pronoun_contrast_heads": [[0.1]], "chance_level": 0.6}
    return {"step": step, "split": "probe", "number": reading | {"resolved_share": accuracy}}


def test_json_values_are_finite_and_keep_six_digits() -> None:
    value = {"a": np.float64(0.123456789), "b": [float("nan"), np.inf], "c": (1, None), "d": np.arange(2)}
    assert jsonable(value) == {"a": 0.123457, "b": [None, None], "c": [1, None], "d": [0, 1]}
    json.dumps(jsonable(value), allow_nan=False)


def test_a_p_below_the_bar_does_not_round_up_to_it() -> None:
    assert jsonable(0.00999500249875) < 0.01


def test_groups_of_sentences_beyond_the_limit_are_left_out_as_a_whole() -> None:
    big = [{"weights": "x" * (MAX_SENTENCE_CHARACTERS // 2)} for _ in range(2)]
    small = [{"weights": "x"}]
    omissions: list[str] = []
    assert within_size([small, big, small], omissions) == small + small and omissions[0].startswith("2 sentences")


@pytest.mark.parametrize("n_steps", [4, 5, 60])
def test_snapshots_beyond_the_limit_are_thinned_evenly_and_keep_the_last(n_steps: int) -> None:
    size = MAX_SNAPSHOT_CHARACTERS // 4
    snapshots = {"texts": [{"text": "a"}], "steps": list(range(n_steps)), "data": [["x" * size]] * n_steps}
    omissions: list[str] = []
    thin = thinned(snapshots, omissions)
    assert thin["steps"][0] == 0 and thin["steps"][-1] == n_steps - 1 and len(thin["data"]) == len(thin["steps"])
    assert sum(len(step[0]) for step in thin["data"][:-1]) <= MAX_SNAPSHOT_CHARACTERS
    assert bool(omissions) == (len(thin["steps"]) < n_steps)


def test_records_become_curves_of_every_head() -> None:
    losses = [{"step": step, "split": "validation", "loss": 2.0, "floor": 1.0} for step in (0, 8)]
    content = training_content([*losses, probe_record(0, 0.5), probe_record(8, 0.9)], None)
    assert content["steps"] == [0, 8] and content["loss"]["floor"] == [1.0, 1.0]
    assert content["curves"]["number"]["accuracy"] == [[[0.5]], [[0.9]]]
    assert content["curves"]["number"]["resolved_share"] == [0.5, 0.9]


def test_without_a_validation_loss_there_are_no_curves() -> None:
    assert training_content([probe_record(0, 0.5)], None) is None


def test_effects_show_the_largest_swap_of_the_control_heads_beside_the_head_s() -> None:
    causal = {
        "attention_swap": 0.9,
        "attention_swap_interval": [0.8, 1.0],
        "controls": {"attention_swap": [0.01, -0.2, None]},
    }
    effects = effects_content({"causal": causal})
    assert [(effect["label"], effect["value"]) for effect in effects] == [
        ("attention swap", 0.9),
        ("attention swap of 2 other heads", -0.2),
    ]


def test_a_head_without_causal_tests_has_no_effects() -> None:
    assert effects_content({"causal": None}) == []
