"""Notes about the pronouns of any sentence: the nouns before each that fit it, and the later word that decides.

A causal model at a pronoun has read only the text before it. If two nouns fit, the word that decides comes later, and
no attention weight at the pronoun can show the link.
"""

from dataclasses import dataclass

from data.pairs import Span
from data.stories.lexicon import FEELINGS, PRONOUN_OF_FORM, QUALITIES, REFERENTS, Referent
from data.words import word_spans

_CHILDREN = {"girl": "She", "boy": "He"}
_ADJECTIVES = {"animal": FEELINGS, "rest": QUALITIES}


@dataclass(frozen=True, slots=True)
class PronounNote:
    """The analysis of one pronoun."""

    span: Span
    candidates: tuple[str, ...]  # the earlier mentions that agree with the pronoun
    clue: Span | None  # a later word that decides between several candidates
    note: str  # one sentence for the reader of the report


def lint(text: str) -> list[PronounNote]:
    """Return a note for every personal or possessive pronoun of `text`, in order."""
    words = word_spans(text)
    texts = [word for word, _ in words]
    mentions = [_mention(texts, i) for i in range(len(words))]
    notes = []
    for position, (word, span) in enumerate(words):
        pronoun = PRONOUN_OF_FORM.get(word.lower())
        if pronoun is None:
            continue

        # Only among several candidates can a later word decide.
        fitting = {mention.word: mention for mention in mentions[:position] if mention and mention.pronoun == pronoun}
        later = words[position + 1 :] if len(fitting) > 1 else []
        clue = next((entry for entry in later if _decides(entry[0], list(fitting.values()))), None)

        names = " or ".join(fitting) or "no noun of the stories"
        note = f'"{word}" can refer to {names} by the text before it'
        if len(fitting) > 1:
            note += f'; "{clue[0]}" decides: read the attention there' if clue else "; no later word decides"
        notes.append(PronounNote(span, tuple(fitting), clue and clue[1], note))
    return notes


def _mention(words: list[str], i: int) -> Referent | None:
    """Return what word `i` mentions: a noun of the stories, or a name as in "a girl named Zor" or "Zor the girl"."""
    if words[i] in REFERENTS:
        return REFERENTS[words[i]]
    stating = words[i - 2] if i > 1 and words[i - 1] == "named" else ""
    if words[i + 1 : i + 2] == ["the"]:
        stating = "".join(words[i + 2 : i + 3])
    is_name = words[i][0].isupper() and stating in _CHILDREN
    return Referent(words[i], words[i], "name", _CHILDREN[stating], (), "") if is_name else None


def _decides(word: str, candidates: list[Referent]) -> bool:
    """Return whether a word fits exactly one of the candidates."""
    fits = [word in (*candidate.verbs, *_ADJECTIVES.get(candidate.kind, ())) for candidate in candidates]
    return sum(fits) == 1
