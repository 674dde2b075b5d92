"""The entropy lower bound ("floor") of the loss: the loss of the Bayes-optimal predictor of the stories.

The grammar is a left-to-right process, so p(word | words before) is a forward filter over all
derivations that can have produced those words. Derivations that reach the same state are added up;
the probability of a single derivation would give a bound that is too high. The oracle "blind" uses
the same filter: at a payoff it has all information of the optimal predictor, except which candidate
is the antecedent.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache

from data.errors import UserError
from data.stories.grammar import Option, Symbols, is_slot
from data.stories.language import START, Language
from data.tokenizer import END
from data.words import words_of

_MIN_INDEXED = 8  # options of a slot; shorter lists are searched


@dataclass(slots=True, eq=False)  # one object per distinct state, so identity is equality
class _State:
    """The symbols that are still to be derived, and the bindings."""

    symbols: Symbols
    bindings: tuple[tuple[str, str], ...]
    # Cache: (probability, next state) by the next word.
    successors: dict[str, list[tuple[float, "_State"]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Belief:
    """A probability distribution over the states that agree with the words read so far."""

    states: dict[_State, float]
    # Cache: (probability, next belief) by the next word.
    successors: dict[str, tuple[float, "_Belief"]] = field(default_factory=dict)


class Floor:
    """The Bayes-optimal predictor of one language; results are cached."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._state = cache(_State)  # one object for the same symbols and bindings
        self._indexes: dict[int, tuple[list[Option], dict[str, list[Option]]]] = {}
        # Beliefs in a single state, shared by all texts that lead to it.
        self._certain: dict[_State, _Belief] = {}
        self.start = _Belief({self._state((*START, END), ()): 1.0})

    def update(self, belief: _Belief, word: str) -> tuple[float, _Belief]:
        """Return p(word) under a belief and the belief after it; an impossible word has probability 0."""
        if word not in belief.successors:
            joint = self._joint(belief.states, word)
            # Bayes: the weights of the states that agree with the word, normalised.
            probability = sum(joint.values())
            posterior = _Belief({state: weight / probability for state, weight in joint.items()})
            if len(joint) == 1:
                posterior = self._certain.setdefault(next(iter(joint)), posterior)
            belief.successors[word] = (probability, posterior)
        return belief.successors[word]

    def _joint(self, states: Mapping[_State, float], word: str) -> dict[_State, float]:
        """Return p(word, state after it) for every state after `word`; the values sum to p(word)."""
        joint: dict[_State, float] = defaultdict(float)
        for state, weight in states.items():
            if word not in state.successors:
                state.successors[word] = self._derive(state.symbols, state.bindings, word)
            for probability, successor in state.successors[word]:
                joint[successor] += weight * probability
        return joint

    def _derive(self, symbols: Symbols, bindings: tuple[tuple[str, str], ...], word: str) -> list[tuple[float, _State]]:
        """Return (probability, state after `word`) for every derivation of `symbols` that starts with `word`."""
        if not symbols:
            return []
        first = symbols[0]
        rest = symbols[1:]
        if not is_slot(first):
            return [(1.0, self._state(rest, bindings))] if first == word else []

        # A slot: follow each option that can start with the word.
        options = self._language.rules(first[1:-1], dict(bindings))
        derivations = []
        for option in self._options_for(word, options):
            updated = bindings
            if option.binds:
                updated = tuple(sorted((dict(bindings) | dict(option.binds)).items()))
            for probability, state in self._derive(option.symbols + rest, updated, word):
                derivations.append((option.probability * probability, state))
        return derivations

    def _options_for(self, word: str, options: list[Option]) -> list[Option]:
        """Return the options that can start with `word`; long lists are indexed by their first word."""
        if len(options) < _MIN_INDEXED:
            return options
        if id(options) not in self._indexes:
            index: dict[str, list[Option]] = defaultdict(list)
            for option in options:
                is_word = option.symbols and not is_slot(option.symbols[0])
                index[option.symbols[0] if is_word else ""].append(option)
            # The reference to `options` keeps the id valid.
            self._indexes[id(options)] = (options, index)
        _, index = self._indexes[id(options)]
        return index.get(word, []) + index.get("", [])

    def surprisal(self, text: str, payoffs: Collection[int] = ()) -> tuple[list[float], dict[int, tuple[float, float]]]:
        """Return -log p in nats of every word and of the end, and of each payoff for each of data.links.ORACLES.

        `payoffs` are positions of words. Raise UserError if the grammar cannot produce the text.
        """
        belief = self.start
        surprisal: list[float] = []
        oracles = {}
        for i, word in enumerate([*words_of(text), END]):
            probability, posterior = self.update(belief, word)
            if not probability > 0:
                place = f"{word!r} at word {i + 1} of {text!r}"
                raise UserError(f"the grammar of the stories does not allow {place}")
            surprisal.append(-math.log(probability))
            if i in payoffs:
                # The words before are known, the antecedent is not.
                without_antecedent = self._without_antecedent(belief.states)
                blind = sum(self._joint(without_antecedent, word).values())
                oracles[i] = (-math.log(blind), surprisal[-1])
            belief = posterior
        return surprisal, oracles

    def _without_antecedent(self, states: Mapping[_State, float]) -> dict[_State, float]:
        """Return the belief in which each of the two candidates is the antecedent with probability 1/2."""
        # The weight of a state is shared equally by its two candidates.
        belief: dict[_State, float] = defaultdict(float)
        for state, weight in states.items():
            bindings = dict(state.bindings)
            family = self._language.plot(bindings).family
            if "MEANT" not in bindings or family in ("no_antecedent", "no_pronoun"):
                belief[state] += weight
                continue
            for slot in "AB":
                changed = tuple(sorted({**bindings, "MEANT": slot}.items()))
                belief[self._state(state.symbols, changed)] += weight / 2
        return belief
