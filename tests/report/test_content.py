"""The content of the page: sizes are bounded, values are finite, records of training become curves."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe.open import open_run
from report.content import (
    MAX_SENTENCE_CHARACTERS,
    MAX_SNAPSHOT_CHARACTERS,
    commands_of,
    jsonable,
    opening_sentence,
    thinned,
    training_content,
    within_size,
)
from training.settings import compose_settings, flatten


def probe_record(step: int, accuracy: float) -> dict:
    reading = {"accuracy_heads": [[accuracy]], "pronoun_contrast_heads": [[0.1]], "chance_level": 0.6}
    return {"step": step, "split": "probe", "number": reading | {"resolved_share": accuracy}}


def test_json_values_are_finite_and_keep_six_digits() -> None:
    value = {"a": np.float64(0.123456789), "b": [float("nan"), np.inf], "c": (1, None), "d": np.arange(2)}
    assert jsonable(value) == {"a": 0.123457, "b": [None, None], "c": [1, None], "d": [0, 1]}
    json.dumps(jsonable(value), allow_nan=False)
    assert jsonable(0.00999500249875) < 0.01  # a p below the limit of a verdict does not round up to it


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
    assert content["curves"]["number"]["answer_accuracy"] is None


def test_heads_chosen_on_natural_text_have_curves() -> None:
    records = [{"step": 0, "split": "validation", "loss": 2.0}]
    for step in (0, 8):
        records.append({"step": step, "split": "probe", "natural_gender": {"pronoun_contrast_heads": [[0.1 * step]]}})
    chosen = {
        "matching entity": {"site": "after_pronoun", "layer": 0, "head": 0, "p_corrected": 0.1},  # was not recorded
        "other entity": {"site": "pronoun", "layer": 0, "head": 0, "p_corrected": 0.5},
    }
    results = {"questions": {"gender": {"chosen": chosen}}}
    (curve,) = training_content(records, None, results)["natural"]
    assert (curve["question"], curve["contrast"]) == ("gender", [[[0.0]], [[0.8]]])
    assert curve["chosen"] == [{"target": "other entity", "layer": 0, "head": 0}]


def test_the_training_command_gives_the_settings_of_the_run(trained_run: Path) -> None:
    run = open_run(trained_run, torch.device("cpu"))
    train, probe = commands_of(run, {"n_untrained": 2})
    python, program, *arguments = shlex.split(train)
    ignored = {"out", "cache_dir"}
    used, expected = (flatten(settings) for settings in (compose_settings(arguments), run.settings))
    assert program == "train.py" and {name for name in used if used[name] != expected[name]} == ignored
    assert shlex.split(probe)[1:] == ["eval.py", f"run={trained_run}", "probe.n_untrained=2"]


@pytest.mark.parametrize(
    ("first_verdict", "opening"), [("not established", "natural_gender_other-1"), ("suggestive", None)]
)
def test_the_page_opens_with_the_clearest_head_in_natural_text_if_the_first_question_has_none(
    first_verdict: str, opening: str | None
) -> None:
    def chosen(t: float, verdict: str) -> dict[str, Any]:
        return {"t": t, "verdict": verdict}

    natural = {
        "questions": {
            "gender": {
                "chosen": {
                    "matching entity": chosen(9.5, "not established"),
                    "other entity": chosen(-8.8, "suggestive"),
                }
            },
            "number": {"chosen": {"other entity": chosen(-6.1, "suggestive")}},
        }
    }
    assert opening_sentence(natural, [{"verdict": first_verdict}]) == opening
