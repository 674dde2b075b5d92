"""Small models and tokenizers, as the tests of others see them."""

from collections.abc import Sequence

import numpy as np
import torch
from tokenizers import Tokenizer

from data.documents import local_sources, read_pieces
from data.loader import Split, validation_batches
from data.tokenizer import UNKNOWN, bpe_tokenizer, end_id, word_tokenizer
from model.config import ModelConfig, Position
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.subject import Subject
from tests.model.standard import PLAIN

SETTINGS = ProbeConfig(seed=0, tokens_per_batch=512, n_bootstrap=200, n_untrained=2, n_controls=10)


def config(context_length: int = 64, **changes: object) -> ModelConfig:
    return ModelConfig(
        **({"n_layer": 2, "n_head": 3, "d_model": 42, "d_mlp": 37, "context_length": context_length} | PLAIN | changes)
    )


def noisy(model: Transformer, seed: int = 7) -> Transformer:
    """Give every weight something, so that all blocks add to the stream."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def constant(model: Transformer) -> Transformer:
    """Give every token the same probability everywhere."""
    with torch.no_grad():
        model.token_embedding.weight.zero_()
    return model.eval()


def looks_at_its_own_word(vocab_size: int, context_length: int = 64) -> Transformer:
    """Give head 1 of the one layer the score of likeness of tokens, the other heads none: each key scores 0."""
    model = Transformer(
        config(context_length, n_layer=1, position=Position.none, d_model=60), vocab_size, seed=1
    ).eval()
    with torch.no_grad():
        attention = model.blocks[0].attention
        for linear in (attention.query, attention.key):
            linear.weight.zero_()
            linear.weight[20:40] = 4 * torch.eye(60)[:20]
    return model


def subject(
    tokenizer: Tokenizer,
    model: Transformer,
    known: Sequence[str] | None = None,
    settings: ProbeConfig = SETTINGS,
) -> Subject:
    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = tokenizer.encode(text)
        return encoding.ids, encoding.offsets

    def windows(tokens: np.ndarray, n_bytes: int):  # noqa: ANN202
        length = model.config.context_length
        for batch in validation_batches(
            Split(tokens, n_bytes), tokens_per_batch=settings.tokens_per_batch, context_length=length, n_tokens=None
        ):
            yield batch.model_inputs(), batch.targets

    return Subject(
        model=model,
        encode=encode,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        end=end_id(tokenizer),
        unknown=tokenizer.token_to_id(UNKNOWN),
        known=None if known is None else frozenset(known),
        known_from="the training text",
        windows=windows,
        texts=lambda path: ((one.place, read_pieces([one], "text")) for one in local_sources(path, "path")),
        untrained=lambda i: Transformer(model.config, model.vocab_size, seed=100 + i).eval(),
        config=settings,
    )


def word_subject(texts: Sequence[str], make: object = None, **changes: object) -> Subject:
    """Return a subject whose tokenizer knows the words of `texts`; `make` turns the model into another."""
    tokenizer = word_tokenizer(texts)
    model = noisy(Transformer(config(**changes), tokenizer.get_vocab_size(), seed=0))
    model = make(model) if callable(make) else model
    return subject(tokenizer, model, [word for word in tokenizer.get_vocab() if not word.startswith("<|")])


def bpe_subject(texts: Sequence[str], vocab_size: int = 300, **changes: object) -> Subject:
    tokenizer = bpe_tokenizer(texts, vocab_size)
    return subject(tokenizer, noisy(Transformer(config(**changes), tokenizer.get_vocab_size(), seed=0)))
