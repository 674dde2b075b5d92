"""The content of the page: sizes are bounded, records of training become curves."""

import shlex
from pathlib import Path

import pytest
import torch

from antecedent_lab.opened import open_run
from probe.config import ProbeConfig
from probe.results import NaturalQuestion, NaturalResult, NextPronounResult, ProbeResults, QuestionResult, ShiftResult
from report.content import (
    MAX_SENTENCE_CHARACTERS,
    asked,
    opening_sentence,
    training_content,
    within_size,
)
from report.page import PageSentence
from report.reproduce import reproducing_commands
from tests.report.sample import filled
from training.metrics import Metrics, ProbePoint, QuestionPoint, ShiftPoint, ValidationRecord
from training.settings import compose_settings, flatten


def losses(*steps: int) -> list[ValidationRecord]:
    return [filled(ValidationRecord, step=step, loss=2.0, floor=1.0) for step in steps]


def probe_point(step: int, accuracy: float) -> ProbePoint:
    question = filled(QuestionPoint, accuracy_heads=[[accuracy]], resolved_share=accuracy, answer_accuracy=None)
    shift = filled(ShiftPoint, pronoun_contrast_heads=[[accuracy]])
    return ProbePoint(step, {"number": question}, {}, {"gender": shift}, {})


def natural_results(**chosen: dict[str, ShiftResult]) -> NaturalResult:
    """Return results on natural text with these heads, by question and target."""
    return NaturalResult({name: filled(NaturalQuestion, chosen=shifts) for name, shifts in chosen.items()}, [])


def test_groups_of_sentences_beyond_the_limit_are_left_out_as_a_whole() -> None:
    big = [filled(PageSentence, weights="x" * (MAX_SENTENCE_CHARACTERS // 2))] * 2
    small = [filled(PageSentence, weights="x")]
    omissions: list[str] = []
    assert within_size([small, big, small], omissions) == small + small and omissions[0].startswith("2 sentences")


def test_records_become_curves_of_every_head() -> None:
    metrics = Metrics([], losses(0, 8), [probe_point(0, 0.5), probe_point(8, 0.9)])
    content = training_content(metrics, None)
    assert content["steps"] == [0, 8] and content["loss"]["floor"] == [1.0, 1.0]
    assert content["curves"]["number"]["accuracy"] == [[[0.5]], [[0.9]]]
    assert content["curves"]["number"]["resolved_share"] == [0.5, 0.9]
    assert content["curves"]["number"]["answer_accuracy"] is None


def test_heads_chosen_on_natural_text_have_curves() -> None:
    metrics = Metrics([], losses(0), [probe_point(0, 0.0), probe_point(8, 0.8)])
    shifts = {
        "matching entity": filled(ShiftResult, site="after_pronoun", p_corrected=0.1),  # was not recorded
        "other entity": filled(ShiftResult, site="pronoun", layer=0, head=0, p_corrected=0.5),
    }
    results = filled(ProbeResults, natural=natural_results(gender=shifts))
    (curve,) = training_content(metrics, results)["natural"]
    assert (curve["question"], curve["contrast"]) == ("gender", [[[0.0]], [[0.8]]])
    assert curve["chosen"] == [{"target": "other entity", "layer": 0, "head": 0}]


def test_the_training_command_gives_the_settings_of_the_run(trained_run: Path) -> None:
    run = open_run(trained_run, torch.device("cpu"))
    train, probe = reproducing_commands(run, ProbeConfig(n_untrained=2))
    python, program, *arguments = shlex.split(train)
    ignored = {"out", "cache_dir"}
    used, expected = (flatten(settings) for settings in (compose_settings(arguments), run.settings))
    assert program == "train.py" and {name for name in used if used[name] != expected[name]} == ignored
    assert shlex.split(probe)[1:] == ["eval.py", f"run={trained_run}", "probe.n_untrained=2"]


@pytest.mark.parametrize(("verdict", "is_link"), [("not established", False), ("supported", True)])
def test_the_heading_of_a_page_about_the_next_pronoun_asks_what_the_head_copies(verdict: str, is_link: bool) -> None:
    question = filled(QuestionResult, verdict=verdict, own=None)
    next_pronoun = filled(NextPronounResult, question="next_pronoun_gender", unit="head")
    results = filled(ProbeResults, selected=[question], next_pronoun=[next_pronoun])
    copies = "copies the gender of the people it attends to into the next pronoun"
    assert asked(results) == ("links a pronoun to its antecedent" if is_link else copies)


@pytest.mark.parametrize(
    ("first_verdict", "opening"), [("not established", "natural_gender_other-1"), ("suggestive", None)]
)
def test_the_page_opens_with_the_clearest_head_in_natural_text_if_the_first_question_has_none(
    first_verdict: str, opening: str | None
) -> None:
    first = filled(QuestionResult, verdict=first_verdict)
    natural = natural_results(
        gender={
            "matching entity": filled(ShiftResult, t=9.5, verdict="not established"),
            "other entity": filled(ShiftResult, t=-8.8, verdict="suggestive"),
        },
        number={"other entity": filled(ShiftResult, t=-6.1, verdict="suggestive")},
    )
    assert opening_sentence(natural, [first]) == opening
