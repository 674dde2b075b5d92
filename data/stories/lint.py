"""Notes about the pronouns of any sentence: the nouns before each that fit it, and the word that decides.

A causal model at a pronoun has read only the text before it. If two nouns fit, either a verb before it decides ("the
cat frightened the dog because it"), or a later word, and then no attention weight at the pronoun can show the link.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

from data.stories.frames import TEXTS
from data.stories.lexicon import PRONOUN_OF_FORM, REFERENTS, Referent
from data.tested.pairs import Span
from data.words import word_spans


class PronounNote(NamedTuple):
    """The analysis of one pronoun."""

    read_at: list[Span]  # the pronoun, and a later word that decides between several candidates
    note: str  # one sentence for the reader of the report


def lint(text: str) -> list[PronounNote]:
    """Return a note for every personal or possessive pronoun of `text`, in order."""
    words = word_spans(text)
    notes = []
    for position, (word, span) in enumerate(words):
        pronoun = PRONOUN_OF_FORM.get(word.lower())
        if pronoun is None:
            continue

        known = [REFERENTS[earlier] for earlier, _ in words[:position] if earlier in REFERENTS]
        fitting = {referent.word: referent for referent in known if referent.pronoun == pronoun}
        names = " or ".join(fitting) or "no noun of the stories"
        note = f'"{word}" can refer to {names} by the text before it'

        # Only among several candidates can another word decide: a verb before the pronoun, or a later word.
        read_at = [span]
        if len(fitting) > 1:
            meant = _named_by_verb([earlier for earlier, _ in words[:position]], fitting)
            clue = next((entry for entry in words[position + 1 :] if _decides(entry[0], fitting.values())), None)
            if meant:
                note += f"; the verb before it tells that it is the {meant}"
            elif clue:
                note += f'; "{clue[0]}" decides: read the attention there'
                read_at.append(clue[1])
            else:
                note += "; no other word decides"
        notes.append(PronounNote(read_at, note))
    return notes


def _named_by_verb(words: list[str], nouns: Collection[str]) -> str | None:
    """Return which of two nouns the verb between them tells; `words` end before the pronoun.

    Only "the cat (often) feared the dog ... because" and "the cat was (often) feared by the dog ... because" are read.
    """
    places = [place for place, word in enumerate(words) if word in nouns]
    for first, second in pairwise(places):
        between = words[first + 1 : second]
        is_passive = between[-2:] == ["by", "the"]
        verb = between[-3 if is_passive else -2 :][:1]
        is_known = verb and verb[0] in TEXTS["BY_FIRST"] + TEXTS["BY_SECOND"] and between[-1] == "the"
        if is_known and words[-1].lower() == "because" and is_passive == ("was" in between[-5:-3]):
            return words[second if (verb[0] in TEXTS["BY_SECOND"]) != is_passive else first]
    return None


def _decides(word: str, candidates: Iterable[Referent]) -> bool:
    return sum(word in candidate.verbs for candidate in candidates) == 1
