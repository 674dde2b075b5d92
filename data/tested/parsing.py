"""The words, sentences, mentions and pronouns of an English text; no annotation is needed.

The lexicon (data/tested/english.py) says which class a person has: feminine or masculine.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from data.tested.english import NAME_CLASSES, NOUN_CLASSES, TITLES, word_set
from data.tested.pairs import Span
from data.words import ENGLISH_WORD

CLASSES = ("feminine", "masculine")
MAX_WORDS = 64  # in a passage, with punctuation marks
_ENDS = frozenset(".!?")
_CLOSING = frozenset("\"'\u201d\u2019)")
# The forms of either class by the word in the text; "her" needs the next word.
_FORMS = {"she": ("she", "he"), "he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his")}
PRONOUNS = frozenset(chain(*_FORMS.values()))
_NO_SURNAMES = PRONOUNS | {"it", "its", "them", "their"}
_AFTER_OBJECT = word_set("after object")
_UNCLEAR = word_set("unclear after her")


@dataclass(frozen=True, slots=True)
class Mention:
    """A mention of an entity whose class the lexicon knows."""

    category: str  # one of CLASSES
    entity: str  # lower-case name or noun; equal names are one entity
    first: int  # index of its first word
    last: int


def pronoun_forms(word: str, next_word: str) -> tuple[str, str] | None:
    """Return the forms of both classes for a pronoun of the text; None for other words and unclear forms.

    Without a next word, "her" is unclear.
    """
    lower = word.lower()
    following = next_word.lower()
    forms = _FORMS.get(lower)
    if lower == "her" and following and following not in _UNCLEAR:
        forms = ("her", "him") if following in _AFTER_OBJECT else ("her", "his")
    if lower == "his" and following and following in _AFTER_OBJECT:
        return None  # "it was his": "hers"

    # Small letters or one capital; a pronoun in capitals has no form of the other class.
    if forms and word == lower.capitalize():
        return forms[0].capitalize(), forms[1].capitalize()
    return forms if word == lower else None


class ParsedText:
    """The words and sentences of a text, and its mentions of people."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matches = list(ENGLISH_WORD.finditer(text))
        self.words = [match.group() for match in self.matches]
        self.sentences = _sentence_starts(self.words)  # index of the first word of each
        self.mentions = _find_mentions(self.words)
        self._firsts = [mention.first for mention in self.mentions]

    def windows(self, i: int) -> Iterator[tuple[int, list[Mention]]]:
        """Yield the first word and the mentions of each run of sentences up to word `i`, the longest first."""
        begins = self.sentences[bisect_left(self.sentences, i - MAX_WORDS) : bisect_left(self.sentences, i)]
        near = self.mentions[bisect_left(self._firsts, i - MAX_WORDS) : bisect_left(self._firsts, i)]
        for begin in begins:
            yield begin, [mention for mention in near if mention.first >= begin]

    def pronouns(self) -> Iterator[tuple[int, int, tuple[str, str]]]:
        """Yield each pronoun: the first word of its sentence, its index, and its forms in both classes."""
        for start, end in pairwise([*self.sentences, len(self.words)]):
            for i in range(start, end - 1):
                forms = pronoun_forms(self.words[i], self.words[i + 1])
                if forms is not None and self.words[i - 1].lower() != "of":
                    yield start, i, forms  # after "of" another form would be unusual

    def span(self, first: int, last: int, begin: int = 0) -> Span:
        """Return the characters of the words `first` to `last`, counted from word `begin`."""
        offset = self.matches[begin].start()
        return self.matches[first].start() - offset, self.matches[last].end() - offset

    def by_class(self, mentions: Iterable[Mention]) -> tuple[list[Mention], list[Mention]]:
        groups: tuple[list[Mention], list[Mention]] = ([], [])
        for mention in mentions:
            groups[CLASSES.index(mention.category)].append(mention)
        return groups

    def spans(self, mentions: Iterable[Mention], begin: int) -> tuple[Span, ...]:
        return tuple(self.span(mention.first, mention.last, begin) for mention in mentions)


def _find_mentions(words: Sequence[str]) -> list[Mention]:
    """Return the mentions of known entities; neighbouring words for people are one mention.

    Its first word decides the gender ("Mary Stuart"), its last word names the entity ("Aunt Polly").
    """
    mentions: list[Mention] = []
    i = 0
    while i < len(words):
        category, entity, last = _known(words, i)
        previous = mentions[-1] if mentions else None
        # "Mary Stuart": two people without a word between them are one.
        if category and previous and previous.last == i - 1:
            mentions[-1] = Mention(previous.category, entity, previous.first, last)
        elif category:
            mentions.append(Mention(category, entity, i, last))
        i = last + 1
    return mentions


def _known(words: Sequence[str], i: int) -> tuple[str, str, int]:
    """Return the class and the entity that start at word i and the entity's last word; "" if the word is unknown."""
    word = words[i]
    lower = word.lower()
    if word in TITLES:
        name = i + 2 if words[i + 1 : i + 2] == ["."] else i + 1
        is_name = name < len(words) and words[name].istitle() and words[name].isalpha()
        # "the Master. He" has no surname.
        if is_name and words[name].lower() not in _NO_SURNAMES:
            return TITLES[word], f"{lower} {words[name].lower()}", name
    category = NAME_CLASSES.get(word) or NOUN_CLASSES.get(lower, "")
    return category, lower, i


def _sentence_starts(words: Sequence[str]) -> list[int]:
    """Return the index of the first word of each sentence; closing quotes belong to the sentence before them."""
    starts = [0]
    for i, word in enumerate(words[:-1]):
        if word in _ENDS and not (word == "." and i and words[i - 1] in TITLES):
            start = i + 1
            while start < len(words) and (words[start] in _CLOSING or words[start] in _ENDS):
                start += 1
            if start > starts[-1] and start < len(words):
                starts.append(start)
    return starts
