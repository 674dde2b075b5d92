"""Which models the report page runs, and the reasons that it gives for the others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antecedent_lab.opened import open_run
from data.config import TextConfig, TokenizerKind
from data.errors import UserError
from model.config import Mask
from probe.opened_model import OpenedModel, OpenedRun
from report import live
from report.live import check_live, live_content
from training.weight_history import WeightHistory, load_weight_history


@pytest.fixture(scope="module")
def opened(trained_run: Path) -> OpenedRun:
    return open_run(trained_run, torch.device("cpu"))


def external(opened: OpenedRun) -> OpenedModel:
    """Return the same model as one of another program."""
    names = ("folder", "name", "source", "model", "untrained", "tokenizer", "bos_id", "data", "data_fingerprint")
    names += ("shape", "n_parameters", "departures", "environment")
    return OpenedModel(**{name: getattr(opened, name) for name in names})


def not_causal(opened: OpenedRun) -> OpenedRun:
    return replace(opened, shape={**opened.shape, "mask": Mask.none})


def own_tokenizer(opened: OpenedRun) -> OpenedRun:
    data = TextConfig(
        source="text", path="a.txt", validation_path=None, validation_fraction=0.1, column="text", max_bytes=None,
        tokenizer=TokenizerKind.file, vocab_size=10, tokenizer_path="tokenizer.json",
    )  # fmt: skip
    return replace(opened, settings=replace(opened.settings, data=data))


def large(opened: OpenedRun) -> OpenedRun:
    return replace(opened, n_parameters=live.MAX_LIVE_WEIGHTS + 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (external, "trained elsewhere"),
        (not_causal, "model.mask=none"),
        (own_tokenizer, "tokenizer"),
        (large, "up to 3,000,000 weights, and this one has 3,000,001"),
    ],
)
def test_a_model_that_the_page_cannot_run_has_a_reason(
    opened: OpenedRun, change: Callable[[OpenedRun], OpenedModel], reason: str
) -> None:
    changed = change(opened)
    for wanted in (None, True):
        content = live_content(changed, None, None, [], wanted, [])
        assert content.model is None and reason in content.reason
    with pytest.raises(UserError, match="^live=true: ") as error:
        check_live(changed, True)
    assert reason in str(error.value)
    check_live(changed, None)


def test_a_user_may_refuse_the_model_and_must_ask_for_one_that_is_not_small(
    opened: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live_content(opened, None, None, [], False, []) == live.Live(None, "")
    monkeypatch.setattr(live, "MAX_WEIGHTS_BY_DEFAULT", opened.n_parameters - 1)
    assert "live=true writes it" in live_content(opened, None, None, [], None, []).reason
    assert live_content(opened, None, None, [], True, []).model is not None


def test_a_small_model_is_exact_and_has_the_recorded_steps(opened: OpenedRun) -> None:
    history = load_weight_history(opened.folder / "weights.jsonl", opened.n_parameters)
    assert history is not None and opened.step in history.steps and len(history.steps) >= 4
    model = live_content(opened, None, history, [], None, []).model
    assert model is not None and (model.type, model.rounding) == ("float32", "")
    assert model.earlier_steps == [step for step in history.steps if step != opened.step]
    assert sum(size for _, size in model.parameters) == opened.n_parameters


def test_a_larger_model_is_rounded_and_says_by_how_much(opened: OpenedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_HISTORY_WEIGHTS", opened.n_parameters - 1)
    model = live_content(opened, None, None, [opened.tokenize("The cat slept.")], True, []).model
    assert model is not None and (model.type, model.earlier_steps) == ("float16", [])
    found = [float(word.rstrip(".")) for word in model.rounding.split() if word[0].isdigit()]
    assert len(found) == 2 and all(1e-7 < value < 1e-2 for value in found)


@pytest.mark.parametrize("n_steps", [5, 9, 60])
def test_earlier_steps_beyond_the_limit_are_thinned_evenly(n_steps: int) -> None:
    size = live.MAX_HISTORY_CHARACTERS // 8
    history = WeightHistory(list(range(n_steps + 1)), ["x" * size] * (n_steps + 1))
    omissions: list[str] = []
    steps, data = live._thinned(history, n_steps, omissions)
    assert len(steps) == len(data) == min(8, n_steps) and (steps[0], steps[-1]) == (0, n_steps - 1)
    assert bool(omissions) == (n_steps > 8)
    gaps = np.diff(steps)
    assert gaps.max() - gaps.min() <= 1
