"""Batches are a function of (seed, step), every token is a target once, and ranks share a batch's rows."""

import numpy as np
import pytest
import torch

from data.loader import ALL_ROWS, IGNORE, BatchLoader, Split, StorySplit, training_batches, validation_batches

CPU = torch.device("cpu")
LENGTHS = np.random.default_rng(0).integers(3, 19, size=101)
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])
STORIES = StorySplit(
    tokens=np.arange(STARTS[-1] + 1).astype(np.uint16),  # the token at position i is i
    n_bytes=1,
    starts=STARTS,
    floor=np.arange(STARTS[-1] + 1).astype(np.float32) / 8,
)
STREAM = Split(tokens=np.arange(1009).astype(np.uint16), n_bytes=1)


@pytest.mark.parametrize("split", [STORIES, STREAM])
def test_a_batch_depends_on_seed_and_step_alone(split: Split) -> None:
    forwards, backwards, other_seed = (
        training_batches(split, tokens_per_batch=64, context_length=19, seed=seed) for seed in (7, 7, 8)
    )
    batches = [forwards.at(step) for step in range(60)]
    for step in reversed(range(60)):
        batch = backwards.at(step)
        assert torch.equal(batches[step].tokens, batch.tokens) and torch.equal(batches[step].targets, batch.targets)
    assert not all(torch.equal(batches[step].tokens, other_seed.at(step).tokens) for step in range(5))


def test_an_epoch_has_every_story_once_and_the_next_epoch_has_another_order() -> None:
    batches, epochs, step = training_batches(STORIES, tokens_per_batch=64, context_length=19, seed=1), [], 0
    n_places = 0
    for _ in range(2):
        targets: list[int] = []
        while len(targets) < STARTS[-1]:
            batch = batches.at(step)
            targets += batch.targets[batch.targets != IGNORE].tolist()
            n_places += batch.targets.numel()
            step += 1
        epochs.append(targets)
    assert sum(map(len, epochs)) > 0.85 * n_places  # best-fit rows; in the order of the shuffle .73
    assert all(sorted(targets) == list(range(1, int(STARTS[-1]) + 1)) for targets in epochs)
    assert epochs[0] != epochs[1]


def test_rows_hold_whole_stories_numbered_by_document_id() -> None:
    batches = training_batches(STORIES, tokens_per_batch=100, context_length=23, seed=1)
    n_stories = 0
    for step in range(9):
        batch = batches.at(step)
        assert batch.document_ids is not None and batch.tokens.shape == (100 // 23, 23)
        for tokens, targets, documents in zip(batch.tokens, batch.targets, batch.document_ids, strict=True):
            assert ((targets == IGNORE) == (documents == -1)).all()
            for document in range(int(documents.max()) + 1):
                story = tokens[documents == document].tolist()
                index = int(np.searchsorted(STARTS, story[0]))
                assert story == list(range(int(STARTS[index]), int(STARTS[index + 1])))
                assert targets[documents == document].tolist() == [token + 1 for token in story]
                n_stories += 1
    assert n_stories > 9 * (100 // 23)  # more than one story per row


def test_a_validation_row_is_one_story_and_padding_with_the_floor_of_its_targets() -> None:
    for batch in validation_batches(STORIES, tokens_per_batch=64, context_length=19, n_tokens=None):
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
            index = int(np.searchsorted(STARTS, int(tokens[0])))
            start, length = int(STARTS[index]), int(LENGTHS[index])
            assert tokens[:length].tolist() == list(range(start, start + length))
            assert targets[:length].tolist() == list(range(start + 1, start + length + 1))
            assert (targets[length:] == IGNORE).all()
        is_target = batch.targets != IGNORE
        assert batch.floor is not None
        assert torch.equal(batch.floor[is_target], batch.targets[is_target] / 8)


@pytest.mark.parametrize("split", [STORIES, STREAM])
@pytest.mark.parametrize("tokens_per_batch", [1, 64, 10**6])
def test_validation_predicts_every_token_but_the_first_once_or_about_n_tokens(
    split: Split, tokens_per_batch: int
) -> None:
    batches = validation_batches(split, tokens_per_batch=tokens_per_batch, context_length=19, n_tokens=None)
    targets = torch.cat([batch.targets[batch.targets != IGNORE] for batch in batches])
    assert sorted(targets.tolist()) == list(range(1, len(split.tokens)))
    few = validation_batches(split, tokens_per_batch=tokens_per_batch, context_length=19, n_tokens=200)
    assert 180 <= sum(int((batch.targets != IGNORE).sum()) for batch in few) <= 220


@pytest.mark.parametrize(("split", "context_length"), [(STORIES, 17), (STREAM, 1009)])
def test_a_context_that_does_not_fit_the_text_is_refused(split: Split, context_length: int) -> None:
    with pytest.raises(ValueError, match=f"model.context_length={context_length}"):
        training_batches(split, tokens_per_batch=64, context_length=context_length, seed=0)


def test_padding_adds_ignored_rows_to_a_short_batch() -> None:
    batches = training_batches(STORIES, tokens_per_batch=100, context_length=20, seed=1)
    plain, padded = BatchLoader(batches, CPU), BatchLoader(batches, CPU, pad=True)
    n_short = 0
    for step in range(30):
        short, full = plain(step), padded(step)
        n_rows = len(short.targets)
        assert short.n_targets == full.n_targets == int((short.targets != IGNORE).sum())
        for tensor, longer in zip((*short.inputs, short.targets), (*full.inputs, full.targets), strict=True):
            assert longer.shape == (5, 20) and torch.equal(tensor, longer[:n_rows])
        assert (full.targets[n_rows:] == IGNORE).all() and (full.inputs[1][n_rows:] == -1).all()
        n_short += n_rows < 5
    assert 0 < n_short < 30


@pytest.mark.parametrize("n_ranks", [2, 3, 50])
@pytest.mark.parametrize("split", [STORIES, STREAM])
@pytest.mark.parametrize("pad", [False, True])
def test_ranks_share_the_rows_of_a_batch_and_count_all_targets(split: Split, n_ranks: int, pad: bool) -> None:
    def loader(rows: slice) -> BatchLoader:
        batches = training_batches(split, tokens_per_batch=19 * 7, context_length=19, seed=3)
        return BatchLoader(batches, CPU, rows=rows, pad=pad)

    ranks = [loader(slice(rank, None, n_ranks)) for rank in range(n_ranks)]
    for step in range(8):
        batch, shards = loader(ALL_ROWS)(step), [rank(step) for rank in ranks]
        assert {shard.n_targets for shard in shards} == {batch.n_targets} == {int((batch.targets != IGNORE).sum())}
        assert all(len(shard.targets) >= 1 for shard in shards)  # a rank without rows gets an ignored row
        targets = torch.cat([shard.targets for shard in shards])
        rows = {tuple(row) for row in targets.tolist() if set(row) != {IGNORE}}
        assert rows == {tuple(row) for row in batch.targets.tolist() if set(row) != {IGNORE}}
