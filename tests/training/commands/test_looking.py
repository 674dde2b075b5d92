"""What a run says of itself beside its own figures."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data import ngrams
from data.loader import Split
from training.evaluate import counted_grams, counted_lines

TOKENS = np.random.default_rng(0).integers(7, size=1000).astype(np.uint16)


def run(said: list[str]) -> Any:
    corpus = SimpleNamespace(train=Split(TOKENS[:800], 800), validation=Split(TOKENS[800:], 200))
    return SimpleNamespace(
        corpus=corpus, model=SimpleNamespace(vocab_size=7), progress=SimpleNamespace(say=said.append)
    )


def test_of_a_long_text_the_first_tokens_are_counted_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted_grams(run([]))
    assert found["counted_5grams"]["loss"] == ngrams.counted_loss(TOKENS[:800], TOKENS[800:], 7)
    measured = {"loss": 1.5, "bits_per_byte": 2.0}
    assert counted_lines(measured | found)[0].startswith("counted 5-grams of the same text: ")
    monkeypatch.setattr(ngrams, "MOST_TOKENS", 300)
    found = counted_grams(run([]))
    assert found["counted_5grams"]["loss"] == ngrams.counted_loss(TOKENS[:300], TOKENS[800:], 7)
    (line,) = counted_lines(measured | found)
    assert line.startswith("counted 5-grams of the first 300 of its 800 training tokens: ")
    assert line.endswith("bits/byte; this model 1.500, 2.000")


def test_a_run_with_no_memory_left_for_counting_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def want(*_: Any) -> float:
        raise MemoryError

    said: list[str] = []
    monkeypatch.setattr(ngrams, "counted_loss", want)
    assert counted_grams(run(said)) == {} and counted_lines({}) == []
    assert said == ["note    too little memory left to count 5-grams"]
