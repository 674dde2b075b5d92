"""Content words are replaced by others of the same form, in a passage and its twin alike."""

from dataclasses import replace
from itertools import chain

import numpy as np

from data.tokenizer import END, bpe_tokenizer
from data.words import ENGLISH_WORD
from extras.english import passages
from extras.english.replaced import N_DRAWS, ContentWords, with_replaced

TEXTS = [
    "The queen was jumping with apples because everything looked sad. Tom slowly left. She ran home.",
    "Lily saw that there was singing, and Tom wanted trees so quickly that \u201cbirds watched. She ran home.",
]
CONTENT = set("jumping singing apples trees looked wanted watched slowly quickly sad saw left".split())
TOKENIZER = bpe_tokenizer([*TEXTS * 9, "The king met her, she met him, and He met Her. Anna and Ben met She."] * 9, 400)
READER = passages.Reader(TOKENIZER, TOKENIZER.token_to_id(END), 128)


def items():
    """Return passages with two people."""
    found = passages.passages_in([(f"d{i}", text) for i, text in enumerate(TEXTS)])
    return passages.passage_items(found, "q", READER, 0, 9, has_two=True, max_share=1.0)


def test_the_same_words_of_the_same_ending_and_length_replace_content_words_in_both_texts():
    words = ContentWords(TEXTS, READER.n_tokens)
    rng = np.random.default_rng(0)
    new = set()
    for pair in items().pairs * 20:
        changed = []
        for old_text, new_text in zip(pair.texts, words.replaced(pair.texts, rng), strict=True):
            both = zip(ENGLISH_WORD.findall(old_text), ENGLISH_WORD.findall(new_text), strict=True)
            changed.append([(old, word) for old, word in both if old != word])
        assert changed[0] == changed[1]
        new |= set(changed[0])
    for old, word in new:
        assert old in CONTENT and word in CONTENT | {"ran", "home"}
        assert READER.n_tokens(old) == READER.n_tokens(word)
        assert all(old.endswith(end) == word.endswith(end) for end in ("ing", "ed", "ly"))
    assert {old for old, _ in new} >= {"jumping", "singing", "looked", "wanted"}


def test_each_passage_has_every_version_with_its_mentions_at_the_same_places():
    tested = items()
    kept, versions = with_replaced(tested, ContentWords(TEXTS, READER.n_tokens), READER, 0)
    assert len(tested) == 2 and kept == tested
    for pair, own in zip(versions.pairs, tested.pairs * N_DRAWS, strict=True):
        assert (pair.block, pair.clusters, pair.meant) == (own.block, own.clusters, own.meant)
        for cell, own_cell in zip(pair.cells, own.cells, strict=True):
            assert replace(cell, tokens=own_cell.tokens) == own_cell
            for i in chain(*cell.meant, *cell.other):
                assert cell.tokens[i] == own_cell.tokens[i]
    assert {pair.texts for pair in versions.pairs} - {pair.texts for pair in tested.pairs}

    # Words of another number of tokens would move the mentions.
    longer = ContentWords([*TEXTS, "a unimaginativeness " * 99], lambda word: 1)
    kept, versions = with_replaced(tested, longer, READER, 0)
    assert not kept.pairs and not versions.pairs
    assert kept.reasons("q") == {"replaced words have other tokens": len(tested)}
