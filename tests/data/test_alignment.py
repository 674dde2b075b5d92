import pytest

from data.alignment import word_pieces
from data.tokenizer import bpe_tokenizer, character_tokenizer, word_tokenizer

TEXT = "The cat's whiskers, na\u00efve \U0001f408 and all."
WORDS = [(0, 3), (4, 7), (7, 9), (10, 18), (18, 19), (20, 25), (26, 27), (28, 31), (32, 35), (35, 36)]


@pytest.mark.parametrize(
    "tokenizer", [bpe_tokenizer([TEXT], 257), bpe_tokenizer([TEXT] * 9, 290), character_tokenizer([TEXT])]
)
def test_every_word_has_the_pieces_that_write_it_and_no_piece_has_two_words(tokenizer) -> None:  # noqa: ANN001
    encoding = tokenizer.encode(TEXT)
    found = word_pieces(TEXT, encoding.offsets, WORDS)
    assert [tokenizer.decode([encoding.ids[i] for i in one]).strip() for one in found] == [
        TEXT[slice(*span)] for span in WORDS
    ]
    every = [piece for one in found for piece in one]
    assert len(every) == len(set(every))
    backwards = word_pieces(TEXT, encoding.offsets, WORDS[::-1])
    assert backwards == found[::-1]


def test_a_piece_of_two_words_belongs_to_none() -> None:
    encoding = word_tokenizer(['whiskers ,"']).encode('whiskers,"')
    with pytest.raises(ValueError, match="',' has no tokens of its own"):
        word_pieces('whiskers,"', encoding.offsets, [(0, 8), (8, 9)])


def test_words_that_overlap_or_have_no_token_are_named() -> None:
    with pytest.raises(ValueError, match="'ab' and 'bc' overlap"):
        word_pieces("abc", [(0, 3)], [(0, 2), (1, 3)])
    with pytest.raises(ValueError, match="'c' has no tokens"):
        word_pieces("ab c", [(0, 2), (2, 2)], [(3, 4)])
