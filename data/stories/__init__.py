"""A language in which every pronoun's antecedent is known, written anew from a seed as a `datasets.DatasetDict`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from dataclasses import fields
from random import Random
from typing import TYPE_CHECKING

from data.links import Link
from data.stories.families import HOLDOUTS, LEVELS, Story, draw_block, draw_scene, frames, plain_story

if TYPE_CHECKING:
    from datasets import DatasetDict

    from data.config import StoriesConfig

GENERATOR_VERSION = 1  # raised whenever the same seed would write other stories
_TEST_HOLDOUTS: dict[str, tuple[str, ...]] = {"V": HOLDOUTS, "R": HOLDOUTS, "N": ("iid", "headline")}
_DEV_HOLDOUTS: dict[str, tuple[str, ...]] = {
    "V": ("headline",),
    "R": ("headline",),
}  # so that nothing need be chosen on test
CELLS = 4


def load_stories(config: StoriesConfig) -> DatasetDict:
    """Write the stories of `config` as train, dev and test, the columns those of `Story`.

    Train and dev follow the mix of families. Test holds, for every family and hold-out, `n_test_templates` frames x
    `n_test_pairs` pairs x 4 cells; after its mix, dev holds the headline hold-out too, of nouns and frames of its own.
    The same config gives the same stories on every machine.
    """
    from datasets import Dataset, DatasetDict  # not at import: a config error must answer at once

    train = _mixed(config, "train")
    dev = _mixed(config, "dev", unlike={story.text for story in train}) + _designed(config, "dev", _DEV_HOLDOUTS)
    splits = {"train": train, "dev": dev, "test": _designed(config, "test", _TEST_HOLDOUTS)}
    return DatasetDict({split: Dataset.from_dict(_columns(stories)) for split, stories in splits.items()})


def _columns(stories: list[Story]) -> dict[str, list]:
    columns = {field.name: [getattr(story, field.name) for story in stories] for field in fields(Story)}
    names = [field.name for field in fields(Link)]
    columns["links"] = [[{name: getattr(link, name) for name in names} for link in links] for links in columns["links"]]
    return columns


def _mixed(config: StoriesConfig, split: str, unlike: Set[str] = frozenset()) -> list[Story]:
    """Write one split in the mix of families, in a random order of blocks, without the texts of `unlike`."""
    rng = Random(f"{config.seed} {split}")
    n_stories = config.n_train_stories if split == "train" else config.n_dev_stories
    blocks: list[list[Story]] = []
    for family, share in config.shares().items():
        if family == "X":
            wanted = len(blocks) + round(n_stories * share)
            while len(blocks) < wanted:
                story = plain_story(rng, draw_scene(rng))
                if story.text not in unlike:  # V, R and N are kept apart by their frames and pairs
                    blocks.append([story])
            continue
        levels = LEVELS[family]
        for level in levels:
            for _ in range(round(n_stories * share / len(levels) / CELLS)):
                frame = rng.choice(frames(level))
                blocks.append(draw_block(rng, family, level, split, "iid", frame, shared=split == "dev"))
    rng.shuffle(blocks)
    stories = [story for block in blocks for story in block]
    assert_balanced(stories)
    return stories


def _designed(config: StoriesConfig, split: str, holdouts: dict[str, tuple[str, ...]]) -> list[Story]:
    """Write every family and hold-out at its full design."""
    rng = Random(f"{config.seed} {split} designed")
    stories: list[Story] = []
    for family, some in holdouts.items():
        for level in LEVELS[family] if config.shares()[family] else ():
            for holdout in some:
                chosen = list(frames(level, split if holdout in ("templates", "headline") else ""))
                rng.shuffle(chosen)
                for frame in chosen[: config.n_test_templates]:
                    for _ in range(config.n_test_pairs):
                        stories += draw_block(rng, family, level, split, holdout, frame, shared=True)
    assert_balanced(stories)
    return stories


def assert_balanced(stories: list[Story]) -> None:
    """Raise AssertionError unless every cue is right in exactly half of each family, level and hold-out.

    The significance of everything the probe reports rests on this.
    """
    counts: dict[tuple, Counter] = defaultdict(Counter)
    for story in stories:
        if story.links:
            group = (story.family, story.links[0].level, story.holdout)
            counts[group].update(_cues(story))
    for group, cues in counts.items():
        n = cues["stories"]
        for cue in ("first is meant", "pair's first is mentioned first", "pair's first is meant"):
            if 2 * cues[cue] != n:
                raise AssertionError(f"{group}: {cue} in {cues[cue]} of {n} stories, not in half")


def _cues(story: Story) -> Iterator[str]:
    yield "stories"
    if story.order == story.meant:
        yield "first is meant"
    if story.order == 0:
        yield "pair's first is mentioned first"
    if story.meant == 0:
        yield "pair's first is meant"
