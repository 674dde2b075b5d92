"""Text to ids and back."""

from pathlib import Path

import pytest

from data.tokenizer import END, UNKNOWN, bpe_tokenizer, character_tokenizer, load_tokenizer, word_tokenizer

ODD = "naïve café 🙂  two  spaces\n\n\ttab <|endoftext|> ﷺ"


def test_byte_level_bpe_gives_any_text_back_exactly() -> None:
    tokenizer = bpe_tokenizer(["the cat sat on the mat"] * 9, vocab_size=300)
    for text in (ODD, "the cat", "", " ", "\x00\ufffd"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_characters_give_their_own_text_back_exactly() -> None:
    tokenizer = character_tokenizer([ODD, "abc"])
    assert tokenizer.decode(tokenizer.encode(ODD).ids, skip_special_tokens=False) == ODD
    assert len(tokenizer.encode(ODD).ids) == len(ODD)
    assert tokenizer.encode("aZ").tokens == ["a", UNKNOWN]


def test_words_and_punctuation_come_back_as_a_sentence() -> None:
    text = "One day, the cat sat. It purred."
    tokenizer = word_tokenizer([text])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("It sat, Bob.").tokens == ["It", "sat", ",", UNKNOWN, "."]


@pytest.mark.parametrize("make", [word_tokenizer, character_tokenizer, lambda texts: bpe_tokenizer(texts, 300)])
def test_the_end_written_in_a_text_stays_text(make: object, tmp_path: Path) -> None:
    tokenizer = make(["a <|endoftext|> b"])
    end = tokenizer.token_to_id(END)
    assert end == 0
    assert end not in tokenizer.encode("a <|endoftext|> b").ids
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert (
        load_tokenizer(tmp_path / "tokenizer.json").encode("a <|endoftext|> b").ids
        == tokenizer.encode("a <|endoftext|> b").ids
    )


def test_a_damaged_tokenizer_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="not a readable tokenizer"):
        load_tokenizer(path)
