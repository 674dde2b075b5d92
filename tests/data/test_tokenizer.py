"""Tokenizers encode and decode the text, keep END out of it, and accept files of other projects."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from data.tokenizer import (
    END,
    UNKNOWN,
    bpe_tokenizer,
    character_tokenizer,
    encode,
    end_id,
    file_tokenizer,
    load_tokenizer,
    unknown_id,
    word_tokenizer,
)

ODD = "naïve café 🙂  two  spaces\n\n\ttab <|endoftext|> ﷺ"
TEXTS = ["The cat's whiskers, all of them.", "whiskers", "A naïve cat"]
Make = Callable[[Iterable[str]], Tokenizer]


def make_bpe(texts: Iterable[str]) -> Tokenizer:
    return bpe_tokenizer(texts, 300)


def save(tokenizer: Tokenizer, path: Path) -> Path:
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("seed", range(5))
def test_byte_level_bpe_decodes_any_text_exactly(seed: int) -> None:
    tokenizer = make_bpe(["the cat sat on the mat"] * 9)
    characters = [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F600, 0x1F650)]
    text = "".join(map(chr, random.Random(seed).choices(characters, k=997)))
    for example in (text, ODD, "", " ", "\x00\ufffd"):
        assert tokenizer.decode(encode(tokenizer, [example])[0], skip_special_tokens=False) == example


def test_the_word_vocabulary_is_the_most_frequent_words() -> None:
    tokenizer = word_tokenizer(["b b b c c a d d d d"], vocab_size=4)
    assert tokenizer.get_vocab() == {END: 0, UNKNOWN: 1, "d": 2, "b": 3}
    assert encode(tokenizer, ["a b c d"]) == [[1, 3, 1, 2]]
    assert unknown_id(tokenizer) == 1 and unknown_id(make_bpe(["a"])) is None


def test_characters_decode_exactly() -> None:
    tokenizer = character_tokenizer([ODD, "abc"])
    ids = tokenizer.encode(ODD).ids
    assert len(ids) == len(ODD) and tokenizer.decode(ids, skip_special_tokens=False) == ODD
    assert tokenizer.encode("aZ").tokens == ["a", UNKNOWN]


@pytest.mark.parametrize("make", [word_tokenizer, character_tokenizer, make_bpe])
def test_the_end_token_inside_a_text_is_plain_text(make: Make, tmp_path: Path) -> None:
    text = f"a {END} b"
    tokenizer = make([text])
    loaded = load_tokenizer(save(tokenizer, tmp_path / "tokenizer.json"))
    assert end_id(tokenizer) == 0 and 0 not in tokenizer.encode(text).ids
    assert loaded.encode(text).ids == tokenizer.encode(text).ids


def test_a_tokenizer_file_gets_an_end_token_and_encodes_only_the_text(tmp_path: Path) -> None:
    external = Tokenizer(models.WordLevel({"[CLS]": 0, "[UNK]": 1, "the": 2, "cat": 3, "[PAD]": 4}, unk_token="[UNK]"))
    external.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    external.normalizer = normalizers.Lowercase()
    external.add_special_tokens(["[CLS]", "[PAD]"])
    external.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 0)])
    external.enable_truncation(3)
    external.enable_padding(pad_id=4, pad_token="[PAD]", length=9)
    tokenizer, notes = file_tokenizer(save(external, tmp_path / "tokenizer.json"))
    assert len(notes) == 1 and end_id(tokenizer) == 5 and unknown_id(tokenizer) == 1
    for loaded in (tokenizer, load_tokenizer(save(tokenizer, tmp_path / "again.json"))):
        assert encode(loaded, ["the Cat the cat mat", f"{END} cat [CLS]"]) == [[2, 3, 2, 3, 1], [1, 3, 1]]


def test_a_tokenizer_that_reads_the_end_text_as_end_token_is_refused(tmp_path: Path) -> None:
    external = Tokenizer(models.WordLevel({END: 0, "[UNK]": 1, "cat": 2}, unk_token="[UNK]"))
    external.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer, _ = file_tokenizer(save(external, tmp_path / "tokenizer.json"))
    assert encode(tokenizer, ["cat dog"]) == [[2, 1]]
    with pytest.raises(ValueError, match="end token"):
        encode(tokenizer, ["cat", f"cat {END}"])


@pytest.mark.parametrize("content", [b"", b'{"text": "a row"}', b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="data.tokenizer_path=") as error:
        file_tokenizer(tmp_path / "tokenizer.json")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="tokenizer.json"):  # the file of a run or a corpus
        load_tokenizer(tmp_path / "tokenizer.json")
