"""The words, sentences, mentions and pronouns of an English text; no annotation is needed.

The lexicon (extras/english/lexicon.py) says which class a person has: feminine or masculine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from data.pairs import Span
from data.words import ENGLISH_WORD
from extras.english.lexicon import NAME_CLASSES, NOUN_CLASSES, TITLES, word_set

_ENDS = frozenset(".!?")
_CLOSING = frozenset("\"'\u201d\u2019)")
# The forms of either class by the word in the text; "her" needs the next word.
_FORMS = {"she": ("she", "he"), "he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his")}
PRONOUNS = frozenset(chain(*_FORMS.values()))
_NO_SURNAMES = PRONOUNS | {"it", "its", "them", "their"}
_AFTER_OBJECT = word_set("after object")
_UNCLEAR = word_set("unclear after her")


@dataclass(frozen=True)
class Mention:
    """A mention of an entity whose class the lexicon knows."""

    side: int  # 0 feminine, 1 masculine
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
    if lower == "his" and following in _AFTER_OBJECT:
        return None  # "it was his": "hers"

    # Small letters or one capital; a pronoun in capitals has no form of the other class.
    if forms and word == lower.capitalize():
        return forms[0].capitalize(), forms[1].capitalize()
    return forms if word == lower else None


class ParsedText:
    """The words and sentences of a text, and its mentions of people."""

    def __init__(self, text: str) -> None:
        self.matches = list(ENGLISH_WORD.finditer(text))
        self.words = ENGLISH_WORD.findall(text)
        self.sentences = _sentence_starts(self.words)  # index of the first word of each
        self.mentions = _find_mentions(self.words)

    def pronouns(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Yield the index of each pronoun, and its forms in both classes."""
        for start, end in pairwise([*self.sentences, len(self.words)]):
            for i in range(start, end - 1):
                forms = pronoun_forms(self.words[i], self.words[i + 1])
                if forms is not None and self.words[i - 1].lower() != "of":
                    yield i, forms  # after "of" another form would be unusual

    def span(self, mention: Mention, begin: int) -> Span:
        """Return the characters of a mention, counted from word `begin`."""
        offset = self.matches[begin].start()
        return self.matches[mention.first].start() - offset, self.matches[mention.last].end() - offset


def _find_mentions(words: Sequence[str]) -> list[Mention]:
    """Return the mentions of known entities; neighbouring words for people are one mention.

    Its first word decides the gender ("Mary Stuart"), its last word names the entity ("Aunt Polly").
    """
    mentions: list[Mention] = []
    i = 0
    while i < len(words):
        mention = _mention_at(words, i)
        if mention is None:
            i += 1
            continue
        i = mention.last + 1
        # "Mary Stuart": two people without a word between them are one.
        if mentions and mentions[-1].last == mention.first - 1:
            mention = replace(mentions.pop(), entity=mention.entity, last=mention.last)
        mentions.append(mention)
    return mentions


def _mention_at(words: Sequence[str], i: int) -> Mention | None:
    """Return the mention that starts at word i, if the lexicon knows its class."""
    word = words[i]
    lower = word.lower()
    if word in TITLES:
        name = i + 2 if words[i + 1 : i + 2] == ["."] else i + 1
        is_name = name < len(words) and words[name].istitle() and words[name].isalpha()
        # "the Master. He" has no surname.
        if is_name and words[name].lower() not in _NO_SURNAMES:
            return Mention(TITLES[word], f"{lower} {words[name].lower()}", i, name)
    side = NAME_CLASSES.get(word, NOUN_CLASSES.get(lower))
    return None if side is None else Mention(side, lower, i, i)


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
