"""The verdict follows from the evidence, and the claim card contains nothing else."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from probe.claim import claim_card
from probe.results import (
    BestBaseline,
    CausalResult,
    Clusters,
    Estimate,
    Head,
    HeadSet,
    HeadTable,
    HeadType,
    HoldoutResult,
    MentionMass,
    QuestionResult,
    SetScores,
    SetStep,
    TestedModel,
    UntrainedScores,
)
from probe.verdict import (
    Evidence,
    corrected_p,
    decision_criteria,
    decision_verdict,
    evidence_of,
    is_replicated,
    judge,
    judged,
    judged_set,
)
from tests.blank import blank

MODEL = TestedModel("runs/a", 1200, "stories", {})

STRONG = Evidence(
    p_pair_accuracy=0.0005,
    p_pronoun_contrast=0.0005,
    smallest_p=0.0005,
    n_clusters=13,
    lead=(0.3, 0.5),
    selectivity=0.5,
    attention_swap=0.7,
    edge_specificity=(0.2, 0.4),
    linked_mass=0.8,
    unlinked_mass=0.1,
    previous=0.05,
    induction=0.02,
    pronoun_contrast=2.0,
    value_weighted_contrast=1.5,
)
# Ways to miss each criterion, values at the bar included.
MISSES: dict[str, list[dict[str, Any]]] = {
    "pronoun_flip": [{"p_pronoun_contrast": 0.01}, {"p_pair_accuracy": 0.01}],
    "beats_baselines": [{"lead": (0.0, 0.5)}],
    "selective": [{"selectivity": 0.15}],
    "causal_edge": [{"edge_specificity": (0.0, 0.4)}, {"attention_swap": 0.2}],
    "rests_without_antecedent": [{"unlinked_mass": 0.4}],
}
FIRST_MISS = [changes[0] for changes in MISSES.values()]
NOT_MEASURED = replace(STRONG, **{field.name: field.default for field in fields(Evidence)})


def with_misses(changes: list[dict[str, Any]]) -> Evidence:
    return replace(STRONG, **{name: value for change in changes for name, value in change.items()})


def test_all_five_criteria_support_a_head() -> None:
    verdict = judge(STRONG)
    assert (verdict.word, verdict.level, verdict.reasons) == ("supported", "E3", ())
    assert [criterion.name for criterion in verdict.criteria] == list(MISSES)


@pytest.mark.parametrize(("name", "change"), [(name, change) for name in MISSES for change in MISSES[name]], ids=str)
def test_a_value_at_its_bar_misses_that_criterion_alone(name: str, change: dict[str, Any]) -> None:
    verdict = judge(replace(STRONG, **change))
    assert verdict.word == ("not established" if name == "pronoun_flip" else "suggestive")
    assert [criterion.name for criterion in verdict.criteria if not criterion.passed] == [name]
    assert len(verdict.reasons) == 1


@pytest.mark.parametrize(
    ("n_missed", "word"), [(0, "supported"), (1, "suggestive"), (3, "suggestive"), (4, "not established")]
)
def test_the_first_criterion_and_another_are_suggestive(n_missed: int, word: str) -> None:
    assert judge(with_misses(FIRST_MISS[::-1][:n_missed])).word == word


def test_without_a_small_p_nothing_is_suggestive() -> None:
    assert judge(with_misses(FIRST_MISS[:1])).word == "not established"


@pytest.mark.parametrize("change", [{"previous": 0.41}, {"induction": 0.5}, {"value_weighted_contrast": -0.1}])
def test_another_head_type_or_contradicting_values_exclude_any_claim(change: dict[str, float]) -> None:
    verdict = judge(replace(STRONG, **change))
    assert (verdict.word, verdict.level) == ("not established", "E0")
    assert all(criterion.passed for criterion in verdict.criteria)
    assert len(verdict.reasons) == 1


NAN = {name: np.nan for name in ("p_pair_accuracy", "selectivity", "attention_swap")}


@pytest.mark.parametrize(
    "evidence",
    [NOT_MEASURED, replace(STRONG, **NAN, lead=(np.nan, np.nan), linked_mass=0)],
    ids=["missing", "nan"],
)
def test_missing_values_and_nan_pass_nothing(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert (verdict.word, verdict.level) == ("not established", "E0")
    assert not any(criterion.passed for criterion in verdict.criteria)


def test_unknown_value_weights_do_not_exclude_a_claim() -> None:
    assert judge(replace(STRONG, value_weighted_contrast=np.nan)).word == "supported"


def test_too_few_clusters_are_named_in_the_reason() -> None:
    few = replace(STRONG, p_pair_accuracy=1 / 64, p_pronoun_contrast=1 / 64, smallest_p=1 / 64, n_clusters=6)
    assert judge(few).reasons[0].endswith("with 6 different frames or words no p can be below 0.016")


COMPLETE = replace(STRONG, denoising_patch=0.8, ov_auc=(0.7, 0.9), n_seeds=5, n_seeds_supported=4)


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, "E4"),
        ({"n_seeds_supported": 3}, "E3"),
        ({"n_seeds": 4}, "E3"),
        ({"denoising_patch": 0.5}, "E3"),
        ({"denoising_patch": None}, "E3"),
        ({"ov_auc": (0.5, 0.9)}, "E3"),
        ({"attention_swap": 0.1}, "E2"),
        ({"p_pair_accuracy": 0.3}, "E1"),
        ({"lead": (0, 0.2)}, "E0"),
    ],
    ids=str,
)
def test_a_level_needs_the_evidence_of_all_lower_levels(change: dict[str, Any], level: str) -> None:
    assert judge(replace(COMPLETE, **change)).level == level


def result(**changes: Any) -> QuestionResult:
    """Return a result with the evidence of STRONG, without a verdict."""
    test = blank(
        HoldoutResult,
        n_items=188,
        clusters=Clusters(29, 13, 17, 43),
        accuracy=0.9876,
        accuracy_interval=(0.961, 1.0),
        pronoun_contrast=2.0,
        value_weighted_contrast=1.5,
        p_pair_accuracy=0.0005,
        p_pronoun_contrast=0.0005,
        smallest_p=0.0005,
        best_baseline=BestBaseline("nearest", 0.5, (0.3, 0.5)),
        untrained=blank(UntrainedScores, accuracy=0.47),
    )
    values = {
        "question": "number",
        "site": "pronoun",
        "layer": 1,
        "head": 2,
        "test": {"headline": test},
        "selectivity": 0.5,
        "head_type": HeadType(0.05, 0.0, 0.0, 0.02),
        "mass": MentionMass(0.8, 0.1),
        "causal": blank(CausalResult, attention_swap=0.7, edge_specificity_interval=(0.2, 0.4)),
    }
    return blank(QuestionResult, **values | changes)


def test_evidence_is_read_from_a_result_and_from_the_counts_over_seeds() -> None:
    assert evidence_of(result()) == STRONG
    assert evidence_of(result(), 7, 5) == replace(STRONG, n_seeds=7, n_seeds_supported=5)
    untested = evidence_of(result(causal=None))
    assert untested == replace(STRONG, attention_swap=None, edge_specificity=None)


def test_a_supported_claim_names_head_verdict_accuracy_and_baselines() -> None:
    claim = claim_card(judged(result()), MODEL).claim
    for words in ("L1H2 links a pronoun to its antecedent", "supported", "E3", "98.8 % [96.1, 100.0]", "188 items"):
        assert words in claim
    assert "nearest" in claim
    assert "47.0 %" in claim


def test_a_claim_that_is_not_established_says_so_and_lists_the_criteria() -> None:
    missing = {"selectivity": 0.0, "causal": None, "mass": MentionMass(0.0, None), "head_type": HeadType(0.9, 0, 0, 0)}
    card = claim_card(judged(result(**missing)), MODEL)
    assert card.claim.startswith("No attention head is shown to link")
    assert "Criteria not met: selective. Criteria not measured: causal edge, rests without antecedent." in card.claim


# What is measured of each head of a set.
MEMBER = Evidence(previous=0.05, induction=0.02, pronoun_contrast=2.0, value_weighted_contrast=1.5)


def head_set(
    *members: Evidence,
    attention_swap: float = 0.9,
    all_heads_dev: float = 0.7,
    answer_is_constant: bool = False,
    **scores: Any,
) -> HeadSet:
    """Return the judged set of two heads with the evidence of STRONG."""
    values = {
        "accuracy": 0.973,
        "accuracy_interval": (0.912, 1.0),
        "p_pair_accuracy": 0.002,
        "p_pronoun_contrast": 0.001,
        "smallest_p": 0.0005,
        "lead_interval": (0.3, 0.5),
        "selectivity": 0.5,
        "unlinked_share": 0.2,
        "edge_specificity_interval": (0.3, 0.5),
    }
    found = blank(
        HeadSet,
        heads=[Head(1, 2), Head(0, 1)],
        attention_swap=attention_swap,
        all_heads_dev=all_heads_dev,
        curve=[SetStep(1, 2, 0.4, 0.4), SetStep(0, 1, 0.6, 0.9)],
        scores=blank(SetScores, **values | scores),
    )
    return judged_set(
        found, members or (MEMBER, MEMBER), Clusters(29, 13, 17, 43), answer_is_constant=answer_is_constant
    )


def weak(**changes: Any) -> QuestionResult:
    """Return a result whose head meets all criteria but the causal one."""
    return result(causal=blank(CausalResult, attention_swap=0.16, edge_specificity_interval=(0.2, 0.4)), **changes)


def test_a_set_is_the_unit_if_it_is_supported_and_the_head_alone_is_not() -> None:
    shared = judged(weak(head_set=head_set()))
    assert (shared.unit, shared.verdict, shared.evidence_level) == ("set", "supported", "E3")
    assert (shared.judged_heads, shared.judged_swap) == ([(1, 2), (0, 1)], 0.9)
    claim = claim_card(shared, MODEL).claim
    assert claim.startswith("Attention heads L1H2 and L0H1 together link a pronoun")
    assert "97.3 % [91.2, 100.0]" in claim


def test_a_head_that_is_supported_alone_is_the_unit() -> None:
    alone = judged(result(head_set=head_set()))
    assert (alone.unit, alone.verdict, alone.judged_heads, alone.judged_swap) == ("head", "supported", [(1, 2)], 0.7)


@pytest.mark.parametrize(
    "found",
    [
        head_set(p_pair_accuracy=0.01),
        head_set(lead_interval=(0.0, 0.5)),
        head_set(selectivity=0.15),
        head_set(attention_swap=0.2),
        head_set(edge_specificity_interval=(0.0, 0.5)),
        head_set(unlinked_share=0.5),
        head_set(all_heads_dev=0.8),
        head_set(answer_is_constant=True),
        head_set(MEMBER, replace(MEMBER, induction=0.5)),
        head_set(MEMBER, replace(MEMBER, value_weighted_contrast=-0.1)),
    ],
    ids=[
        "p",
        "lead",
        "selectivity",
        "swap",
        "specificity",
        "rest",
        "less than all heads",
        "constant answer",
        "induction head",
        "contradicting values",
    ],
)
def test_a_set_needs_what_a_head_needs(found: HeadSet) -> None:
    still = judged(weak(head_set=found))
    assert (still.unit, still.verdict, still.evidence_level) == ("head", "suggestive", "E2")


def test_limits_name_the_words_and_frames_of_the_test() -> None:
    assert "29 sentence frames, 43 pairs of 13 and 17 words" in claim_card(judged(result()), MODEL).does_not_show[-1]


@pytest.mark.parametrize(
    ("words", "shape"),
    [("training data are unknown", {"source": "transformers"}), ("token_shift", {"token_shift": True})],
)
def test_a_limit_of_the_model_is_named_only_where_it_holds(words: str, shape: dict[str, Any]) -> None:
    assert words in " ".join(claim_card(judged(result()), replace(MODEL, shape=shape)).does_not_show)
    assert words not in " ".join(claim_card(judged(result()), MODEL).does_not_show)


@pytest.mark.parametrize(("interval", "is_limit"), [((1.0, 1.0), True), ((0.9, 1.0), False), ((np.nan, np.nan), False)])
def test_a_head_without_errors_says_nothing_about_how_rare_they_are(interval: Any, is_limit: bool) -> None:
    whole = judged(result())
    test = replace(whole.headline, accuracy_interval=interval)
    limits = claim_card(replace(whole, test={"headline": test}), MODEL).does_not_show
    assert ("resampling shows none" in " ".join(limits)) == is_limit


def test_an_answer_that_ignores_the_pronoun_is_a_criterion_not_met() -> None:
    constant = judged(result(causal=blank(CausalResult)))
    assert "does not follow the pronoun" in constant.reasons[0]
    assert "Criteria not met: causal edge." in claim_card(constant, MODEL).claim


DECIDES: dict[str, Any] = {
    "follows_twin": Estimate(0.9, 0.8, 1.0), "p": 0.001, "t": 9.0, "untrained_t": 5.0,
    "meant_cut": Estimate(0.3, 0.1, 0.5), "other_cut": Estimate(-0.2, -0.3, -0.1),
    "content_cut": Estimate(0.2, 0.1, 0.3), "share": Estimate(0.4, 0.3, 0.5),
}  # fmt: skip


@pytest.mark.parametrize(
    ("level", "word", "misses"),
    [
        ("E0", "the model does not know", [{"follows_twin": Estimate(0.6, 0.5, 0.7)}]),
        ("E1", "not established", [{"p": 0.01}, {"t": 5.0}, {"t": -9.0, "untrained_t": -10.0}]),
        ("E2", "suggestive", [{"meant_cut": Estimate(0.09, 0.05, 0.5)}, {"meant_cut": Estimate(0.3, 0.02, 0.5)},
                              {"other_cut": Estimate(-0.2, -0.3, 0.0)}, {"content_cut": Estimate(0.2, 0.0, 0.3)},
                              {"share": Estimate(0.19, 0.1, 0.3)}, {"share": Estimate(np.nan, np.nan, np.nan)}]),
        ("E3", "supported", [{}]),
    ],
)  # fmt: skip
def test_a_decision_has_the_last_level_with_all_criteria_met(level: str, word: str, misses: list[Any]) -> None:
    for change in misses:
        criteria = decision_criteria(**DECIDES | change)
        assert decision_verdict(criteria) == (level, word), change
        assert sum(not criterion.is_met for criterion in criteria) == bool(change)


def test_four_of_five_seeds_replicate_a_head() -> None:
    assert is_replicated(4, 5) and not is_replicated(7, 9) and not is_replicated(4, 4)


def test_the_corrected_p_of_a_head_is_the_larger_of_its_two_tests() -> None:
    heads = blank(HeadTable, p_pair_accuracy=[[0.5, 0.01]], p_pronoun_contrast=[[0.2, 0.03]])
    assert corrected_p(heads) == [[0.5, 0.03]]
