"""Heads whose habits are planted: the figures they must score, and what must not change them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from benchmarks.planted import KINDS, plant
from data.links import LinkItem
from probe.contract import check_contract
from probe.scores import Rows, best_head, factorial, read_margins, read_rows, score
from tests.probe.story_items import MODEL, member, planted, rows_of_scores, scores_by_word, story_items, vocabulary


def coreference(item, word) -> float:
    return 1.0 if word in item.antecedents else -1.0


def first(item, word) -> float:
    return 1.0 if word == min(item.antecedents + item.distractors) else -1.0


def singular(item, word) -> float:
    return 1.0 - 2 * member(item, word)


def taste(items: list[LinkItem], by: str):
    """A taste for one of each pair, the other's opposite; lambda is as near a unit normal as can be.

    By "pair" the same in every text, by "block" another one in each text.
    """
    keys = sorted({getattr(item, by) for item in items})
    tastes = dict(zip(keys, norm.ppf((np.arange(len(keys)) + 0.5) / len(keys)), strict=True))
    return lambda item, word: tastes[getattr(item, by)] / 2 * (1 - 2 * member(item, word))


def figures(rows: Rows, *at: int) -> tuple[float, float, float]:
    scores = score(rows.preference, rows.selects, rows.strict)
    return tuple(
        getattr(scores, name).mean(axis=0)[at or (0, 0)] for name in ("accuracy", "block_accuracy", "pronoun_contrast")
    )


def two_alone(items: list[LinkItem]) -> list[LinkItem]:
    """Return those without a third mention: the figures are of a choice between two."""
    return [item for item in items if len(item.distractors) == 1]


@pytest.fixture(scope="module")
def items() -> list[LinkItem]:
    return two_alone(story_items("test", "agreement", "pronoun"))


def test_pure_coreference_scores_one_one_and_two(items: list[LinkItem]) -> None:
    assert figures(rows_of_scores(items, scores_by_word(items, coreference))) == (1, 1, 2)


@pytest.mark.parametrize("habit", ["first", "singular", "lexical"])
def test_first_noun_singular_taste_and_lexical_taste_score_a_half_and_nothing(items: list, habit: str) -> None:
    worth = {"first": first, "singular": singular, "lexical": taste(items, "pair")}[habit]
    assert figures(rows_of_scores(items, scores_by_word(items, worth))) == pytest.approx((0.5, 0, 0), abs=1e-6)


def test_coreference_plus_first_noun_scores_53_hundredths_none_and_one_and_a_half(items: list[LinkItem]) -> None:
    """lambda = 1.5 for the antecedent + 3 for the first + a taste of SD 1 for one of the two nouns, text by text.

    Antecedents that come first are always right. One that comes second loses by 1.5 unless the taste for it is stronger
    than that, and what helps one of the two nouns hurts the other: so Sel@1 = (1 + P(Z > 1.5)) / 2 = .533, and all four
    cells are never right. In DD place and taste cancel.
    """
    noise = taste(items, "block")
    scores = scores_by_word(
        items, lambda item, word: 0.75 * coreference(item, word) + 1.5 * first(item, word) + noise(item, word)
    )
    accuracy, block_accuracy, pronoun_contrast = figures(rows_of_scores(items, scores))
    assert (round(accuracy, 2), block_accuracy, round(pronoun_contrast, 4)) == (0.53, 0, 1.5)
    assert accuracy == pytest.approx((1 + norm.sf(1.5)) / 2, abs=0.005)

    rng = np.random.default_rng(0)
    scores = [rng.normal(size=item.query + 1).astype(np.float32) for item in items]
    plain = rows_of_scores(items, scores)
    for some in scores:
        some[0] += 10
    sunk = rows_of_scores(items, scores)
    assert sunk.first_mass.mean() > 0.9 > plain.first_mass.mean()
    for name in ("preference", "value_preference", "selects", "strict", "share"):
        np.testing.assert_allclose(getattr(sunk, name), getattr(plain, name), atol=1e-5)
    assert figures(sunk) == pytest.approx(figures(plain), abs=1e-6)


def test_a_mention_split_into_two_pieces_of_the_same_sum_changes_no_figure(items: list[LinkItem]) -> None:
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=item.query + 1).astype(np.float32) for item in items]
    split = [split_word(*one, place=rng.integers(2), share=0.3) for one in zip(items, scores, strict=True)]
    plain, pieces = rows_of_scores(items, scores), rows_of_scores(*map(list, zip(*split, strict=True)))
    for name in ("preference", "value_preference", "selects", "mass", "first_mass", "share"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(plain, name), atol=1e-5)
    assert figures(pieces) == pytest.approx(figures(plain), abs=1e-6)


def split_word(item: LinkItem, scores: np.ndarray, place: int, share: float) -> tuple[LinkItem, np.ndarray]:
    """Give the antecedent's (place 0) or the distractor's token a second piece, `share` of its weight on the first."""
    at = (item.antecedents + item.distractors)[place][0]

    def moved(words):
        return tuple((at, at + 1) if word == (at,) else tuple(p + (p > at) for p in word) for word in words)

    parts = scores[at] + np.log([share, 1 - share])
    longer = replace(
        item,
        tokens=(*item.tokens[: at + 1], item.tokens[at], *item.tokens[at + 1 :]),
        query=item.query + 1,
        antecedents=moved(item.antecedents),
        distractors=moved(item.distractors),
    )
    return longer, np.concatenate([scores[:at], parts, scores[at + 1 :]]).astype(np.float32)


@pytest.mark.parametrize("kind", ["coreference", "lexical", "singular"])
@pytest.mark.parametrize("tokens_per_batch", [1, 10**6])
def test_words_in_front_and_batching_change_nothing_for_a_head_without_positions(
    items: list[LinkItem], kind: str, tokens_per_batch: int
) -> None:
    some, model = items[:80], planted(kind)
    padding = some[40].tokens[1:5] * 3
    padded = [
        replace(
            item,
            tokens=(item.tokens[0], *padding, *item.tokens[1:]),
            query=item.query + len(padding),
            antecedents=tuple(tuple(p + len(padding) for p in word) for word in item.antecedents),
            distractors=tuple(tuple(p + len(padding) for p in word) for word in item.distractors),
        )
        for item in some
    ]
    plain, longer = read_rows(model, some, 4096), read_rows(model, padded, tokens_per_batch)
    for name in ("preference", "value_preference", "selects"):
        np.testing.assert_allclose(getattr(longer, name)[:, 0, 0], getattr(plain, name)[:, 0, 0], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "site"), [("agreement", "pronoun"), ("later_cue", "cue")])
def test_a_planted_transformer_scores_what_its_habit_says(kind: str, family: str, site: str) -> None:
    some = two_alone(story_items("test", family, site))
    rows = read_rows(planted(kind, layer=1, head=2, seed=5), some, 4096)
    expected = {"coreference": (1, 1, 2), "coreference+first": (0.5, 0, 1.5)}.get(kind, (0.5, 0, 0))
    assert figures(rows, 1, 2) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_transformer_keeps_the_contract(items: list[LinkItem], kind: str) -> None:
    check_contract(planted(kind, layer=1), items)


def test_the_planted_head_is_the_one_that_is_chosen_and_every_effect_goes_where_it_belongs(items: list) -> None:
    for kind, effect in (("first", "first"), ("lexical", "lexical"), ("singular", "pronoun")):
        rows = read_rows(planted(kind, layer=1, head=1), items, 4096)
        found = factorial(rows.preference, items)
        effects = {name: abs(getattr(found, name)[1, 1]) for name in found.__dataclass_fields__}
        assert max(effects, key=effects.get) == effect and effects["coreference"] < 0.005
    rows = read_rows(planted("coreference", layer=1, head=1), items, 4096)
    assert best_head(score(rows.preference, rows.selects, rows.strict)) == (1, 1)
    assert factorial(rows.preference, items).share[1, 1] == pytest.approx(1, abs=1e-4)


def test_what_a_planted_head_looks_at_decides_what_the_model_says(items: list[LinkItem]) -> None:
    assert (read_margins(planted("coreference"), items, 4096) > 0).mean() > 0.97
    for kind in ("first", "uniform"):
        margins = read_margins(planted(kind), items, 4096)
        assert (margins > 0).mean() == pytest.approx(0.5, abs=0.05)
    assert read_margins(planted("first"), items, 4096)[[i.order == i.meant for i in items]].mean() > 1


def test_strength_multiplies_what_a_planted_head_prefers(items: list[LinkItem]) -> None:
    rows = read_rows(planted("coreference", strength=2.5), items[:40], 4096)
    np.testing.assert_allclose(rows.preference[:, 0, 0], 5, atol=0.01)


def test_what_cannot_be_planted_is_refused() -> None:
    with pytest.raises(ValueError, match="coreference, first"):
        plant(MODEL, vocabulary(), "last")
    with pytest.raises(ValueError, match="head_dim 6"):
        plant(replace(MODEL, n_head=12), vocabulary(), "first")


def test_the_same_seed_plants_the_same_model() -> None:
    one, two, other = (planted("lexical", seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
