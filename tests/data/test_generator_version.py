"""The stories of a config stay the same byte for byte until GENERATOR_VERSION is raised: caches and runs rest on it."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from data.config import StoriesConfig
from data.stories import GENERATOR_VERSION, SPLITS, generate_split

CONFIGS = Path(__file__).parents[2] / "configs" / "data"
SIZES = {"n_train_stories": 600, "n_validation_stories": 60, "n_test_templates": 1, "n_test_pairs": 1}
# After an intended change of the text: raise GENERATOR_VERSION, and set both digests to what stories_digest returns.
VERSION = 4
DIGESTS = {
    "stories": "02caeb74ef526e8f466d395b5e3c8312431efe9afad55a33fdbce743e783c5cc",
    "stories_full": "167e0692c12c3ace2020ae5d8d3ca428f22a9078eb0c1e662d600df163c71da9",
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


@pytest.mark.parametrize("mix", DIGESTS)
def test_text_and_links_change_only_with_the_generator_version(mix: str) -> None:
    assert (GENERATOR_VERSION, stories_digest(mix)) == (VERSION, DIGESTS[mix])
