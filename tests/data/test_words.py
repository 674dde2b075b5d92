from pathlib import Path

import numpy as np
import pytest

import data.tokenizer
from data.tokenizer import bpe_tokenizer, character_tokenizer, end_id, training_words, word_tokenizer
from probe.subject import words_of

TEXTS = ["The cat's whiskers, all of them.", "whiskers", "A na\u00efve cat"]
WORDS = {"The", "cat", "'", "s", "whiskers", ",", "all", "of", "them", ".", "A", "na\u00efve"}


def corpus(folder: Path, tokenizer) -> None:  # noqa: ANN001
    end = end_id(tokenizer)
    ids = [i for text in TEXTS for i in (end, *tokenizer.encode(text).ids)]
    np.save(folder / "train.npy", np.array(ids, dtype=np.uint16))


@pytest.mark.parametrize("make", [lambda: bpe_tokenizer(TEXTS, 280), lambda: character_tokenizer(TEXTS)])
@pytest.mark.parametrize("chunk", [1 << 18, 7, 1])
def test_the_words_of_a_training_text_are_read_back_whole(make, chunk: int, tmp_path: Path, monkeypatch) -> None:  # noqa: ANN001
    """Whatever chunk ends in the middle of a word; documents do not run into each other."""
    tokenizer = make()
    if chunk == 1 and "\u0120" in tokenizer.get_vocab():
        chunk = 3  # a character of two tokens is cut by chunks of one
    monkeypatch.setattr(data.words, "_CHUNK", chunk)
    corpus(tmp_path, tokenizer)
    found = training_words(tokenizer, tmp_path)
    assert found is not None and found[1] == "the training text"
    assert found[0] == WORDS or (chunk == 3 and WORDS - found[0] <= {"na\u00efve"})


def test_a_tokenizer_of_words_knows_them_itself(tmp_path: Path) -> None:
    found = training_words(word_tokenizer(TEXTS), tmp_path)
    assert found == (frozenset(WORDS), "the tokenizer's words")


def test_without_the_training_text_nothing_is_known(tmp_path: Path) -> None:
    assert training_words(bpe_tokenizer(TEXTS, 280), tmp_path / "gone") is None


def test_of_a_long_text_only_the_beginning_is_read_and_that_is_said(tmp_path: Path, monkeypatch) -> None:  # noqa: ANN001
    tokenizer = character_tokenizer(TEXTS)
    corpus(tmp_path, tokenizer)
    monkeypatch.setattr(data.words, "MAX_TOKENS", 8)
    assert training_words(tokenizer, tmp_path) == (frozenset(("The", "cat")), "the first 8 tokens of the training text")


def test_words_of_the_training_text_are_cut_as_those_of_a_test() -> None:
    """Two rooms that may not know each other hold the same rule; coverage compares what it cuts."""
    text = 'He didn\'t -- "no," she said: caf\u00e9s\n\nof 1850!'
    assert data.tokenizer._WORD.findall(text) == words_of(text)
