"""Notes about the pronouns of any sentence: which words can be the antecedent, and which word decides.

A causal model at a pronoun has read only the text before it. If that leaves two candidates, the deciding word comes
later, and no attention weight at the pronoun can show the link.
"""

import re
from dataclasses import dataclass, replace

from data.links import Span
from data.stories.frames import OWNING
from data.stories.lexicon import FEELINGS, PRONOUNS, QUALITIES, REFERENTS, STATES, Referent

_PRONOUNS = {form.lower(): pronoun for form, pronoun in PRONOUNS.items()}
_OBJECTS = ("him", "her", "them")  # "it" is excluded: an object "it" rarely competes with a subject
_SENTENCE_ENDS = ". ! ?"
_CLAUSE_ENDS = ". ! ? , and but while"


@dataclass(frozen=True, slots=True)
class PronounNote:
    """The analysis of one pronoun."""

    span: Span
    candidates: tuple[str, ...]  # the earlier mentions that agree with the pronoun
    clue: Span | None  # a later word that decides between several candidates
    note: str  # one sentence for the reader of the report


def word_spans(text: str) -> list[tuple[str, Span]]:
    """Returns the words and punctuation marks of `text` with their characters [start, end)."""
    return [(match.group(), match.span()) for match in re.finditer(r"\w+|[^\w\s]+", text)]


def lint(text: str) -> list[PronounNote]:
    """Returns a note for every personal or possessive pronoun of `text`, in order."""
    words = [word for word, _ in word_spans(text)]
    spans = [span for _, span in word_spans(text)]
    notes = []
    for position, word in enumerate(words):
        pronoun = _PRONOUNS.get(word.lower())
        if pronoun is None:
            continue
        candidates = _candidates(words, position, pronoun)
        later = range(position + 1, len(words)) if len(candidates) > 1 else ()
        clue = next((i for i in later if _decides(words, i, candidates)), None)
        note = _note(words, position, clue, candidates)
        names = tuple(candidate.word for candidate in candidates)
        notes.append(PronounNote(spans[position], names, None if clue is None else spans[clue], note))
    return notes


def _candidates(words: list[str], position: int, pronoun: str) -> list[Referent]:
    """Returns the referents before `position` that agree with the pronoun there, without repetition."""
    mentioned = _mentioned(words[:position])
    candidates = [referent for referent in mentioned if referent.pronoun == pronoun]
    if pronoun == "They":
        candidates += _couples(words[:position], mentioned)
    word, following = words[position], words[position + 1] if position + 1 < len(words) else "."
    is_possessive = word == "her" and following.isalpha() and following != "so"
    if position > 1 and word in _OBJECTS and not is_possessive:  # "Tom washed him": the subject is excluded
        candidates = [referent for referent in candidates if referent.word != words[position - 2]]
    if pronoun == "It":
        candidates = _owned(words[:position], candidates) or candidates
    return candidates


def _mentioned(words: list[str]) -> list[Referent]:
    """Returns the referents among the words, without repetition, with the verbs of a state before the noun added."""
    mentioned: dict[str, Referent] = {}
    for i, word in enumerate(words):
        pronoun = _stated_pronoun(words, i)
        referent = mentioned.get(word) or REFERENTS.get(word)
        if referent is None and pronoun:
            referent = Referent(word, word, "name", pronoun, (), "")
        if referent is not None:
            state = words[i - 1] if i else ""
            mentioned[word] = replace(referent, verbs=referent.verbs + STATES.get(state, ()))
    return list(mentioned.values())


def _stated_pronoun(words: list[str], i: int) -> str:
    """Returns She or He for a name whose gender is stated, as in "a girl named Zor" or "Zor the girl"; "" otherwise."""
    previous, following = words[max(0, i - 2) : i], words[i + 1 : i + 3]
    child = ""
    if previous[1:] == ["named"]:
        child = previous[0]
    elif following[:1] == ["the"] and len(following) > 1:
        child = following[1]
    return {"girl": "She", "boy": "He"}.get(child, "") if words[i][0].isupper() else ""


def _split(words: list[str], separators: str) -> list[list[str]]:
    """Returns the runs of words between separators."""
    runs: list[list[str]] = [[]]
    for word in words:
        if word in separators.split():
            runs.append([])
        else:
            runs[-1].append(word)
    return runs


def _couples(words: list[str], mentioned: list[Referent]) -> list[Referent]:
    """Returns two people of one sentence as one candidate with the verbs of both."""
    people = {referent.word: referent for referent in mentioned if referent.kind == "name"}
    sentences = _split(words, _SENTENCE_ENDS)
    couples = [[people[word] for word in dict.fromkeys(sentence) if word in people] for sentence in sentences]
    return [
        Referent(f"{couple[0].word} and {couple[1].word}", "", "couple", "They", couple[0].verbs + couple[1].verbs, "")
        for couple in couples
        if len(couple) == 2
    ]


def _owned(words: list[str], candidates: list[Referent]) -> list[Referent]:
    """Returns the candidates that belong to the referent of a "she" or "he" earlier in the same sentence."""
    people = [referent for referent in _mentioned(words) if referent.kind == "name"]
    sentence = [word.lower() for word in _split(words, _SENTENCE_ENDS)[-1]]
    pronouns = {_PRONOUNS[word] for word in sentence if word in ("she", "he")}
    owners = {referent.word for referent in people if referent.pronoun in pronouns}
    owned = set()
    for clause in _split(words, _CLAUSE_ENDS):
        names = {referent.word for referent in people} & set(clause)
        if names == owners and len(names) == 1 and any(f" {verb} " in f" {' '.join(clause)} " for verb in OWNING):
            owned.update(clause)
    return [referent for referent in candidates if referent.word in owned]


def _decides(words: list[str], i: int, candidates: list[Referent]) -> bool:
    """Returns True if word `i` fits exactly one of several candidates, or names it after "so"."""
    if any(words[i] == candidate.word for candidate in candidates):
        return "so" in [word.lower() for word in _split(words[:i], _SENTENCE_ENDS)[-1]]
    adjectives = {"animal": FEELINGS, "rest": QUALITIES}
    return sum(words[i] in (*candidate.verbs, *adjectives.get(candidate.kind, ())) for candidate in candidates) == 1


def _note(words: list[str], position: int, clue: int | None, candidates: list[Referent]) -> str:
    pronoun = words[position]
    later = [REFERENTS[mention.word] for mention in _mentioned(words[position + 1 :]) if mention.word in REFERENTS]
    later_names = [referent.word for referent in later if referent.pronoun == _PRONOUNS[pronoun.lower()]]
    names = " or ".join(candidate.word for candidate in candidates)
    if not candidates and later_names:
        return (
            f'"{pronoun}" can only refer to {" or ".join(later_names)}, which comes after it: '
            f'attention at "{pronoun}" cannot reach a later word'
        )
    if not candidates:
        return f'no word before "{pronoun}" that is in the stories\' vocabulary can be its antecedent'
    if len(candidates) == 1:
        return f'the text before "{pronoun}" leaves one candidate: {names}'
    if clue is not None:
        return (
            f'the clue comes after the pronoun: "{pronoun}" can refer to {names} until "{words[clue]}"; attention at '
            f'"{pronoun}" cannot show which, so read the row at "{words[clue]}"'
        )
    return f'nothing in the sentence decides whether "{pronoun}" refers to {names}'
