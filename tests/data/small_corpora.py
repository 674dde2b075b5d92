"""Settings of small corpora, and their stories and texts, for the tests."""

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from data.corpus import Corpus
from data.stories import generate_split
from data.tested.pairs import Link, LinkedText
from settings.data import StoriesConfig, TextConfig, TokenizerKind
from settings.train import compose_settings

NO_SHARES = {field.name: 0.0 for field in fields(StoriesConfig) if field.name.startswith("share_")}
_DEFAULT_SHARES = dict(share_agreement=0.36, share_later_cue=0.13, share_no_antecedent=0.06, share_no_pronoun=0.45)
_EQUAL_SHARES = dict.fromkeys(NO_SHARES, 0.15) | {"share_no_pronoun": 1 - 0.15 * (len(NO_SHARES) - 1)}
CONFIG = StoriesConfig(  # the families of the default mix
    source="stories", seed=3, n_train_stories=6000, n_validation_stories=800, n_test_frames=12, n_test_pairs=3,
    **(NO_SHARES | _DEFAULT_SHARES),
)  # fmt: skip
FULL = replace(  # all families
    CONFIG, n_validation_stories=200, n_test_frames=4, n_test_pairs=1, **_EQUAL_SHARES
)
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
    return [(row, link) for row in all_rows(*splits) for link in row.links]


def text_config(path: Path, **changes: Any) -> TextConfig:
    """Return the settings of a text; by default in characters, the rest as in configs/data/text.yaml."""
    values: dict[str, Any] = {"path": str(path), "tokenizer": TokenizerKind.characters, "vocab_size": 300}
    return replace(compose_settings(["data=text", "data.path=x"]).data, **values | changes)


def decoded(corpus: Corpus, split: str) -> str:
    tokens = getattr(corpus, split).tokens
    return corpus.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
