"""Prefixes of English text with one entity of each class, and their two readings."""

import pytest

from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS, PLURALS, SINGULARS
from data.natural import MAX_WORDS, SITES, Prefix, census, contrast_texts, find_prefixes, known_class, pronoun_forms


def prefixes(text: str, question: str = "gender") -> list[Prefix]:
    return list(find_prefixes("doc", text, question))


def mentioned(prefix: Prefix) -> list[list[str]]:
    return [[prefix.text[slice(*span)] for span in group] for group in prefix.mentions]


def test_a_prefix_ends_before_the_pronoun_and_names_both_entities() -> None:
    (prefix,) = prefixes("Lily met Tom in the park. Tom waved. She ran home.")
    assert (prefix.text, prefix.forms, prefix.meant) == ("Lily met Tom in the park. Tom waved. ", ("She", "He"), 0)
    assert prefix.rest == " ran home."
    assert mentioned(prefix) == [["Lily"], ["Tom", "Tom"]]
    assert prefix.entities == ("lily", "tom")


@pytest.mark.parametrize(
    ("question", "text", "forms", "meant", "entities"),
    [
        ("gender", "Lily saw Tom. Then she ran home.", ("she", "he"), 0, ("lily", "tom")),
        ("gender", "Lily saw Tom. People asked him for help.", ("her", "him"), 1, ("lily", "tom")),
        ("gender", "Tom saw Lily, so people thanked her for help.", ("her", "him"), 0, ("lily", "tom")),
        ("gender", "Tom saw Lily wave her hand there.", ("her", "his"), 0, ("lily", "tom")),
        ("gender", "Lily saw Tom wave his hand there.", ("her", "his"), 1, ("lily", "tom")),
        ("gender", "Lily saw Tom. His hat was red.", ("Her", "His"), 1, ("lily", "tom")),
        ("number", "The ball lay near the kites. They fell down.", ("It", "They"), 1, ("ball", "kite")),
        ("number", "The balls lay near the kite. We took them home.", ("it", "them"), 1, ("kite", "ball")),
        ("number", "The foxes saw the mouse and its tail.", ("its", "their"), 0, ("mouse", "fox")),
        ("number", "The foxes saw a mouse. Then it ran away.", ("it", "they"), 0, ("mouse", "fox")),
    ],
)
def test_both_pronouns_have_the_grammatical_form_of_the_text(
    question: str, text: str, forms: tuple[str, str], meant: int, entities: tuple[str, str]
) -> None:
    (prefix,) = prefixes(text, question)
    assert (prefix.forms, prefix.meant, prefix.entities) == (forms, meant, entities)


@pytest.mark.parametrize(
    "text",
    [
        "Lily and Anna met Tom. She ran home.",  # two feminine entities
        "Lily met Anna. She ran home.",  # no masculine one
        "Lily met Tom. SHE ran home.",  # no form of the other class in capitals
        "Lily met Tom. The hat was his.",  # "hers"
        "Lily met Tom. People told her they were late.",  # an object, or "her" before a noun?
        "The ball lay near the kites. One of them fell.",  # "one of it"
        "The ball lay near the kites. They were red.",  # "it were"
        "Lily met Tom. She" + " " * 300,  # no next word
        "Mary Stuart came home. She ate.",  # a surname that is also a first name
        "She ran home. Lily met Tom.",  # the pronoun comes first
        "It was late. The ball lay near the balls. It was red.",  # one entity, once as singular and once as plural
        "",
        "Привет, мир. Она ушла.",
    ],
)
def test_a_text_without_exactly_one_entity_of_each_class_has_no_prefix(text: str) -> None:
    assert prefixes(text) == prefixes(text, "number") == []


def test_the_window_is_the_longest_run_of_sentences_with_one_entity_each() -> None:
    (prefix,) = prefixes("Anna came. It was late. Lily met Tom in the park. She ran home.")
    assert prefix.text == "It was late. Lily met Tom in the park. "


def test_a_window_has_at_most_max_words() -> None:
    far = "Lily met Tom. " + "It was late again. " * (MAX_WORDS // 5 + 1)
    assert prefixes(far + "She ran home.") == []
    assert prefixes(far[:-20] + "She ran home.") != []


def test_titles_and_neighbouring_words_are_one_mention() -> None:
    (prefix,) = prefixes("Mrs. Bennet saw Uncle Tom. She smiled at the others.")
    assert mentioned(prefix) == [["Mrs. Bennet"], ["Uncle Tom"]]
    assert prefix.entities == ("mrs bennet", "tom")


def test_one_prefix_per_sentence_and_the_stratum_of_earlier_pronouns() -> None:
    first, second = prefixes("Lily met Tom. She saw his hat and her own. Then he left.")
    assert (first.forms, first.is_first) == (("She", "He"), True)
    assert (second.forms, second.is_first) == (("she", "he"), False)


def test_two_readings_differ_in_the_pronoun_alone() -> None:
    (prefix,) = prefixes("Lily met Tom in the park. She ran home.")
    first, second = contrast_texts([prefix])
    for row, pronoun, antecedent, distractor in ((first, "She", "Lily", "Tom"), (second, "He", "Tom", "Lily")):
        assert row.text == f"Lily met Tom in the park. {pronoun} ran home."
        assert [link.site for link in row.links] == list(SITES)
        assert [row.text[slice(*link.query)] for link in row.links] == [".", pronoun, "ran"]
        for link in row.links:
            assert [row.text[slice(*span)] for span in link.antecedents] == [antecedent]
            assert [row.text[slice(*span)] for span in link.distractors] == [distractor]


def test_pronoun_forms_are_those_of_both_classes() -> None:
    assert pronoun_forms("She", "ran", "gender") == ("She", "He")
    assert pronoun_forms("them", "home", "number") == ("it", "them")
    assert pronoun_forms("SHE", "ran", "gender") is None and pronoun_forms("it", "was", "number") is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [("Mrs . Bennet", "feminine"), ("the king", "masculine"), ("Lily and Tom", ""), ("dog", "")],
)
def test_known_class_is_the_gender_of_exactly_one_kind_of_word(words: str, expected: str) -> None:
    assert known_class(words.split()) == expected


def test_the_census_says_what_a_text_lacks() -> None:
    assert census([("doc", "Lily met Anna. She ran and he sat.")], "gender") == {
        "pronouns": 2, "feminine": 2, "masculine": 0
    }  # fmt: skip


def test_no_word_of_the_lexicon_has_two_classes() -> None:
    assert not FEMININE_NAMES & MASCULINE_NAMES
    assert not FEMININE_NOUNS & MASCULINE_NOUNS
    assert not SINGULARS & set(PLURALS)
    assert len(PLURALS) == len(SINGULARS)
