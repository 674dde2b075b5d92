"""The whole study: the right head is found, on the right items, and a model that breaks the contract is refused."""

import csv
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from data.links import LinkItem
from model.observe import TransformerView
from probe.config import ProbeConfig
from probe.items import QUESTIONS, UNDECIDED, Question
from probe.links import HeadScores, LinkStudy, check_undecided, study_links
from probe.results import ProbeResults, QuestionResult
from probe.scores import best_head, measure_heads, score_heads
from probe.verdict import LEVELS
from report.tables import heads_csv, items_jsonl
from tests.blank import blank
from tests.probe.story_items import FULL, planted, story_items, story_model, untrained_models
from tests.probe.test_contract import ScaledLogits

HOLDOUTS = {"iid", "pairs", "nouns", "frames", "headline", "distance"}


def entry_of(study: LinkStudy, question: str) -> QuestionResult:
    return next(entry for entry in study.selected if entry.question == question)


def question_of(entry: QuestionResult) -> Question:
    return next(question for question in QUESTIONS if question.name == entry.question)


@pytest.mark.parametrize("question", ["number", "gender"])
def test_the_planted_head_is_found_and_is_right_in_every_holdout(studied_planted: LinkStudy, question: str) -> None:
    entry = entry_of(studied_planted, question)
    assert (entry.layer, entry.head) == (1, 2)
    assert set(entry.test) == HOLDOUTS
    for test in entry.test.values():
        assert test.accuracy == test.block_accuracy == test.accuracy_flipped == 1


def test_the_planted_head_meets_the_criteria_of_a_link(studied_planted: LinkStudy) -> None:
    """All but the last: the planted head attends to chance nouns where no noun is meant."""
    entry = entry_of(studied_planted, "number")
    passed = {criterion.name for criterion in entry.criteria if criterion.passed}
    assert passed >= {"pronoun_flip", "beats_baselines", "selective", "causal_edge"}
    assert entry.verdict == ("supported" if "rests_without_antecedent" in passed else "suggestive")
    assert entry.evidence_level == "E3"


def test_links_are_measured_for_heads_that_are_at_least_suggestive(
    studied: LinkStudy, studied_planted: LinkStudy
) -> None:
    for results in (studied, studied_planted):
        watched = {question.name for question in QUESTIONS if question.watched}
        expected = [e.question for e in results.selected if e.verdict != "not established" and e.causal]
        assert [entry.question for entry in results.importance] == [q for q in expected if q in watched]
    assert {entry.question for entry in studied_planted.importance} >= {"number", "gender"}
    assert len(studied.importance) < len(studied.selected)


def test_random_weights_have_no_supported_head(studied: LinkStudy) -> None:
    results = studied
    names = [entry.question for entry in results.selected]
    assert names == ["number", "gender", "later_cue", "later_cue_repeat"]
    for entry in results.selected:
        assert entry.verdict != "supported"
        assert entry.evidence_level in LEVELS
        assert all(test.accuracy < 0.9 for test in entry.test.values())


def test_intervals_contain_their_score_and_p_corrected_is_the_larger_p(studied: LinkStudy) -> None:
    for entry in studied.selected:
        for test in entry.test.values():
            low, high = test.accuracy_interval
            assert low <= test.accuracy <= high
            assert test.p_corrected == max(test.p_pair_accuracy, test.p_pronoun_contrast)


def choose_and_test(model: TransformerView, question: Question) -> tuple[tuple[int, int], float]:
    """Return the best iid dev head and its accuracy on the headline, from readings of these items alone."""
    scores = {}
    for split, holdout in (("dev", "iid"), ("test", "headline")):
        items = [item for item in story_items(split) if question.matches(item) and item.holdout == holdout]
        scores[split] = score_heads(measure_heads(model, items, 4096))
    head = best_head(scores["dev"])
    return head, float(scores["test"].accuracy[:, *head].mean())


def test_the_head_is_chosen_on_dev_and_tested_on_the_headline(studied: LinkStudy) -> None:
    entry = entry_of(studied, "number")
    head, accuracy = choose_and_test(TransformerView(story_model()), QUESTIONS[0])
    assert (entry.layer, entry.head) == head
    assert entry.headline.accuracy == pytest.approx(accuracy)
    assert {item.holdout for item in studied.dev.items} == {"iid"}


def test_every_untrained_model_chooses_its_own_head(studied: LinkStudy) -> None:
    accuracy = [choose_and_test(model, QUESTIONS[0])[1] for model in untrained_models()]
    result = entry_of(studied, "number").headline.untrained
    assert result.n_models == 2
    assert result.accuracy == pytest.approx(np.mean(accuracy))
    assert result.accuracy_range == pytest.approx([min(accuracy), max(accuracy)])


def test_the_map_of_all_heads_contains_the_chosen_heads_scores(studied: LinkStudy) -> None:
    for entry in studied.selected:
        test = entry.headline
        for field in fields(entry.heads):
            values = getattr(entry.heads, field.name)
            assert values[entry.layer][entry.head] == getattr(test, field.name)


def test_the_files_for_other_programs_hold_the_scores_of_all_heads_and_each_item_of_the_chosen_one(
    studied: LinkStudy,
) -> None:
    rows = list(
        csv.DictReader(heads_csv(blank(ProbeResults, selected=studied.selected), {"test": studied.test}).splitlines())
    )
    lines = items_jsonl(blank(ProbeResults, selected=studied.selected), studied.test).splitlines()
    items = [json.loads(line) for line in lines]
    for entry in studied.selected:
        place = (entry.question, "headline", str(entry.layer), str(entry.head))
        (row,) = [row for row in rows if (row["question"], row["holdout"], row["layer"], row["head"]) == place]
        assert float(row["accuracy"]) == pytest.approx(entry.headline.accuracy, abs=1e-6)
        of_question = [item for item in items if item["question"] == entry.question]
        assert len(of_question) == sum(tested.n_items for tested in entry.test.values())
        strict = [item["strict"] for item in of_question if item["holdout"] == "headline"]
        assert np.mean(strict) == pytest.approx(entry.headline.strict_accuracy)


def test_half_of_the_blocks_lie_below_and_above_the_median_block(studied: LinkStudy) -> None:
    for entry in studied.selected:
        items, rows = studied.test.select(question_of(entry), "headline")
        contrast = score_heads(rows).pronoun_contrast[:, entry.layer, entry.head]
        median = entry.median
        assert median.n_blocks == len(contrast)
        assert median.pronoun_contrast == np.sort(contrast)[(len(contrast) - 1) // 2]
        assert median.block == items[4 * list(contrast).index(median.pronoun_contrast)].block


def test_a_model_that_breaks_the_contract_is_refused(settings: ProbeConfig) -> None:
    dev, test = (story_items(split, "agreement", "pronoun") for split in ("dev", "test"))
    with pytest.raises(ValueError, match="does not end in the model's logits"):
        study_links(ScaledLogits(planted("coreference")), [], dev, test, settings)


def test_an_undecided_site_that_is_decided_is_refused() -> None:
    items = [item for item in story_items("test", "agreement", "pronoun", FULL) if item.holdout == "iid"]
    decided = [replace(item, site="before_pronoun") for item in items]
    scores = HeadScores(decided, measure_heads(TransformerView(planted("coreference")), decided, 4096))
    with pytest.raises(ValueError, match="agreement_before_pronoun is decided"):
        check_undecided(scores)


def test_undecided_sites_have_a_distance_of_exactly_zero(studied: LinkStudy) -> None:
    assert studied.contract.undecided == {question.name: 0.0 for question in UNDECIDED}


@pytest.mark.parametrize(("split", "holdout"), [("dev", "iid"), ("test", "headline")])
def test_a_question_without_items_to_choose_or_to_test_on_is_left_out(
    settings: ProbeConfig, split: str, holdout: str
) -> None:
    items = {
        name: [item for item in story_items(name, "later_cue") if item.holdout in ("iid", "headline")]
        for name in ("dev", "test")
    }
    items[split] = [item for item in items[split] if (item.site, item.holdout) != ("before_repeat", holdout)]
    results = study_links(TransformerView(story_model()), [], items["dev"], items["test"], settings)
    assert [entry.question for entry in results.selected] == ["later_cue"]


def test_without_test_items_of_known_words_selectivity_is_measured_on_two_halves_of_dev(
    settings: ProbeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = [item for item in story_items("dev", "agreement", "pronoun") if item.holdout == "iid"]
    dev = [*once, *(replace(item, block=item.block + 1000) for item in once)]  # every pair in two blocks
    test = [item for item in story_items("test", "agreement", "pronoun") if item.holdout == "headline"]
    parts: list[list[set[int]]] = []

    def record(
        chosen_on: list[LinkItem], of_chosen: np.ndarray, scored_on: list[LinkItem], of_scored: np.ndarray, *_: object
    ) -> float:
        assert len(chosen_on) == len(scored_on) == len(of_chosen) == len(of_scored)
        assert {item.pair for item in chosen_on} == {item.pair for item in scored_on}
        parts.append([{item.block for item in part} for part in (chosen_on, scored_on)])
        return 0.5

    monkeypatch.setattr("probe.links.selectivity", record)
    results = study_links(TransformerView(planted("coreference")), [], dev, test, settings)
    assert [entry.selectivity for entry in results.selected] == [0.5] * len(parts) and parts
    for question, (chosen_on, scored_on) in zip(results.selected, parts, strict=True):
        blocks = {item.block for item in dev if question_of(question).matches(item)}
        assert chosen_on | scored_on == blocks and not chosen_on & scored_on


def test_progress_tells_the_stages_and_their_shares(settings: ProbeConfig) -> None:
    dev, test = (story_items(split, "agreement", "pronoun") for split in ("dev", "test"))
    stages: list[tuple[str, float]] = []
    models = untrained_models()
    config = replace(settings, n_untrained=len(models))
    study_links(TransformerView(story_model()), models, dev, test, config, lambda *stage: stages.append(stage))
    assert stages[:3] == [("the heads at all texts", 0.0), ("untrained models", 1 / 3), ("untrained models", 2 / 3)]
    assert stages[3:] == [("number", 0.0), ("gender", 1 / 2)]


def test_every_payoff_counts_once_at_a_decided_site(studied: LinkStudy) -> None:
    answers = studied.behaviour
    payoffs = {(item.text, item.payoff) for item in story_items("test") if item.payoff is not None}
    assert sum(entry.n for entry in answers) == len(payoffs)
    sites = {(entry.family, entry.site) for entry in answers}
    assert sites >= {("agreement", "pronoun"), ("later_cue", "cue")}
    assert not sites & {("agreement", "before_pronoun"), ("later_cue", "pronoun")}
