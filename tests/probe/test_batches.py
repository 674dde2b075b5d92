"""Batches have every text once, keep to their size, and pad as little as possible."""

from probe.batches import length_batches, text_batches

LENGTHS = [5, 2, 9, 2, 7, 3]


def test_items_of_similar_length_come_together_the_longest_first() -> None:
    assert list(length_batches(LENGTHS, 14)) == [[2], [0, 4], [1, 3, 5]]
    assert list(length_batches(LENGTHS, 14, n_texts=2)) == [[2], [4], [0], [3, 5], [1]]
    assert list(length_batches(LENGTHS, 1)) == [[2], [4], [0], [5], [3], [1]]  # a batch has one item at least
    assert list(length_batches([], 14)) == []


def test_equal_texts_share_a_row_and_texts_are_padded_on_the_right() -> None:
    texts = [(4, 5), (7,), (4, 5), (1, 2, 3)]
    [(members, rows, tokens, last)] = text_batches(texts, 100)
    assert tokens.tolist() == [[7, 0, 0], [4, 5, 0], [1, 2, 3]]
    assert dict(zip(members, rows, strict=True)) == {1: 0, 0: 1, 2: 1, 3: 2}
    assert last.tolist() == [0, 1, 2]
