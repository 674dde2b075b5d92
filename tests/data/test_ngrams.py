"""Counted grams against the textbook's definition, written down with dictionaries."""

import math
from collections import Counter

import numpy as np
import pytest

from data import ngrams
from data.ngrams import count, counted_loss, discounts, probabilities

V = 11


def text(n_tokens: int, seed: int, vocab_size: int = V) -> np.ndarray:
    """Tokens of which some follow others more often, so that grams of every length are seen again."""
    rng = np.random.default_rng(seed)
    tokens = [0]
    for drawn in rng.integers(vocab_size, size=n_tokens - 1):
        tokens.append(int(drawn) if rng.random() < 0.3 else (3 * tokens[-1] + 1) % vocab_size)
    return np.array(tokens, np.uint16)


class Book:
    """Chen & Goodman 1999, section 3: p(w | h) = (c(h w) - D(c(h w))) / c(h) + what that took * p(w | shorter h)."""

    def __init__(self, tokens: list[int], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, order
        grams = {n: [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)] for n in range(1, order + 1)}
        self.counts = {order: Counter(grams[order])}
        for n in range(1, order):
            before = Counter(longer[1:] for longer in {*grams[n + 1]})
            self.counts[n] = Counter({gram: before[gram] or 1 for gram in {*grams[n]}})
        self.taken = {n: self._discounts(Counter(self.counts[n].values())) for n in self.counts}

    @staticmethod
    def _discounts(n: Counter[int]) -> list[float]:
        y = n[1] / (n[1] + 2 * n[2]) if n[1] else 0.5
        if not (n[1] and n[2] and n[3] and n[4]):
            return [0, y, y, y]
        three = [y, 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3]]
        return [0, *(min(most, max(y, one)) for most, one in zip((1, 2, 3), three, strict=True))]

    def probability(self, context: tuple[int, ...], token: int) -> float:
        """p of `token` after `context`."""
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        shorter = self.probability(context[1:], token) if context else 1 / self.vocab_size
        n = len(context) + 1
        after = {gram[-1]: c for gram, c in self.counts[n].items() if gram[:-1] == context}
        if not after:
            return shorter
        taken = {w: self.taken[n][min(c, 3)] for w, c in after.items()}
        seen = after.get(token, 0) - taken.get(token, 0.0)
        return (seen + sum(taken.values()) * shorter) / sum(after.values())


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("n_tokens", [7, 60, 900])
def test_probabilities_are_those_of_the_textbook(n_tokens: int, order: int) -> None:
    training, other = text(n_tokens, 1), text(130, 2)
    book = Book(training.tolist(), V, order)
    found = probabilities(count(training, V, order), other, V)
    known = [book.probability(tuple(other[:i].tolist()), int(other[i])) for i in range(len(other))]
    assert found == pytest.approx(known, abs=1e-9, rel=1e-9)


def test_the_probabilities_after_any_context_add_up_to_one() -> None:
    levels = [*count(text(900, 1), V)]
    for context in np.random.default_rng(3).integers(V, size=(50, 6)):
        every = [probabilities(levels, np.append(context, token), V)[-1] for token in range(V)]
        assert min(every) > 0 and sum(every) == pytest.approx(1, abs=1e-12)


def test_after_a_context_that_was_never_seen_the_shorter_one_speaks() -> None:
    training = text(60, 1)
    a, b, c, d = training[20:24]
    levels = [*count(training, V)]
    others = [x for x in range(V) if (x, b, c) not in {*zip(training, training[1:], training[2:], strict=False)}]
    after, short = (probabilities(levels, np.array(one), V)[-1] for one in ([a, b, c, d], [b, c, d]))
    assert len(others) > 3 and after != short
    assert {probabilities(levels, np.array([x, b, c, d]), V)[-1] for x in others} == {short}
    assert probabilities([*count(training % 7, V)], np.array([0, 9]), V)[-1] > 0  # 9 is nowhere


def test_ids_as_large_as_a_vocabulary_may_be_do_not_overflow() -> None:
    small, vocab_size = text(900, 1), 2**24
    large = small.astype(np.uint32) + (vocab_size - V)
    ours, theirs = (probabilities(count(one, vocab_size), one, vocab_size) for one in (small, large))
    assert ours == pytest.approx(theirs, abs=1e-12)
    book = Book(large.tolist(), vocab_size, 5)
    assert theirs[80] == pytest.approx(book.probability(tuple(large[:80].tolist()), int(large[80])), abs=1e-9)


def test_the_loss_is_the_mean_over_every_token_that_something_precedes(monkeypatch: pytest.MonkeyPatch) -> None:
    training, other = text(900, 1), text(200, 2)
    each = probabilities(count(training, V), other, V)
    assert counted_loss(training, other, V) == pytest.approx(-sum(math.log(p) for p in each[1:]) / 199)
    monkeypatch.setattr(ngrams, "_PIECE", 7)
    assert (probabilities(count(training, V), other, V) == each).all()
    monkeypatch.setattr(ngrams, "MOST_TOKENS", 300)
    assert counted_loss(training, other, V) == counted_loss(training[:300], other, V)


def test_a_discount_leaves_something_and_takes_no_more_than_there_is() -> None:
    assert discounts(np.array([5, 6, 7])).tolist() == [0, 0.5, 0.5, 0.5]
    assert discounts(np.array([1, 1, 2, 5])).tolist() == [0, 0.5, 0.5, 0.5]
    wild = discounts(np.array([1] * 9 + [2] + [3] * 9 + [4]))
    assert wild.tolist() == [0, 9 / 11, 9 / 11, pytest.approx(3 - 4 * 9 / 11 / 9)]
    assert discounts(np.array([1] * 8 + [2] * 4 + [3] * 2 + [4])).tolist() == [0, 0.5, 1.25, 2.0]
