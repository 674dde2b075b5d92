"""Tokenizers encode and decode the text and keep END out of it; words and links are found in tokens of every kind."""

import random
from dataclasses import replace
from functools import cache

import pytest
from tokenizers import Tokenizer, models, normalizers

from data.pairs import Items, Link, LinkedText, link_pairs, word_positions
from data.tokenizer import END, UNKNOWN, bpe_tokenizer, character_tokenizer, encode, load_tokenizer, word_tokenizer
from tests.data.small_corpora import full_stories, llama_tokenizer

ODD = "naïve café 🙂  two  spaces\n\n\ttab <|endoftext|> ﷺ"


@pytest.mark.parametrize("seed", range(5))
def test_byte_level_bpe_decodes_any_text_exactly(seed):
    tokenizer = bpe_tokenizer(["the cat sat on the mat"] * 9, 300)
    characters = [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F600, 0x1F650)]
    text = "".join(map(chr, random.Random(seed).choices(characters, k=997)))
    for example in (text, ODD, "", " ", "\x00\ufffd"):
        assert tokenizer.decode(encode(tokenizer, [example])[0], skip_special_tokens=False) == example


def test_the_word_vocabulary_is_the_most_frequent_words_and_characters_decode_exactly():
    tokenizer = word_tokenizer(["b b b c c a d d d d"], vocab_size=4)
    assert tokenizer.get_vocab() == {END: 0, UNKNOWN: 1, "d": 2, "b": 3}
    assert encode(tokenizer, ["a b c d"]) == [[1, 3, 1, 2]]
    tokenizer = character_tokenizer([ODD, "abc"])
    ids = tokenizer.encode(ODD).ids
    assert len(ids) == len(ODD) and tokenizer.decode(ids, skip_special_tokens=False) == ODD
    assert tokenizer.encode("aZ").tokens == ["a", UNKNOWN]


@pytest.mark.parametrize("make", [word_tokenizer, character_tokenizer, lambda texts: bpe_tokenizer(texts, 300)])
def test_the_end_token_inside_a_text_is_plain_text(make, tmp_path):
    text = f"a {END} b"
    tokenizer = make([text])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.token_to_id(END) == 0 and 0 not in tokenizer.encode(text).ids
    assert load_tokenizer(tmp_path / "tokenizer.json").encode(text).ids == tokenizer.encode(text).ids


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"text": "a row"}')
    with pytest.raises(ValueError, match="tokenizer.json is not a readable tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_the_tokens_of_a_word_spell_it():
    # A token with the space before a word belongs to the word.
    assert word_positions("a cat", [(0, 0), (0, 1), (1, 5)], [(2, 5), (0, 1), (2, 5)]) == {(0, 1): (2,), (2, 5): (3,)}
    offsets = [(0, 1), (1, 3), (3, 3), (3, 5)]  # (3, 3): a special token
    assert word_positions("a cat", offsets, [(2, 5)]) == {(2, 5): (2, 4)}
    offsets = [(0, 1), (1, 2), (2, 3), (2, 3), (3, 4), (4, 5)]  # bytes of one character
    assert word_positions("a 🙂b!", offsets, [(2, 4), (4, 5)]) == {(2, 4): (3, 4, 5), (4, 5): (6,)}


@pytest.mark.parametrize(("offsets", "spans", "word"), [
    ([(0, 5)], [(0, 1), (2, 5)], "a"),
    ([(0, 1), (1, 4)], [(2, 5)], "cat"),
])  # fmt: skip
def test_a_word_without_tokens_is_named(offsets, spans, word):
    with pytest.raises(ValueError, match=f"'{word}'"):
        word_positions("a cat", offsets, spans)


@cache
def texts():
    return [story.text for story in full_stories()["train"]]


def test_a_pair_is_alike_but_for_who_is_meant_and_two_are_a_block():
    tokenizer = word_tokenizer(texts())
    items = link_pairs(full_stories()["test"], tokenizer, 0)
    for pair in items.pairs:
        first, second = pair.cells
        assert first.meant == second.other and first.other == second.meant
    of_question = items.of("number", "headline").pairs
    for first, second in zip(of_question[::2], of_question[1::2], strict=True):
        assert (first.block, first.clusters) == (second.block, second.clusters)
        assert (first.order, second.order) == (0, 1)
    without_payoff = []
    for pair in items.pairs[::2]:
        without_payoff.append(replace(pair, cells=(replace(pair.cells[0], payoff=None), pair.cells[1])))
    assert (items + Items(without_payoff)).comparable() == items and len(items) > 50


@pytest.mark.parametrize(("make", "size"), [(bpe_tokenizer, 900), (llama_tokenizer, 756)])
def test_the_tokens_of_each_mention_spell_it(make, size):
    tokenizer = make(texts(), size)
    rows = full_stories()["test"]
    n_several = 0
    for row, cell in zip(rows, link_pairs(rows, tokenizer, 0).cells, strict=True):
        text, link = row.text, row.link
        assert len(cell.other) == len(link.distractors)
        for span, word in zip(link.antecedents, cell.meant, strict=True):
            spelled = tokenizer.decode([cell.tokens[position] for position in word], skip_special_tokens=False)
            assert spelled.strip() == text[slice(*span)]
            n_several += len(word) > 1
        words = text[: link.query[1]].replace(",", " ,").replace(".", " .").split()
        assert cell.has_word_tokens == (len(words) == cell.query)
        before = tokenizer.decode(list(cell.tokens[1 : cell.query + 1]), skip_special_tokens=False)
        assert before.strip() == text[: link.query[1]]
    assert n_several > 50  # words of several tokens are covered


# The tokens of answers and foils, the position of the payoff, its token, the number of fitting whole words
@pytest.mark.parametrize(("text", "answers", "foils", "expected"), [
    # A token that begins an answer and a foil is left out; if none is left for a side, there is no payoff.
    ("It ran", "ran sat", "rang hum", ("▁s", "▁", 2, "▁r", 0)),
    ("It ran", "ran sat", "rang", ("▁s", "", None, None, 0)), ("It ran", "ran", "rang", ("", "", None, None, 0)),
    # Words that begin alike are measured at the first different token.
    ("It ran", "ran", "rum", ("an", "u", 3, "an", 0)),
    # A token of the space alone is the first token of the next word.
    ("It hum", "hum", "ran", ("▁", "▁r", 2, "▁", 0)), ("It hum", "hum", "tug", ("h", "t", 3, "h", 0)),
    # The probability of a word is known if it is one token, with which no other word begins.
    ("It s", "s hum", "ran", ("▁s▁", "▁r", 2, "▁s", 2)), ("It s", "s sat", "ran", ("▁s", "▁r", 2, "▁s", 0)),
])  # fmt: skip
def test_answers_are_told_apart_by_one_token(text, answers, foils, expected):
    merges = [("▁", "r"), ("a", "n"), ("▁", "s"), ("a", "t")]
    vocabulary = {token: i for i, token in enumerate(["<s>", *map("".join, merges), "▁", *"AIarntshugm"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    words = (tuple(answers.split()), tuple(foils.split()))
    link = Link("number", (0, 2), (), (), None, (3, len(text)), *words, n_fitting=2)
    row = LinkedText(text, link, "agreement", "iid", "a", "a b", 0, 0)
    cell = link_pairs([row, row], tokenizer, 0).cells[0]
    tokens = ["".join(map(tokenizer.id_to_token, ids)) for ids in (cell.answers, cell.foils)]
    target = None if cell.target is None else tokenizer.id_to_token(cell.target)
    assert (*tokens, cell.payoff, target, cell.n_fitting) == expected
    assert cell.tokens == (0, *tokenizer.encode(text).ids[: cell.payoff or 2])
