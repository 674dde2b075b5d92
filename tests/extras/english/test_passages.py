"""Pronouns and mentions of English text, passages, their twins, and the place rule."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import pytest

from data.tokenizer import word_tokenizer
from data.words import with_words
from extras.english import passages
from extras.english.lexicon import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS
from extras.english.parsing import ParsedText
from extras.english.place import N_NAMES, fit_place_rule, nearest, place_features, redrawn
from settings.errors import UserError
from tests.probe import factories as made


def found_in(text):
    return list(passages.find_passages("doc", text))


@pytest.mark.parametrize(("text", "forms", "entities"), [
    ("Lily saw Tom. Then she ran.", "she he", "lily tom"),
    ("Lily saw Tom. His hat was red.", "Her His", "lily tom"),
    ("Tom saw Lily, so people thanked her for help.", "her him", "tom lily"),
    ("Lily saw Tom wave his hand.", "her his", "lily tom"),
    ("Mrs. Bennet saw Uncle Tom. She smiled at the others.", "She He", "mrs bennet tom"),
])  # fmt: skip
def test_both_pronouns_have_the_form_of_the_text(text, forms, entities):
    parsed = ParsedText(text)
    assert [" ".join(found) for _, found in parsed.pronouns()] == [forms]
    assert " ".join(mention.entity for mention in parsed.mentions) == entities


def test_no_word_of_the_lexicon_has_two_classes():
    assert not (FEMININE_NAMES & MASCULINE_NAMES or FEMININE_NOUNS & MASCULINE_NOUNS)


# `expected` describes the last passage: the start of its text, the mentions of each class, the meant person, and who is
# first in the last sentence with a person.
@pytest.mark.parametrize(("text", "expected"), [
    ("Lily came. Lily sat. She was happy.", ("Lily came", "Lily Lily", "", 0, "Lily")),
    # The persons of the sentence before are not in the longest run with two.
    ("Anna came. It was late. Lily met Tom. Tom sat. She ran.", ("It was", "Lily", "Tom Tom", 0, "Tom")),
    # A passage without earlier pronouns is preferred, also one with one person of the author's class.
    ("Tom said he was here. Tom met Lily. She ran home.", ("Tom met", "Lily", "Tom", 0, "Tom")),
    ("Lily met Tom. He waved. Lily sang. She ran home.", ("Lily sang", "Lily", "", 0, "Lily")),
    ("Lily met Tom. She ran and she sang and he waved.", ("Lily met", "Lily", "Tom", 0, "Lily")),
    ("Tom came with Lily. Then Lily left and he slept.", ("Tom came", "Lily Lily", "Tom", 1, "Lily")),
])  # fmt: skip
def test_a_passage_is_the_best_run_of_sentences(text, expected):
    passage = found_in(text)[-1]
    groups = [" ".join(passage.surfaces(side)) for side in (0, 1)]
    assert (*groups, passage.meant, passage.text[slice(*passage.subject)]) == expected[1:]
    assert passage.text.startswith(expected[0])
    assert passage.has_two == all(passage.entities) == all(groups)
    before, _, after = text.rpartition(passage.text)
    assert before + passage.text + after == text and passage.forms[passage.meant] == after.split()[0]


@pytest.mark.parametrize("text", [
    "Tom came. She ran home.", "Lily and Anna came. She ran home.",
    "Lily met Tom and Anna. She ran home.", "She ran home. Lily met Tom.",
    "Lily came. She",  # no next word
    "Lily came. " + "It was late again. " * (passages.MAX_WORDS // 5 + 1) + "She ran home.",
    "A big dog lay near the kites. They fell down.",
    # The form of the other pronoun is not known: in capitals, "hers", an object or "her" before a noun
    "Lily met Tom. SHE ran home.", "Lily met Tom. The hat was his.",
    "Lily met Tom. People told her they were late.",
    "Lily met Tom. She" + " " * 300,
])  # fmt: skip
def test_a_text_without_one_known_antecedent_and_a_clear_pronoun_has_no_passage(text):
    assert found_in(text) == []


def test_a_sentence_has_at_most_one_passage():
    texts = [each.text for each in found_in("Lily met Tom. She ran and he waved. Tom sat. He slept.")]
    assert texts == ["Lily met Tom. ", "Tom sat. "]


def without_mentions(passage):
    return with_words(passage.text, dict.fromkeys(chain(*passage.mentions), "_"))


@pytest.mark.parametrize(("text", "expected"), [
    # Two names change places; nouns and titles have fixed counterparts.
    ("Lily met Tom there. Tom waved to Lily. She ran.", "Tom met Lily there. Lily waved to Tom. "),
    ("The king saw the girl. She ran home.", "The queen saw the boy. "),
    ("Mom saw the boy. Mom ran. He ran home.", "Dad saw the girl. Dad ran. "),
    ("Mrs. Bennet came home. She sang.", "Mr. Bennet came home. "),
])  # fmt: skip
def test_a_twin_has_the_other_class_everywhere(text, expected):
    passage = found_in(text)[-1]
    twin = passages.Counterparts([passage], lambda name: 1, seed=0).twin(passage)
    assert (twin.text, twin.meant) == (expected, 1 - passage.meant)
    assert without_mentions(twin) == without_mentions(passage) and twin.subject in chain(*twin.mentions)


@pytest.mark.parametrize("text", ["The goddess came. She ran.", "Sir Hill came. He ran."])
def test_an_entity_without_a_counterpart_has_no_twin(text):
    with pytest.raises(UserError, match="no counterpart"):
        passages.Counterparts([], len, seed=0).twin(found_in(text)[0])


def test_a_name_is_replaced_by_a_frequent_one_with_as_many_tokens():
    [passage] = found_in("Elizabeth met Tom in the park. She ran home.")
    twin = passages.Counterparts([passage], len, seed=0).twin(passage)
    [woman], [man] = map(twin.surfaces, (0, 1))
    assert woman in FEMININE_NAMES and man in MASCULINE_NAMES
    assert (len(woman), len(man)) == (len("Tom"), len("Elizabeth"))

    # Only Owen and Jack are frequent.
    [lily] = found_in("Lily came. She ran home.")
    frequent = passages.MIN_NAME_COUNT
    men = []
    for name, n in (("Owen", frequent), ("Jack", frequent), ("Hugo", frequent - 1)):
        men += n * found_in(f"{name} came. He ran home.")
    counterparts = passages.Counterparts([lily, *men], lambda name: 1, seed=0)
    assert {counterparts.twin(lily).text for _ in range(30)} == {"Owen came. ", "Jack came. "}


def test_content_words_are_neither_mentions_nor_function_words():
    [passage] = found_in("Lily met Tom with apples, because Tom cried and hugged 1234 trees under rain. She left.")
    words = [passage.text[start:end] for start, end in passages.content_words(passage)]
    assert words == ["apples", "cried", "hugged", "trees", "rain"]


def test_the_last_words_predict_the_pronoun_that_follows_them_most_often():
    text = "Tom sang and then she ran. We sang and then he ran. We sang and then she ran. So he ran, he ran."
    rule = passages.ngram_rule([("a", text)])
    assert rule("They sang and then ") == 0  # "and then": she twice, he once
    assert rule("They sang so ") == 1  # "sang so" is unknown, "so" is not
    assert rule("They sang quite ") == 1  # no word is known: he is more frequent
    assert passages.ngram_rule([("b", "And then she ran, and then he ran.")])("Lily and then ") == 0.5


PEOPLE = passages.with_two(made.passages())
TOKENIZER = made.passage_tokenizer()


def items_of(found, tokenizer=TOKENIZER, length=64):
    return passages.passage_items(found, "q", passages.Reader(tokenizer, 0, length), 0, 99, has_two=True)


def test_both_texts_of_a_pair_end_before_the_pronoun_and_mean_different_people():
    sides = (FEMININE_NAMES, MASCULINE_NAMES)
    items = items_of(PEOPLE)
    controls = set()
    for pair in items.pairs:
        assert pair.has_two and pair.is_comparable
        first, second = pair.cells
        for cell, meant in ((first, pair.meant), (second, 1 - pair.meant)):
            words = list(map(TOKENIZER.id_to_token, cell.tokens))
            assert sides[meant].issuperset(words[i] for i in chain(*cell.meant))
            assert sides[1 - meant].issuperset(words[i] for i in chain(*cell.other))
            assert cell.query == cell.payoff == len(words) - 1 and cell.tokens[0] == 0
            controls.update(words[i] for i in cell.control)
        assert (second.meant, second.answers, second.control) == (first.meant, first.foils, first.control)
    assert {"quiet", "park", "bread", "cooked"} <= controls


def test_passages_that_do_not_fit_are_counted_and_no_entity_dominates():
    short = items_of(PEOPLE, length=8)
    assert short.reasons("q")["longer than the context (two)"] > 0 and short.reasons("other") == {}
    often = items_of(PEOPLE * 3)
    [(reason, n)] = often.reasons("q").items()
    assert reason.startswith("more than enough") and len(often) + n == len(PEOPLE) * 3
    women = Counter(pair.clusters[1] for pair in often.pairs)
    assert max(women.values()) <= passages.MAX_SHARE * len(often)
    unknown = items_of(PEOPLE[:1], word_tokenizer(["met near trees"]))
    assert sum(unknown.reasons("q").values()) == 1 and not unknown.pairs


def test_a_document_is_in_one_half():
    items = made.passage_items([replace(each, doc=f"d{i // 4}") for i, each in enumerate(made.passages())])
    halves = [{pair.clusters[0] for pair in items.pairs if pair.part == part} for part in ("dev", "tested")]
    assert all(halves) and not halves[0] & halves[1]
    assert {pair.meant for pair in items.pairs if not pair.has_two} == {0, 1}


def test_a_long_document_is_cut_after_sentences():
    long = "This is a sentence of seven words. " * 600
    parts = passages.sections([long, *["Text."] * 30])
    assert len({name for name, _ in parts}) == len(parts) > 31
    assert "".join(text for name, text in parts if name.startswith("d0s")) == long
    assert [name for name, _ in passages.sections(["Text."] * 30)] == [f"d{i}" for i in range(30)]


# Clusters of each value with two kinds, "." for none; the largest share; how many values are wanted
@pytest.mark.parametrize(("labels", "share", "n", "kept"), [
    # Three of "a" would be more than a quarter of 9; two are a quarter of 8.
    ("a. a. a. a. a. a. b. c. d. e. f. g.", 0.25, 100, [0, 1, 6, 7, 8, 9, 10, 11]),
    ("a. a. a.", 0.25, 100, [0]),  # a cluster may always have one value
    ("ax ay bx by", 0.5, 2, [0, 3]),
    (".. .. .. .. .. ..", 0.1, 5, [0, 1, 2, 3, 4]),
    ("a. a. .x .x .y .z", 0.2, 100, [0, 2, 4, 5]),
])  # fmt: skip
def test_no_cluster_is_above_the_share_of_what_remains(labels, share, n, kept):
    clusters = [tuple(name.strip(".") for name in value) for value in labels.split()]
    assert passages.cap_clusters(clusters, share, n) == kept


def labelled(rule_is_subject):
    """Return passages in which the subject is meant, or the person named last."""
    meant = [int(each.subject not in each.mentions[0]) if rule_is_subject else nearest(each) for each in PEOPLE]
    return [replace(each, meant=side) for each, side in zip(PEOPLE, meant, strict=True)]


@cache
def fitted(rule_is_subject):
    return fit_place_rule(labelled(rule_is_subject)[::2])


@pytest.mark.parametrize("rule_is_subject", [True, False])
def test_the_rule_learns_whom_the_author_means_by_place(rule_is_subject):
    test = labelled(rule_is_subject)[1::2]
    is_nearest = np.array([passage.meant == nearest(passage) for passage in test])
    log_odds = fitted(rule_is_subject)(list(map(place_features, test)))
    assert len(test) > 20 and ((log_odds > 0) == is_nearest).mean() > 0.95


def test_the_rule_knows_neither_the_names_nor_the_author_and_nouns_are_kept():
    rule = fitted(True)
    passage = PEOPLE[0]
    features = place_features(passage)
    assert place_features(replace(passage, meant=1 - passage.meant)) == features
    drawn = redrawn([passage], rule, lambda name: 1, seed=3)[0]
    assert drawn.place == rule([features])[0] == pytest.approx(rule([place_features(drawn)])[0])
    nouns = found_in("Lily met the king in the park. She was glad.")
    drawn = redrawn([*nouns, passage], rule, lambda name: 1, seed=0)[0]
    assert drawn.surfaces(1) == ["king"] and drawn.entities[1] == "king" and np.isfinite(drawn.place)


def test_names_are_drawn_anew_with_as_many_tokens_and_everything_else_stays():
    drawn = redrawn(PEOPLE, fitted(True), lambda name: len(name) % 2, seed=1)
    names: tuple[set[str], set[str]] = (set(), set())
    for old, new in zip(PEOPLE, drawn, strict=True):
        assert without_mentions(new) == without_mentions(old)
        assert (new.doc, new.meant, new.forms) == (old.doc, old.meant, old.forms)
        for side, of_side in enumerate(names):
            of_side.update(new.surfaces(side))
            assert set(map(str.lower, new.surfaces(side))) == {new.entities[side]}
    assert all(1 < len(of_side) <= N_NAMES for of_side in names)
    assert len({len(name) % 2 for name in chain(*names)}) == 1
