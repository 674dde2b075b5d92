"""The content of the page: sizes are bounded, records become curves, and only some models can run in it."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antecedent_lab.api import ProbeResult
from antecedent_lab.opened import open_run
from data.config import TextConfig, TokenizerKind
from data.errors import UserError
from model.config import Mask
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel, OpenedRun
from probe.results import Shown
from report import live
from report.content import MAX_SENTENCE_CHARACTERS, page_content, training_content, within_size
from report.live import check_live, live_content
from report.page import page
from report.reproduce import ablation_code, reproducing_commands
from tests.report import sample
from tests.report.browser import Markup
from training.metrics import Metrics, load_metrics
from training.settings import compose_settings, flatten
from training.weight_history import WeightHistory, load_weight_history


@pytest.fixture(scope="module")
def opened(trained_run: Path) -> OpenedRun:
    return open_run(trained_run, torch.device("cpu"))


def test_groups_of_sentences_beyond_the_limit_are_left_out_as_a_whole() -> None:
    shown = sample.content().sentences[0]
    big, small = [replace(shown, weights="x" * (MAX_SENTENCE_CHARACTERS // 2))] * 2, [replace(shown, weights="x")]
    omissions: list[str] = []
    assert within_size([small, big, small], omissions) == small + small and omissions[0].startswith("2 sentences")


def test_records_become_curves_of_every_head_and_of_the_answers() -> None:
    metrics = sample.metrics()
    content = training_content(metrics)
    assert content["steps"] == sample.STEPS and content["loss"]["floor"] == [1.06] * 3
    accuracy, contrast, resolved = content["charts"]["number"]
    assert accuracy["heads"] == [point.questions["number"].grids["accuracy"] for point in metrics.probe]
    assert (accuracy["low"], accuracy["high"], contrast["low"]) == (0, 1, None)
    assert accuracy["lines"][0]["values"] == [0.65] * len(sample.STEPS)
    assert resolved["heads"] is None and resolved["lines"][0]["values"][0] == pytest.approx(-6, abs=0.01)
    incomplete = [metrics.probe[0], replace(metrics.probe[1], questions={})]
    assert training_content(replace(metrics, probe=incomplete))["charts"] == {}
    assert training_content(Metrics([], [], [])) is None


def test_the_page_of_a_run_has_its_findings_and_their_sentences(opened: OpenedRun) -> None:
    text = "The cat sat near the buses. It"
    shown = Shown(kind="median", text=text, query=8, word="", meant=[[2]], other=[[6]])
    found = replace(sample.finding("number"), examples=[shown], grids={"accuracy": [[0.5, 0.6]] * 2, "p": [[1, 0]] * 2})
    results = sample.results(found, warnings=["A warning."])
    content = page_content(opened, results, load_metrics(opened.folder), None, [text], ["A note."])
    assert content.heading == "Which attention head links a pronoun to its antecedent?"
    assert content.notes == ["A note.", "A warning."]
    (median,) = [sentence for sentence in content.sentences if sentence.group == "median-number"]
    words = [median.words[place] for place in (*median.query, *median.antecedents, *median.distractors)]
    assert words == ["It", "cat", "buses"] and content.groups["median-number"].question == "number"
    assert content.findings[0].sentences == [*(f"number-{i}" for i in range(1, 5)), "median-number-1"]
    assert content.sentences[0].id == "yours-1" and set(content.measures) >= {"accuracy", "contrast"}
    assert "remove_head(0, 1)" in page(content)
    untested = page_content(opened, None, Metrics([], [], []), None)
    assert untested.heading == "What each head attends to" and untested.training is None


def test_the_live_model_begins_with_what_was_tested(opened: OpenedRun) -> None:
    found = sample.finding("next_pronoun_gender")
    model = live_content(opened, sample.results(found), None, None, []).model
    assert model is not None and (model.text, model.head) == (found.examples[0].text, found.place)
    assert model.pair == ["she", "he"]
    median = Shown(kind="median", text="The cat sat. It slept.", query=5, word="")
    own = replace(sample.finding("number"), file="own.jsonl", examples=[median])
    model = live_content(opened, sample.results(own), None, None, []).model
    assert model is not None and (model.text, model.pair) == ("The cat sat. It", [])


def test_a_notebook_shows_the_report_in_a_frame_and_its_code_removes_the_head(opened: OpenedRun) -> None:
    found = replace(sample.finding("number"), grids={})
    result = ProbeResult(opened, sample.results(found, behaviour=[]))
    frame = Markup(result._repr_html_())
    attributes = dict(frame.attributes)
    assert frame.tags == ["iframe"] and "allow-same-origin" not in attributes["sandbox"]
    assert attributes["srcdoc"] == result.page()
    names: dict[str, Any] = {"print": lambda change: names.update(change=change)}
    exec(ablation_code(found, replace(sample.MODEL, run=opened.source)), names)
    assert names["change"].abs().max() > 0


def test_the_training_command_gives_the_settings_of_the_run(opened: OpenedRun) -> None:
    train, probe = reproducing_commands(opened, ProbeConfig(n_untrained=2))
    python, program, *arguments = shlex.split(train)
    ignored = {"out", "cache_dir"}
    used, expected = (flatten(settings) for settings in (compose_settings(arguments), opened.settings))
    assert program == "train.py" and {name for name in used if used[name] != expected[name]} == ignored
    assert shlex.split(probe)[1:] == ["eval.py", f"run={opened.folder}", "probe.n_untrained=2"]


# Which models the page runs


def external(opened: OpenedRun) -> OpenedModel:
    """Return the same model as one of another program."""
    names = ("folder", "name", "source", "model", "untrained", "tokenizer", "bos_id", "data", "data_fingerprint")
    names += ("shape", "n_parameters", "departures", "environment")
    return OpenedModel(**{name: getattr(opened, name) for name in names})


def own_tokenizer(opened: OpenedRun) -> OpenedRun:
    data = TextConfig(
        source="text", path="a.txt", validation_path=None, validation_fraction=0.1, column="text", max_bytes=None,
        tokenizer=TokenizerKind.file, vocab_size=10, tokenizer_path="tokenizer.json",
    )  # fmt: skip
    return replace(opened, settings=replace(opened.settings, data=data))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (external, "trained elsewhere"),
        (lambda opened: replace(opened, shape={**opened.shape, "mask": Mask.none}), "model.mask=none"),
        (own_tokenizer, "tokenizer"),
        (lambda opened: replace(opened, n_parameters=3_000_001), "up to 3,000,000 weights, and this one has 3,000,001"),
    ],
)
def test_a_model_that_the_page_cannot_run_has_a_reason(
    opened: OpenedRun, change: Callable[[OpenedRun], OpenedModel], reason: str
) -> None:
    changed = change(opened)
    for wanted in (None, True):
        content = live_content(changed, None, None, wanted, [])
        assert content.model is None and reason in content.reason
    with pytest.raises(UserError, match="^live=true: ") as error:
        check_live(changed, True)
    assert reason in str(error.value)
    check_live(changed, None)


def test_a_small_model_is_exact_and_a_larger_one_is_asked_for_and_rounded(
    opened: OpenedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = load_weight_history(opened.folder / "weights.jsonl", opened.n_parameters)
    assert history is not None and opened.step in history.steps and len(history.steps) >= 4
    model = live_content(opened, None, history, None, []).model
    assert model is not None and (model.type, model.rounding) == ("float32", "")
    assert model.earlier_steps == [step for step in history.steps if step != opened.step]
    assert sum(size for _, size in model.parameters) == opened.n_parameters

    assert live_content(opened, None, None, False, []) == live.Live(None, "")
    monkeypatch.setattr(live, "MAX_WEIGHTS_BY_DEFAULT", opened.n_parameters - 1)
    monkeypatch.setattr(live, "MAX_HISTORY_WEIGHTS", opened.n_parameters - 1)
    assert "live=true writes it" in live_content(opened, None, None, None, []).reason
    model = live_content(opened, None, None, True, []).model
    assert model is not None and (model.type, model.earlier_steps) == ("float16", []) and "float16" in model.rounding


@pytest.mark.parametrize("n_steps", [5, 60])
def test_earlier_steps_beyond_the_limit_are_thinned_evenly(n_steps: int) -> None:
    size = live.MAX_HISTORY_CHARACTERS // 8
    history = WeightHistory(list(range(n_steps + 1)), ["x" * size] * (n_steps + 1))
    omissions: list[str] = []
    steps, data = live._thinned(history, n_steps, omissions)
    assert len(steps) == len(data) == min(8, n_steps) and (steps[0], steps[-1]) == (0, n_steps - 1)
    assert bool(omissions) == (n_steps > 8) and np.ptp(np.diff(steps)) <= 1
