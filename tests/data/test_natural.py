"""The pronouns and mentions of English text."""

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.control_texts import permute_pronouns, permuted_files
from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS, PLURALS, SINGULARS
from data.natural import ParsedText, pronoun_forms


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
        ("number", "The foxes saw the mouse and its tail.", ("its", "their"), ("fox", "mouse")),
        ("number", "The foxes saw a mouse. Then it ran away.", ("it", "they"), ("fox", "mouse")),
    ],
)
def test_both_pronouns_have_the_grammatical_form_of_the_text(
    question: str, text: str, forms: tuple[str, str], entities: tuple[str, str]
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


def test_pronoun_forms_are_those_of_both_classes() -> None:
    assert pronoun_forms("She", "ran", "gender") == ("She", "He")
    assert pronoun_forms("them", "home", "number") == ("it", "them")
    assert pronoun_forms("SHE", "ran", "gender") is None and pronoun_forms("it", "was", "number") is None


def test_no_word_of_the_lexicon_has_two_classes() -> None:
    assert not FEMININE_NAMES & MASCULINE_NAMES
    assert not FEMININE_NOUNS & MASCULINE_NOUNS
    assert not SINGULARS & set(PLURALS)
    assert len(PLURALS) == len(SINGULARS)


@pytest.mark.parametrize("text", ["She ran. ", "I saw _him_. ", "It was hers! ", "HE fell. ", "Tom hurt himself. "])
def test_a_coin_decides_the_gender_of_every_pronoun_in_a_permuted_text(text: str) -> None:
    n = 400
    words = Counter(re.findall(r"[A-Za-z]+", permute_pronouns(text * n, seed=1)))
    (pronoun,) = set(re.findall(r"[A-Za-z]+", text)) & {"She", "him", "hers", "HE", "himself"}
    assert 160 < words.pop(pronoun) < 240
    others = set(words) - set(re.findall(r"[A-Za-z]+", text))
    assert len(others) == 1 and others < {"He", "her", "his", "SHE", "herself"}
    assert all(words[word] == n for word in set(words) - others)


def test_her_becomes_him_or_his_by_its_grammar() -> None:
    copies = [permute_pronouns("I saw her. Take her hat.", seed) for seed in range(30)]
    assert {tuple(re.findall(r"h\w+", copy)) for copy in copies} == {
        (first, second, "hat") for first in ("her", "him") for second in ("her", "his")
    }


def test_permuted_files_are_written_once(tmp_path: Path) -> None:
    texts = [tmp_path / "a" / "text.txt", tmp_path / "b" / "text.txt"]
    for number, text in enumerate(texts):
        text.parent.mkdir()
        text.write_text(f"He saw {number}. " * 20)
    paths = permuted_files(",".join(map(str, texts)), tmp_path / "copies").split(",")
    assert len(set(paths)) == 2
    assert all(
        str(number) in Path(path).read_text() and "She" in Path(path).read_text() for number, path in enumerate(paths)
    )
    Path(paths[0]).write_text("finished")
    permuted_files(",".join(map(str, texts)), tmp_path / "copies")
    assert Path(paths[0]).read_text() == "finished"
