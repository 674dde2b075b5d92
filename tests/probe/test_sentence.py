"""A user's sentence, whatever pieces its words fall into."""

import numpy as np
import pytest
import torch

from data.stories.lint import word_spans
from data.tokenizer import bpe_tokenizer, character_tokenizer, end_id, word_tokenizer
from model.config import ModelConfig
from model.observe import attention_maps
from model.transformer import Transformer
from probe.sentences import Sentence, next_words, word_rows
from report.tables import sentence_lines
from tests.model.standard import PLAIN

TEXT = "The cat sat near the  buses. It purred."
MAKERS = {"words": word_tokenizer, "characters": character_tokenizer, "bpe": lambda texts: bpe_tokenizer(texts, 270)}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_word_sums_over_its_pieces_and_looks_from_its_last(kind: str) -> None:
    tokenizer = MAKERS[kind]([TEXT])
    config = ModelConfig(n_layer=2, n_head=3, d_model=30, d_mlp=41, context_length=64, **PLAIN)
    model = Transformer(config, tokenizer.get_vocab_size(), seed=0).eval()
    encoding, every = tokenizer.encode(TEXT), word_spans(TEXT)
    it = next(span for word, span in every if word == "It")
    ids = [end_id(tokenizer), *encoding.ids]
    [row] = word_rows(model, Sentence(ids, encoding.offsets, every), [it])
    last = max(i for i, (start, end) in enumerate(encoding.offsets) if start < it[1] and end > it[0])
    maps = attention_maps(model, torch.tensor([ids]))[:, 0, :, last + 1].detach().numpy()
    cat = [i + 1 for i, (start, end) in enumerate(encoding.offsets) if start < 7 and end > 4]
    np.testing.assert_allclose(row.weights[..., 2], maps[..., cat].sum(-1), atol=1e-6)
    assert row.word == "It"
    assert (row.weights[..., 1 + [w for w, _ in every].index("purred") :] == 0).all()
    between = [i + 1 for i, span in enumerate(encoding.offsets) if not TEXT[slice(*span)].strip()]  # spaces alone
    np.testing.assert_allclose(row.weights.sum(-1), 1 - maps[..., between].sum(-1), atol=1e-6)


def test_the_lines_name_the_three_largest_and_the_chosen_head() -> None:
    tokenizer = word_tokenizer([TEXT])
    config = ModelConfig(n_layer=1, n_head=1, d_model=8, d_mlp=8, context_length=64, **PLAIN)
    model = Transformer(config, tokenizer.get_vocab_size(), seed=0).eval()
    encoding, every = tokenizer.encode(TEXT), word_spans(TEXT)
    ids = [end_id(tokenizer), *encoding.ids]
    rows = word_rows(model, Sentence(ids, encoding.offsets, every), [every[-2][1]])
    lines = sentence_lines([word for word, _ in every], rows, {(0, 0): ["number", "later_cue"]})
    assert lines[1].startswith('at "purred"')
    assert "L0H0" in lines[2] and "chosen for number; later_cue" in lines[2]
    likely = next_words(model, ids, 3)
    assert len(likely) == 3 and likely[0][1] >= likely[1][1] >= likely[2][1]
