"""Items of a small corpus and models for them, made once for all tests."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from data.config import StoriesConfig
from data.links import LinkItem, Word, link_items
from data.stories import generate_split
from data.tokenizer import UNKNOWN, end_id, word_tokenizer
from model.observe import TransformerView
from model.transformer import Transformer
from probe.scores import HeadRows, candidates, reduce_scores
from tests.data.small_corpora import CONFIG, NO_SHARES
from tests.planted import plant
from tests.tiny_models import config as model_config
from tests.tiny_models import random_model, untrained

# Every family at its least: one frame, one pair.
FULL = replace(CONFIG, n_test_frames=1, n_test_pairs=1, **dict.fromkeys(NO_SHARES, 1 / len(NO_SHARES)))
SIZES: dict[str, Any] = {"d_model": 48, "context_length": 64}
MODEL = model_config(**SIZES)


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer with the words of both corpora, so that one model reads both."""
    return word_tokenizer([story.text for config in (CONFIG, FULL) for story in generate_split(config, "train")])


@cache
def _items(config: StoriesConfig, split: str) -> list[LinkItem]:
    splits = ("test", "test_others") if split == "test" else (split,)
    stories = [story for name in splits for story in generate_split(config, name)]
    items = link_items(stories, tokenizer(), end_id(tokenizer()))
    assert not any(tokenizer().token_to_id(UNKNOWN) in item.tokens for item in items)
    return items


def story_items(split: str, family: str = "", site: str = "", config: StoriesConfig = CONFIG) -> list[LinkItem]:
    items = _items(config, split)
    return [item for item in items if item.family == (family or item.family) and item.site == (site or item.site)]


def vocabulary() -> dict[str, int]:
    return tokenizer().get_vocab()


def first_token() -> int:
    return end_id(tokenizer())


def planted(kind: str, **options: float) -> Transformer:
    return plant(MODEL, vocabulary(), kind, **options)


def story_model(**switches: Any) -> Transformer:
    return random_model(len(vocabulary()), **SIZES | switches)


def untrained_models() -> list[TransformerView]:
    return [TransformerView(untrained(len(vocabulary()), seed, **SIZES)) for seed in (5, 6)]


def rows_of_scores(items: list[LinkItem], scores: list[np.ndarray]) -> HeadRows:
    """Reduce made-up attention scores, [query + 1] per item, as if they were those of a model's only head."""
    padded = torch.full((len(items), 1, max(map(len, scores))), float("-inf"))
    for row, item_scores in zip(padded, scores, strict=True):
        row[0, : len(item_scores)] = torch.from_numpy(item_scores)
    mentions = candidates(items)
    norms = torch.ones_like(mentions.positions[:, None], dtype=torch.float32)
    fields_of_rows = reduce_scores(padded, mentions, norms)
    return HeadRows(**{name: values.numpy()[:, None] for name, values in fields_of_rows.items()})


def scores_by_word(items: list[LinkItem], word_score: Callable[[LinkItem, Word], float]) -> list[np.ndarray]:
    """Return scores [query + 1] per item: `word_score` of each mention, 0 elsewhere."""
    result = []
    for item in items:
        scores = np.zeros(item.query + 1, dtype=np.float32)
        for word in item.antecedents + item.distractors:
            scores[list(word)] = word_score(item, word) - np.log(len(word))
        result.append(scores)
    return result


def member(item: LinkItem, word: Word) -> int:
    """Return 0 for the first word of the item's pair (singular, feminine or animal), 1 for the second."""
    return item.meant if word in item.antecedents else 1 - item.meant
