"""Texts are split into words in two ways."""

from data.words import ENGLISH_WORD, word_spans, words_of


def test_words_are_runs_of_letters_and_digits_or_of_marks() -> None:
    assert word_spans("It's a.") == [("It", (0, 2)), ("'", (2, 3)), ("s", (3, 4)), ("a", (5, 6)), (".", (6, 7))]
    assert words_of('_Tom_ said "No!"') == ["_Tom_", "said", '"', "No", '!"']


def test_english_words_have_letters_alone() -> None:
    assert ENGLISH_WORD.findall('_Tom2_ said "No!"') == ["Tom", "2", "said", '"', "No", "!", '"']
