"""antecedent_lab.sweeps: in which settings runs differ, and which runs are not compared."""

from dataclasses import asdict
from typing import Any

import pytest

from antecedent_lab.sweeps import differing_settings
from data.errors import UserError
from training.settings import compose_settings


def saved(*overrides: str) -> dict[str, Any]:
    return asdict(compose_settings(overrides))


def test_runs_are_described_by_the_settings_that_differ_from_the_standard_but_for_the_seed() -> None:
    standard = compose_settings()
    for data in ([], ["data=text", "data.path=x"]):
        runs = {"a": saved("seed=1", *data), "b": saved("seed=2", "threads=1", "log_every_steps=3", *data)}
        assert differing_settings(runs, standard) == ({"a": (1, {}), "b": (2, {})}, {})
    runs = {"0": saved("variant=one_head", "seed=1"), "1": saved("seed=1"), "2": saved("seed=2")}
    by_run = {"0": (1, {"model.n_head": 1}), "1": (1, {}), "2": (2, {})}
    assert differing_settings(runs, standard) == (by_run, {"model.n_head": standard.model.n_head})


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["log_every_steps=3"], "a and b have the same settings and the same seed"),
        (["seed=2", "data.seed=5"], "data.seed"),
        (["data=text", "data.path=x"], "data.source differs"),
        (["tokens_per_batch=1024"], "tokens_per_batch"),
        (["data.n_train_stories=8"], "data.n_train_stories"),
        (["model.context_length=32"], "model.context_length"),
    ],
)
def test_the_same_run_twice_and_runs_that_read_other_batches_are_not_compared(overrides: list[str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        differing_settings({"a": saved(), "b": saved(*overrides)}, compose_settings())
