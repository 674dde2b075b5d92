"""The content of the page: sizes are bounded, records become curves, and only some models can run in it."""

import shlex
from dataclasses import fields, replace
from typing import Any

import pytest

from data.config import TextConfig, TokenizerKind
from data.errors import UserError
from model.config import Mask
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel, OpenedRun
from probe.results import Shown
from report import live
from report.content import MAX_SENTENCE_CHARACTERS, page_content, training_content, within_size
from report.live import LiveModel, check_live, live_content
from report.reproduce import reproducing_commands
from tests.report import sample
from training.metrics import Metrics
from training.settings import compose_settings, flatten
from training.weight_history import WeightHistory

RUN, HISTORY = sample.opened_run()
TEXT_DATA = TextConfig(
    source="text", path="a.txt", validation_path=None, validation_fraction=0.1, column="text", max_bytes=None,
    tokenizer=TokenizerKind.file, vocab_size=10, tokenizer_path="tokenizer.json",
)  # fmt: skip


def live_model(run: OpenedRun = RUN, *arguments: Any) -> LiveModel:
    model = live_content(run, *arguments).model
    assert model is not None
    return model


def test_groups_of_sentences_beyond_the_limit_are_left_out_as_a_whole() -> None:
    small = [replace(sample.content().sentences[0], weights="x")]
    big = [replace(small[0], weights="x" * (MAX_SENTENCE_CHARACTERS // 2))] * 2
    omissions: list[str] = []
    assert within_size([small, big, small], omissions) == small + small and omissions[0].startswith("2 sentences")


def test_records_become_curves_of_every_head_and_of_the_answers() -> None:
    metrics = sample.metrics()
    content = training_content(metrics)
    assert content["steps"] == sample.STEPS and content["loss"]["floor"] == [1.06] * 3
    titles = [chart["title"] for chart in content["charts"]["later_cue"]]
    assert titles == ["Accuracy", "Pronoun contrast", "The model's answers"]
    accuracy, contrast, resolved = content["charts"]["number"]
    assert accuracy["heads"] == [point.questions["number"].grids["accuracy"] for point in metrics.probe]
    assert (accuracy["low"], accuracy["high"], contrast["low"]) == (0, 1, None)
    assert accuracy["lines"][0]["values"] == [0.65] * len(sample.STEPS)
    assert resolved["heads"] is None and resolved["lines"][0]["values"][0] == pytest.approx(-6, abs=0.01)
    incomplete = [metrics.probe[0], replace(metrics.probe[1], questions={})]
    assert training_content(replace(metrics, probe=incomplete))["charts"] == {}
    assert training_content(Metrics([], [], [])) is None


def test_the_page_of_a_run_has_its_findings_and_their_sentences() -> None:
    text = "One sunny day, the cat sat near the buses. It"
    shown = Shown(kind="median", text=text, query=12, word="", meant=[[6]], other=[[10]])
    results = sample.results(replace(sample.finding("number"), examples=[shown]), warnings=["A warning."])
    content = page_content(RUN, results, sample.metrics(), None, [text], ["A note."])
    assert content.notes == ["A note.", "A warning."]
    (median,) = [sentence for sentence in content.sentences if sentence.group == "median-number"]
    words = [median.words[place] for place in (*median.query, *median.antecedents, *median.distractors)]
    assert words == ["It", "cat", "buses"] and content.groups["median-number"].question == "number"
    assert content.findings[0].sentences == [*(f"number-{i}" for i in range(1, 5)), "median-number-1"]
    assert content.sentences[0].id == "yours-1"
    untested = page_content(RUN, None, Metrics([], [], []), None)
    assert untested.heading == "What each head attends to" and untested.notes == list(RUN.resumed)


def test_the_live_model_begins_with_what_was_tested() -> None:
    passage = sample.finding("next_pronoun_gender")
    model = live_model(RUN, sample.results(passage), None, None, [])
    assert (model.text, model.pair) == (passage.examples[0].text, ["she", "he"])
    median = Shown(kind="median", text="The cat sat. It slept.", query=5, word="")
    own_finding = replace(sample.finding("number"), file="own.jsonl", examples=[median])
    model = live_model(RUN, sample.results(own_finding), None, None, [])
    assert (model.text, model.pair) == ("The cat sat. It", [])


@pytest.mark.parametrize("data", [RUN.settings.data, TEXT_DATA])
def test_the_commands_give_the_settings_of_the_run(data: object) -> None:
    run = replace(RUN, settings=replace(RUN.settings, data=data))
    own_finding = replace(sample.finding("number"), file="own.jsonl")
    train, probe = reproducing_commands(run, sample.results(own_finding, settings=ProbeConfig(n_untrained=2)))
    python, program, *arguments = shlex.split(train)
    assert program == "train.py" and flatten(compose_settings(arguments)) == flatten(run.settings)
    assert shlex.split(probe)[1:] == ["eval.py", "run=runs/default", "items=own.jsonl", "probe.n_untrained=2"]


# Which models the page runs


ELSEWHERE = OpenedModel(**{field.name: getattr(RUN, field.name) for field in fields(OpenedModel)})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (replace(ELSEWHERE, max_steps=None), "trained elsewhere"),
        (replace(RUN, shape={**RUN.shape, "mask": Mask.none}), "model.mask=none"),
        (replace(RUN, settings=replace(RUN.settings, data=TEXT_DATA)), "tokenizer"),
        (replace(RUN, n_parameters=3_000_001), "up to 3,000,000 weights, and this one has 3,000,001"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_the_page_cannot_run_has_a_reason(model: OpenedModel, reason: str) -> None:
    for wanted in (None, True):
        content = live_content(model, None, None, wanted, [])
        assert content.model is None and reason in content.reason
    with pytest.raises(UserError, match=f"^live=true: .*{reason}"):
        check_live(model, True)
    check_live(model, None)


def test_a_small_model_is_exact_and_a_larger_one_is_asked_for_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    history = replace(HISTORY, steps=[*HISTORY.steps, RUN.step], data=[*HISTORY.data, HISTORY.data[0]])
    model = live_model(RUN, None, history, None, [])
    assert model.type == "float32" and model.earlier == HISTORY
    assert live_content(RUN, None, None, False, []) == live.Live(None, "")
    monkeypatch.setattr(live, "MAX_WEIGHTS_BY_DEFAULT", RUN.n_parameters - 1)
    monkeypatch.setattr(live, "MAX_HISTORY_WEIGHTS", RUN.n_parameters - 1)
    assert "live=true writes it" in live_content(RUN, None, None, None, []).reason
    assert live_model(RUN, None, None, True, []).type == "float16"


def test_earlier_steps_beyond_the_limit_are_left_out_where_they_are_closest() -> None:
    steps = [0, 5, 11, 22, 44, 88, 175, 350, 700, 1050]  # of the default run
    history = WeightHistory(steps, ["x" * (live.MAX_HISTORY_CHARACTERS // 8)] * len(steps))
    omissions: list[str] = []
    earlier = live_model(replace(RUN, step=1400), None, history, None, omissions).earlier
    assert earlier.steps == [0, 22, 44, 88, 175, 350, 700, 1050] and len(earlier.data) == 8
    assert omissions[0].startswith("the weights at 2 of 10 steps")
