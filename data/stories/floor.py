"""The entropy lower bound ("floor") of the loss: the loss of the Bayes-optimal predictor of the stories.

The grammar is a left-to-right process, so p(word | words before) is a forward filter over all derivations that can
have produced those words. Derivations that reach the same state are added up; the probability of a single derivation
would give a bound that is too high. The oracle "blind" uses the same filter: at a payoff it has all information of the
optimal predictor, except which candidate is the antecedent.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

from data.stories.grammar import Option, Symbols, is_slot
from data.stories.language import START, Language
from data.tokenizer import END


def words(text: str) -> list[str]:
    """Returns the words and punctuation marks of a story, as the grammar produces them."""
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(slots=True, eq=False)  # one object per distinct state, so identity is equality
class State:
    """The symbols that are still to be derived, and the bindings."""

    symbols: Symbols
    bindings: tuple[tuple[str, str], ...]
    successors: dict[str, list[tuple[float, "State"]]] = field(default_factory=dict)  # cache, by the next word


@dataclass(slots=True)
class Belief:
    """A probability distribution over the states that agree with the words read so far."""

    states: dict[State, float]
    successors: dict[str, tuple[float, "Belief"]] = field(default_factory=dict)  # cache, by the next word


class Floor:
    """The Bayes-optimal predictor of one language; results are cached."""

    def __init__(self, language: Language) -> None:
        """Sets the belief before the first word of a story."""
        self._language = language
        self._state = cache(State)  # one object for the same symbols and bindings
        self._indexes: dict[int, tuple[list[Option], dict[str, list[Option]]]] = {}
        self._certain: dict[State, Belief] = {}  # beliefs in a single state, shared by all texts that lead to it
        self.start = Belief({self._state((*START, END), ()): 1.0})

    def update(self, belief: Belief, word: str) -> tuple[float, Belief]:
        """Returns p(word) under a belief and the belief after it; an impossible word has probability 0."""
        if word not in belief.successors:
            joint = self._joint(belief.states, word)
            probability = sum(joint.values())
            posterior = Belief({state: weight / probability for state, weight in joint.items()})
            if len(joint) == 1:
                posterior = self._certain.setdefault(next(iter(joint)), posterior)
            belief.successors[word] = (probability, posterior)
        return belief.successors[word]

    def _joint(self, states: Mapping[State, float], word: str) -> dict[State, float]:
        """Returns p(word, state after it) for every state after `word`; the values sum to p(word)."""
        joint: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            if word not in state.successors:
                state.successors[word] = self._derive(state.symbols, state.bindings, word)
            for probability, successor in state.successors[word]:
                joint[successor] += weight * probability
        return joint

    def _derive(self, symbols: Symbols, bindings: tuple[tuple[str, str], ...], word: str) -> list[tuple[float, State]]:
        """Returns (probability, state after `word`) for every derivation of `symbols` that starts with `word`."""
        if not symbols:
            return []
        first, rest = symbols[0], symbols[1:]
        if not is_slot(first):
            return [(1.0, self._state(rest, bindings))] if first == word else []
        derivations = []
        for option in self._options_for(word, self._language.rules(first[1:-1], dict(bindings))):
            updated = tuple(sorted((dict(bindings) | dict(option.binds)).items())) if option.binds else bindings
            derivations += [
                (option.probability * probability, state)
                for probability, state in self._derive(option.symbols + rest, updated, word)
            ]
        return derivations

    def _options_for(self, word: str, options: list[Option]) -> list[Option]:
        """Returns the options that can start with `word`; long lists of options are indexed by their first word."""
        if len(options) < 8:
            return options
        if id(options) not in self._indexes:
            index: dict[str, list[Option]] = defaultdict(list)
            for option in options:
                index["" if not option.symbols or is_slot(option.symbols[0]) else option.symbols[0]].append(option)
            self._indexes[id(options)] = (options, index)  # the reference to `options` keeps the id valid
        _, index = self._indexes[id(options)]
        return index.get(word, []) + index.get("", [])

    def surprisal(self, text: str, payoffs: Collection[int] = ()) -> tuple[list[float], dict[int, tuple[float, float]]]:
        """Returns -log p in nats of every word and of the end, and of each payoff for each of data.links.ORACLES.

        `payoffs` are positions of words. Raises ValueError if the grammar cannot produce the text.
        """
        belief = self.start
        surprisal, oracles = [], {}
        for i, word in enumerate([*words(text), END]):
            probability, posterior = self.update(belief, word)
            if not probability > 0:
                raise ValueError(f"the grammar of the stories does not allow {word!r} at word {i + 1} of {text!r}")
            surprisal.append(-math.log(probability))
            if i in payoffs:
                blind = sum(self._joint(self._without_antecedent(belief.states), word).values())
                oracles[i] = (-math.log(blind), surprisal[-1])
            belief = posterior
        return surprisal, oracles

    def _without_antecedent(self, states: Mapping[State, float]) -> dict[State, float]:
        """Returns the belief in which each of the two candidates is the antecedent with probability 1/2."""
        belief: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            bindings = dict(state.bindings)
            family = self._language.plot(bindings).family
            if "MEANT" not in bindings or family in ("no_antecedent", "no_pronoun"):
                belief[state] += weight
                continue
            for slot in "AB":
                changed = tuple((name, slot if name == "MEANT" else value) for name, value in state.bindings)
                belief[self._state(state.symbols, changed)] += weight / 2
        return belief
