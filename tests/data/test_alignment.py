"""Words to pieces, over every kind of tokenizer."""

import random

import pytest

from data.links import word_pieces
from data.stories.lint import word_spans
from data.tokenizer import bpe_tokenizer, character_tokenizer, word_tokenizer

TEXT = "The naïve cat 🙂🙃 sat near  the buses.\n\tIt purred, “ja”!"
MAKERS = {"words": word_tokenizer, "characters": character_tokenizer, "bpe": lambda texts: bpe_tokenizer(texts, 270)}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_of_every_word_spell_it_and_no_piece_is_of_two(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    text = " ".join(draw.choices(TEXT.split(), k=29)) + draw.choice(["", " ", "\n"])
    encoding = MAKERS[kind]([TEXT, text]).encode(text)
    spans = [span for _, span in word_spans(text)]
    draw.shuffle(spans)
    found = word_pieces(text, encoding.offsets, spans)
    used = [index for some in found for index in some]
    assert len(used) == len(set(used))
    for span, some in zip(spans, found, strict=True):
        assert list(some) == list(range(some[0], some[-1] + 1))
        assert text[encoding.offsets[some[0]][0] : encoding.offsets[some[-1]][1]].strip() == text[slice(*span)]
    left = set(range(len(encoding.ids))) - set(used)
    assert all(not text[slice(*encoding.offsets[index])].strip() for index in left)


def test_a_token_that_carries_the_space_before_a_word_is_of_the_word_and_empty_ones_of_none() -> None:
    assert word_pieces("a cat", [(0, 0), (0, 1), (1, 5)], [(0, 1), (2, 5)]) == [(1,), (2,)]
    assert word_pieces("a cat", [(0, 1), (1, 3), (3, 3), (3, 5)], [(2, 5)]) == [(1, 3)]


@pytest.mark.parametrize(
    ("offsets", "spans", "word"),
    [
        ([(0, 5)], [(0, 1), (2, 5)], "'a' has no tokens of its own"),
        ([(0, 1), (1, 4)], [(2, 5)], "'cat' has no tokens of its own"),
        ([(0, 1)], [(2, 5)], "'cat' has no tokens of its own"),
        ([(0, 1), (2, 5)], [(0, 3), (2, 5)], "'a c' and 'cat' overlap"),
    ],
)
def test_a_word_without_tokens_of_its_own_is_named(
    offsets: list[tuple[int, int]], spans: list[tuple[int, int]], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        word_pieces("a cat", offsets, spans)
