"""A probabilistic grammar: the generator samples from it, and the Bayes-optimal predictor sums over it (floor.py).

A story starts as a list of symbols: words and slots. A derivation replaces the leftmost slot by one of its options
until only words are left. An option may also bind names, such as A = cat, that later slots read. So every word depends
only on the words and bindings before it, and the exact probability of the next word can be computed.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from random import Random

from data.pairs import Span

Symbols = tuple[str, ...]  # words, and slots such as {A} or {A.was}
Bindings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Option:
    """One replacement of a slot."""

    probability: float  # above 0; the options of a slot sum to 1
    symbols: Symbols
    binds: tuple[tuple[str, str], ...] = ()  # (name, value) pairs for the slots to the right


class Options(list[Option]):
    """All replacements of a slot."""

    @cached_property
    def ends(self) -> list[float]:
        """The sum of the probabilities up to each option."""
        return list(accumulate(option.probability for option in self))


Rules = Callable[[str, Bindings], Options]  # from a slot without braces and the bindings so far


def is_slot(symbol: str) -> bool:
    """Return True if a symbol is still to be replaced."""
    return symbol[0] == "{"


@dataclass(frozen=True)
class Derivation:
    """A finished story."""

    words: list[str]  # and marks
    uses: list[tuple[str, int, int]]  # slots in the order of their ends, with their words [first, end)
    bindings: dict[str, str]

    @property
    def text(self) -> str:
        """The words, with no space before a mark."""
        return " ".join(self.words).replace(" .", ".").replace(" ,", ",")

    def slot_places(self) -> dict[str, list[Span]]:
        """Return the characters of each use of a slot, in order."""
        words: list[Span] = []
        end = 0
        for word in self.words:
            start = end if word in ".," or not end else end + 1
            end = start + len(word)
            words.append((start, end))

        places: dict[str, list[Span]] = defaultdict(list)
        for slot, first, stop in self.uses:
            places[slot].append((words[first][0], words[stop - 1][1]))
        return dict(places)


def derive(rules: Rules, rng: Random, start: Symbols, bindings: Bindings) -> Derivation:
    """Derive a story from `start`, and draws every choice that `bindings` leaves open."""
    bindings = dict(bindings)
    # A tuple marks the end of a slot: (slot, index of its first word).
    stack: list[str | tuple[str, int]] = [*reversed(start)]
    words: list[str] = []
    uses: list[tuple[str, int, int]] = []
    while stack:
        symbol = stack.pop()
        if isinstance(symbol, tuple):
            slot, first = symbol
            if first < len(words):
                uses.append((slot, first, len(words)))
        elif symbol[0] == "{":  # `is_slot`, without a call for each of millions of symbols
            # Replace the slot by one of its options; a certain option draws nothing.
            slot = symbol[1:-1]
            options = rules(slot, bindings)
            option = options[0]
            if len(options) > 1:
                # As `rng.choices`, which checks and copies what it is given
                option = options[bisect(options.ends, rng.random() * options.ends[-1], 0, len(options) - 1)]
            bindings.update(option.binds)
            stack.append((slot, len(words)))
            stack.extend(option.symbols[::-1])
        else:
            words.append(symbol)
    return Derivation(words, uses, bindings)
