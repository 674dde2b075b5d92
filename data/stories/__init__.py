"""Generated stories in which the antecedent of every pronoun and the lowest possible loss are known.

The steps of "Once upon a time, the cat sat near the buses. It purred. So everybody watched the cat.":

1. plot    the sequence of slots; "{FRAME} {FILLERS} {PRONOUN} {VERB} ..."                          plots.py
2. frame   the sentence that introduces the two mentions; "the {A} sat near the {B} ."              frames.py
3. pair    the two mentions; cat and buses                                                          lexicon.py
4. cell    which mention comes first, and which is the antecedent; cat and cat                      blocks.py
5. slots   the grammar fills the rest; the payoff {VERB} is one of the four verbs of cats           language.py

All four cells are made, so no cue but the pronoun, or the verb before it, identifies the antecedent more often than in
half of the stories.
Which frames, pairs and words training never uses is decided by a hash (language.placement).
"""

import gc
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from itertools import chain
from random import Random

from data.pairs import LinkedText
from data.stories.blocks import sample_block, sample_plain_story
from data.stories.floor import Floor
from data.stories.language import Language
from data.stories.plots import PLOTS
from settings.data import StoriesConfig

# To be raised whenever the same config gives other stories; caches depend on it.
GENERATOR_VERSION = 9
_CELLS = 4  # stories per block
_HOLDOUTS = ("iid", "headline")  # dev, test: heads and settings are chosen on dev, never on test
_VOICE = "voice"  # known words and frames, but verbs in the passive that training has in the active voice only


@contextmanager
def _without_collector() -> Iterator[None]:
    """Halve the time: millions of objects without cycles, many of them cached, would be searched again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@_without_collector()
def generate_split(config: StoriesConfig, split: str, train: list[LinkedText] | None = None) -> list[LinkedText]:
    """Return the stories of one split; the same config gives the same stories on every machine.

    Train and validation follow the configured mix of plots; train has no link, and validation excludes texts of
    `train`, which is generated again if None. Test contains, for every plot and hold-out, `n_test_frames` x
    `n_test_pairs` blocks of 4 cells; dev half as many, with held-out words and frames of its own.
    """
    if split == "train":
        return _sample_mix(config, "train", config.n_train_stories)
    if split == "validation":
        train = train or generate_split(config, "train")
        plain_texts = {story.text for story in train if story.family == "no_pronoun"}
        return _sample_mix(config, "validation", config.n_validation_stories, exclude=plain_texts)

    return _sample_design(config, split)


@_without_collector()
def floors(config: StoriesConfig, texts: Iterable[str]) -> list[list[float]]:
    """Return, per validation text, -log p in nats of every word and of the end by the Bayes-optimal predictor."""
    floor = Floor(language_of(config, "dev", "iid"))
    return list(map(floor.surprisal, texts))


def plot_shares(config: StoriesConfig) -> dict[str, float]:
    """Return the share of every plot among the stories."""
    shares = config.shares()
    return {name: shares[plot.family] * plot.weight for name, plot in PLOTS.items() if shares[plot.family]}


def language_of(config: StoriesConfig, split: str, holdout: str) -> Language:
    """Return the language of one split and hold-out; only iid includes the stories without a pronoun."""
    shares = plot_shares(config)
    if holdout != "iid":
        shares = {name: share for name, share in shares.items() if PLOTS[name].has_pronoun}
    return Language(split, holdout, shares)


def _sample_mix(config: StoriesConfig, split: str, n_stories: int, exclude: Set[str] = frozenset()) -> list[LinkedText]:
    """Return blocks of the configured mix of plots in random order, without the texts `exclude`."""
    rng = Random(f"{config.seed} {split}")
    training_language = language_of(config, "train", "iid")
    language = training_language if split == "train" else language_of(config, "dev", "iid")

    blocks: list[list[LinkedText]] = []
    for name, share in plot_shares(config).items():
        plot = PLOTS[name]
        if plot.has_pronoun:
            for _ in range(round(n_stories * share / _CELLS)):
                frame = rng.choice(language.frames_of(plot))
                blocks.append(sample_block(rng, language, plot, frame, minimal_pairs=False))
            continue
        # Stories with a pronoun are separated by frame and pair; the others by their text alone.
        n_blocks = len(blocks) + round(n_stories * share)
        while len(blocks) < n_blocks:
            story = sample_plain_story(rng, training_language, plot)
            if story.text not in exclude:
                blocks.append([story])

    rng.shuffle(blocks)
    return list(chain.from_iterable(blocks))


def _sample_design(config: StoriesConfig, split: str) -> list[LinkedText]:
    """Return dev or test: every plot and hold-out with the same number of blocks."""
    rng = Random(f"{config.seed} {split}")
    is_dev = split == "dev"
    n_frames = max(1, config.n_test_frames // 2) if is_dev else config.n_test_frames
    stories: list[LinkedText] = []
    for name in plot_shares(config):
        plot = PLOTS[name]
        if not plot.has_pronoun:
            continue
        has_verbs = not is_dev and "{CAUSED}" in plot.frames[0]
        for holdout in (*_HOLDOUTS, *([_VOICE] if has_verbs else [])):
            # A plot with fewer frames has more pairs for each: the test of a head needs many pairs of words.
            language = language_of(config, split, holdout)
            frames = list(language.frames_of(plot))
            rng.shuffle(frames)
            frames = frames[:n_frames]
            n_blocks = n_frames * config.n_test_pairs
            for i in range(n_blocks):
                frame = frames[i * len(frames) // n_blocks]
                stories += sample_block(rng, language, plot, frame, minimal_pairs=True)
    return stories
