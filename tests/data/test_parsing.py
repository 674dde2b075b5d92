"""The pronouns and mentions of English text."""

import pytest

from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS, PLURALS, SINGULARS
from data.parsing import ParsedText


@pytest.mark.parametrize(
    ("question", "text", "forms", "entities"),
    [
        ("gender", "Lily saw Tom. Then she ran home.", ("she", "he"), ("lily", "tom")),
        ("gender", "Lily saw Tom. People asked him for help.", ("her", "him"), ("lily", "tom")),
        ("gender", "Tom saw Lily, so people thanked her for help.", ("her", "him"), ("tom", "lily")),
        ("gender", "Tom saw Lily wave her hand there.", ("her", "his"), ("tom", "lily")),
        ("gender", "Lily saw Tom wave his hand there.", ("her", "his"), ("lily", "tom")),
        ("gender", "Lily saw Tom. His hat was red.", ("Her", "His"), ("lily", "tom")),
        ("gender", "Mrs. Bennet saw Uncle Tom. She smiled at the others.", ("She", "He"), ("mrs bennet", "tom")),
        ("number", "The ball lay near the kites. They fell down.", ("It", "They"), ("ball", "kite")),
        ("number", "The balls lay near the kite. We took them home.", ("it", "them"), ("ball", "kite")),
        ("number", "The foxes saw the mouse and its tail.", ("its", "their"), ("fox", "mouse", "tail")),
        ("number", "The foxes saw a mouse. Then it ran away.", ("it", "they"), ("fox", "mouse")),
    ],
)
def test_both_pronouns_have_the_grammatical_form_of_the_text(
    question: str, text: str, forms: tuple[str, str], entities: tuple[str, ...]
) -> None:
    parsed = ParsedText(text, question)
    assert [found for _, _, found in parsed.pronouns()] == [forms]
    assert tuple(mention.entity for mention in parsed.mentions) == entities


@pytest.mark.parametrize(
    "text",
    [
        "Lily met Tom. SHE ran home.",  # no form of the other class in capitals
        "Lily met Tom. The hat was his.",  # "hers"
        "Lily met Tom. People told her they were late.",  # an object, or "her" before a noun?
        "The ball lay near the kites. One of them fell.",  # "one of it"
        "The ball lay near the kites. They were red.",  # "it were"
        "Lily met Tom. She" + " " * 300,  # no next word
        "",
    ],
)
def test_a_pronoun_of_unclear_form_is_none(text: str) -> None:
    for question in ("gender", "number"):
        assert list(ParsedText(text, question).pronouns()) == []


def test_no_word_of_the_lexicon_has_two_classes() -> None:
    assert not FEMININE_NAMES & MASCULINE_NAMES
    assert not FEMININE_NOUNS & MASCULINE_NOUNS
    assert not SINGULARS & set(PLURALS)
    assert len(PLURALS) == len(SINGULARS)
