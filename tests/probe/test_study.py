"""The study as a whole: the right head by its name, tested where it was not chosen, and refused where nothing holds."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from data.links import ORACLES, LinkItem
from probe.behaviour import read_losses
from probe.config import ProbeConfig
from probe.items import QUESTIONS, UNDECIDED
from probe.scores import best_head, read_margins, read_rows, score
from probe.study import Reading, behaviour, study
from probe.verdict import LEVELS
from tests.probe.conftest import Studied, blank
from tests.probe.story_items import FULL, MODEL, planted, random_model, story_items

HOLDOUTS = {"iid", "pairs", "nouns", "templates", "headline", "distance", "distractors"}


def of(results: dict, question: str) -> dict:
    return next(one for one in results["selected"] if one["question"] == question)


def test_the_planted_head_is_named_and_meets_what_its_habit_can_meet(studied_planted: Studied) -> None:
    """All but rest: whether it looks at nouns where nothing is meant was left to chance."""
    results, _ = studied_planted
    for question in ("number", "number", "gender"):
        one = of(results, question)
        assert (one["layer"], one["head"]) == (1, 2)
        assert set(one["test"]) == HOLDOUTS
        assert all(
            found["accuracy"] == found["block_accuracy"] == found["accuracy_flipped"] == 1
            for found in one["test"].values()
        )
        assert one["coreference_share"] > 0.95
    one = of(results, "number")
    assert {name: one["causal"][name] > 0.5 for name in ("attention_swap", "head_effect", "denoising")} == {
        "attention_swap": True,
        "head_effect": True,
        "denoising": True,
    }
    passed = {each["name"] for each in one["criteria"] if each["passed"]}
    assert passed >= {"flips", "beats baselines", "selective", "causal edge"}
    assert one["verdict"] == ("supported" if "rests" in passed else "suggestive") and one["evidence_level"] == "E3"


def test_random_weights_get_a_head_for_every_question_and_stay_within_luck(studied: Studied) -> None:
    results, _ = studied
    assert [one["question"] for one in results["selected"]] == [
        "number", "number", "gender", "later_cue", "later_cue_repeat",
    ]  # fmt: skip
    for one in results["selected"]:
        assert set(one["test"]) == (
            HOLDOUTS if one["family"] == "agreement" else HOLDOUTS - {"distance", "distractors"}
        )
        assert one["verdict"] != "supported" and one["evidence_level"] in LEVELS
        for found in one["test"].values():
            low, high = found["accuracy_interval"]
            assert low <= found["accuracy"] <= high
            assert found["accuracy"] < 0.9


def test_the_head_is_chosen_on_dev_alone_and_every_untrained_model_chooses_its_own(
    studied: Studied, settings: ProbeConfig
) -> None:
    results, readings = studied
    question = QUESTIONS[0]

    def chosen_and_tested(model) -> tuple[tuple[int, int], float]:
        found = {}
        for split, holdout in (("dev", "iid"), ("test", "headline")):
            some = [one for one in story_items(split) if question.picks(one) and one.holdout == holdout]
            rows = read_rows(model, some, settings.tokens_per_batch)
            found[split] = score(rows.preference, rows.selects, rows.strict)
        head = best_head(found["dev"])
        return head, found["test"].accuracy[:, *head].mean()

    one = of(results, "number")
    head, accuracy = chosen_and_tested(random_model())
    assert (one["layer"], one["head"]) == head
    assert one["test"]["headline"]["accuracy"] == pytest.approx(accuracy)
    own = [chosen_and_tested(model)[1] for model in blank(MODEL)]
    without = one["test"]["headline"]["untrained"]
    assert without["accuracy"] == pytest.approx(np.mean(own)) and without["n_models"] == 2
    assert without["accuracy_range"] == pytest.approx((min(own), max(own)))
    assert {item.holdout for item in readings["dev"].items} == {"iid"}


def test_what_is_kept_of_every_head_is_what_stands_beside_the_chosen_one(studied: Studied) -> None:
    results, _ = studied
    for one in results["selected"]:
        tested, (layer, head) = one["test"]["headline"], (one["layer"], one["head"])
        kept = {name: values[layer][head] for name, values in one["heads"].items()}
        assert kept == {
            "accuracy": tested["accuracy"], "block_accuracy": tested["block_accuracy"], "pronoun_contrast": tested["pronoun_contrast"],
            "p_pair_accuracy": tested["p_pair_accuracy"], "p_pronoun_contrast": tested["p_pronoun_contrast"],
        }  # fmt: skip
        squares = {name: value**2 for name, value in one["cues"].items()}
        assert squares["coreference"] / sum(squares.values()) == pytest.approx(one["coreference_share"])
        assert all(found.keys() >= {"accuracy"} and "heads" not in found for found in one["test"].values())


def test_the_median_block_has_as_many_below_as_above(studied: Studied) -> None:
    results, readings = studied
    reading = readings["test"]
    for one in results["selected"]:
        question = next(each for each in QUESTIONS if each.name == one["question"])
        index = reading.index(question, "headline")
        values = reading.rows.preference[index, one["layer"], one["head"]].astype(float).reshape(-1, 4).mean(axis=1)
        median = one["median"]
        assert median["n_blocks"] == len(values) and median["holdout"] == "headline"
        (place,) = {i // 4 for i in range(len(index)) if reading.items[index[i]].block == median["block"]}
        assert median["pronoun_contrast"] == pytest.approx(values[place], abs=1e-6)
        below, above = (
            (values < median["pronoun_contrast"] - 1e-9).sum(),
            (values > median["pronoun_contrast"] + 1e-9).sum(),
        )
        assert below <= (len(values) - 1) // 2 and above <= len(values) // 2


def test_flipped_items_are_those_in_which_the_second_mention_is_meant(studied: Studied) -> None:
    """By hand, of a head that follows place in part."""
    results, readings = studied
    for one in results["selected"]:
        question = next(each for each in QUESTIONS if each.name == one["question"])
        for holdout, found in one["test"].items():
            index = readings["test"].index(question, holdout)
            items = [readings["test"].items[i] for i in index]
            selects = readings["test"].rows.selects[index][:, one["layer"], one["head"]]
            second = [min(item.antecedents + item.distractors[:1]) not in item.antecedents for item in items]
            assert sum(second) == len(items) / 2
            assert found["accuracy_flipped"] == pytest.approx((selects[second] > 0).mean())


def test_a_head_that_follows_the_first_mention_is_never_right_in_flipped_items(settings: ProbeConfig) -> None:
    kept = ("iid", "headline")
    dev, test = ([one for one in story_items(split, "agreement", "pronoun") if one.holdout in kept] for split in SPLITS)
    results, _ = study(planted("first"), [], dev, test, settings)
    question = QUESTIONS[0]
    reading = Reading(test, read_rows(planted("first"), test, 4096))
    index = reading.index(question, "headline")
    flipped = np.array([test[i].order != test[i].meant for i in index])
    right = reading.rows.selects[index][:, 0, 0] > 0
    assert not right[flipped].any() and right[~flipped].all()
    assert all(one["test"]["headline"]["block_accuracy"] < 1 for one in results["selected"])


SPLITS = ("dev", "test")


def test_a_model_that_breaks_the_contract_is_refused(settings: ProbeConfig) -> None:
    model = planted("coreference")
    sound = model.forward
    model.forward = lambda tokens: sound(tokens) * 1.001
    dev, test = (story_items(split, "agreement", "pronoun") for split in SPLITS)
    with pytest.raises(ValueError, match="does not end in the model's logits"):
        study(model, [], dev, test, settings)


@pytest.mark.parametrize(
    ("family", "site", "other"), [("agreement", "pronoun", "before_pronoun"), ("later_cue", "cue", "pronoun")]
)
def test_nothing_is_reported_where_an_undecided_site_is_decided(
    settings: ProbeConfig, family: str, site: str, other: str
) -> None:
    dev, test = (story_items(split, family, site, FULL) for split in SPLITS)
    leaked = [replace(one, site=other) for one in test if one.holdout == "iid"]
    with pytest.raises(ValueError, match=f"nothing is reported of this model: {family} at {other} is decided"):
        study(planted("coreference"), [], dev, [*test, *leaked], settings)


def test_a_third_mention_leaves_undecided_sites_at_exactly_one_half(studied_full: Studied) -> None:
    results, readings = studied_full
    assert any(len(item.distractors) > 1 for item in story_items("test", "agreement", "before_pronoun", FULL))
    assert results["contract"]["undecided"] == {question.name: 0 for question in UNDECIDED}


@pytest.mark.parametrize(("split", "holdout"), [("dev", "iid"), ("test", "headline")])
def test_a_question_without_items_to_choose_or_to_test_on_is_left_out(
    settings: ProbeConfig, split: str, holdout: str
) -> None:
    """So few frames may leave one: then the others are still reported."""
    kept = ("iid", "headline")
    items = {name: [one for one in story_items(name, "later_cue") if one.holdout in kept] for name in SPLITS}
    assert all({one.holdout for one in some if one.site == "before_repeat"} == set(kept) for some in items.values())
    items[split] = [one for one in items[split] if (one.site, one.holdout) != ("before_repeat", holdout)]
    results, _ = study(random_model(), [], items["dev"], items["test"], settings)
    assert [one["question"] for one in results["selected"]] == ["later_cue"]


def payoffs(items: list[LinkItem]) -> set[tuple[str, int]]:
    return {(item.text, item.payoff) for item in items if item.payoff is not None}


@pytest.mark.parametrize("name", ["studied", "studied_full"])
def test_every_payoff_counts_once_at_the_first_site_where_it_is_decided(
    name: str, request: pytest.FixtureRequest
) -> None:
    results, _ = request.getfixturevalue(name)
    items = story_items("test") if name == "studied" else story_items("test", config=FULL)
    assert sum(one["n"] for one in results["behaviour"]) == len(payoffs(items))
    sites = {(one["family"], one["site"]) for one in results["behaviour"]}
    assert ("agreement", "before_pronoun") not in sites and {("agreement", "pronoun"), ("later_cue", "cue")} <= sites
    assert ("later_cue", "pronoun") not in sites and ("A", "pronoun") not in sites
    counts = Counter((one["family"], one["level"], one["site"], one["holdout"]) for one in results["behaviour"])
    assert set(counts.values()) == {1}


def test_answers_are_counted_as_the_margins_say(studied: Studied, settings: ProbeConfig) -> None:
    results, _ = studied
    for one in results["behaviour"]:
        if one["holdout"] == "headline":
            some = [item for item in story_items("test", one["family"], one["site"]) if item.level == one["level"]]
            some = [item for item in some if item.holdout == "headline" and item.payoff is not None]
            margins = read_margins(random_model(), some, settings.tokens_per_batch)
            assert one["n"] == len(some)
            assert one["accuracy"] == pytest.approx((margins > 0).mean())
            assert one["nll"] == pytest.approx(read_losses(random_model(), some, 999).mean(), abs=1e-4)


def test_rho_is_one_of_a_model_that_does_what_the_best_reader_does(settings: ProbeConfig) -> None:
    """And 0 of one that does as well as the blind, and 1/4 of one a quarter of the way from there."""
    items = [item for item in story_items("test", "agreement", "pronoun") if item.holdout == "iid"]
    model = random_model()
    own = read_losses(model, items, settings.tokens_per_batch)

    def found(blind: float, bayes: float) -> set[float]:
        shifts = dict.fromkeys(ORACLES, 9.0) | {"blind": blind, "bayes": bayes}
        known = [
            replace(item, surprisal=tuple(loss + shifts[name] for name in ORACLES))
            for item, loss in zip(items, own, strict=True)
        ]
        return {round(one["rho"], 4) for one in behaviour(model, known, settings)}

    assert found(blind=1.5, bayes=0) == {1}
    assert found(blind=0, bayes=-1.5) == {0}
    assert found(blind=0.5, bayes=-1.5) == {0.25}
    assert found(blind=-0.5, bayes=-1.5) == {-0.5}
