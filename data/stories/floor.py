"""The entropy lower bound ("floor") of the loss: the loss of the Bayes-optimal predictor of the stories.

The grammar is a left-to-right process, so p(word | words before) is a forward filter over all derivations that can have
produced those words. Derivations that reach the same state are added up; the probability of a single derivation would
give a bound that is too high.
"""

import math
from collections import defaultdict
from functools import cache

from data.stories.grammar import Symbols, is_slot
from data.stories.language import START, Language
from data.tokenizer import END
from data.words import words_of
from settings.errors import UserError

_Bindings = tuple[tuple[str, str], ...]  # sorted by name
# A way to derive a word as the first of some symbols: its probability, the symbols after the word, the bindings then.
# No symbols (None): all were derived without a word.
_Start = tuple[float, Symbols | None, _Bindings]
_State = tuple[Symbols, _Bindings]  # the symbols that are still to be derived
_Belief = tuple[tuple[_State, float], ...]  # the states after the words so far, with their probabilities


class Floor:
    """The Bayes-optimal predictor of one language; results are cached."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._slot_starts = cache(self._starts_of_slot)
        self._successors = cache(self._starts)
        self._update = cache(self._updated)

    def _updated(self, belief: _Belief, word: str) -> tuple[float, _Belief]:
        """Return p(word) under a belief and the belief after it; an impossible word has probability 0."""
        joint: dict[_State, float] = defaultdict(float)
        for state, weight in belief:
            for probability, rest, bindings in self._successors(*state, word):
                assert rest is not None  # every state ends with a word, END
                joint[rest, bindings] += weight * probability

        # Bayes: the weights of the states that agree with the word, normalised.
        total = sum(joint.values())
        return total, tuple((state, weight / total) for state, weight in joint.items())

    def _starts(self, symbols: Symbols, bindings: _Bindings, word: str) -> list[_Start]:
        """Return every way to derive `word` as the first word of `symbols`."""
        if not symbols:
            return [(1.0, None, bindings)]
        rest = symbols[1:]
        if not is_slot(symbols[0]):
            return [(1.0, rest, bindings)] if symbols[0] == word else []

        # The rest follows the slot's own symbols, or it begins if the slot has no word.
        starts: list[_Start] = []
        for probability, slot_rest, next_bindings in self._slot_starts(symbols[0], bindings, word):
            if slot_rest is not None:
                starts.append((probability, slot_rest + rest, next_bindings))
                continue
            for later_probability, later_rest, later in self._starts(rest, next_bindings, word):
                starts.append((probability * later_probability, later_rest, later))
        return starts

    def _starts_of_slot(self, slot: str, bindings: _Bindings, word: str) -> list[_Start]:
        """Return `_starts` of one slot alone, which hundreds of frames share."""
        options = self._language.rules(slot[1:-1], dict(bindings))
        starts: list[_Start] = []
        for option in options:
            # Most options begin with another word.
            if option.symbols and option.symbols[0] != word and not is_slot(option.symbols[0]):
                continue
            updated = tuple(sorted((dict(bindings) | dict(option.binds)).items()))
            for probability, rest, next_bindings in self._starts(option.symbols, updated, word):
                starts.append((option.probability * probability, rest, next_bindings))
        return starts

    def surprisal(self, text: str) -> list[float]:
        """Return -log p in nats of every word and of the end; UserError if the grammar cannot produce the text."""
        surprisal = []
        belief: _Belief = ((((*START, END), ()), 1.0),)
        for i, word in enumerate([*words_of(text), END]):
            probability, belief = self._update(belief, word)
            if not probability > 0:
                raise UserError(f"no story may have {word!r} at word {i + 1} of {text!r}")
            surprisal.append(-math.log(probability))
        return surprisal
