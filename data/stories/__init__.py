"""Generated stories in which the antecedent of every pronoun and the lowest possible loss are known.

A story is made in five steps. For "Once upon a time, the cat sat near the buses. It purred. So everybody watched the
cat.":

1. plot    the sequence of slots; "{FRAME} {BYSTANDERS} {FILLERS} {PRONOUN} {VERB} ..."             plots.py
2. frame   the sentence that introduces the two mentions; "the {A} sat near the {B} ."              frames.py
3. pair    the two mentions; cat and buses                                                          lexicon.py
4. cell    which mention comes first, and which is the antecedent; cat and cat                      blocks.py
5. slots   the grammar fills the rest; the payoff {VERB} is one of the four verbs of cats           language.py

Step 4 is repeated for all four combinations, so no cue but the pronoun identifies the antecedent more often than in
half of the stories. Which frames, pairs and words training never uses is decided by a hash (language.placement).
"""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from random import Random

from datasets import Dataset

from data.config import StoriesConfig
from data.links import Link
from data.stories.blocks import Story, sample_block, sample_plain_story
from data.stories.floor import Floor, words
from data.stories.language import Language, Population, frames_of
from data.stories.plots import ALL_HOLDOUTS, PLOTS, SHARES

GENERATOR_VERSION = 6  # to be raised whenever the same config gives other stories; caches depend on it
_CELLS = 4  # stories per block
_VERDICT_HOLDOUTS = ("iid", "headline")  # dev has these two: heads and settings are chosen on dev, never on test


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Generation makes millions of objects without cycles: the collector would search them again and again.

    Many of them stay in caches until the end of the process, so the collector leaves them out from then on.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@_garbage_collection_off()
def generate_split(config: StoriesConfig, split: str, train: list[Story] | None = None) -> list[Story]:
    """Returns the stories of one split; the same config gives the same stories on every machine.

    Train and validation follow the configured mix of plots; validation excludes texts of `train`, which is generated
    again if None. Test contains, for every plot and the hold-outs iid and headline, `n_test_frames` frames x
    `n_test_pairs` pairs x 4 cells; test_others the same for the other hold-outs; dev half as many frames, with held-out
    words and frames of its own. Links of dev and test include the surprisal of each oracle at the payoff.
    """
    if split == "train":
        return _sample_mix(config, "train", config.n_train_stories)
    if split == "validation":
        train = train or generate_split(config, "train")
        plain_texts = {story.text for story in train if story.family == "no_pronoun"}
        return _sample_mix(config, "validation", config.n_validation_stories, exclude=plain_texts)
    cells = "dev" if split == "dev" else "test"
    return [_with_surprisal(config, cells, story) for story in _sample_design(config, split)]


@_garbage_collection_off()
def as_dataset(stories: list[Story]) -> Dataset:
    """Returns one row per story, with its links as a list of structs."""
    columns = {field.name: [getattr(story, field.name) for story in stories] for field in fields(Story)}
    names = [field.name for field in fields(Link)]
    columns["links"] = [[{name: getattr(link, name) for name in names} for link in links] for links in columns["links"]]
    return Dataset.from_dict(columns)


@_garbage_collection_off()
def floors(config: StoriesConfig, texts: Iterable[str]) -> list[list[float]]:
    """Return, per validation text, -log p in nats of every word and of the end by the Bayes-optimal predictor."""
    floor = _floor(config, "dev", "iid")
    return [floor.surprisal(text)[0] for text in texts]


def plot_shares(config: StoriesConfig) -> dict[str, float]:
    """Returns the share of every plot among the stories."""
    shares = config.shares()
    return {
        plot: shares[kind] * share for kind, plots in SHARES.items() for plot, share in plots.items() if shares[kind]
    }


def language_of(config: StoriesConfig, split: str, holdout: str) -> Language:
    """Returns the language of one split and hold-out; only iid includes the stories without a pronoun."""
    shares = plot_shares(config)
    if holdout != "iid":
        shares = {name: share for name, share in shares.items() if PLOTS[name].family != "no_pronoun"}
    skew = config.skew if split == "train" else 0.5
    return Language(Population(split, holdout, skew, config.n_bystanders, tuple(shares.items())))


@lru_cache(maxsize=len(ALL_HOLDOUTS))  # a Floor caches its results
def _floor(config: StoriesConfig, split: str, holdout: str) -> Floor:
    return Floor(language_of(config, split, holdout))


def _with_surprisal(config: StoriesConfig, split: str, story: Story) -> Story:
    positions = {link.payoff: len(words(story.text[: link.payoff[0]])) for link in story.links if link.payoff}
    if not positions:
        return story
    _, oracles = _floor(config, split, story.holdout).surprisal(story.text, positions.values())
    links = [replace(link, surprisal=oracles[positions[link.payoff]]) if link.payoff else link for link in story.links]
    return replace(story, links=tuple(links))


def _sample_mix(config: StoriesConfig, split: str, n_stories: int, exclude: Set[str] = frozenset()) -> list[Story]:
    """Returns blocks of the configured mix of plots in random order, without the texts `exclude`."""
    rng = Random(f"{config.seed} {split}")
    cells, skew = ("train", config.skew) if split == "train" else ("dev", 0.5)
    language, training_language = language_of(config, cells, "iid"), language_of(config, "train", "iid")
    blocks: list[list[Story]] = []
    for name, share in plot_shares(config).items():
        plot = PLOTS[name]
        if plot.family == "no_pronoun":
            n_blocks = len(blocks) + round(n_stories * share)
            while len(blocks) < n_blocks:
                story = sample_plain_story(rng, training_language, plot)
                if story.text not in exclude:  # stories with a pronoun are separated by frame and pair already
                    blocks.append([story])
            continue
        for _ in range(round(n_stories * share / _CELLS)):
            frame = rng.choice(frames_of(plot, language.population))
            blocks.append(_resample(rng, sample_block(rng, language, plot, frame, minimal_pairs=False), skew))
    rng.shuffle(blocks)
    stories = [story for block in blocks for story in block]
    if skew == 0.5:
        assert_balanced(stories)
    return stories


def _resample(rng: Random, block: list[Story], skew: float) -> list[Story]:
    """Returns four cells of a block, drawn so that the first mention is the antecedent with probability `skew`."""
    if skew == 0.5:
        return block
    first, second = block[::3], block[1:3]  # cells in which order and meant are equal, and differ
    return [rng.choice(first if rng.random() < skew else second) for _ in block]


def _sample_design(config: StoriesConfig, split: str) -> list[Story]:
    """Returns dev, test or test_others: every plot and hold-out with the same numbers of frames and pairs."""
    rng = Random(f"{config.seed} {split}")
    is_dev = split == "dev"
    n_frames = max(1, config.n_test_frames // 2) if is_dev else config.n_test_frames
    stories: list[Story] = []
    for name in plot_shares(config):
        plot = PLOTS[name]
        for holdout in plot.holdouts if plot.family != "no_pronoun" else ():
            if (holdout in _VERDICT_HOLDOUTS) == (split == "test_others"):
                continue
            if is_dev and plot.family == "no_antecedent":
                continue
            language = language_of(config, "dev" if is_dev else "test", holdout)
            frames = list(frames_of(plot, language.population))
            rng.shuffle(frames)
            for frame in frames[:n_frames]:
                for _ in range(config.n_test_pairs):
                    stories += sample_block(rng, language, plot, frame, minimal_pairs=True)
    assert_balanced(stories)
    return stories


def assert_balanced(stories: list[Story]) -> None:
    """Raises AssertionError unless every cue is right in exactly half of each family, level and hold-out.

    The significance tests of the probe depend on this.
    """
    counts: dict[tuple, Counter] = defaultdict(Counter)
    for story in stories:
        if story.links:
            group = (story.family, story.links[0].level, story.holdout)
            counts[group]["stories"] += 1
            counts[group]["the first mention is the antecedent"] += story.order == story.meant
            counts[group]["the pair's first word is mentioned first"] += story.order == 0
            counts[group]["the pair's first word is the antecedent"] += story.meant == 0
    for group, cues in counts.items():
        n = cues.pop("stories")
        for cue, n_true in cues.items():
            if 2 * n_true != n:
                raise AssertionError(f"{group}: {cue} in {n_true} of {n} stories, not in half")
