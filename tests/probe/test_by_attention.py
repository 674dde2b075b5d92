"""Questions by attention: the right head is found on the right items, nothing in models without one or wrong views."""

import re
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from data.pairs import CONTROL, Items
from extras.own.source import question_of_file
from model.observe import TransformerView
from probe import by_attention as attention
from probe.attention import best_head, measure_heads
from probe.contract import LIMITS
from probe.outcomes import OUTCOMES
from probe.questions import DEV, HEADLINE, QUESTIONS, SAME_WORDS, STORY_QUESTIONS
from probe.results import Estimate, Finding, Head, Part
from probe.study import askable, study
from settings.errors import UserError
from tests.extras.page.sample import MODEL
from tests.probe.factories import (
    SETTINGS,
    blank,
    noun_pairs,
    own_question,
    planted,
    story_model,
    story_pairs,
    three_heads,
    untrained_view,
)
from tests.probe.test_contract import SCALED

NUMBER = QUESTIONS["number"]


def studied(model, items, config=SETTINGS):
    return study(TransformerView(model), untrained_view, items, STORY_QUESTIONS, config)


@cache
def of_random_weights():
    return studied(story_model(), story_pairs("study"))


def test_the_planted_head_is_found_is_right_in_every_part_and_meets_the_criteria():
    verb, number, gender = studied(planted("coreference", layer=1, head=2), story_pairs("study")).findings
    for finding in (number, gender):
        assert (finding.place, set(finding.parts)) == (Head(1, 2), {SAME_WORDS, HEADLINE})
        for part in finding.parts.values():
            assert part.values["accuracy"].value == part.values["block_accuracy"].value == 1
        assert (finding.verdict, finding.level, finding.unit) == ("supported", "E3", "head")
        assert finding.head.value("swap") == pytest.approx(1, abs=0.05)
        answers = finding.parts[HEADLINE].values
        assert answers["answer_accuracy"].value > 0.95 and answers["answer_shuffled"].value > 0.95
        _, needs, carried = OUTCOMES["attention"].sentences(finding, MODEL)
        assert re.fullmatch(
            r"What carries 1\S* of the answer: L1H2 \(1\S*\) reads the antecedent \(weight \S+\)\.", carried
        )
        assert needs.startswith("A table of words is enough: the answer is right in ")
    assert verb.verdict == "not established" and OUTCOMES["attention"].what_it_needs(verb) == ""


@pytest.mark.parametrize("kind", ["lexical", "first", "singular", "previous", "uniform"])
def test_a_head_with_another_habit_is_not_supported(kind):
    model = planted(kind, layer=1, head=2, strength=2.0)
    [finding] = studied(model, story_pairs("study", "number")).findings
    assert finding.verdict != "supported" and finding.head.value("accuracy") < 0.9
    if kind == "lexical":
        assert finding.head.value("selectivity") < 0.15


def test_random_weights_have_no_supported_head():
    assert [finding.question for finding in of_random_weights().findings] == ["verb", "number", "gender"]
    for finding in of_random_weights().findings:
        assert finding.verdict != "supported"
        assert all(part.values["accuracy"].value < 0.9 for part in finding.parts.values())

        # The grids of all heads contain the chosen head's values.
        layer, head = finding.place
        assert set(finding.grids) == {"accuracy", "block_accuracy", "contrast", "p"}
        for name, grid in finding.grids.items():
            assert grid[layer][head] == pytest.approx(finding.head.value(name)), name

    assert of_random_weights().contract.keys() == {*LIMITS}


def test_the_head_of_each_model_is_chosen_on_dev_and_tested_on_the_headline():
    finding = of_random_weights().findings[1]
    dev, tested = (story_pairs("study").of("number", part) for part in (DEV, HEADLINE))
    heads, accuracies = [], []
    for model in (TransformerView(story_model()), untrained_view(0), untrained_view(1)):
        heads.append(best_head(measure_heads(model, dev, 4096).scores()))
        accuracies.append(measure_heads(model, tested, 4096).scores().accuracy[:, *heads[-1]].mean())
    own, *others = accuracies
    assert (finding.place, finding.n) == (heads[0], len(tested.cells))
    result = finding.untrained["accuracy"]
    found = [finding.head.value("accuracy"), result.value, result.low, result.high]
    assert found == pytest.approx([own, np.mean(others), min(others), max(others)])


@pytest.mark.parametrize("part", [DEV, HEADLINE])
def test_a_question_without_items_to_choose_or_to_test_on_says_why(part):
    pairs = [pair for pair in story_pairs("study").pairs if (pair.question, pair.part) != ("gender", part)]
    questions, missing = askable(STORY_QUESTIONS, Items(pairs))
    assert [question.name for question in questions] == ["verb", "number"]
    assert missing == [f"gender: no items in the part {part}"]


def test_a_model_that_breaks_the_contract_is_refused():
    with pytest.raises(UserError, match="does not end in the model's logits"):
        study(SCALED, untrained_view, story_pairs("study"), STORY_QUESTIONS, SETTINGS)


@pytest.mark.parametrize(("low", "shuffled", "needed"), [
    (0.95, 0.9, "A table of words is enough: "),
    (0.95, 0.75, "Part of this needs the sentence: "),
    (0.95, 0.6, "This needs the sentence: "),
    (0.5, 0.5, ""),
])  # fmt: skip
def test_what_stays_when_words_are_shuffled_says_what_an_answer_needs(low, shuffled, needed):
    answers = {"answer_accuracy": Estimate(1.0, low, 1.0), "answer_shuffled": Estimate(shuffled)}
    finding = blank(Finding, parts={HEADLINE: blank(Part, values=answers)})
    assert OUTCOMES["attention"].what_it_needs(finding).partition("the answer is")[0] == needed


def test_without_test_items_of_known_words_selectivity_is_measured_on_two_halves_of_dev():
    dev = story_pairs("study").of("number", DEV)
    again = [replace(pair, block=pair.block + 1000) for pair in dev.pairs]  # every pair of words in two blocks
    items = dev + Items(again) + story_pairs("study").of("number", HEADLINE)
    [finding] = studied(planted("coreference"), items).findings
    # Of words that both halves have, a control task can be learned in part; of unknown words it would be 0.5.
    assert 0.3 < finding.head.value("selectivity") < 0.48


def many_nouns(part):
    """Return the blocks of `noun_pairs` four times, with frames and words of their own."""
    pairs = []
    for copy, pair in product(range(4), noun_pairs().pairs):
        clusters = tuple(f"{label} {copy}" for label in pair.clusters)
        pairs.append(replace(pair, part=part, block=10 * copy + pair.block, clusters=clusters))
    return pairs


def nouns_studied(writing, question=NUMBER, control=()):
    pairs = Items([*many_nouns(DEV), *many_nouns(HEADLINE), *control])
    found = study(three_heads(3.0, writing), lambda seed: three_heads(0.0), pairs, [question], SETTINGS)
    return found.findings[0]


def test_two_heads_that_share_the_work_are_judged_as_a_set(monkeypatch):
    """With a bar above what one of two heads can reach."""
    bars = tuple(replace(bar, limit=0.8) if bar.measure == "swap" else bar for bar in NUMBER.bars)
    stricter = replace(NUMBER, bars=bars)
    finding = nouns_studied([1, 2], stricter)
    assert finding.set is not None and set(finding.set.heads) == {Head(0, 1), Head(0, 2)}
    assert (finding.unit, finding.verdict, finding.head.verdict) == ("set", "supported", "suggestive")
    assert finding.head.value("swap") == pytest.approx(0.5, abs=0.02)
    assert finding.set.value("swap") == pytest.approx(1, abs=1e-3)
    assert finding.set.value("specificity") == pytest.approx(2 * finding.head.value("specificity"), rel=0.05)
    assert [step.value for *_, step in finding.curve] == pytest.approx([0.5, 1.0], abs=0.02)

    # One of them is of another known type.
    monkeypatch.setattr(attention, "head_types", lambda *_: {"induction": np.array([[0.1, 0.9, 0.1]])})
    excluded = nouns_studied([1, 2], stricter)
    assert excluded.set is not None and excluded.set.verdict == "not established" and excluded.unit == "head"
    assert excluded.set.reasons[0].startswith("L0H1: no claim: it is a")


def test_one_head_that_decides_is_supported_alone():
    finding = nouns_studied([2])
    assert (finding.place, finding.unit, finding.verdict, finding.level) == (Head(0, 2), "head", "supported", "E3")
    assert (finding.set, finding.curve) == (None, [])


def test_a_head_that_does_the_same_without_the_link_is_not_supported():
    question = question_of_file(own_question("number", has_control=True))
    # A control whose texts are both the first one has no contrast.
    same = many_nouns(CONTROL)
    alike = []
    for pair in same:
        first = pair.cells[0]
        alike.append(replace(pair, cells=(first, replace(first, meant=first.other, other=first.meant))))
    for control, share, verdict in ((alike, 1.0, "supported"), (same, 0.0, "carried")):
        finding = nouns_studied([2], question, control)
        beyond = pytest.approx(share * finding.head.value("contrast"), abs=1e-5)
        assert (finding.verdict, finding.head.value("beyond_control_text")) == (verdict, beyond)
    assert "remains in texts without the link" in finding.head.reasons[0]


def test_effects_are_not_measured_if_the_answer_ignores_the_pronoun():
    finding = nouns_studied([])
    assert finding.head.value("answer") == pytest.approx(0, abs=1e-6)
    assert "swap" not in finding.head.values and (finding.curve, finding.set) == ([], None)
    reason, *others = finding.head.reasons
    assert others == ["not measured: carries", "the model's own answers are right in 0.5; needed: at least 0.9"]
    assert "is not shown to follow what decides" in reason and finding.level == "E2"
