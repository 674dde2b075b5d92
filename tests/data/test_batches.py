"""Batches: a function of (seed, step), every token predicted once."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.loader import IGNORE, Split, StoryBatches, StorySplit, StreamBatches, training_batches, validation_batches

rng = np.random.default_rng(0)
LENGTHS = rng.integers(3, 19, size=101)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
STORIES = StorySplit(
    tokens=np.arange(STARTS[-1] + 1).astype(np.uint16),  # every token its own place, so that all can be counted
    n_bytes=1,
    starts=STARTS,
    classes=(np.arange(STARTS[-1] + 1) % 5).astype(np.uint8),
    floor=None,
)
STREAM = Split(tokens=np.arange(1009).astype(np.uint16), n_bytes=1)


@pytest.mark.parametrize("split", [STORIES, STREAM])
def test_a_batch_depends_on_seed_and_step_alone(split: Split) -> None:
    def make(seed: int) -> StoryBatches | StreamBatches:
        return training_batches(split, tokens_per_batch=64, context_length=19, seed=seed)

    forwards, backwards = make(7), make(7)
    seen = [forwards.at(step) for step in range(60)]
    for step in reversed(range(60)):
        again = backwards.at(step)
        assert torch.equal(seen[step].tokens, again.tokens) and torch.equal(seen[step].targets, again.targets)
    assert not all(torch.equal(seen[step].tokens, make(8).at(step).tokens) for step in range(5))


def test_an_epoch_reads_every_story_once_and_the_next_in_another_order() -> None:
    batches, epochs, step = StoryBatches(STORIES, tokens_per_batch=64, context_length=19, seed=1), [], 0
    for _ in range(2):
        seen: list[int] = []
        while len(seen) < STARTS[-1]:
            batch = batches.at(step)
            seen += batch.targets[batch.targets != IGNORE].tolist()
            step += 1
        epochs.append(seen)
    for seen in epochs:
        assert sorted(seen) == list(range(1, int(STARTS[-1]) + 1))
    assert epochs[0] != epochs[1]


def test_stories_are_packed_whole_into_rows_and_numbered() -> None:
    batches = StoryBatches(STORIES, tokens_per_batch=100, context_length=23, seed=1)
    n_stories = 0
    for step in range(9):
        batch = batches.at(step)
        assert batch.texts is not None and batch.tokens.shape == (100 // 23, 23)
        for tokens, targets, texts in zip(batch.tokens, batch.targets, batch.texts, strict=True):
            assert ((targets == IGNORE) == (texts == -1)).all()
            for number in range(int(texts.max()) + 1):
                own = tokens[texts == number].tolist()
                story = int(np.searchsorted(STARTS, own[0]))
                assert own == list(range(int(STARTS[story]), int(STARTS[story + 1])))
                assert targets[texts == number].tolist() == [token + 1 for token in own]
                n_stories += 1
    assert n_stories > 9 * (100 // 23)  # more than one a row


def test_a_story_is_followed_by_the_end_that_opens_the_next_and_then_by_nothing() -> None:
    for batch in validation_batches(STORIES, tokens_per_batch=64, context_length=19, n_tokens=None):
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
            story = int(np.searchsorted(STARTS, int(tokens[0])))
            length = int(LENGTHS[story])
            assert tokens[:length].tolist() == list(range(int(STARTS[story]), int(STARTS[story + 1])))
            assert targets[:length].tolist() == [token + 1 for token in tokens[:length].tolist()]
            assert (targets[length:] == IGNORE).all()


@pytest.mark.parametrize("split", [STORIES, STREAM])
@pytest.mark.parametrize("tokens_per_batch", [1, 64, 10**6])
def test_validation_predicts_every_token_once(split: Split, tokens_per_batch: int) -> None:
    batches = validation_batches(split, tokens_per_batch=tokens_per_batch, context_length=19, n_tokens=None)
    targets = torch.cat([batch.targets[batch.targets != IGNORE] for batch in batches])
    assert sorted(targets.tolist()) == list(range(1, len(split.tokens)))


def test_a_stream_is_measured_a_batch_at_a_time_and_never_held_whole() -> None:
    split = Split(np.zeros(3_000_001, np.uint16), n_bytes=1)
    tracemalloc.start()
    n_targets = sum(
        batch.targets.numel()
        for batch in validation_batches(split, tokens_per_batch=1 << 14, context_length=128, n_tokens=None)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_targets == 3_000_000 and peak < 2_000_000


def test_classes_are_those_of_the_targets() -> None:
    for batch in validation_batches(STORIES, tokens_per_batch=64, context_length=19, n_tokens=None):
        real = batch.targets != IGNORE
        assert torch.equal(batch.classes[real], batch.targets[real] % 5)


def test_the_floor_is_that_of_the_targets() -> None:
    floor = np.arange(STARTS[-1] + 1).astype(np.float32) / 8
    for batch in validation_batches(
        replace(STORIES, floor=floor), tokens_per_batch=64, context_length=19, n_tokens=None
    ):
        real = batch.targets != IGNORE
        assert torch.equal(batch.floor[real], batch.targets[real] / 8)
    assert next(validation_batches(STORIES, tokens_per_batch=64, context_length=19, n_tokens=None)).floor is None


def test_part_of_a_split_can_be_asked_for() -> None:
    for split in (STORIES, STREAM):
        batches = validation_batches(split, tokens_per_batch=64, context_length=19, n_tokens=200)
        n = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
        assert 180 <= n <= 220


def test_what_does_not_fit_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold it"):
        training_batches(STORIES, tokens_per_batch=64, context_length=17, seed=0)
    with pytest.raises(ValueError, match="too few"):
        training_batches(STREAM, tokens_per_batch=64, context_length=1009, seed=0)


def test_bits_per_byte_is_all_that_the_tokens_cost_over_the_bytes_they_stand_for() -> None:
    split = Split(np.arange(9, dtype=np.uint16), n_bytes=32)  # eight of nine tokens are predicted
    assert split.bits_per_byte(4 * math.log(2)) == pytest.approx(8 * 4 / 32)
