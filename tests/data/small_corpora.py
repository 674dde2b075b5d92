"""Settings of small corpora, and their stories and texts, for the tests."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.loader import Corpus
from data.pairs import NO_LINK, Link, LinkedText
from data.stories import generate_split
from data.tokenizer import END
from settings.data import StoriesConfig, TextConfig, TokenizerKind
from settings.train import compose_settings

CONFIG = StoriesConfig(
    source="stories",
    seed=3,
    n_train_stories=6000,
    n_validation_stories=800,
    n_test_frames=12,
    n_test_pairs=3,
    share_agreement=0.36,
    share_verb=0.19,
    share_no_pronoun=0.45,
)
FULL = replace(CONFIG, n_validation_stories=200, n_test_frames=4, n_test_pairs=2)
SMALL = replace(FULL, n_train_stories=1200, n_validation_stories=40)
SPLITS = ("train", "validation", "dev", "test")


@cache
def full_stories() -> dict[str, list[LinkedText]]:
    train = generate_split(FULL, "train")
    return {split: generate_split(FULL, split, train) for split in SPLITS}


def all_rows(*splits: str) -> list[LinkedText]:
    """Return the stories of these splits, or of all."""
    return [row for split in splits or SPLITS for row in full_stories()[split]]


def all_links(*splits: str) -> list[tuple[LinkedText, Link]]:
    return [(row, row.link) for row in all_rows(*splits) if row.link != NO_LINK]


def text_config(path: Path, **changes: Any) -> TextConfig:
    """Return the settings of a text; by default in characters, the rest as in configs/data/text.yaml."""
    values: dict[str, Any] = {"path": str(path), "tokenizer": TokenizerKind.characters, "vocab_size": 300}
    return replace(compose_settings(["data=text", "data.path=x"]).data, **values | changes)


def llama_tokenizer(
    texts: Iterable[str], size: int, *, prepends_space: bool = True, crosses_words: bool = False
) -> Tokenizer:
    """Return a tokenizer in the layout of Llama 2: spaces are marks before words, put in by the normalizer."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    before = [normalizers.Prepend("▁")] if prepends_space else []
    marks = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    if crosses_words:
        tokenizer.normalizer = marks
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    special = ["<unk>", END, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer, tokenizer.normalizer = None, marks
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def decoded(corpus: Corpus, split: str) -> str:
    tokens = getattr(corpus, split).tokens
    return corpus.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
