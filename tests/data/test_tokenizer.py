"""Text to ids and back."""

import os
import random
import subprocess
import sys
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


def test_byte_level_bpe_gives_any_text_back_exactly() -> None:
    tokenizer = bpe_tokenizer(["the cat sat on the mat"] * 9, vocab_size=300)
    for text in (ODD, "the cat", "", " ", "\x00\ufffd"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("seed", range(20))
def test_byte_level_bpe_gives_any_characters_back_exactly(seed: int) -> None:
    draw = random.Random(seed)
    tokenizer = bpe_tokenizer(["the cat sat on the mat"] * 9, vocab_size=300)
    text = "".join(map(chr, draw.choices([*range(0xD800), *range(0xE000, 0x11000), *range(0x1F600, 0x1F650)], k=997)))
    [ids] = encode(tokenizer, [text])
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_byte_level_bpe_learns_the_same_whatever_the_process_and_its_threads() -> None:
    program = (
        "import hashlib, random; from data.tokenizer import bpe_tokenizer; draw = random.Random(0);"
        "words = [''.join(draw.choices('abcdefgh', k=draw.randint(1, 7))) for _ in range(9801)];"
        "texts = [' '.join(words[i : i + 99]) for i in range(0, 9801, 99)];"
        "print(hashlib.sha256(bpe_tokenizer(texts, 600).to_str().encode()).hexdigest())"
    )
    learned = set()
    for threads, hashing in (("1", "1"), ("1", "2"), ("3", "3"), ("3", "random")):
        given = {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hashing}
        learned.add(subprocess.run([sys.executable, "-c", program], env=os.environ | given, capture_output=True).stdout)
    assert len(learned) == 1 and len(learned.pop()) == 65


def test_words_are_the_most_frequent_ones(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["b b b c c a d d d d"], vocab_size=4)
    assert tokenizer.get_vocab() == {END: 0, UNKNOWN: 1, "d": 2, "b": 3}
    assert encode(tokenizer, ["a b c d"]) == [[1, 3, 1, 2]] and unknown_id(tokenizer) == 1
    assert unknown_id(bpe_tokenizer(["a"], 257)) is None


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


def saved(tokenizer: Tokenizer, path: Path) -> Path:
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_from_elsewhere_with_the_end_is_used_as_it_is(tmp_path: Path) -> None:
    trained = bpe_tokenizer([ODD] * 3, 400)
    tokenizer, notes = file_tokenizer(saved(trained, tmp_path / "tokenizer.json"))
    assert notes == [] and tokenizer.get_vocab() == trained.get_vocab()
    assert encode(tokenizer, [ODD]) == encode(trained, [ODD])
    assert unknown_id(tokenizer) is None


def test_a_tokenizer_from_elsewhere_gets_an_end_and_leaves_texts_as_they_are(tmp_path: Path) -> None:
    foreign = Tokenizer(models.WordLevel({"[CLS]": 0, "[UNK]": 1, "the": 2, "cat": 3, "[PAD]": 4}, unk_token="[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    foreign.normalizer = normalizers.Lowercase()
    foreign.add_special_tokens(["[CLS]", "[PAD]"])
    foreign.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 0)])
    foreign.enable_truncation(3)
    foreign.enable_padding(pad_id=4, pad_token="[PAD]", length=9)
    assert foreign.encode("the cat the cat").ids == [0, 2, 3, 4, 4, 4, 4, 4, 4]
    tokenizer, [note] = file_tokenizer(saved(foreign, tmp_path / "tokenizer.json"))
    assert note == f"tokenizer.json has no {END}: it was added as token 5" and end_id(tokenizer) == 5
    assert tokenizer.get_vocab_size() == 6 and unknown_id(tokenizer) == 1
    for one in (tokenizer, load_tokenizer(saved(tokenizer, tmp_path / "again.json"))):
        assert encode(one, ["the Cat the cat mat"]) == [[2, 3, 2, 3, 1]]
        assert one.encode("the cat").ids == [2, 3]
        assert encode(one, [f"{END} cat [CLS]"]) == [[1, 3, 1]]  # plain text, all of it


def test_a_tokenizer_in_which_the_end_is_a_word_of_a_text_is_refused(tmp_path: Path) -> None:
    foreign = Tokenizer(models.WordLevel({END: 0, "[UNK]": 1, "cat": 2}, unk_token="[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer, _ = file_tokenizer(saved(foreign, tmp_path / "tokenizer.json"))
    assert encode(tokenizer, ["cat dog"]) == [[2, 1]]
    with pytest.raises(ValueError, match="makes its end token of"):
        encode(tokenizer, ["cat", f"cat {END}"])


def test_a_tokenizer_that_drops_merges_by_chance_does_so_no_more(tmp_path: Path) -> None:
    foreign = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    tokenizer, _ = file_tokenizer(saved(foreign, tmp_path / "tokenizer.json"))
    assert encode(tokenizer, ["ab"] * 50) == [[2]] * 50


def test_a_tokenizer_that_is_none_or_cannot_write_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in (b"", b"{", b'{"text": "a row"}', b"\xff\xfe", b"[1]"):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"data\.tokenizer_path: .*tokenizer\.json is not a readable tokenizer"
        ) as one:
            file_tokenizer(path)
        assert "\n" not in str(one.value)
    with pytest.raises(ValueError, match="there is no file"):
        file_tokenizer(tmp_path / "nothing.json")
    gaps = Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    with pytest.raises(ValueError, match="the ids of .* leave gaps"):
        file_tokenizer(saved(gaps, path))
    mute = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer, _ = file_tokenizer(saved(mute, path))
    with pytest.raises(ValueError, match="cannot write the text"):
        encode(tokenizer, ["b"])
