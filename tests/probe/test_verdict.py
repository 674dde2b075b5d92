"""The verdict follows from the bars, and the claim from both; questions do not overlap."""

from itertools import product

import numpy as np
import pytest

import extras.english  # noqa: F401 (adds its questions)
from extras.own.source import question_of_file
from probe.by_attention import exclusions_of
from probe.outcome import Measured
from probe.questions import QUESTIONS, WITHOUT_LINK
from probe.results import MEASURES, Estimate, Head
from probe.verdict import judged
from tests.probe.factories import own_question

LINK = QUESTIONS["number"]
EDGE = QUESTIONS["next_pronoun_gender"]
WHOSE = QUESTIONS["next_pronoun_whose"]
STRONG = {
    "p_pair_accuracy": Estimate(0.0005), "p_contrast": Estimate(0.0005), "lead": Estimate(0.4, 0.3, 0.5),
    "selectivity": Estimate(0.5), "swap": Estimate(0.7, 0.6, 0.8), "specificity": Estimate(0.3, 0.2, 0.4),
    "carries": Estimate(0.6, 0.5, 0.7), "answer_accuracy": Estimate(0.9, 0.8, 1.0),
}  # fmt: skip
DECIDES = {
    "follows": Estimate(0.9, 0.8, 1.0), "p": Estimate(0.001), "t": Estimate(9.0),
    "cut_meant": Estimate(0.3, 0.1, 0.5), "cut_other": Estimate(-0.2, -0.3, -0.1),
    "beyond_control": Estimate(0.2, 0.1, 0.3), "swap": Estimate(0.4, 0.3, 0.5),
}  # fmt: skip
OF_PLACE = {
    "beyond_place": Estimate(0.42), "p_beyond_place": Estimate(0.0005), "passages": Estimate(700),
    "form": Estimate(0.4), "p_form": Estimate(0.0005), "words": Estimate(0.1), "p_words": Estimate(0.2),
    "choice_share": Estimate(0.5, 0.3, 0.8), "author": Estimate(0.73, 0.68, 0.78), "author_auc": Estimate(0.77),
    "looks": Estimate(0.68, 0.64, 0.72), "looks_where_unsure": Estimate(0.5, 0.44, 0.56),
}  # fmt: skip
CONSTANT = {"causal_edge": "the model's answer is not shown to follow what decides"}
NAN = Estimate(np.nan, np.nan, np.nan)
COMPLETE = {"attention": STRONG, "edge": DECIDES, "whose": OF_PLACE}
FEW = {"swap": Estimate(0.2), "selectivity": Estimate(0.15)}


def judge(values, question=LINK, *exclusions, **facts):
    return judged([Head(1, 2)], Measured(values, list(exclusions), **facts), question)


@pytest.mark.parametrize(
    ("question", "level", "verdict", "misses"),
    [
        (LINK, "E3", "supported", [{}]),
        (LINK, "E3", "suggestive", [{"selectivity": Estimate(0.15)}, {"carries": Estimate(0.6, 0.49, 0.7)},
            {"answer_accuracy": Estimate(0.89, 0.8, 1.0)}, {"carries": NAN}]),
        (LINK, "E2", "suggestive", [{"specificity": Estimate(0.3, 0.0, 0.4)}, {"swap": Estimate(0.2)}, FEW]),
        (LINK, "E1", "not established", [{"p_contrast": Estimate(0.01)}, {"p_pair_accuracy": Estimate(0.01)}]),
        (LINK, "E0", "suggestive", [{"lead": Estimate(0.4, 0.0, 0.5)}]),
        (LINK, "E0", "not established", [FEW | {"lead": Estimate(0.4, 0.0, 0.5)}]),
        (EDGE, "E3", "supported", [{}]),
        (EDGE, "E2", "suggestive",
            [{"cut_meant": Estimate(0.09, 0.05, 0.5)}, {"cut_meant": Estimate(0.3, 0.02, 0.5)},
             {"cut_other": Estimate(-0.2, -0.3, 0.0)}, {"beyond_control": Estimate(0.2, 0.0, 0.3)},
             {"swap": Estimate(0.19, 0.1, 0.3)}, {"swap": NAN}]),
        (EDGE, "E1", "not established", [{"p": Estimate(0.01)}, {"t": Estimate(0.0)}]),
        (EDGE, "E0", "the model does not know", [{"follows": Estimate(0.6, 0.5, 0.7)}]),
        (WHOSE, "E3", "supported", [{}]),
        (WHOSE, "E2", "suggestive",
            [{"choice_share": Estimate(0.5, 0.05, 0.8)}, {"choice_share": Estimate(0.19, 0.1, 0.3)}]),
        (WHOSE, "E1", "not established",
            [{"p_beyond_place": Estimate(0.01)}, {"beyond_place": Estimate(0.0)}]),
    ],
)  # fmt: skip
def test_values_at_their_bars_miss_them(question, level, verdict, misses):
    for change in misses:
        found = judge(COMPLETE[question.outcome] | change, question)
        assert (found.level, found.verdict, len(found.reasons)) == (level, verdict, len(change)), change
        assert all(found.reasons), "a bar without a reason"


def test_another_head_type_excludes_any_claim():
    rows = [(1, {"previous": 0.41}, 1.5), (1, {"induction": 0.5}, 1.5), (1, {}, -0.1), (2, {"previous": 0.5}, -0.1)]
    at_the_bar = {"previous": 0.4, "induction": 0.4, "first": 0.9}
    for n, types, weighted_contrast in (*rows, (0, at_the_bar, 1.5), (0, {}, np.nan)):
        exclusions = exclusions_of(LINK, types, 2.0, weighted_contrast)
        found = judge(STRONG, LINK, *exclusions)
        assert (len(exclusions), found.reasons) == (n, exclusions)
        assert (found.verdict, found.level) == (("not established", "E0") if n else ("supported", "E3"))
        assert all(criterion.passed for criterion in found.criteria)


def test_a_question_of_the_users_own_asks_for_a_control_only_if_it_has_one():
    own, with_control = (question_of_file(own_question("agree", has_control=has)) for has in (False, True))
    assert set(with_control.criteria) - set(own.criteria) == {WITHOUT_LINK}


def test_a_reason_by_attention_names_what_decides_and_no_pronoun():
    chance = dict.fromkeys(("p_pair_accuracy", "p_contrast"), Estimate(0.5))
    found = judge(chance, LINK, instead=CONSTANT)
    reasons = " ".join(found.reasons)
    assert "following what decides may be chance" in reasons and "0.5 (contrast)" in reasons
    assert found.criteria[0].label == "follows what decides" and "pronoun" not in reasons + MEASURES["contrast"].label


def test_missing_values_pass_nothing():
    for question, values in product((LINK, EDGE), ({}, dict.fromkeys(STRONG, NAN))):
        found = judge(values, question)
        assert found.verdict in ("not established", "the model does not know") and found.level == "E0"
        assert {criterion.outcome for criterion in found.criteria} == {"not measured"}
