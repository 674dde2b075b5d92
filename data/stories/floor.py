"""The entropy lower bound ("floor") of the loss: the loss of the Bayes-optimal predictor of the stories.

The grammar is a left-to-right process, so p(word | words before) is a forward filter over all derivations that can
have produced those words. Derivations that reach the same state are added up; the probability of a single derivation
would give a bound that is too high. Heuristic baselines (`ORACLES`) use the same filter: at a payoff they know all
that the optimal predictor knows, except which candidate is the antecedent. That they take from a heuristic such as
"the first mention", believed as often as it is right in the training stories.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from data.links import ORACLES
from data.stories.grammar import Bindings, Option, Rules, Symbols, is_slot
from data.stories.language import START, Language

END = "<end>"  # the symbol after the last word of a story


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a story, as the grammar produces them."""
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


class ForwardFilter:
    """The exact predictor of one grammar; results are cached."""

    def __init__(self, rules: Rules, start: Symbols) -> None:
        """Set the belief before the first word of a story derived from `start`."""
        self._rules = rules
        self._states: dict[tuple[Symbols, tuple[tuple[str, str], ...]], State] = {}
        self._indexes: dict[int, tuple[list[Option], dict[str, list[Option]]]] = {}
        self._certain: dict[State, Belief] = {}  # beliefs in a single state, shared by all texts that lead to it
        self.start = Belief({self.state((*start, END), ()): 1.0})

    def state(self, symbols: Symbols, bindings: tuple[tuple[str, str], ...]) -> State:
        """Return the unique State object of these symbols and bindings."""
        key = (symbols, bindings)
        if key not in self._states:
            self._states[key] = State(symbols, bindings)
        return self._states[key]

    def update(self, belief: Belief, word: str) -> tuple[float, Belief]:
        """Return p(word) under a belief and the belief after it; an impossible word has probability 0."""
        if word not in belief.successors:
            joint = self.joint(belief.states, word)
            probability = sum(joint.values())
            posterior = Belief({state: weight / probability for state, weight in joint.items()})
            if len(joint) == 1:
                posterior = self._certain.setdefault(next(iter(joint)), posterior)
            belief.successors[word] = (probability, posterior)
        return belief.successors[word]

    def joint(self, states: Mapping[State, float], word: str) -> dict[State, float]:
        """Return p(word, state after it) for every state after `word`; the values sum to p(word)."""
        joint: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            if word not in state.successors:
                state.successors[word] = self._derive(state.symbols, state.bindings, word)
            for probability, successor in state.successors[word]:
                joint[successor] += weight * probability
        return joint

    def _derive(self, symbols: Symbols, bindings: tuple[tuple[str, str], ...], word: str) -> list[tuple[float, State]]:
        """Return (probability, state after `word`) for every derivation of `symbols` that starts with `word`."""
        if not symbols:
            return []
        first, rest = symbols[0], symbols[1:]
        if not is_slot(first):
            return [(1.0, self.state(rest, bindings))] if first == word else []
        derivations = []
        for option in self._options_for(word, self._rules(first[1:-1], dict(bindings))):
            updated = tuple(sorted((dict(bindings) | dict(option.binds)).items())) if option.binds else bindings
            derivations += [
                (option.probability * probability, state)
                for probability, state in self._derive(option.symbols + rest, updated, word)
            ]
        return derivations

    def _options_for(self, word: str, options: list[Option]) -> list[Option]:
        """Return the options that can start with `word`; long lists of options are indexed by their first word."""
        if len(options) < 8:
            return options
        if id(options) not in self._indexes:
            index: dict[str, list[Option]] = defaultdict(list)
            for option in options:
                index["" if not option.symbols or is_slot(option.symbols[0]) else option.symbols[0]].append(option)
            self._indexes[id(options)] = (options, index)  # the reference to `options` keeps the id valid
        _, index = self._indexes[id(options)]
        return index.get(word, []) + index.get("", [])


class Floor:
    """The Bayes-optimal predictor of one language, and the heuristic baselines."""

    def __init__(self, language: Language, habit: float) -> None:
        """Args: `habit` is the share of training stories in which the first mention is the antecedent."""
        self._language, self._habit = language, habit
        self._filter = ForwardFilter(language.rules, START)

    def surprisal(self, text: str, payoffs: Collection[int] = ()) -> tuple[list[float], dict[int, tuple[float, ...]]]:
        """Return -log p in nats of every word and of the end, and for each payoff the -log p of each of ORACLES.

        Args:
            text: a story of the language.
            payoffs: word positions at which the baselines are evaluated.

        Raises:
            ValueError: the grammar cannot produce this text.

        """
        belief = self._filter.start
        surprisal, oracles = [], {}
        for i, word in enumerate([*words(text), END]):
            probability, posterior = self._filter.update(belief, word)
            if not probability > 0:
                raise ValueError(f"the grammar of the stories does not allow {word!r} at word {i + 1} of {text!r}")
            if i in payoffs:
                oracles[i] = tuple(self._oracle_surprisal(oracle, belief.states, word) for oracle in ORACLES)
            surprisal.append(-math.log(probability))
            belief = posterior
        return surprisal, oracles

    def _oracle_surprisal(self, oracle: str, states: Mapping[State, float], word: str) -> float:
        """Return -log p(word) after the antecedent in every state is replaced by the belief of `oracle`."""
        if oracle == "bayes":
            return -math.log(sum(self._filter.joint(states, word).values()))
        believed: dict[State, float] = defaultdict(float)
        for state, weight in states.items():
            for slot, probability in self._antecedents(oracle, dict(state.bindings)):
                bindings = tuple((name, slot if name == "MEANT" else value) for name, value in state.bindings)
                believed[self._filter.state(state.symbols, bindings)] += weight * probability
        return -math.log(sum(self._filter.joint(believed, word).values()))

    def _antecedents(self, oracle: str, bindings: Bindings) -> list[tuple[str, float]]:
        """Return the probability that a heuristic gives to each candidate of being the antecedent."""
        if "MEANT" not in bindings:
            return [("", 1.0)]
        if self._language.plot(bindings).family in ("no_antecedent", "no_pronoun"):
            return [(bindings["MEANT"], 1.0)]
        (first, _), (last, _) = self._language.prior(bindings)
        subject = bindings.get("SUBJECT") if oracle == "subject" else None
        if oracle in ("first", "nearest") or subject in (first, last):
            return [(first, self._habit), (last, 1 - self._habit)]
        return [(first, 0.5), (last, 0.5)]
