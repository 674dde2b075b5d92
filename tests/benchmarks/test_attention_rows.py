"""Both sides of the attention rows read the same thing."""

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import attention_rows
from benchmarks.attention_rows import LIMIT, llama, made, our_rows, peer_rows, sentences

TEXT = """Tom had a big dog. He fed it at the old house by the river. They slept.
Then it rained all day on the little town. Anna came home. "Where is my cat?" she asked the boy who had seen it there.
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_rows, "_SHAPE", replace(attention_rows._SHAPE, n_layer=3, d_model=64, d_mlp=96))


def test_a_text_is_cut_into_two_sentences_at_a_time() -> None:
    assert sentences(TEXT) == [
        "Tom had a big dog. He fed it at the old house by the river.",
        "Then it rained all day on the little town. Anna came home.",
        '"Where is my cat?" she asked the boy who had seen it there.'.replace('?" ', "? "),
    ]


@pytest.mark.parametrize("head", [True, False])
def test_our_rows_are_those_of_transformers(head: bool) -> None:
    pytest.importorskip("transformers")
    asked, model = made(TEXT * 3, n_texts=9)
    assert len(asked) == 3 and all(0 < place < len(text) - 1 for text, place in asked)
    for some in (asked, [(text, len(text) - 1) for text, _ in asked]):
        for one, other in zip(
            our_rows(model, some), peer_rows(llama(model), some, n_at_once=2, head=head), strict=True
        ):
            assert one.shape == other.shape == (3, 8, one.shape[-1])
            np.testing.assert_allclose(one, other, atol=LIMIT, rtol=0)
            np.testing.assert_allclose(one.sum(-1), 1, atol=1e-5)


def test_the_asked_token_is_the_last_pronoun() -> None:
    from data.tokenizer import bpe_tokenizer

    (text, place), *_ = made(TEXT, n_texts=9)[0]
    tokenizer = bpe_tokenizer([TEXT], attention_rows._VOCABULARY)
    told = re.sub(r"\s+", " ", tokenizer.decode(list(text[1 : place + 1])))
    assert told.strip() == "Tom had a big dog. He fed it"
