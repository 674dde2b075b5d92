"""Every question is studied with the items that it has, each with its own outcome."""

import pytest

from data.pairs import Items
from probe.questions import DEV, HEADLINE, QUESTIONS, STORY_QUESTIONS
from probe.study import askable, study
from tests.probe.factories import SETTINGS, copying_model, documents, passage_items, story_pairs


@pytest.mark.parametrize("part", [DEV, HEADLINE])
def test_a_question_without_items_to_choose_or_to_test_on_is_left_out(part: str) -> None:
    items = story_pairs("study")
    some = Items([pair for pair in items.pairs if (pair.question, pair.part) != ("gender", part)])
    asked, missing = askable(STORY_QUESTIONS, some)
    assert [question.name for question in asked] == ["number", "later_cue"] and missing == []


def test_questions_of_both_outcomes_are_answered_together() -> None:
    items = passage_items()
    found = study(copying_model([0.0, 3.0]), lambda seed: copying_model([1.0, 1.0], seed), items,
                  tuple(QUESTIONS.values()), SETTINGS, documents())  # fmt: skip
    assert [finding.question for finding in found.findings] == ["next_pronoun_gender"]
    [sentence] = found.missing
    assert sentence.startswith("next_pronoun_number: 0 passages") and found.scores is None
