"""Notes about the pronouns of any sentence: which words can be the antecedent, and which word decides.

A causal model at a pronoun has read only the text before it. If that leaves two candidates, the
deciding word comes later, and no attention weight at the pronoun can show the link.
"""

from dataclasses import dataclass, replace

from data.pairs import Span
from data.stories.frames import OWNING
from data.stories.lexicon import FEELINGS, PRONOUN_OF_FORM, QUALITIES, REFERENTS, STATES, Referent
from data.words import word_spans, words_of

_PRONOUNS = {form.lower(): pronoun for form, pronoun in PRONOUN_OF_FORM.items()}
_OBJECTS = ("him", "her", "them")  # "it" is excluded: an object "it" rarely competes with a subject
_CHILDREN = {"girl": "She", "boy": "He"}
_ADJECTIVES = {"animal": FEELINGS, "rest": QUALITIES}
_SENTENCE_ENDS = ". ! ?"
_CLAUSE_ENDS = ". ! ? , and but while"


@dataclass(frozen=True, slots=True)
class PronounNote:
    """The analysis of one pronoun."""

    span: Span
    candidates: tuple[str, ...]  # the earlier mentions that agree with the pronoun
    clue: Span | None  # a later word that decides between several candidates
    note: str  # one sentence for the reader of the report


def lint(text: str) -> list[PronounNote]:
    """Return a note for every personal or possessive pronoun of `text`, in order."""
    words = words_of(text)
    spans = [span for _, span in word_spans(text)]
    notes = []
    for position, word in enumerate(words):
        pronoun = _PRONOUNS.get(word.lower())
        if pronoun is None:
            continue
        candidates = _candidates(words, position, pronoun)
        # Only among several candidates can a later word decide.
        later = range(position + 1, len(words)) if len(candidates) > 1 else ()
        clue = next((i for i in later if _decides(words, i, candidates)), None)
        note = _note(words, position, clue, candidates)
        names = tuple(candidate.word for candidate in candidates)
        notes.append(PronounNote(spans[position], names, None if clue is None else spans[clue], note))
    return notes


def _candidates(words: list[str], position: int, pronoun: str) -> list[Referent]:
    """Return the referents before `position` that agree with the pronoun there, without repetition."""
    # Agreement in number and gender; "they" can be a couple.
    mentioned = _mentioned(words[:position])
    candidates = [referent for referent in mentioned if referent.pronoun == pronoun]
    if pronoun == "They":
        candidates += _couples(words[:position], mentioned)

    # "Tom washed him": the subject is excluded. "Tom washed her hat": "her" is no object.
    word = words[position]
    following = words[position + 1] if position + 1 < len(words) else "."
    is_possessive = word == "her" and following.isalpha() and following != "so"
    if position > 1 and word in _OBJECTS and not is_possessive:
        candidates = [referent for referent in candidates if referent.word != words[position - 2]]
    if pronoun == "It":
        candidates = _owned(words[:position], candidates) or candidates
    return candidates


def _mentioned(words: list[str]) -> list[Referent]:
    """Return the referents among the words, without repetition, with the verbs of a state before the noun added."""
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
    """Return She or He for a name whose gender is stated, as in "a girl named Zor" or "Zor the girl"; "" otherwise."""
    child = ""
    if i > 1 and words[i - 1] == "named":
        child = words[i - 2]
    elif len(words) > i + 2 and words[i + 1] == "the":
        child = words[i + 2]
    return _CHILDREN.get(child, "") if words[i][0].isupper() else ""


def _split(words: list[str], separators: str) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for word in words:
        if word in separators.split():
            runs.append([])
        else:
            runs[-1].append(word)
    return runs


def _couples(words: list[str], mentioned: list[Referent]) -> list[Referent]:
    """Return two people of one sentence as one candidate with the verbs of both."""
    people = {referent.word: referent for referent in mentioned if referent.kind == "name"}
    couples = []
    for sentence in _split(words, _SENTENCE_ENDS):
        names = [word for word in dict.fromkeys(sentence) if word in people]
        if len(names) == 2:
            first, second = (people[name] for name in names)
            verbs = first.verbs + second.verbs
            couples.append(Referent(" and ".join(names), "", "couple", "They", verbs, ""))
    return couples


def _owned(words: list[str], candidates: list[Referent]) -> list[Referent]:
    """Return the candidates that belong to the referent of a "she" or "he" earlier in the same sentence."""
    # The people whom the sentence calls "she" or "he".
    people = [referent for referent in _mentioned(words) if referent.kind == "name"]
    sentence = [word.lower() for word in _split(words, _SENTENCE_ENDS)[-1]]
    pronouns = {_PRONOUNS[word] for word in sentence if word in ("she", "he")}
    owners = {referent.word for referent in people if referent.pronoun in pronouns}

    # What a clause names together with its only person and a verb of owning belongs to that person.
    owned = set()
    for clause in _split(words, _CLAUSE_ENDS):
        names = {referent.word for referent in people} & set(clause)
        joined = f" {' '.join(clause)} "
        has_owning = any(f" {verb} " in joined for verb in OWNING)
        if names == owners and len(names) == 1 and has_owning:
            owned.update(clause)
    return [referent for referent in candidates if referent.word in owned]


def _decides(words: list[str], i: int, candidates: list[Referent]) -> bool:
    """Return True if word `i` fits exactly one of several candidates, or names it after "so"."""
    if any(words[i] == candidate.word for candidate in candidates):
        return "so" in [word.lower() for word in _split(words[:i], _SENTENCE_ENDS)[-1]]
    n_fitting = 0
    for candidate in candidates:
        adjectives = _ADJECTIVES.get(candidate.kind, [])
        n_fitting += words[i] in candidate.verbs or words[i] in adjectives
    return n_fitting == 1


def _note(words: list[str], position: int, clue: int | None, candidates: list[Referent]) -> str:
    pronoun = words[position]
    # Mentions after the pronoun that agree with it.
    later_names = []
    for mention in _mentioned(words[position + 1 :]):
        known = REFERENTS.get(mention.word)
        if known is not None and known.pronoun == _PRONOUNS[pronoun.lower()]:
            later_names.append(known.word)
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
