"""What the stories' own grammar knows of a sentence: which words a pronoun could mean, and when that is decided.

A causal model at a pronoun has read only what stands before it. Where that leaves two candidates, whatever decides
between them comes later, and no row at the pronoun can show it.
"""

import re
from dataclasses import dataclass, replace

from data.links import Span
from data.stories.frames import OWNING
from data.stories.lexicon import FEELINGS, QUALITIES, STATES, Referent, referents

_KINDS = {
    form: kind
    for kind, forms in {
        "It": "it its", "They": "they them their", "She": "she her", "He": "he him his",
    }.items()
    for form in forms.split()
}  # fmt: skip
_OBJECTS = ("him", "her", "them")  # "it" is left out: what is washed is seldom what washes


@dataclass(frozen=True, slots=True)
class PronounNote:
    """What can be said of one pronoun of a sentence."""

    span: Span
    candidates: tuple[str, ...]  # the mentions before it that agree with it
    clue: Span | None  # a later word that decides between them, where there is one
    note: str  # one sentence for a reader


def word_spans(text: str) -> list[tuple[str, Span]]:
    """Return the words and punctuation marks of `text` with their spans."""
    return [(match.group(), match.span()) for match in re.finditer(r"\w+|[^\w\s]+", text)]


def lint(text: str) -> list[PronounNote]:
    """Return a note for every personal pronoun of `text`, in any case, in order."""
    every = word_spans(text)
    found = []
    for place, (word, span) in enumerate(every):
        kind = _KINDS.get(word.lower())
        if kind is None:
            continue
        fitting = _fitting([one for one, _ in every[: place + 2]], place, kind)
        clue = next((every[i][1] for i in range(place + 1, len(every)) if _decides(every, i, fitting)), None)
        candidates = tuple(one.word for one in fitting)
        found.append(PronounNote(span, candidates, clue if len(fitting) > 1 else None, ""))
    return [_noted(text, one) for one in found]


def _fitting(some: list[str], place: int, kind: str) -> list[Referent]:
    """Return what has been mentioned before the pronoun at `place` and agrees with it, each once."""
    known = _mentioned(some[:place])
    fitting = [one for one in known if one.pronoun == kind]
    if kind == "They":
        fitting += _couples(some[:place], known)
    follows = some[place + 1] if place + 1 < len(some) else "."
    if place > 1 and some[place] in _OBJECTS and not (some[place] == "her" and follows.isalpha() and follows != "so"):
        fitting = [one for one in fitting if one.word != some[place - 2]]  # "Tom washed him": not himself
    if kind == "It":
        fitting = _owned(some[:place], fitting) or fitting
    return fitting


def _mentioned(some: list[str]) -> list[Referent]:
    """Return the referents of some words in order, each once, with the verbs of a state said before it."""
    found: dict[str, Referent] = {}
    for i, word in enumerate(some):
        told = _told(some, i)
        one = found.get(word) or referents().get(word) or (Referent(word, word, "name", told, (), "") if told else None)
        if one is not None:
            found[word] = replace(one, verbs=one.verbs + STATES.get(some[i - 1] if i else "", ()))
    return list(found.values())


def _told(some: list[str], i: int) -> str:
    """Return She or He where the words around a name say which it is, as "a girl named Zor" and "Zor the girl"."""
    before, after = some[max(0, i - 2) : i], some[i + 1 : i + 3]
    child = before[0] if before[1:] == ["named"] else after[1] if after[:1] == ["the"] and len(after) > 1 else ""
    return {"girl": "She", "boy": "He"}.get(child, "") if some[i][0].isupper() else ""


def _sentences(some: list[str], ends: str) -> list[list[str]]:
    """Return the runs of words between those of `ends`."""
    found: list[list[str]] = [[]]
    for word in some:
        found.append([]) if word in ends.split() else found[-1].append(word)
    return found


def _couples(some: list[str], known: list[Referent]) -> list[Referent]:
    """Return two people of one sentence as one candidate, whose verbs are those of both."""
    people = {one.word: one for one in known if one.kind == "name"}
    pairs = [[people[word] for word in dict.fromkeys(run) if word in people] for run in _sentences(some, ". ! ?")]
    return [
        Referent(f"{pair[0].word} and {pair[1].word}", "", "couple", "They", pair[0].verbs + pair[1].verbs, "")
        for pair in pairs
        if len(pair) == 2
    ]


def _owned(some: list[str], fitting: list[Referent]) -> list[Referent]:
    """Return those of the candidates that belong to the one whom "she" or "he" in the same sentence means."""
    people = [one for one in _mentioned(some) if one.kind == "name"]
    kinds = {_KINDS[word.lower()] for word in _sentences(some, ". ! ?")[-1] if word.lower() in ("she", "he")}
    owners = [one.word for one in people if one.pronoun in kinds]
    owned = set()
    for run in _sentences(some, ". ! ? , and but while"):
        named = {one.word for one in people} & set(run)
        if named == set(owners) and len(named) == 1 and any(f" {verb} " in f" {' '.join(run)} " for verb in OWNING):
            owned.update(run)
    return [one for one in fitting if one.word in owned]


def _decides(every: list[tuple[str, Span]], i: int, candidates: list[Referent]) -> bool:
    """Whether the word at `i` can be said of exactly one of several candidates, or names it after "so"."""
    word = every[i][0]
    if any(word == one.word for one in candidates):
        sentence = _sentences([other for other, _ in every[:i]], ". ! ?")[-1]
        return "so" in [other.lower() for other in sentence]
    return sum(_can_be_said(word, one) for one in candidates) == 1


def _can_be_said(word: str, one: Referent) -> bool:
    return (
        word in one.verbs or (word in FEELINGS and one.kind == "animal") or (word in QUALITIES and one.kind == "rest")
    )


def _noted(text: str, one: PronounNote) -> PronounNote:
    pronoun = text[slice(*one.span)]
    some = " or ".join(one.candidates)
    later = [name.word for name in _mentioned([word for word, _ in word_spans(text[one.span[1] :])])]
    later = [word for word in later if referents().get(word) and referents()[word].pronoun == _KINDS[pronoun.lower()]]
    if not one.candidates and later:
        note = (
            f'what "{pronoun}" could mean, {" or ".join(later)}, comes only after it: the row at "{pronoun}" has not '
            "read it and cannot look there"
        )
    elif not one.candidates:
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
