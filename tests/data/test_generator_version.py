"""The stories of a config stay the same byte for byte until GENERATOR_VERSION is raised: caches and runs rest on it."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from data.config import StoriesConfig
from data.corpus import corpus_fingerprint
from data.stories import GENERATOR_VERSION, generate_split
from tests.data.small_corpora import SPLITS
from training.settings import compose_settings

SIZES = {"n_train_stories": 600, "n_validation_stories": 60, "n_test_frames": 1, "n_test_pairs": 1}
# After an intended change of the text: raise GENERATOR_VERSION, and set the digest to what stories_digest returns.
VERSION = 7
DIGEST = "6586ad925630d29fdc4cf94b6c157be3aa1275af99fe8d6ae6b209042d1fbde4"
# Runs and caches of the default stories carry it.
FINGERPRINT = "e8eee3207f2b4fa17b62480dda2b41914eb5ca6865862a55b5c6b84795d52c43"


def stories_digest(config: StoriesConfig) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for story in generate_split(config, split):
            row = asdict(story)
            digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()


def test_the_stories_change_only_with_the_generator_version_and_keep_their_fingerprint() -> None:
    config = compose_settings().data
    assert isinstance(config, StoriesConfig)
    assert (GENERATOR_VERSION, stories_digest(replace(config, **SIZES))) == (VERSION, DIGEST)
    assert corpus_fingerprint(config, Path()) == FINGERPRINT
