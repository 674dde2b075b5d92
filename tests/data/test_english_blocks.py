"""Blocks of four in plain English whose payoff is the next pronoun."""

from collections import Counter

import pytest

from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.english_blocks import _INTRODUCTIONS, MIN_COUNT, english_items, english_texts
from data.links import LinkedText
from data.tokenizer import end_id, word_tokenizer

COUNTS = dict.fromkeys([*FEMININE_NAMES, *MASCULINE_NAMES], MIN_COUNT)
ROWS = english_texts(COUNTS, n_frames=10, n_pairs=3, seed=0)
LINKED = {split: [row for row in rows if row.family == "english"] for split, rows in ROWS.items()}


def words(row: LinkedText, spans: list[tuple[int, int]]) -> list[str]:
    return [row.text[slice(*span)] for span in spans]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_payoff_is_the_pronoun_of_the_person_who_is_named_again(split: str) -> None:
    for row in LINKED[split]:
        (link,) = row.links
        first, again = words(row, link.antecedents)
        (other,) = words(row, link.distractors)
        (pronoun,) = words(row, [link.payoff])
        assert first == again != other
        assert (first in FEMININE_NAMES) == (pronoun == "she") == (other in MASCULINE_NAMES)
        assert (link.answers, link.foils) == ((pronoun,), ("he" if pronoun == "she" else "she",))
        assert row.text.endswith(f"{words(row, [link.query])[0]} {pronoun}")


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_block_balances_order_and_pronoun(split: str) -> None:
    rows = LINKED[split]
    for start in range(0, len(rows), 4):
        block = rows[start : start + 4]
        assert [(row.order, row.meant) for row in block] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert len({row.pair for row in block}) == len({row.frame for row in block}) == 1
        assert Counter(row.links[0].answers for row in block).most_common()[0][1] == 2


def test_dev_and_headline_share_neither_names_nor_introductions_nor_continuations() -> None:
    def units(rows: list[LinkedText]) -> tuple[set[str], ...]:
        names = {name for row in rows for name in row.pair.split()}
        introductions = {text for text in _INTRODUCTIONS for row in rows if row.frame.startswith(text)}
        return names, introductions, {row.frame.partition("{X} ")[2] for row in rows} - {""}

    headline = [row for row in ROWS["test"] if row.holdout == "headline"]
    for dev, test in zip(units(LINKED["dev"]), units(headline), strict=True):
        assert dev and test and not dev & test


def test_pronouns_without_antecedent_are_its_of_weather_and_time() -> None:
    rows = [row for row in ROWS["test"] if row.family == "no_antecedent"]
    assert rows
    for row in rows:
        (link,) = row.links
        assert words(row, [link.query]) == ["it"]
        assert link.antecedents == () and len(link.distractors) == 2


@pytest.mark.parametrize(("count", "is_used"), [(MIN_COUNT, True), (MIN_COUNT - 1, False)])
def test_only_words_that_the_training_text_contains_often_enough_are_used(count: int, is_used: bool) -> None:
    rows = english_texts(COUNTS | {"Lily": count}, n_frames=20, n_pairs=20, seed=0)
    assert any("Lily" in row.text for split in rows.values() for row in split) == is_used


def test_a_text_without_names_is_refused_with_the_number_of_words() -> None:
    with pytest.raises(ValueError, match=r"0 \+ 0 words of the list feminine"):
        english_texts({"ball": 100}, n_frames=4, n_pairs=2, seed=0)


def test_blocks_that_are_longer_than_the_context_are_refused() -> None:
    tokenizer = word_tokenizer(row.text for split in ROWS.values() for row in split)
    sizes = {"n_frames": 10, "n_pairs": 3, "seed": 0}
    start = end_id(tokenizer)
    items = english_items(COUNTS, tokenizer, start, 64, **sizes)
    longest = max(len(item.tokens) for split in items.values() for item in split)
    assert english_items(COUNTS, tokenizer, start, longest, **sizes) == items
    assert english_items(COUNTS, tokenizer, start, longest, **sizes, splits=["dev"]) == {"dev": items["dev"]}
    with pytest.raises(ValueError, match=f"reads {longest - 1}"):
        english_items(COUNTS, tokenizer, start, longest - 1, **sizes)
