"""The physical limit of the loss: what the best possible reader of the stories' language expects next.

The language is a leftmost derivation (grammar.py), so p(word | words before) is a forward filter over the derivations
that could have said those words: their chances are added where several end in the same state, which is why this is
the floor and a single derivation's own chance is not. Rules of thumb are read in the same filter: a reader who
believes what the rule says of the antecedent, as often as the rule is right, and knows everything else.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from data.links import ORACLES
from data.stories.grammar import Option, Rules, Symbols, is_slot
from data.stories.language import START, Language

END = "<end>"  # said when a story is over
Bound = tuple[tuple[str, str], ...]


def words(text: str) -> list[str]:
    """Return the words and marks of a story, as the grammar says them."""
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(slots=True, eq=False)  # there is one of each: looked up by which it is, what it holds is never compared
class State:
    """What is still to be said and what has been bound; a reader keeps one of each."""

    symbols: Symbols
    bound: Bound
    onward: dict[str, list[tuple[float, "State"]]] = field(default_factory=dict)  # by the next word, what it leads to


@dataclass(slots=True)
class Place:
    """Where a reader stands: the states that what it has read may have led to, and where it has gone from here."""

    states: dict[State, float]  # each with its chance; they add up to 1
    onward: dict[str, tuple[float, "Place"]] = field(default_factory=dict)


class Reader:
    """The forward filter over one set of rules; what it has worked out once, it remembers."""

    def __init__(self, rules: Rules, start: Symbols) -> None:
        """Stand before the first word of a story that is derived from `start`."""
        self._rules = rules
        self._states: dict[tuple[Symbols, Bound], State] = {}
        self._indexed: dict[int, tuple[list[Option], dict[str, list[Option]]]] = {}
        self._known: dict[State, Place] = {}  # where there is one state alone, the way there no longer matters
        self.start = Place({self.state((*start, END), ()): 1.0})

    def state(self, symbols: Symbols, bound: Bound) -> State:
        """Return the one state of these."""
        key = (symbols, bound)
        if key not in self._states:
            self._states[key] = State(symbols, bound)
        return self._states[key]

    def read(self, place: Place, word: str) -> tuple[float, Place]:
        """Return the chance of `word` at a place, and where it leads; a word that cannot come has chance 0."""
        if word not in place.onward:
            found = self.after(place.states, word)
            chance = sum(found.values())
            states = {state: weight / chance for state, weight in found.items()}
            later = Place(states)
            if len(states) == 1:
                later = self._known.setdefault(next(iter(states)), later)
            place.onward[word] = (chance, later)
        return place.onward[word]

    def after(self, states: Mapping[State, float], word: str) -> dict[State, float]:
        """Return the states after `word`, each with the chance of `word` and of being there: their sum is p(word)."""
        found: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            if word not in state.onward:
                state.onward[word] = self._derive(state.symbols, state.bound, word)
            for chance, later in state.onward[word]:
                found[later] += weight * chance
        return found

    def _derive(self, symbols: Symbols, bound: Bound, word: str) -> list[tuple[float, State]]:
        """Return every way in which what is still to be said can begin with `word`."""
        if not symbols:
            return []
        first, rest = symbols[0], symbols[1:]
        if not is_slot(first):
            return [(1.0, self.state(rest, bound))] if first == word else []
        found = []
        for option in self._that_may_say(word, self._rules(first[1:-1], dict(bound))):
            binds = bound
            if option.binds:
                names = {name for name, _ in option.binds}
                binds = tuple(sorted([*(one for one in bound if one[0] not in names), *option.binds]))
            found += [
                (option.chance * chance, state) for chance, state in self._derive(option.symbols + rest, binds, word)
            ]
        return found

    def _that_may_say(self, word: str, options: list[Option]) -> list[Option]:
        """Return those of the options that do not begin with another word: few of many, so they are looked up."""
        if len(options) < 8:
            return options
        if id(options) not in self._indexed:
            index: dict[str, list[Option]] = defaultdict(list)
            for option in options:
                index["" if not option.symbols or is_slot(option.symbols[0]) else option.symbols[0]].append(option)
            self._indexed[id(options)] = (options, index)  # kept, so that the id stays its own
        _, index = self._indexed[id(options)]
        return index.get(word, []) + index.get("", [])


class Floor:
    """The readers of one language: the best one, and those that go by a rule of thumb."""

    def __init__(self, language: Language, habit: float) -> None:
        """Read `language`; `habit` is how often the first mention is meant where the rules of thumb were learned."""
        self._language, self._habit = language, habit
        self._reader = Reader(language.rules, START)

    def read(self, text: str, payoffs: Collection[int] = ()) -> tuple[list[float], dict[int, tuple[float, ...]]]:
        """Return -log p in nats of each word and of the end, and at each of `payoffs` what each of ORACLES would have.

        Args:
            text: of a story that the language can tell.
            payoffs: places of words whose choice among the antecedent's own words is to be judged.

        Raises:
            ValueError: the language cannot tell this story.

        """
        place = self._reader.start
        surprisal, oracles = [], {}
        for i, word in enumerate([*words(text), END]):
            chance, later = self._reader.read(place, word)
            if not chance > 0:
                raise ValueError(f"the language cannot go on with {word!r} in {text!r}")
            if i in payoffs:
                oracles[i] = tuple(self._judged(oracle, place.states, word) for oracle in ORACLES)
            surprisal.append(-math.log(chance))
            place = later
        return surprisal, oracles

    def _judged(self, oracle: str, states: Mapping[State, float], word: str) -> float:
        """Return -log p(word) of a reader who believes what `oracle` says of the antecedent."""
        if oracle == "bayes":
            believed = states
        else:
            believed = defaultdict(float)
            for state, weight in states.items():
                for slot, belief in self._beliefs(oracle, dict(state.bound)):
                    changed = tuple((name, slot if name == "MEANT" else value) for name, value in state.bound)
                    believed[self._reader.state(state.symbols, changed)] += weight * belief
        return -math.log(sum(self._reader.after(believed, word).values()))

    def _beliefs(self, oracle: str, bound: dict[str, str]) -> list[tuple[str, float]]:
        """Return the chance that a rule gives each candidate of being meant; what means nothing is left as it is."""
        if "MEANT" not in bound:
            return [("", 1.0)]
        if self._language.plot(bound).family in ("no_antecedent", "no_pronoun"):
            return [(bound["MEANT"], 1.0)]
        (first, _), (last, _) = self._language.prior(bound)
        told = bound.get("SUBJECT") if oracle == "subject" else None
        if oracle == "first" or told == first:
            return [(first, self._habit), (last, 1 - self._habit)]
        if oracle == "nearest" or told == last:
            return [(last, 1 - self._habit), (first, self._habit)]
        return [(first, 0.5), (last, 0.5)]
