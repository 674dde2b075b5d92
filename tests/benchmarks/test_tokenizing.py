"""What tokenizing is held against: the same documents, the same ids, another one's rate."""

import pytest

from benchmarks import tokenizing


def test_a_rate_below_nine_tenths_or_another_id_misses_the_goal() -> None:
    assert tokenizing._rate([1.1, 1.0], [1.0, 1.0], 10**6, same=True).met
    assert not tokenizing._rate([1.2, 1.0], [1.0, 1.0], 10**6, same=True).met
    differing = tokenizing._rate([1.0, 1.0], [1.0, 1.0], 10**6, same=False)
    assert not differing.met and "NOT identical" in differing.note


def test_memory_that_grows_with_the_text_misses_the_goal() -> None:
    assert tokenizing._memory([300.0, 320.0], [20, 200]).met
    assert not tokenizing._memory([300.0, 340.0], [20, 200]).met


@pytest.mark.slow
def test_both_read_the_same_documents_and_make_the_same_ids() -> None:
    rate, memory = tokenizing.rows({"small": "1", "megabytes": "2", "vocab_size": "500", "quick": "true"})
    assert "ids identical" in rate.note and len(rate.ours) == len(rate.peer) == 1
    assert min(memory.ours) > 10 and min(*rate.ours, *rate.peer) > 0
