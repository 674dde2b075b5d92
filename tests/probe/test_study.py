"""All questions are asked of the items that they have, each with its own outcome."""

from dataclasses import replace

import pytest

from data.pairs import Items
from model.observe import TransformerView
from probe import study as module
from probe.questions import DEV, HEADLINE, PASSAGE_QUESTIONS, QUESTIONS, SAME_WORDS, STORY_QUESTIONS, UNDECIDED
from probe.study import passages_of, study, with_dev
from tests.probe.factories import (
    SETTINGS,
    chosen,
    copying_model,
    documents,
    passage_items,
    passage_tokenizer,
    passages,
    story_model,
    story_pairs,
    untrained_view,
)


@pytest.mark.parametrize("part", [DEV, HEADLINE])
def test_a_question_without_items_to_choose_or_to_test_on_is_left_out(part: str) -> None:
    items = story_pairs("study")
    some = Items([pair for pair in items.pairs if (pair.question, pair.part) != ("gender", part)])
    assert [question.name for question in module.testable(STORY_QUESTIONS, some)] == ["number", "later_cue"]


def test_dev_has_the_words_of_training_and_undecided_sites_those_of_dev() -> None:
    dev, test = story_pairs("dev"), story_pairs("test")
    items = with_dev(dev, test)
    assert len(items.of("number", DEV)) == len(dev.of("number", SAME_WORDS)) > 0
    assert len(items.of("number", HEADLINE)) == len(test.of("number", HEADLINE)) > 0
    for question in UNDECIDED:
        assert items.parts(question.name) == [SAME_WORDS]


def test_questions_of_both_outcomes_are_answered_together() -> None:
    items = passage_items()
    found = study(copying_model([0.0, 3.0]), lambda seed: copying_model([1.0, 1.0], seed), items,
                  tuple(QUESTIONS.values()), SETTINGS, documents())  # fmt: skip
    assert [finding.question for finding in found.findings] == ["next_pronoun_gender"]
    [sentence] = found.missing
    assert sentence.startswith("next_pronoun_number: 0 passages") and found.scores is None


def test_progress_tells_the_stages_and_their_shares() -> None:
    stages: list[tuple[str, float]] = []
    items = chosen(story_pairs("study"), "number", "gender")
    model = TransformerView(story_model())
    study(model, untrained_view, items, STORY_QUESTIONS, SETTINGS, progress=lambda *stage: stages.append(stage))
    assert stages[:3] == [("the heads at all texts", 0.0), ("untrained models", 1 / 3), ("untrained models", 2 / 3)]
    assert stages[3:] == [("number", 0.0), ("gender", 1 / 2)]


def test_a_model_of_many_heads_reads_fewer_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PASSAGES_LARGE", (11, 12))
    monkeypatch.setattr(module, "MANY_HEADS", 2)
    reader = passage_tokenizer(), 0
    question = PASSAGE_QUESTIONS["gender"]
    of_two, of_three = (
        passages_of(copying_model([1.0] * n), reader, question, passages(), replace(SETTINGS)).pairs for n in (2, 3)
    )
    assert len(of_two) == 120
    assert (sum(not pair.has_two for pair in of_three), sum(pair.has_two for pair in of_three)) == (11, 12)
