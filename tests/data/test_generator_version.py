"""The stories of a config stay the same byte for byte until GENERATOR_VERSION is raised: caches and runs rest on it."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from data.config import StoriesConfig
from data.stories import GENERATOR_VERSION, generate_split
from tests.data.small_corpora import SPLITS

CONFIGS = Path(__file__).parents[2] / "configs" / "data"
SIZES = {"n_train_stories": 600, "n_validation_stories": 60, "n_test_frames": 1, "n_test_pairs": 1}
# After an intended change of the text: raise GENERATOR_VERSION, and set both digests to what stories_digest returns.
VERSION = 6
DIGESTS = {
    "stories": "8c0cead7db259831475eb7699e44824492671299160d0c78a81dbe104e0c6ee4",
    "stories_full": "4ca9e9d809773ed2c4e989bb988585a557e8b1b22487d2a0d31774463a01b71c",
}


def small_config(mix: str) -> StoriesConfig:
    values: dict[str, Any] = {}
    for name in dict.fromkeys(("stories", mix)):
        values |= {key: value for key, value in OmegaConf.load(CONFIGS / f"{name}.yaml").items() if key != "defaults"}
    return StoriesConfig(**values | SIZES)


def stories_digest(mix: str) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for story in generate_split(small_config(mix), split):
            row = asdict(story)
            for link in row["links"]:
                link["surprisal"] = [round(value, 6) for value in link["surprisal"]]  # the last bits depend on libm
            digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("mix", ["stories", pytest.param("stories_full", marks=pytest.mark.slow)])
def test_text_and_links_change_only_with_the_generator_version(mix: str) -> None:
    assert (GENERATOR_VERSION, stories_digest(mix)) == (VERSION, DIGESTS[mix])
