"""A language in which every pronoun's antecedent is known, written anew from a seed as a `datasets.DatasetDict`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import fields, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from data.links import Link
from data.stories.blocks import Story, draw_block, plain_story
from data.stories.floor import Floor, words
from data.stories.language import Language, Population, told_frames
from data.stories.plots import ALL_HOLDOUTS, PLOTS, NO_PRONOUN_SHARES

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from data.config import StoriesConfig

GENERATOR_VERSION = 4  # raised whenever the same seed would write other stories
CELLS = 4
SPLITS = ("train", "validation", "dev", "test")
_DEV_HOLDOUTS = ("iid", "headline")  # so that nothing need be chosen on test


def plot_shares(config: StoriesConfig) -> dict[str, float]:
    """Return the share of every plot among the stories: a kind's share is spread over its plots."""
    shares = config.shares()
    return {plot: shares[kind] * part for kind, parts in _PARTS.items() for plot, part in parts.items() if shares[kind]}


_PARTS = {
    "agreement": {"agreement number": 0.6, "agreement gender": 0.4},  # more kinds of nouns than of names to learn
    "told_gender": {"agreement told_gender": 1.0}, "state": {"agreement state": 1.0},
    "attribute_before": {"attribute before": 1.0}, "attribute_after": {"attribute after": 1.0},
    "ownership_before": {"ownership before": 1.0}, "ownership_after": {"ownership after": 1.0},
    "ownership_object": {"ownership object": 1.0},
    "several_pronouns": {"several_pronouns number": 0.6, "several_pronouns gender": 0.4},
    "later_cue": {"later_cue": 1.0}, "ambiguous": {"ambiguous": 1.0}, "no_antecedent": {"no_antecedent": 1.0},
    "pronoun_first": {"no_antecedent later": 1.0}, "plural": {"plural": 1.0}, "no_pronoun": NO_PRONOUN_SHARES,
}  # fmt: skip


def language_of(config: StoriesConfig, split: str, holdout: str) -> Language:
    """Return the language of one population: a hold-out has the training mix's plots but those without a pronoun."""
    shares = plot_shares(config)
    if holdout != "iid":
        shares = {name: share for name, share in shares.items() if PLOTS[name].family != "no_pronoun"}
    skew = config.skew if split == "train" else 0.5
    return Language(Population(split, holdout, skew, config.n_bystanders, tuple(shares.items())))


def load_stories(config: StoriesConfig) -> DatasetDict:
    """Write the stories of `config` as train, validation, dev and test, the columns those of `Story`.

    Train and validation follow the mix of plots: to learn from, and to measure the loss on. Test, to be probed once,
    holds for every plot and hold-out `n_test_templates` frames x `n_test_pairs` pairs x 4 cells; dev, to choose heads
    and settings on, half as many frames of iid and of a headline hold-out with nouns and frames of its own. The same
    config gives the same stories on every machine.
    """
    from datasets import DatasetDict

    train = generate_split(config, "train")
    rest = {split: generate_split(config, split, train) for split in SPLITS[1:]}
    return DatasetDict({split: as_dataset(some) for split, some in ({"train": train} | rest).items()})


def generate_split(config: StoriesConfig, split: str, train: list[Story] | None = None) -> list[Story]:
    """Write one split; every link of dev and test knows how surprised each oracle is at its payoff.

    What validation holds depends on `train`, which is written anew if it is not given.
    """
    if split == "train":
        return _mixed(config, "train", config.n_train_stories)
    if split == "validation":
        train = train or _mixed(config, "train", config.n_train_stories)
        told = {story.text for story in train if story.family == "no_pronoun"}
        return _mixed(config, "validation", config.n_validation_stories, unlike=told)
    return _judged(config, split, _designed(config, split))


def as_dataset(stories: list[Story]) -> Dataset:
    """Return stories as rows, their links as lists of structs."""
    from datasets import Dataset

    columns = {field.name: [getattr(story, field.name) for story in stories] for field in fields(Story)}
    names = [field.name for field in fields(Link)]
    columns["links"] = [[{name: getattr(link, name) for name in names} for link in links] for links in columns["links"]]
    return Dataset.from_dict(columns)


def floors(config: StoriesConfig, texts: Iterable[str]) -> list[list[float]]:
    """Return -log p in nats of every word and of the end of validation texts, by the best possible reader."""
    floor = _floor_of(config, "dev", "iid")
    return [floor.read(text)[0] for text in texts]


@lru_cache(maxsize=len(ALL_HOLDOUTS))  # what a reader has worked out once serves the oracles and the floor
def _floor_of(config: StoriesConfig, split: str, holdout: str) -> Floor:
    return Floor(language_of(config, split, holdout), config.skew)


def _judged(config: StoriesConfig, split: str, stories: list[Story]) -> list[Story]:
    """Let every oracle read each story and write down how surprised it is at the payoffs."""
    return [_with_surprisal(config, split, story) for story in stories]


def _with_surprisal(config: StoriesConfig, split: str, story: Story) -> Story:
    places = {link.payoff: len(words(story.text[: link.payoff[0]])) for link in story.links if link.payoff}
    if not places:
        return story
    _, found = _floor_of(config, split, story.holdout).read(story.text, places.values())
    links = [replace(link, surprisal=found[places[link.payoff]]) if link.payoff else link for link in story.links]
    return replace(story, links=tuple(links))


def _mixed(config: StoriesConfig, split: str, n_stories: int, unlike: Set[str] = frozenset()) -> list[Story]:
    """Write train or validation in the mix of plots, in a random order of blocks, without the texts of `unlike`."""
    rng = Random(f"{config.seed} {split}")
    cells, skew = ("train", config.skew) if split == "train" else ("dev", 0.5)
    language, telling = language_of(config, cells, "iid"), language_of(config, "train", "iid")
    blocks: list[list[Story]] = []
    for name, share in plot_shares(config).items():
        plot = PLOTS[name]
        if plot.family == "no_pronoun":
            wanted = len(blocks) + round(n_stories * share)
            while len(blocks) < wanted:
                story = plain_story(rng, telling, plot)
                if story.text not in unlike:  # the others are kept apart by their frames and pairs
                    blocks.append([story])
            continue
        for _ in range(round(n_stories * share / CELLS)):
            frame = rng.choice(told_frames(plot, language.population))
            blocks.append(_skewed(rng, draw_block(rng, language, plot, frame, shared=False), skew))
    rng.shuffle(blocks)
    stories = [story for block in blocks for story in block]
    if skew == 0.5:
        assert_balanced(stories)
    return stories


def _skewed(rng: Random, block: list[Story], skew: float) -> list[Story]:
    """Return four cells of a block drawn so that the first mention is meant in a share `skew` of them."""
    if skew == 0.5:
        return block
    alike, unlike = ([one for one in block if (one.order == one.meant) == same] for same in (True, False))
    return [rng.choice(alike if rng.random() < skew else unlike) for _ in block]


def _designed(config: StoriesConfig, split: str) -> list[Story]:
    """Write every plot and hold-out at its full design."""
    rng = Random(f"{config.seed} {split}")
    n_frames = config.n_test_templates if split == "test" else max(1, config.n_test_templates // 2)
    stories: list[Story] = []
    for name in plot_shares(config):
        plot = PLOTS[name]
        for holdout in plot.holdouts if plot.family != "no_pronoun" else ():
            if split == "dev" and (holdout not in _DEV_HOLDOUTS or plot.family == "no_antecedent"):
                continue
            language = language_of(config, split, holdout)
            chosen = list(told_frames(plot, language.population))
            rng.shuffle(chosen)
            for frame in chosen[:n_frames]:
                for _ in range(config.n_test_pairs):
                    stories += draw_block(rng, language, plot, frame, shared=True)
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
