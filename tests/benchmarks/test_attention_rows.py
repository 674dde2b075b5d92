"""Both sides of the attention rows read the same thing."""

import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import attention_rows
from benchmarks.attention_rows import LIMIT, Pass, llama, made, our_rows, peer_rows, sentences

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


def read(speed: float, peak: float = 100.0, weight: float = 0.5) -> list[Pass]:
    return [Pass(n=100, seconds=100 / speed, before=90.0, peak=peak, rows=np.array([0.5, weight]))] * 2


def some(**changes: list[Pass]) -> dict[tuple[str, bool], list[Pass]]:
    speeds = {"ours": 50.0, "peer 8": 10.0, "headless peer 8": 25.0, "ours bfloat16": 80.0, "peer 8 bfloat16": 20.0}
    found = {(kind, at_end): read(speed) for kind, speed in speeds.items() for at_end in (False, True)}
    return found | {
        ("ours", False): changes.get("ours", read(50.0)),
        ("peer 8", False): changes.get("peer", read(10.0)),
    }


def test_each_peer_is_a_row_of_its_own_and_each_numbers_has_its_goal() -> None:
    rows = attention_rows.judged(some(), 8, "what was read.")
    assert [(row.unit, "float32," in row.work, "whole" in row.peer_name, row.met) for row in rows] == [
        ("sentences/s", numbers == "float32", whole, numbers == "float32" and whole)
        for numbers in ("float32", "bfloat16")
        for _ in ("at a pronoun", "at the last token")
        for whole in (True, False)
    ]
    assert rows[0].ours == [50.0, 50.0] and rows[0].peer == [10.0, 10.0] and rows[1].peer == [25.0, 25.0]
    assert rows[0].note.startswith("what was read.") and "4.00x" in rows[4].note
    assert not attention_rows.judged(some(ours=read(49.0)), 8, "")[0].met


@pytest.mark.parametrize("weight", [0.5001, float("nan")])
def test_rows_that_are_not_the_peers_are_not_timed(weight: float) -> None:
    with pytest.raises(SystemExit, match="a weight of ours is"):
        attention_rows.judged(some(ours=read(50.0, weight=weight)), 8, "")


def test_memory_is_held_against_both_peers() -> None:
    rows = attention_rows.memory(some(ours=read(50.0, peak=60.0), peer=read(10.0, peak=120.0)), 8)
    assert [row.met for row in rows] == [True, False] and "rises by -30 MB, theirs by 30." in rows[0].note
