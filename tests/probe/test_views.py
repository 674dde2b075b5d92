"""A picture's weights are the model's own, to the last step of the numbers they are written in."""

from base64 import b64decode

import numpy as np
import pytest
import torch

from model.config import ModelConfig
from model.observe import attention_maps
from model.transformer import Transformer
from probe.sentences import (
    START,
    Layout,
    Sentence,
    by_word,
    dense,
    layout,
    sparse,
    unwritten,
    view,
    word_rows,
    written,
    written_words,
)
from tests.model.standard import PLAIN

TEXT = "Tom's 7 cats sat."
# Pieces as a tokenizer might cut them: a word in two, a space of its own, a word with the space before it.
OFFSETS = [(0, 3), (3, 5), (5, 6), (6, 7), (7, 12), (12, 16), (16, 17)]
WORDS = [("Tom", (0, 3)), ("'s", (3, 5)), ("7", (6, 7)), ("cats", (8, 12)), ("sat", (13, 16)), (".", (16, 17))]
SENTENCE = Sentence([1, 5, 3, 2, 4, 9, 7, 8], OFFSETS, WORDS)


def test_pieces_and_words_stand_side_by_side() -> None:
    found = layout(SENTENCE, TEXT)
    assert found.pieces == [START, "Tom", "'s", " ", "7", " cats", " sat", "."]
    assert found.words == [START, "Tom", "'s", "7", "cats", "sat", "."]
    assert found.owner == [0, 1, 2, -1, 3, 4, 5, 6]


def test_a_words_row_is_that_of_its_last_token_and_its_weight_the_sum_over_its_tokens() -> None:
    layout = Layout(["(start)", "bus", "es", " ", "It"], ["(start)", "buses", "gone", "It"], [0, 1, 1, -1, 3])
    weights = np.tril(np.arange(1, 26).reshape(5, 5) / 100)
    found = by_word(weights, layout)
    assert found.shape == (4, 4) and (found[2] == 0).all() and (found[:, 2] == 0).all()  # a word without tokens
    assert found[1].tolist() == pytest.approx([0.11, 0.12 + 0.13, 0, 0])
    assert found[3].tolist() == pytest.approx([0.21, 0.22 + 0.23, 0, 0.25])


def test_a_view_is_the_models_own_attention_and_sums_to_the_rows_of_words() -> None:
    config = ModelConfig(n_layer=2, n_head=3, d_model=30, d_mlp=41, context_length=64, **PLAIN)
    model = Transformer(config, vocab_size=11, seed=0).eval()
    weights = view(model, SENTENCE)
    with torch.no_grad():
        maps = attention_maps(model, torch.tensor([SENTENCE.ids]))[:, 0]
    assert (weights == maps.numpy()).all() and weights.shape == (2, 3, 8, 8)
    owner = np.array(layout(SENTENCE, TEXT).owner)
    (row,) = word_rows(model, SENTENCE, [(13, 16)])
    by_word = np.stack([weights[:, :, 6, owner == word].sum(-1) for word in range(7)], axis=-1)
    np.testing.assert_allclose(by_word, row.weights, atol=1e-6)


@pytest.mark.parametrize(("kind", "largest"), [(np.uint8, 255), (np.uint16, 65535)])
def test_dense_weights_come_back_to_half_a_step(kind, largest) -> None:
    weights = np.tril(np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5)))
    packed = np.frombuffer(dense(weights, kind), dtype=np.dtype(kind).newbyteorder("<")).reshape(2, 3, 15)
    rows, columns = np.tril_indices(5)
    np.testing.assert_allclose(packed / largest, weights[..., rows, columns], atol=0.5 / largest)


def test_of_a_long_text_the_largest_weights_of_each_row_are_kept() -> None:
    weights = np.tril(np.random.default_rng(1).random((2, 3, 7, 7)))
    packed = np.frombuffer(sparse(weights, 4), dtype="<u2").reshape(2, 3, 7, 4, 2)
    for layer, head, row in np.ndindex(2, 3, 7):
        best = sorted(weights[layer, head, row], reverse=True)[:4]
        keys, values = packed[layer, head, row].T
        np.testing.assert_allclose(values / 65535, best, atol=1e-5)
        np.testing.assert_allclose(weights[layer, head, row, keys], best)


def test_a_sentence_is_written_whole_and_a_long_text_in_half_a_megabyte() -> None:
    short, long = np.eye(64)[None, None], np.broadcast_to(np.eye(512, dtype=np.float32), (6, 6, 512, 512))
    assert written(short)["kept"] is None and len(b64decode(written(short)["data"])) == 2 * 64 * 65 // 2
    found = written(long)
    assert found["kept"] == 6 and len(b64decode(found["data"])) == 4 * 36 * 512 * 6


def test_what_was_written_comes_back_of_a_long_text_the_largest_weights_alone() -> None:
    short = np.tril(np.random.default_rng(2).dirichlet(np.ones(7), size=(2, 3, 7)))
    np.testing.assert_allclose(unwritten(written(short), (2, 3, 7)), short, atol=0.5 / 65535)
    long = np.tril(np.random.default_rng(3).dirichlet(np.full(509, 0.05), size=(7, 11, 509)))
    found, kept = unwritten(written(long), (7, 11, 509)), written(long)["kept"]
    assert ((found > 0).sum(axis=-1) <= kept).all() and 4 <= kept < 64
    largest = np.where(long >= np.sort(long, axis=-1)[..., [-kept]], long, 0)
    np.testing.assert_allclose(found, largest, atol=0.5 / 65535)


def test_words_of_a_long_text_have_their_own_weights_however_many_pieces_they_fall_into() -> None:
    """A word of 100 pieces gets nearly all of each row, and none of its pieces more than another word's."""
    owner = [0, 1, 2, *[3] * 100, *range(4, 104)]
    how = Layout(["x"] * 203, ["w"] * 104, owner)
    weights = np.tril(np.full((3, 5, 203, 203), 0.0001))
    weights[..., 103:, 3:103] = 0.009  # 100 pieces make .9
    weights[..., 103:, 1:3] = 0.04
    held = written_words(weights, how)
    assert held is not None and held["kept"] is not None
    found = unwritten(held, (3, 5, 104))
    np.testing.assert_allclose(found[..., 4:, 3], 0.9, atol=1e-4)
    assert by_word(unwritten(written(weights), (3, 5, 203)), how)[0, 0, -1, 3] < 0.8, "pieces alone would not do"
    assert written_words(weights[..., :64, :64], Layout(["x"] * 64, ["w"] * 64, list(range(64)))) is None
