"""Rules and random labels get their exact scores."""

from dataclasses import replace

import numpy as np
import pytest

from data.links import LinkItem
from probe.baselines import (
    FIXED_RULES,
    REFERENCE_RULES,
    agreement_sieve,
    best_baseline,
    fit_rules,
    fixed_offset,
    most_frequent,
    score_rules,
    selectivity,
)
from probe.results import Head
from tests.probe.story_items import story_items


@pytest.fixture(scope="module")
def dev() -> list[LinkItem]:
    """Items of the validation stories, which share more words with test than dev does."""
    return story_items("validation", "agreement", "pronoun")


@pytest.fixture(scope="module")
def test() -> list[LinkItem]:
    return story_items("test", "agreement", "pronoun")


@pytest.mark.parametrize(("family", "site"), [("agreement", "pronoun"), ("later_cue", "pronoun"), ("later_cue", "cue")])
def test_over_balanced_blocks_every_rule_but_the_sieve_scores_one_half(family: str, site: str) -> None:
    rules = fit_rules(story_items("validation", family, site))
    scores = score_rules(rules, story_items("test", family, site))
    is_decided = (family, site) != ("later_cue", "pronoun")
    for name in rules:
        is_right = name in REFERENCE_RULES and is_decided
        assert scores[name].accuracy.mean() == (1 if is_right else 0.5), name
        assert scores[name].block_accuracy.mean() == (1 if is_right else 0), name
    assert best_baseline(scores) not in REFERENCE_RULES


def with_mentions(item: LinkItem, antecedents: list, distractors: list, **changes: object) -> LinkItem:
    return replace(item, antecedents=tuple(antecedents), distractors=tuple(distractors), **changes)


def test_rules_compare_the_best_antecedent_with_the_best_distractor(dev: list[LinkItem]) -> None:
    item = with_mentions(dev[0], [(3,), (7, 8)], [(5,), (6,), (2,)], subject=(7, 8))
    preferences = {name: rule(item) for name, rule in FIXED_RULES.items()}
    assert preferences == {"nearest": 1, "first": -1, "subject": 1, "uniform": 0}
    assert FIXED_RULES["subject"](replace(item, subject=(5,))) == -1


def test_the_most_frequent_antecedent_of_dev_is_preferred_and_unknown_words_tie(dev: list[LinkItem]) -> None:
    frequent = with_mentions(dev[0], [(4,)], [(6,)])
    rare = with_mentions(dev[0], [(6,)], [(4,)])
    rule = most_frequent([frequent, frequent, frequent, rare])
    assert [rule(item) for item in (frequent, rare, with_mentions(dev[0], [(2,)], [(3,)]))] == [1, -1, 0]


def test_the_fixed_offset_is_the_distance_that_is_right_most_often_in_dev(
    dev: list[LinkItem], test: list[LinkItem]
) -> None:
    def sign(item: LinkItem, offset: int) -> int:
        right = min(abs(item.query - word[-1] - offset) for word in item.antecedents)
        wrong = min(abs(item.query - word[-1] - offset) for word in item.distractors)
        return (right < wrong) - (right > wrong)

    items = dev[::3]
    offsets = sorted({item.query - word[-1] for item in items for word in item.antecedents + item.distractors})
    best = max(offsets, key=lambda offset: sum(sign(item, offset) for item in items))
    rule = fixed_offset(items)
    assert [rule(item) for item in test] == [sign(item, best) for item in test]


def test_the_sieve_ties_at_an_unknown_or_uninformative_query(dev: list[LinkItem]) -> None:
    unknown = replace(dev[0], tokens=(*dev[0].tokens[: dev[0].query], 0))
    assert agreement_sieve(dev)(dev[0]) == 1
    assert agreement_sieve(dev)(unknown) == 0
    assert agreement_sieve([dev[0], replace(dev[0], meant=1 - dev[0].meant)])(dev[0]) == 0


def margins(items: list[LinkItem], kinds: list[str]) -> np.ndarray:
    """Return margins [N, 1, n_kinds] of heads: coreference, a preference for one word of each pair, or ties."""
    sign = np.array([1.0 - 2 * item.meant for item in items])
    word = np.array([1.0 if sum(map(ord, item.pair)) % 2 else -1.0 for item in items])
    heads = {"link": np.ones(len(items)), "word": sign * word, "tie": np.zeros(len(items))}
    return np.stack([heads[kind] for kind in kinds], axis=-1)[:, None]


def test_a_link_head_has_selectivity_one_half(dev: list[LinkItem], test: list[LinkItem]) -> None:
    result = selectivity(dev, margins(dev, ["link"]), test, margins(test, ["link"]), n_controls=7, seed=0)
    assert result == 0.5  # accuracy 1, on control tasks 1/2


def test_a_named_head_is_scored_and_the_control_tasks_may_choose_any(dev: list[LinkItem], test: list[LinkItem]) -> None:
    heads = margins(dev, ["link", "tie"]), margins(test, ["link", "tie"])
    of_link, of_tie = (selectivity(dev, heads[0], test, heads[1], 7, 0, Head(0, head)) for head in (0, 1))
    assert (of_link, of_tie) == (0.5, 0.0)


def test_a_head_that_ranks_the_words_as_the_control_task_does_has_no_selectivity(
    dev: list[LinkItem], test: list[LinkItem]
) -> None:
    words = sorted({word for item in dev + test for word in item.pair.split()[:2]})
    rank = dict(zip(words, np.random.default_rng(5).permutation(len(words)), strict=True))

    def ranking_head(items: list[LinkItem]) -> np.ndarray:
        prefers_meant = [(rank[p] > rank[q]) == (item.meant == 0) for item in items for p, q in [item.pair.split()[:2]]]
        return np.where(prefers_meant, 1.0, -1.0)[:, None, None]

    result = selectivity(dev, ranking_head(dev), test, ranking_head(test), n_controls=1, seed=5)
    assert result == -0.5  # accuracy 1/2, on the control task 1


def test_many_heads_on_few_texts_fit_random_labels(test: list[LinkItem]) -> None:
    """64 heads with random word preferences on 11 blocks, the same to choose and to score on."""
    items = [item for item in test if item.holdout == "iid"][: 4 * 11]
    preferences = np.random.default_rng(0).choice((-1.0, 1.0), size=(11, 1, 1, 64))
    random_heads = (preferences * np.array([1, -1, 1, -1])[:, None, None]).reshape(44, 1, 64)
    heads = np.concatenate([margins(items, ["link"]), random_heads], axis=-1)
    result = selectivity(items, heads, items, heads, n_controls=50, seed=0)
    assert 0.7 < 1 - result < 0.95  # accuracy 1, on control tasks far above 1/2


def test_selectivity_depends_on_the_seed_alone(dev: list[LinkItem], test: list[LinkItem]) -> None:
    rng = np.random.default_rng(0)
    random_margins = [rng.normal(size=(len(items), 2, 3)) for items in (dev, test)]
    first, again, other = (selectivity(dev, random_margins[0], test, random_margins[1], 3, seed) for seed in (1, 1, 2))
    assert first == again != other
