"""Small models and tokenizers for the tests of external test sets."""

from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from data.tokenizer import UNKNOWN, bpe_tokenizer, end_id, word_tokenizer
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.external import EvaluatedModel
from tests.tiny_models import random_model

SETTINGS = ProbeConfig(
    seed=0, tokens_per_batch=512, n_bootstrap=200, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)


SIZES = {"d_model": 42, "context_length": 64}


def evaluated_model(tokenizer: Tokenizer, model: Transformer, words: Sequence[str] | None = None) -> EvaluatedModel:
    def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = tokenizer.encode(text)
        return encoding.ids, encoding.offsets

    return EvaluatedModel(
        model=TransformerView(model),
        encode=encode,
        start_token=end_id(tokenizer),
        unknown_token=tokenizer.token_to_id(UNKNOWN),
        training_words=None if words is None else frozenset(words),
        training_words_source="the training text",
        config=SETTINGS,
    )


def word_model(
    texts: Sequence[str], change: Callable[[Transformer], Transformer] | None = None, **changes: object
) -> EvaluatedModel:
    """Return a random model whose tokenizer has the words of `texts`."""
    tokenizer = word_tokenizer(texts)
    model = random_model(tokenizer.get_vocab_size(), **SIZES | changes)
    words = [word for word in tokenizer.get_vocab() if not word.startswith("<|")]
    return evaluated_model(tokenizer, change(model) if change else model, words)


def bpe_model(texts: Sequence[str], vocab_size: int = 300, **changes: object) -> EvaluatedModel:
    """Return a random model with byte-level BPE trained on `texts`."""
    tokenizer = bpe_tokenizer(texts, vocab_size)
    return evaluated_model(tokenizer, random_model(tokenizer.get_vocab_size(), **SIZES | changes))
