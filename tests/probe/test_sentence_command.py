"""A sentence of one's own, before a word is said of it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from data.tokenizer import bpe_tokenizer, end_id
from model.config import ModelConfig
from model.transformer import Transformer
from probe.open import Opened
from probe.sentence_command import look
from tests.model.standard import PLAIN


def calls(opened: Opened, n: int) -> int:
    """Return how many Python functions are called to refuse a text of `n` words."""
    found = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        with pytest.raises(ValueError, match=r"text is \d+ tokens long; this model reads 6"):
            look(opened, "it " * n)
    finally:
        sys.setprofile(None)
    return found


def test_a_text_that_is_too_long_is_refused_at_a_cost_that_grows_no_faster_than_it(tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer(["it "], 270)
    config = ModelConfig(n_layer=1, n_head=1, d_model=8, d_mlp=8, context_length=7, **PLAIN)
    model = Transformer(config, tokenizer.get_vocab_size(), seed=0).eval()
    of_no_use: Any = None  # to a text that is refused
    opened = Opened(
        run=tmp_path, origin=of_no_use, data=of_no_use, data_fingerprint="", tokenizer=tokenizer, place="",
        end=end_id(tokenizer), model=model, untrained=of_no_use,
    )  # fmt: skip
    calls(opened, 50)  # whose imports do not count
    few, many = calls(opened, 50), calls(opened, 400)
    assert few and many <= 8 * few
