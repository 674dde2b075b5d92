"""The line that decides the next word is found by cutting each; where two do the same, the pair is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.edits import cut_link
from probe.deciding import DECIDES, LEAST_WEIGHT, deciding
from probe.results import Head
from probe.sentences import TokenizedText, word_attention
from tests.probe.test_carry import BY, FIRST_IS_MEANT, NOUNS, PRONOUN, SECOND_IS_MEANT, START, Circuit
from tests.tiny_models import random_view

SPANS = [(2 * i, 2 * i + 1) for i in range(6)]
TEXT = TokenizedText("a v b c w d", [START, NOUNS[0], FIRST_IS_MEANT, BY, NOUNS[1], BY, PRONOUN], SPANS, SPANS)


@pytest.mark.parametrize(("cause", "noun"), [(FIRST_IS_MEANT, "a"), (SECOND_IS_MEANT, "c")])
def test_the_line_of_the_planted_head_to_the_meant_noun_decides(cause, noun):
    tokens = [cause if token == FIRST_IS_MEANT else token for token in TEXT.tokens]
    found = deciding(Circuit(), replace(TEXT, tokens=tokens), lambda token: f"answer {token}")
    first, *others = found.lines
    assert found.decides and found.pair is None
    assert (first.head, first.word, first.place) == (Head(1, 1), noun, TEXT.words.index(noun))
    assert max(abs(line.lost) for line in others) < 0.01 and first.lost > 0.8 > DECIDES
    said = f"Which line decides “answer {found.answer}” (0.90)? L1H1 to “{noun}” (weight 1.00): cut, 0.06."
    assert found.statement() == f"{said} The other {len(others)} lines take at most 0.00 or add at most 0.00."


def test_of_two_heads_that_do_the_same_no_line_decides_and_the_pair_is_named():
    found = deciding(Circuit(is_twice=True), TEXT, str)
    assert not found.decides and found.pair is not None
    assert {(line.head, line.word) for line in found.pair} == {(Head(1, 0), "a"), (Head(1, 1), "a")}
    assert found.pair_lost > 0.8 > max(line.lost for line in found.lines)
    assert "No single line: none of" in found.statement() and "L1H1 to “a” take 0.84." in found.statement()


def test_every_line_with_weight_is_cut_as_an_edit_by_hand_cuts_it():
    view = random_view(29, n_layer=2)
    spans = [(i, i + 1) for i in range(7)]
    text = TokenizedText("ab cd e", [0, 3, 7, 11, 3, 19, 23, 28], spans, [(0, 2), (3, 5), (6, 7)])
    found = deciding(view, text, str)
    weights = word_attention(view, text)[:, :, -1]  # [L, H, W]
    expected = {(*place, word) for *place, word in np.argwhere(weights >= LEAST_WEIGHT).tolist()}
    assert {(*line.head, line.place) for line in found.lines} == expected
    assert [line.lost for line in found.lines] == sorted((line.lost for line in found.lines), reverse=True)
    tokens = torch.tensor([text.tokens])
    for line in found.lines:
        cut = cut_link(*line.head, len(text.tokens) - 1, text.tokens_of(line.place))
        chance = view.logits(tokens, edits=[cut])[0, -1].softmax(-1)[found.answer]
        assert line.lost == pytest.approx(found.chance - float(chance), abs=1e-5)
        assert line.weight == pytest.approx(weights[*line.head, line.place], abs=1e-5)
