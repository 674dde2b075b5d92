"""Attention between the words of a text, and its packing for files."""

from base64 import b64decode

import numpy as np
import pytest
import torch

from model.observe import HeadEdit
from probe.results import Head
from probe.sentences import (
    TIRED_OR_SOFT,
    TokenizedText,
    between_words,
    next_tokens,
    pack_weights,
    removal_effects,
    word_attention,
)
from tests.probe.factories import word_model
from tests.tiny_models import random_view

# "cats sat", tokenized as "cat", "s", " sat" behind the start token.
TEXT = TokenizedText("cats sat", [0, 1, 2, 3], [(0, 3), (3, 4), (4, 8)], [(0, 4), (5, 8)])
WEIGHTS = np.array([[1, 0, 0, 0], [0.4, 0.6, 0, 0], [0.2, 0.5, 0.3, 0], [0.1, 0.2, 0.3, 0.4]])


def test_a_word_reads_from_its_last_token_and_is_read_at_all_its_tokens() -> None:
    assert TEXT.words == ["(start)", "cats", "sat"] and TEXT.word_of_token == [0, 1, 1, 2]
    expected = [[1, 0, 0], [0.2, 0.8, 0], [0.1, 0.5, 0.4]]
    np.testing.assert_allclose(between_words(WEIGHTS, TEXT), expected, rtol=1e-12)


def test_packed_weights_come_back_within_half_a_step() -> None:
    weights = np.tril(np.random.default_rng(0).random((2, 3, 7, 7)))
    rows = np.frombuffer(b64decode(pack_weights(weights)), "<u2") / 65535
    np.testing.assert_allclose(rows, weights[..., np.tri(7, dtype=bool)].ravel(), atol=0.51 / 65535)


def test_word_attention_of_single_token_words_is_the_softmax_of_the_scores() -> None:
    model = random_view()
    text = TokenizedText("a b c", [0, 4, 5, 6], [(0, 1), (2, 3), (4, 5)], [(0, 1), (2, 3), (4, 5)])
    scores = model.attention_scores(torch.tensor([text.tokens]))[:, 0]
    np.testing.assert_allclose(word_attention(model, [text])[0], scores.softmax(-1).numpy(), rtol=1e-5)


def test_next_tokens_are_the_most_probable_ones() -> None:
    model = random_view()
    probabilities = model.logits(torch.tensor([[0, 4, 5]]))[0, -1].softmax(-1)
    best = next_tokens(model, [0, 4, 5], 3)
    assert [token for token, _ in best] == probabilities.topk(3).indices.tolist()
    assert [p for _, p in best] == pytest.approx(probabilities.topk(3).values.tolist(), rel=1e-5)


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
