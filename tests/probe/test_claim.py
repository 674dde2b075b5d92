"""The claim agrees with the values, and its limits are named."""

import re
from dataclasses import replace
from typing import Any

import pytest

from probe.claim import asked, claim_of, limits_of
from probe.questions import QUESTIONS, Question
from probe.results import Estimate, Finding, Head, Tested, TestedModel
from probe.verdict import judged
from tests.blank import blank
from tests.probe.test_verdict import DECIDES, EDGE, LINK, STRONG

MODEL = TestedModel("runs/a", 1200, "stories", {})
ACCURACY = {"accuracy": Estimate(0.9876, 0.961, 1.0)}
OF_MODEL = {name: Estimate(value) for name, value in {"flips": 0.6, "author": 0.7}.items()}


WHOSE = QUESTIONS["antecedent"]
FACTS: dict[str, dict[str, Any]] = {
    "attention": {
        "n": 188, "clusters": {"frames": 29, "first_words": 13, "second_words": 17, "pairs": 43},
        "rules": {"nearest": 0.5, "first": 0.4}, "untrained": {"accuracy": Estimate(0.47, 0.4, 0.5)},
    },
    "edge": {"n": 99, "clusters": {"one": 40, "two": 59}, "rules": {"nearest": 0.55}},
    "whose": {
        "n": 1062, "clusters": {"documents": 595}, "rules": {"nearest": 0.64, "subject": 0.78, "place rule": 0.84},
    },
}  # fmt: skip


def judged_finding(question: Question, values: dict[str, Estimate], *exclusions: str, **changes: Any) -> Finding:
    head = judged(Tested([Head(1, 2)], values), question, exclusions)
    facts = FACTS[question.outcome] | {"question": question.name, "link": question.link, "outcome": question.outcome}
    return blank(Finding, **facts | {"unit": "head", "head": head} | changes)


def link(values: dict[str, Estimate], **changes: Any) -> Finding:
    return judged_finding(LINK, ACCURACY | values, **changes)


def test_a_supported_claim_names_head_accuracy_rule_and_untrained_models() -> None:
    claim = claim_of(link(STRONG), MODEL)
    for words in ("Attention head L1H2 links a pronoun to its antecedent.", "98.8 % [96.1, 100.0] of 188 items", "E3",
                  "the best rule (nearest) is right in 50.0 %", "untrained models in 47.0 %"):  # fmt: skip
        assert words in claim
    assert "never antecedents in training" in claim
    assert "never antecedents in training" not in claim_of(link(STRONG), replace(MODEL, trained_on=None))


@pytest.mark.parametrize(
    ("change", "opening"),
    [
        ({"selectivity": Estimate(0.1)}, "Attention head L1H2 may link a pronoun to its antecedent."),
        ({"p_contrast": Estimate(0.9)}, "No attention head is shown to link a pronoun to its antecedent; the best"),
    ],
)
def test_a_weaker_verdict_opens_with_what_it_is(change: dict[str, Estimate], opening: str) -> None:
    assert claim_of(link(STRONG | change), MODEL).startswith(opening)


def test_criteria_that_are_not_met_or_not_measured_are_listed() -> None:
    values = {name: value for name, value in STRONG.items() if name not in ("swap", "unlinked_share")}
    claim = claim_of(link(values | {"selectivity": Estimate(0.0)}), MODEL)
    assert "Criteria not met: selective. Criteria not measured: causal edge, rests without antecedent." in claim


def test_a_claim_about_a_set_is_about_all_its_heads() -> None:
    both = judged(Tested([Head(1, 2), Head(0, 1)], {"accuracy": Estimate(0.973, 0.912, 1.0)} | STRONG), LINK)
    claim = claim_of(link(STRONG, unit="set", set=both), MODEL)
    assert claim.startswith("Attention heads L1H2 and L0H1 together link a pronoun to its antecedent.")
    assert "97.3 % [91.2, 100.0]" in claim


def test_a_decision_names_the_share_the_flips_and_the_author() -> None:
    claim = claim_of(judged_finding(EDGE, OF_MODEL | DECIDES), MODEL)
    assert claim.startswith("Attention head L1H2 copies the gender of the people it attends to into the next pronoun")
    for words in ("90.0 % [80.0, 100.0] of 40 passages", "0.40 [0.30, 0.50]", "in 60%", "p 0.0010", "in 70%", "in 55%"):
        assert words in claim
    ignores = OF_MODEL | DECIDES | {"follows": Estimate(0.5, 0.4, 0.6)}
    unknown = claim_of(judged_finding(EDGE, ignores), MODEL)
    assert unknown.startswith("The model does not know the next word: its choice is not shown to follow the persons")


@pytest.mark.parametrize(
    ("words", "shape", "accuracy"),
    [
        ("training data are unknown", {"source": "transformers"}, {}),
        ("token_shift", {"token_shift": True}, {}),
        ("resampling shows none", {}, {"accuracy": Estimate(1.0, 1.0, 1.0)}),
    ],
)
def test_a_limit_is_named_only_where_it_holds(words: str, shape: dict[str, Any], accuracy: dict[str, Estimate]) -> None:
    assert words in " ".join(limits_of(link(STRONG | accuracy), replace(MODEL, shape=shape)))
    assert words not in " ".join(limits_of(link(STRONG), MODEL))


OF_PLACE = {
    "beyond_place": Estimate(0.42), "p_beyond_place": Estimate(0.0005), "passages": Estimate(1062),
    "choice_share": Estimate(0.5, 0.3, 0.8), "author": Estimate(0.73, 0.68, 0.78), "author_auc": Estimate(0.77),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "exclusions", "verdict", "opening"),
    [
        ({}, [], "supported", "Attention head L1H2 links the next pronoun to the person whom the author means."),
        ({"choice_share": Estimate(0.5, 0.0, 0.8)}, [], "suggestive", "Attention head L1H2 may be the one that tells"),
        ({"p_beyond_place": Estimate(0.99), "beyond_place": Estimate(-0.4)}, [], "not established", "Attention head"),
        ({"passages": Estimate(300)}, [], "not established", "Attention head L1H2 is not shown to be the one that"),
        ({}, ["no claim: it does not copy"], "not established", "Attention head L1H2 is not shown to be the one that"),
    ],
)
def test_only_a_supported_head_is_said_to_link_a_pronoun_to_a_person(
    change: dict[str, Estimate], exclusions: list[str], verdict: str, opening: str
) -> None:
    """The inverted author's pronouns of the third case give a negative coefficient."""
    finding = judged_finding(WHOSE, OF_PLACE | change, *exclusions)
    claim = claim_of(finding, MODEL)
    assert finding.verdict == verdict and claim.startswith(opening)
    assert "the best rule (place rule) is right in 84.0 %" in claim
    if verdict != "supported":
        sentences = " ".join([claim, asked(finding), *finding.head.reasons, *limits_of(finding, MODEL)])
        assert not re.search(r"\blinks?\b|antecedent", sentences), sentences
