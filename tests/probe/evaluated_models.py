"""Small models and tokenizers for the tests of external test sets."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from data.tokenizer import bpe_tokenizer, end_id, word_tokenizer
from model.config import ModelConfig
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.opened_model import OpenedModel
from tests.model.standard import PLAIN

SETTINGS = ProbeConfig(
    seed=0, tokens_per_batch=512, n_bootstrap=200, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)


def model_config(context_length: int = 64, **changes: object) -> ModelConfig:
    sizes = {"n_layer": 2, "n_head": 3, "d_model": 42, "d_mlp": 37, "context_length": context_length}
    return ModelConfig(**(sizes | PLAIN | changes))


def randomise(model: Transformer, std: float = 0.3, seed: int = 7) -> Transformer:
    """Give every matrix random entries, so that no block is the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, std, generator=generator)
    return model.eval()


def make_uniform(model: Transformer) -> Transformer:
    """Give every token the same probability in every context."""
    with torch.no_grad():
        model.token_embedding.weight.zero_()
    return model.eval()


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
    texts: Sequence[str], change: Callable[[Transformer], Transformer] = randomise, **changes: object
) -> OpenedModel:
    """Return a random model whose tokenizer has the words of `texts`."""
    tokenizer = word_tokenizer(texts)
    return opened_model(tokenizer, change(Transformer(model_config(**changes), tokenizer.get_vocab_size(), seed=0)))


def bpe_model(texts: Sequence[str], vocab_size: int = 300, **changes: object) -> OpenedModel:
    """Return a random model with byte-level BPE trained on `texts`."""
    tokenizer = bpe_tokenizer(texts, vocab_size)
    return opened_model(tokenizer, randomise(Transformer(model_config(**changes), tokenizer.get_vocab_size(), seed=0)))
