"""Notes about the pronouns of any sentence: the nouns before each that fit it, and the later word that decides.

A causal model at a pronoun has read only the text before it. If two nouns fit, the word that decides comes later, and
no attention weight at the pronoun can show the link.
"""

from typing import NamedTuple

from data.stories.lexicon import FEELINGS, PRONOUN_OF_FORM, QUALITIES, REFERENTS, Referent
from data.tested.pairs import Span
from data.words import word_spans

_ADJECTIVES = {"animal": FEELINGS, "rest": QUALITIES}


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

        # Only among several candidates can a later word decide.
        known = [REFERENTS[earlier] for earlier, _ in words[:position] if earlier in REFERENTS]
        fitting = {referent.word: referent for referent in known if referent.pronoun == pronoun}
        later = words[position + 1 :] if len(fitting) > 1 else []
        clue = next((entry for entry in later if _decides(entry[0], list(fitting.values()))), None)

        names = " or ".join(fitting) or "no noun of the stories"
        note = f'"{word}" can refer to {names} by the text before it'
        if len(fitting) > 1:
            note += f'; "{clue[0]}" decides: read the attention there' if clue else "; no later word decides"
        notes.append(PronounNote([span, clue[1]] if clue else [span], note))
    return notes


def _decides(word: str, candidates: list[Referent]) -> bool:
    """Return whether a word fits exactly one of the candidates."""
    fits = [word in (*candidate.verbs, *_ADJECTIVES.get(candidate.kind, ())) for candidate in candidates]
    return sum(fits) == 1
