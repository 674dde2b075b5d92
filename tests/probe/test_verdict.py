"""The verdict follows from the bars, row by row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.questions import PASSAGE_QUESTIONS, QUESTIONS, Question, in_words_of, question_of_file
from probe.results import Estimate, Finding, Head, Tested
from probe.verdict import exclusions_of, judged, level_over_seeds
from tests.blank import blank

LINK = QUESTIONS["number"]
EDGE = PASSAGE_QUESTIONS["gender"]
STRONG = {
    "p_pair_accuracy": Estimate(0.0005),
    "p_contrast": Estimate(0.0005),
    "lead": Estimate(0.4, 0.3, 0.5),
    "selectivity": Estimate(0.5),
    "swap": Estimate(0.7, 0.6, 0.8),
    "specificity": Estimate(0.3, 0.2, 0.4),
    "unlinked_share": Estimate(0.1),
}
DECIDES = {
    "follows": Estimate(0.9, 0.8, 1.0), "p": Estimate(0.001), "t": Estimate(9.0), "t_lead": Estimate(4.0),
    "cut_meant": Estimate(0.3, 0.1, 0.5), "cut_other": Estimate(-0.2, -0.3, -0.1),
    "beyond_control": Estimate(0.2, 0.1, 0.3), "swap": Estimate(0.4, 0.3, 0.5),
}  # fmt: skip
# Ways to miss each criterion, values at the bar included.
MISSES: dict[str, list[dict[str, Estimate]]] = {
    "pronoun_flip": [{"p_contrast": Estimate(0.01)}, {"p_pair_accuracy": Estimate(0.01)}],
    "beats_baselines": [{"lead": Estimate(0.4, 0.0, 0.5)}],
    "selective": [{"selectivity": Estimate(0.15)}],
    "causal_edge": [{"specificity": Estimate(0.3, 0.0, 0.4)}, {"swap": Estimate(0.2)}],
    "rests_without_antecedent": [{"unlinked_share": Estimate(0.5)}],
}


def judge(values: dict[str, Estimate], question: Question = LINK, *exclusions: str, **facts: Any) -> Tested:
    return judged(Tested([Head(1, 2)], values), question, exclusions, **facts)


@pytest.mark.parametrize(("name", "change"), [(name, change) for name in MISSES for change in MISSES[name]], ids=str)
def test_a_value_at_its_bar_misses_that_criterion_alone(name: str, change: dict[str, Estimate]) -> None:
    found = judge(STRONG | change)
    assert found.verdict == ("not established" if name == "pronoun_flip" else "suggestive")
    assert [criterion.name for criterion in found.criteria if not criterion.passed] == [name]
    assert len(found.reasons) == 1


@pytest.mark.parametrize(
    ("n_missed", "verdict"), [(0, "supported"), (1, "suggestive"), (3, "suggestive"), (4, "not established")]
)
def test_all_criteria_support_a_head_and_the_first_and_another_are_suggestive(n_missed: int, verdict: str) -> None:
    values = STRONG.copy()
    for ways in list(MISSES.values())[len(MISSES) - n_missed :]:
        values |= ways[0]
    found = judge(values)
    assert (found.verdict, len(found.reasons)) == (verdict, n_missed)
    assert [criterion.name for criterion in found.criteria] == list(MISSES)
    assert found.level == "E3" or n_missed


@pytest.mark.parametrize(
    ("types", "contrasts", "n"),
    [
        ({"previous": 0.41}, (2.0, 1.5), 1),
        ({"induction": 0.5}, (2.0, 1.5), 1),
        ({"previous": 0.4, "induction": 0.4, "first": 0.9}, (2.0, 1.5), 0),
        ({}, (2.0, -0.1), 1),
        ({}, (2.0, np.nan), 0),
        ({"previous": 0.5}, (2.0, -0.1), 2),
    ],
)
def test_another_head_type_or_contradicting_values_exclude_any_claim(
    types: dict[str, float], contrasts: tuple[float, float], n: int
) -> None:
    exclusions = exclusions_of(LINK, types, *contrasts)
    found = judge(STRONG, LINK, *exclusions)
    assert (len(exclusions), found.reasons) == (n, exclusions)
    assert (found.verdict, found.level) == (("not established", "E0") if n else ("supported", "E3"))
    assert all(criterion.passed for criterion in found.criteria)


def test_guards_that_a_question_of_the_users_own_switches_off_are_not_asked() -> None:
    own = question_of_file("mine", "", "a to b", ["selective", "previous"], "file.jsonl")
    assert (own.outcome, own.file, own.exclusions) == ("attention", "file.jsonl", ("induction", "value_contrast"))
    assert exclusions_of(own, {"previous": 0.9}, 2.0, 1.5) == []
    found = judge(STRONG | {"selectivity": Estimate(0.0)}, own)
    assert found.verdict == "supported" and "selective" not in {criterion.name for criterion in found.criteria}


NAN = Estimate(np.nan, np.nan, np.nan)


@pytest.mark.parametrize("values", [{}, dict.fromkeys(STRONG, NAN)], ids=["missing", "nan"])
@pytest.mark.parametrize("question", [LINK, EDGE], ids=["attention", "edge"])
def test_missing_values_and_nan_pass_nothing(values: dict[str, Estimate], question: Question) -> None:
    found = judge(values, question)
    assert found.verdict in ("not established", "the model does not know") and found.level == "E0"
    assert {criterion.outcome for criterion in found.criteria} == {"not measured"}


def test_a_reason_names_the_bar_that_the_question_has() -> None:
    bars = [replace(bar, limit=0.99) if bar.measure == "selectivity" else bar for bar in LINK.bars]
    [reason] = judge(STRONG, replace(LINK, bars=tuple(bars))).reasons
    assert reason.endswith("needed: above 0.99")


def test_too_few_clusters_are_named_in_the_reason() -> None:
    few = STRONG | {"p_pair_accuracy": Estimate(1 / 64), "p_contrast": Estimate(1 / 64)}
    [reason] = judge(few, smallest_p=1 / 64, n_clusters=6).reasons
    assert reason.endswith("with 6 different frames or words no p can be below 0.016")


def test_an_answer_that_ignores_the_pronoun_is_a_criterion_not_met() -> None:
    without_effects = {name: value for name, value in STRONG.items() if name not in ("swap", "specificity")}
    assert judge(without_effects).criteria[3].outcome == "not measured"
    constant = judge(without_effects, answer_is_constant=True)
    assert constant.criteria[3].outcome == "not met" and "does not follow the pronoun" in constant.reasons[0]


@pytest.mark.parametrize(
    ("level", "verdict", "misses"),
    [
        ("E0", "the model does not know", [{"follows": Estimate(0.6, 0.5, 0.7)}]),
        ("E1", "not established", [{"p": Estimate(0.01)}, {"t_lead": Estimate(0.0)}, {"t": Estimate(0.0)}]),
        ("E2", "suggestive", [{"cut_meant": Estimate(0.09, 0.05, 0.5)}, {"cut_meant": Estimate(0.3, 0.02, 0.5)},
                              {"cut_other": Estimate(-0.2, -0.3, 0.0)}, {"beyond_control": Estimate(0.2, 0.0, 0.3)},
                              {"swap": Estimate(0.19, 0.1, 0.3)}, {"swap": NAN}]),
        ("E3", "supported", [{}]),
    ],
)  # fmt: skip
def test_a_decision_has_the_last_level_with_all_criteria_met(level: str, verdict: str, misses: list[Any]) -> None:
    for change in misses:
        found = judge(DECIDES | change, EDGE)
        assert (found.level, found.verdict) == (level, verdict), change
        assert sum(not criterion.passed for criterion in found.criteria) == bool(change)


# Training seeds

COMPLETE = {
    "attention": STRONG | {"restored": Estimate(0.8), "ov_auc": Estimate(0.8, 0.7, 0.9)},
    "edge": DECIDES | {"author_where_nearest_wrong": Estimate(0.7, 0.6, 0.8)},
}


@pytest.mark.parametrize(
    ("outcome", "change", "seeds", "level"),
    [
        ("attention", {}, (4, 5), "E4"),
        ("attention", {"restored": Estimate(0.5)}, (5, 5), "E3"),
        ("attention", {"restored": NAN}, (5, 5), "E3"),
        ("attention", {"ov_auc": Estimate(0.8, 0.5, 0.9)}, (5, 5), "E3"),
        ("edge", {}, (4, 5), "E4"),
        ("edge", {"author_where_nearest_wrong": Estimate(0.7, 0.5, 0.8)}, (5, 5), "E3"),
    ],
)
def test_the_last_level_needs_its_own_bars_and_other_seeds(
    outcome: str, change: dict[str, Estimate], seeds: tuple[int, int], level: str
) -> None:
    question = LINK if outcome == "attention" else EDGE
    head = judge(COMPLETE[outcome] | change, question)
    finding = blank(Finding, outcome=outcome, unit="head", head=head)
    assert level_over_seeds(finding, question, *seeds) == level


def test_reasons_and_claims_of_an_own_question_have_its_own_words() -> None:
    own = question_of_file("agree", "which noun", "a verb to its subject", [], "a.jsonl")
    weak = judge({"p_pair_accuracy": Estimate(0.5), "p_contrast": Estimate(0.5)}, own, answer_is_constant=True)
    reasons = " ".join(weak.reasons)
    assert "following the verb may be chance" in reasons and "answer does not follow the verb" in reasons
    assert "0.5 (contrast)" in reasons and "the pronoun" not in reasons
    assert "following the pronoun" in " ".join(
        judge({"p_pair_accuracy": Estimate(0.5), "p_contrast": Estimate(0.5)}).reasons
    )
    assert in_words_of("an adjective to a noun", "follows the pronoun") == "follows the adjective"
    level = "the head follows the pronoun on held-out items"
    assert in_words_of(own.link, level) == "the head follows the verb on held-out items"
