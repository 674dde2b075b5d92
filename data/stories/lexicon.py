"""The vocabulary of the stories: nouns, names, and their verbs (lexicon.txt).

Each kind of noun has four verbs that no other kind has. They are the payoff of a pronoun: after "It", a model that
has resolved the antecedent chooses among four verbs; a model that has not must also give probability to the other
candidate's verbs. So resolving the pronoun lowers the loss at the very next token. The two mentions of a story never
share a verb.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data.words import word_lists

_WORDS = word_lists(Path(__file__).with_suffix(".txt"))
PRONOUN_OF_FORM = {"it": "It", "its": "It"} | dict.fromkeys(("they", "them", "their"), "They")
PRONOUN_OF_FORM |= {"she": "She", "her": "She"} | dict.fromkeys(("he", "him", "his"), "He")


@dataclass(frozen=True)
class Referent:
    """A noun or name that a pronoun can refer to, in the form in which a story mentions it."""

    word: str  # the single token of the mention: "cat", "buses", "Lily"
    lemma: str  # the same for singular and plural: "cat", "bus", "Lily"
    kind: str  # animal, thing or name
    pronoun: str  # It, They, She or He
    verbs: tuple[str, ...]  # its four payoff verbs
    held_out: str  # "dev" or "test": never an antecedent in training; "": may be an antecedent in training

    @property
    def plural(self) -> bool:
        return self.pronoun == "They"


def pronouns_of(words: Sequence[str]) -> list[int]:
    """Return the indices of the personal and possessive pronouns."""
    return [i for i, word in enumerate(words) if word.lower() in PRONOUN_OF_FORM]


def unit_hash(*strings: str) -> float:
    """Return a number in [0, 1) that depends on the strings alone; all hold-outs are decided by it."""
    digest = hashlib.sha256("|".join(strings).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _hold_out(words: Iterable[str], n_test: int) -> dict[str, str]:
    """Return {word: "dev" or "test"} for the words with the lowest hashes, six of dev, without those of the README."""
    ranked = sorted(set(words) - {"cat", "dog", "bus", "mat"}, key=lambda word: unit_hash("held out", word))
    return dict.fromkeys(ranked[:6], "dev") | dict.fromkeys(ranked[6 : 6 + n_test], "test")


def _parse_nouns(table: str, kind: str, n_test: int) -> list[tuple[Referent, Referent]]:
    # Per line: the nouns of one kind as singular/plural, and the four verbs of that kind alone.
    forms = {}
    for line in table.splitlines():
        nouns, verbs = line.split(": ")
        for noun in nouns.split():
            singular, plural = noun.split("/")
            forms[singular] = (plural, tuple(verbs.split()))
    held_out = _hold_out(forms, n_test)
    referents = []
    for singular, (plural, of_kind) in forms.items():
        referent = Referent(singular, singular, kind, "It", of_kind, held_out.get(singular, ""))
        referents.append((referent, replace(referent, word=plural, pronoun="They")))
    return referents


def _name_referents(side: str, pronoun: str) -> tuple[Referent, ...]:
    # The held-out names are mostly invented, so that their gender can be learned from the stories only. Dev uses the
    # first four, test the other twelve: the test flips the signs of whole words, and its power grows with their number.
    trained = _WORDS[side].split()
    held_out = _WORDS[f"{side} held out"].split()
    splits = [""] * len(trained) + ["dev"] * 4 + ["test"] * (len(held_out) - 4)

    # Each name has the verbs of one calling: a model learns twelve sets of verbs, not one per name.
    callings = [tuple(line.split()) for line in _WORDS["callings"].splitlines()]
    verbs: dict[str, tuple[str, ...]] = {}
    for group in (trained, held_out):
        ranked = sorted(group, key=lambda name: unit_hash("calling", name))
        for i, name in enumerate(ranked):
            verbs[name] = callings[i % len(callings)]
    names = zip([*trained, *held_out], splits, strict=True)
    return tuple(Referent(name, name, "name", pronoun, verbs[name], split) for name, split in names)


# The 103 nouns as (singular, plural); dev holds out 6 animals and 6 things, test 12 and 8. Test has twelve animals
# because both mentions of the question "verb" are animals, and the test flips the signs of whole words.
NOUNS = (*_parse_nouns(_WORDS["animals"], "animal", 12), *_parse_nouns(_WORDS["things"], "thing", 8))
# Feminine and masculine names
NAMES = (_name_referents("feminine", "She"), _name_referents("masculine", "He"))
REFERENTS = {referent.word: referent for group in (*NOUNS, *NAMES) for referent in group}
