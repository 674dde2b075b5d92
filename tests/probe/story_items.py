"""Items of a small corpus and models that read it, made once for all tests."""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.planted import plant
from data.config import StoriesConfig
from data.links import LinkItem, Word, link_items
from data.stories import as_dataset, generate_split
from data.tokenizer import UNKNOWN, end_id, word_tokenizer
from model.config import ModelConfig
from model.transformer import Transformer
from probe.scores import Rows, candidates, reduce_scores
from tests.model.standard import PLAIN

_NO_SHARES = {field.name: 0.0 for field in fields(StoriesConfig) if field.name.startswith("share_")}
# The families of the default mix, small.
CONFIG = StoriesConfig(
    **(
        _NO_SHARES
        | {"share_agreement": 0.36, "share_later_cue": 0.13, "share_no_antecedent": 0.06, "share_no_pronoun": 0.45}
    ),
    source="stories",
    seed=3,
    n_train_stories=6000,
    n_validation_stories=800,
    n_test_templates=7,
    n_test_pairs=3,
    n_bystanders=0,
    skew=0.5,
)
# Every family at its least: one frame, one pair.
FULL = replace(
    CONFIG,
    n_bystanders=1,
    n_test_templates=1,
    n_test_pairs=1,
    **{name: 1 / len(_NO_SHARES) for name in _NO_SHARES},
)
MODEL = ModelConfig(n_layer=2, n_head=3, d_model=48, d_mlp=41, context_length=64, **PLAIN)


@cache
def tokenizer() -> Tokenizer:
    """Return one that knows the words of both sets of stories, so that one model reads them."""
    return word_tokenizer([story.text for config in (CONFIG, FULL) for story in generate_split(config, "train")])


@cache
def _items(config: StoriesConfig, split: str) -> list[LinkItem]:
    items = link_items(as_dataset(generate_split(config, split)), tokenizer(), end_id(tokenizer()))
    assert not any(tokenizer().token_to_id(UNKNOWN) in item.tokens for item in items)
    return items


def story_items(split: str, family: str = "", site: str = "", config: StoriesConfig = CONFIG) -> list[LinkItem]:
    every = _items(config, split)
    return [item for item in every if item.family == (family or item.family) and item.site == (site or item.site)]


def vocabulary() -> dict[str, int]:
    return tokenizer().get_vocab()


def first_token() -> int:
    return end_id(tokenizer())


def planted(kind: str, **options: float) -> Transformer:
    return plant(MODEL, vocabulary(), kind, **options)


def random_model(config: ModelConfig = MODEL, **switches: Any) -> Transformer:
    """Random weights with nothing zero, so that every layer mixes what it reads."""
    model = Transformer(replace(config, **switches), len(vocabulary()), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def rows_of_scores(items: list[LinkItem], scores: list[np.ndarray]) -> Rows:
    """Reduce scores that were made up, [query + 1] for each item, as those of a model's only head are."""
    padded = torch.full((len(items), 1, max(map(len, scores))), float("-inf"))
    for row, some in zip(padded, scores, strict=True):
        row[0, : len(some)] = torch.from_numpy(some)
    mentions = candidates(items)
    moved = torch.ones_like(mentions.positions[:, None], dtype=torch.float32)
    return Rows(**{name: some.numpy()[:, None] for name, some in reduce_scores(padded, mentions, moved).items()})


def scores_by_word(items: list[LinkItem], worth) -> list[np.ndarray]:
    """Return [query + 1] for each item: 0 everywhere but for the mentions, which get `worth(item, word)`."""
    found = []
    for item in items:
        scores = np.zeros(item.query + 1, dtype=np.float32)
        for word in item.antecedents + item.distractors:
            scores[list(word)] = worth(item, word) - np.log(len(word))
        found.append(scores)
    return found


def member(item: LinkItem, word: Word) -> int:
    """Return 0 for the first member of the item's pair, the singular, feminine or animal one, 1 for the other."""
    return item.meant if word in item.antecedents else 1 - item.meant
