"""Small opened models with random weights, and settings of a quick probe."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from data.tokenizer import bpe_tokenizer, end_id, word_tokenizer
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.opened_model import OpenedModel
from tests.tiny_models import random_model

SETTINGS = ProbeConfig(
    seed=0, tokens_per_batch=512, n_bootstrap=200, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)


SIZES = {"d_model": 42, "context_length": 64}


def opened_model(tokenizer: Tokenizer, model: Transformer) -> OpenedModel:
    """Return a model as an opened external one."""

    def no_untrained(seed: int) -> TransformerView:
        raise NotImplementedError

    return OpenedModel(
        folder=Path("nowhere"),
        name="small",
        source="nowhere",
        model=TransformerView(model),
        untrained=no_untrained,
        tokenizer=tokenizer,
        bos_id=end_id(tokenizer),
        data=None,
        data_fingerprint="english",
        shape={},
        n_parameters=1,
        departures=(),
        environment={},
    )


def word_model(
    texts: Sequence[str], change: Callable[[Transformer], Transformer] | None = None, **changes: object
) -> OpenedModel:
    """Return a random model whose tokenizer has the words of `texts`."""
    tokenizer = word_tokenizer(texts)
    model = random_model(tokenizer.get_vocab_size(), **SIZES | changes)
    return opened_model(tokenizer, change(model) if change else model)


def bpe_model(texts: Sequence[str], vocab_size: int = 300, **changes: object) -> OpenedModel:
    """Return a random model with byte-level BPE trained on `texts`."""
    tokenizer = bpe_tokenizer(texts, vocab_size)
    return opened_model(tokenizer, random_model(tokenizer.get_vocab_size(), **SIZES | changes))
