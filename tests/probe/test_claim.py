"""A claim says what the values say and no more."""

import re
from dataclasses import replace

import pytest

from probe.claim import asked, claim_of, limits_of
from probe.outcome import Measured
from probe.results import Estimate, Head, TestedModel
from probe.verdict import judged
from tests.extras.page import sample
from tests.probe.test_verdict import DECIDES, EDGE, LINK, NAN, OF_PLACE, STRONG, WHOSE, judge

MODEL = TestedModel("runs/a", 1200, "stories", {})
OF_MODEL = {"flips": Estimate(0.6), "author": Estimate(0.7)}


def judged_finding(question, values, *exclusions, **changes):
    return sample.finding(question.name, **{"head": judge(values, question, *exclusions)} | changes)


def link(values, **changes):
    return judged_finding(LINK, {"accuracy": Estimate(0.9876, 0.961, 1.0)} | values, **changes)


def test_a_supported_claim_names_heads_accuracy_rule_and_untrained_models():
    claim = claim_of(link(STRONG), MODEL)
    assert claim.startswith("Attention head L1H2 links a pronoun to its antecedent.") and "E3" in claim
    for number in ("98.8 % [96.1, 100.0] of 920 items", "rule (nearest) is right in 50.0 %", "models in 47.7 %"):
        assert number in claim
    held_out = "no pronoun referred to in training"
    assert held_out in claim and held_out not in claim_of(link(STRONG), replace(MODEL, trained_on=None))
    both = judged([Head(1, 2), Head(0, 1)], Measured({"accuracy": Estimate(0.973, 0.912, 1.0)} | STRONG), LINK)
    claim = claim_of(link(STRONG, unit="set", set=both), MODEL)
    assert claim.startswith("Attention heads L1H2 and L0H1 together link a pronoun to its antecedent.")
    assert "97.3 % [91.2, 100.0]" in claim

    # A weaker verdict opens with what it is.
    may = claim_of(link(STRONG | {"selectivity": Estimate(0.1)}), MODEL)
    assert may.startswith("Attention head L1H2 may link a pronoun to its antecedent.")
    none = claim_of(link(STRONG | {"p_contrast": Estimate(0.9)}), MODEL)
    assert none.startswith("No attention head is shown to link a pronoun to its antecedent; the best")


def test_a_decision_names_the_share_the_flips_and_the_author():
    rules = {"nearest": 0.5, "first": 0.55}
    claim = claim_of(judged_finding(EDGE, OF_MODEL | DECIDES, rules=rules), MODEL)
    assert claim.startswith("Attention head L1H2 copies the gender of the people it attends to into the next pronoun")
    for words in ("90.0 % [80.0, 100.0] of 60 passages", "0.40 [0.30, 0.50]", "in 60%", "p 0.0010", "in 70%"):
        assert words in claim
    assert "the best rule (first) is right in 55.0 %" in claim  # not the nearest one
    ignores = OF_MODEL | DECIDES | {"follows": Estimate(0.5, 0.4, 0.6)}
    unknown = claim_of(judged_finding(EDGE, ignores), MODEL)
    assert unknown.startswith("The model does not know the next word: its choice is not shown to follow the persons")


def test_a_limit_is_named_where_it_holds():
    without_doubt = {"accuracy": Estimate(1.0, 1.0, 1.0)}
    external = replace(MODEL, shape={"source": "transformers"})
    for words, values, model in (
        ("training data are unknown", STRONG, external),
        ("resampling shows none", STRONG | without_doubt, MODEL),
    ):
        assert words in " ".join(limits_of(link(values), model))
        assert words not in " ".join(limits_of(link(STRONG), MODEL))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, "copies what"),
        ({"choice_share": NAN}, "may copy what"),
        ({"p_beyond_place": Estimate(0.99), "beyond_place": Estimate(-0.4)}, "is not shown to copy what"),  # inverted
    ],
)
def test_no_sentence_about_whose_says_antecedent(change, shown):
    rules = {"nearest": 0.64, "place rule": 0.84}
    finding = judged_finding(WHOSE, OF_PLACE | change, rules=rules)
    claim = claim_of(finding, MODEL)
    assert claim.startswith(f"Attention head L1H2 {shown} predicts whom the author means, beyond a fitted rule")
    assert "the best rule (place rule) is right in 84.0 %" in claim
    assert ("by form alone" in claim) == (shown != "is not shown to copy what")
    assert "at the author's person in 68.0 % [64.0, 72.0]; where the place rule is unsure, in 50.0 % [44.0" in claim
    sentences = " ".join([claim, asked(finding), *finding.head.reasons, *limits_of(finding, MODEL)])
    assert not re.search(r"\blinks?\b|antecedent", sentences), sentences
