"""Effects of heads on the next word, and worked examples."""

import pytest
import torch

from model.observe import HeadEdit
from probe.results import Head
from probe.sentences import (
    TIRED_OR_SOFT,
    TokenizedText,
    removal_effects,
    word_attention,
)
from tests.probe.factories import word_model
from tests.tiny_models import random_view

# "cats sat", tokenized as "cat", "s", " sat" behind the start token.
TEXT = TokenizedText("cats sat", [0, 1, 2, 3], [(0, 3), (3, 4), (4, 8)], [(0, 4), (5, 8)])


def test_the_effect_of_a_head_is_the_change_of_the_next_word_at_the_last_token_of_the_word() -> None:
    view = random_view()
    effects = removal_effects(view, TEXT, 1)  # "cats" ends with token 2
    tokens = torch.tensor([TEXT.tokens])
    before = view.logits(tokens)[0, 2].softmax(-1)

    def remove(output: torch.Tensor) -> torch.Tensor:
        return output * (torch.arange(4) != 2)[None, :, None]  # at that token only

    for layer in range(view.n_layer):
        for head in range(view.n_head):
            after = view.logits(tokens, edits=[HeadEdit(layer, head, output=remove)])[0, 2].softmax(-1)
            assert effects[layer, head] == pytest.approx(float((after - before).abs().sum() / 2), abs=1e-5)
    assert effects.min() > 0.001 and effects.max() <= 1


def test_an_example_has_the_weights_of_its_nouns_and_the_next_words_after_a_last_query() -> None:
    opened = word_model([example.text for example in TIRED_OR_SOFT])
    in_the_middle, at_the_end = TIRED_OR_SOFT[:2]
    measured = opened.measure_example(in_the_middle, Head(1, 2))
    text = opened.tokenize(in_the_middle.text)
    row = word_attention(opened.model, [text])[0][1, 2, text.words.index("it")]
    assert list(measured.weights) == ["cat", "mat"] and measured.next == []
    assert (measured.kind, measured.word, text.words[text.word_of_token[measured.query]]) == ("worked", "it", "it")
    meant, other = ([text.words[text.word_of_token[i]] for i in words] for [words] in (measured.meant, measured.other))
    assert (meant, other) == (["cat"], ["mat"])
    assert measured.weights["cat"] == pytest.approx(row[text.words.index("cat")])
    assert len(opened.measure_example(at_the_end, Head(1, 2)).next) == 3
    assert opened.encode(at_the_end.text) == (opened.bos_id, *opened.tokenize(at_the_end.text).tokens[1:])
