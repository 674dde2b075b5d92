"""What a step is given: the same numbers whatever the way they came, in one shape where that is asked."""

import numpy as np
import pytest
import torch

from data.loader import IGNORE, WHOLE, ResidentText, Split, StoryBatches, StreamBatches, Supply, training_batches
from tests.data.test_batches import STORIES, STREAM

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_a_resident_text_gives_the_batches_of_the_host_bit_for_bit_up_to_the_largest_id(kind: type) -> None:
    largest = np.iinfo(kind).max
    tokens = np.random.default_rng(0).integers(largest, size=1009, endpoint=True).astype(kind)
    tokens[::7] = largest
    batches = StreamBatches(Split(tokens, 1), tokens_per_batch=55, context_length=11, seed=3)
    from_host, resident = Supply(batches, CPU), Supply(batches, CPU, room=tokens.nbytes)
    assert resident.is_resident and not from_host.is_resident
    assert not Supply(batches, CPU, room=tokens.nbytes - 1).is_resident
    for number in range(20):
        (expected,), expected_targets, n_expected = from_host(number)
        (found,), targets, n_targets = resident(number)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
        assert torch.equal(targets, expected_targets) and n_targets == n_expected == targets.numel()
        assert found.is_contiguous() and targets.is_contiguous()


def test_a_text_that_is_a_file_is_brought_in_pieces(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.loader._PIECE", 100)
    STREAM.tokens.tofile(tmp_path / "tokens")
    text = ResidentText(Split(np.memmap(tmp_path / "tokens", np.uint16, mode="r"), 1), CPU)
    batch = text.crops(torch.tensor([0, 95, 998]), 10)
    assert batch.tokens.tolist() == [list(range(first, first + 10)) for first in (0, 95, 998)]
    assert batch.targets.tolist() == [list(range(first + 1, first + 11)) for first in (0, 95, 998)]


def test_targets_are_counted_and_a_short_batch_is_filled_up_with_rows_that_ask_nothing() -> None:
    batches = StoryBatches(STORIES, tokens_per_batch=100, context_length=23, seed=1)
    plain, full = Supply(batches, CPU), Supply(batches, CPU, full=True)
    short = 0
    for number in range(30):
        (tokens, texts), targets, n_targets = plain(number)
        (more_tokens, more_texts), more_targets, more_n = full(number)
        n_rows = len(tokens)
        assert n_targets == more_n == int((targets != IGNORE).sum())
        assert more_tokens.shape == more_texts.shape == more_targets.shape == (100 // 23, 23)
        for one, other in ((tokens, more_tokens), (texts, more_texts), (targets, more_targets)):
            assert torch.equal(one, other[:n_rows]) and one.dtype == other.dtype
        assert (more_targets[n_rows:] == IGNORE).all() and (more_texts[n_rows:] == -1).all()
        short += n_rows < 100 // 23
    assert 0 < short < 30


@pytest.mark.parametrize("size", [2, 3, 7, 50])
@pytest.mark.parametrize("split", [STORIES, STREAM])
@pytest.mark.parametrize("full", [False, True])
def test_shares_of_a_batch_are_its_rows_and_know_the_whole_count(split: Split, size: int, full: bool) -> None:
    def supply(share: slice = WHOLE) -> Supply:
        batches = training_batches(split, tokens_per_batch=19 * 7, context_length=19, seed=3)
        return Supply(batches, CPU, share=share, full=full)

    whole, shares = supply(), [supply(slice(rank, None, size)) for rank in range(size)]
    for number in range(12):
        (tokens, *_), targets, n_targets = whole(number)
        parts = [share(number) for share in shares]
        assert {part[2] for part in parts} == {n_targets} == {int((targets >= 0).sum())}
        assert all(len(part[1]) >= 1 for part in parts)  # who has no row takes a step too
        asked = [(part[0][0][i], part[1][i]) for part in parts for i in range(len(part[1])) if (part[1][i] >= 0).any()]
        rows = {(tuple(one.tolist()), tuple(its.tolist())) for one, its in asked}
        kept = (targets >= 0).any(1)
        pairs = zip(tokens[kept], targets[kept], strict=True)
        assert rows == {(tuple(one.tolist()), tuple(its.tolist())) for one, its in pairs}
