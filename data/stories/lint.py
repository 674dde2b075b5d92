"""What the stories' own grammar knows of a sentence: which words a pronoun could mean, and when that is decided.

A causal model at a pronoun has read only what stands before it. Where that leaves two candidates, whatever decides
between them comes later, and no row at the pronoun can show it.
"""

import re
from dataclasses import dataclass

from data.links import Span
from data.stories.lexicon import FEELINGS, QUALITIES, referents

_KINDS = {"it": "It", "they": "They", "she": "She", "he": "He"}


@dataclass(frozen=True, slots=True)
class PronounNote:
    """What can be said of one pronoun of a sentence."""

    span: Span
    candidates: tuple[str, ...]  # the mentions before it that agree with it
    clue: Span | None  # a later word that decides between them, where there is one
    note: str  # one sentence for a reader


def words(text: str) -> list[tuple[str, Span]]:
    """Return the words and punctuation marks of `text` with their spans."""
    return [(match.group(), match.span()) for match in re.finditer(r"\w+|[^\w\s]+", text)]


def lint(text: str) -> list[PronounNote]:
    """Return a note for every it, they, she and he of `text`, in order."""
    every = words(text)
    found = []
    for place, (word, span) in enumerate(every):
        kind = _KINDS.get(word.lower())
        if kind is None:
            continue
        known = [referents().get(other) for other, _ in every[:place]]
        fitting = list(dict.fromkeys(one.word for one in known if one is not None and one.pronoun == kind))
        clue = next((s for other, s in every[place + 1 :] if _decides(other, fitting)), None)
        found.append(PronounNote(span, tuple(fitting), clue if len(fitting) > 1 else None, ""))
    return [_noted(text, one) for one in found]


def _decides(word: str, candidates: list[str]) -> bool:
    """Whether `word` can be said of exactly one of several candidates."""
    possible = [
        _can_be_said(word, referents()[candidate].kind, referents()[candidate].verbs) for candidate in candidates
    ]
    return sum(possible) == 1


def _can_be_said(word: str, kind: str, verbs: tuple[str, ...]) -> bool:
    return word in verbs or (word in FEELINGS and kind == "animal") or (word in QUALITIES and kind == "rest")


def _noted(text: str, one: PronounNote) -> PronounNote:
    pronoun = text[slice(*one.span)]
    some = " or ".join(one.candidates)
    if not one.candidates:
        note = f'no word known to the stories stands before "{pronoun}" that it could mean'
    elif len(one.candidates) == 1:
        note = f'what stands before "{pronoun}" leaves one candidate: {some}'
    elif one.clue:
        clue = text[slice(*one.clue)]
        note = (
            f'the clue comes after the pronoun: "{pronoun}" could mean {some} until "{clue}", '
            f'and the row at "{pronoun}" cannot know which; read the row at "{clue}"'
        )
    else:
        note = f'nothing in the sentence decides whether "{pronoun}" means {some}'
    return PronounNote(one.span, one.candidates, one.clue, note)
