"""A story as a leftmost derivation: one set of rules, which a writer draws from and a reader weighs.

A story begins as a list of symbols, words and slots. The leftmost slot is replaced by one of its options, which may
bind names for the slots to its right, until only words are left. So each word depends on nothing but what has been
said and bound before it, and the exact chance of any next word can be computed by a forward filter (floor.py).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from data.links import Span

Symbols = tuple[str, ...]  # words, and slots such as {A} or {A.was}


@dataclass(frozen=True, slots=True)
class Option:
    """One way to replace a slot."""

    chance: float  # above 0; those of a slot add up to 1
    symbols: Symbols
    binds: tuple[tuple[str, str], ...] = ()  # names and values for what comes later


Rules = Callable[[str, Mapping[str, str]], list[Option]]  # from a slot, without braces, and what is bound


def is_slot(symbol: str) -> bool:
    """Whether a symbol is still to be replaced."""
    return symbol[0] == "{"


@dataclass(frozen=True, slots=True)
class Text:
    """A finished story: its text, where each slot's words stand in order of use, and what was bound."""

    text: str
    spans: dict[str, list[Span]]
    before: dict[str, list[Span]]  # the word before each use of a slot
    bound: dict[str, str]


def write(rules: Rules, rng: Random, start: Symbols, bound: Mapping[str, str]) -> Text:
    """Derive one story from `start`, drawing every choice that `bound` leaves open; close up spaces before marks."""
    bound = dict(bound)
    todo: list[str | tuple[str, int]] = [*reversed(start)]  # a tuple: a slot that ends here, and where it began
    text = ""
    words: list[Span] = []
    spans, before = defaultdict(list), defaultdict(list)
    while todo:
        symbol = todo.pop()
        if isinstance(symbol, tuple):
            slot, first = symbol
            if first < len(words):
                spans[slot].append((words[first][0], words[-1][1]))
                before[slot].append(words[first - 1])
        elif is_slot(symbol):
            slot = symbol[1:-1]
            option = _draw(rng, rules(slot, bound))
            bound.update(option.binds)
            todo.append((slot, len(words)))
            todo.extend(reversed(option.symbols))
        else:
            text += symbol if symbol in ".," or not text else f" {symbol}"
            words.append((len(text) - len(symbol), len(text)))
    return Text(text, dict(spans), dict(before), bound)


def _draw(rng: Random, options: list[Option]) -> Option:
    if len(options) == 1:
        return options[0]
    return rng.choices(options, [option.chance for option in options])[0]
