"""A probabilistic grammar: the generator samples from it, and the Bayes-optimal predictor sums over it (floor.py).

A story starts as a list of symbols: words and slots. A derivation replaces the leftmost slot by one
of its options until only words are left. An option may also bind names, such as A = cat, that later
slots read. So every word depends only on the words and bindings before it, and the exact probability
of the next word can be computed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from data.links import Span

Symbols = tuple[str, ...]  # words, and slots such as {A} or {A.was}
Bindings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Option:
    """One replacement of a slot."""

    probability: float  # above 0; the options of a slot sum to 1
    symbols: Symbols
    binds: tuple[tuple[str, str], ...] = ()  # (name, value) pairs for the slots to the right


Rules = Callable[[str, Bindings], list[Option]]  # from a slot without braces and the bindings so far


def is_slot(symbol: str) -> bool:
    """Return True if a symbol is still to be replaced."""
    return symbol[0] == "{"


@dataclass(frozen=True, slots=True)
class Derivation:
    """A finished story, with the positions of all slots in its text."""

    text: str
    spans: dict[str, list[Span]]  # per slot, the characters of each use, in order
    previous: dict[str, list[Span]]  # per slot, the word before each use
    bindings: dict[str, str]


def sample(rules: Rules, rng: Random, start: Symbols, bindings: Bindings) -> Derivation:
    """Derive a story from `start`, and draws every choice that `bindings` leaves open."""
    bindings = dict(bindings)
    # A tuple marks the end of a slot: (slot, index of its first word).
    stack: list[str | tuple[str, int]] = [*reversed(start)]
    text = ""
    words: list[Span] = []
    spans: dict[str, list[Span]] = defaultdict(list)
    previous: dict[str, list[Span]] = defaultdict(list)
    while stack:
        symbol = stack.pop()
        if isinstance(symbol, tuple):
            # The slot is finished: note its characters, unless it produced no word.
            slot, first = symbol
            if first < len(words):
                spans[slot].append((words[first][0], words[-1][1]))
                previous[slot].append(words[first - 1])
        elif is_slot(symbol):
            # Replace the slot by one of its options; a certain option draws nothing.
            slot = symbol[1:-1]
            options = rules(slot, bindings)
            option = options[0]
            if len(options) > 1:
                option = rng.choices(options, [option.probability for option in options])[0]
            bindings.update(option.binds)
            stack.append((slot, len(words)))
            stack.extend(reversed(option.symbols))
        else:
            text += symbol if symbol in ".," or not text else f" {symbol}"
            words.append((len(text) - len(symbol), len(text)))
    return Derivation(text, dict(spans), dict(previous), bindings)
