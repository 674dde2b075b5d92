"""Natural contrast items: prefixes of any English text that end in a pronoun; no annotation is needed.

A prefix mentions exactly one entity of each of two classes: feminine and masculine, or one thing and several things. It
is read twice, with the pronoun of either class as its last word ("she", "he"). Everything else is equal, so position,
recency and preferences for words cancel, and a head that ignores the pronoun has a contrast of exactly 0.

The lexicon (data/english.py) says which class an entity has. It does not say whom the author meant, so the items ask
whether a head turns with the pronoun, not whether it is right.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from data.english import FEMININE_NAMES, FEMININE_NOUNS, MASCULINE_NAMES, MASCULINE_NOUNS, PLURALS, SINGULARS, TITLES
from data.links import Link, Span

CLASSES = {"gender": ("feminine", "masculine"), "number": ("singular", "plural")}
SITES = ("before_pronoun", "pronoun", "after_pronoun")  # the words at which attention is read
MAX_WORDS = 64  # in a prefix, with punctuation marks
_MAX_REST = 200  # characters after the pronoun
WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_ENDS, _CLOSING = frozenset(".!?"), frozenset("\"'\u201d\u2019)")
# The forms of either class by the word in the text; "her", "it" and "they" need the next word.
_FORMS = {
    "gender": {"she": ("she", "he"), "he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his")},
    "number": {"them": ("it", "them"), "their": ("its", "their"), "its": ("its", "their")},
}
PRONOUNS = {question: frozenset(chain(*forms.values())) for question, forms in _FORMS.items()}
_ALL_PRONOUNS = frozenset(chain(*PRONOUNS.values()))
# "Her" before one of these words is an object ("him"), before an unclear word it is left out, before any other it is a
# possessive ("his").
_AFTER_OBJECT = frozenset(
    ". , ; : ! ? ) \u201d \u2019 ' \" and or but to in on at with from for of by as that when while because if so "
    "than up down away out off into over again too until before after then not about all the a an how what why "
    "where who through like just now once".split()
)
_UNCLEAR = frozenset(
    "back home here there very own some any more most they she he it we you i this these those much many one two "
    "alone be go come get see feel have know take make give keep tell let do say play eat sleep run walk stay "
    "leave".split()
)
# "It" and "they" before one of these words are subjects whose verb fits both; before any other they are left out.
_AFTER_SUBJECT = frozenset(
    "had would could should will can did might may must seemed looked came went said fell made became began stood "
    "lay ran flew got took saw felt gave turned".split()
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A mention of an entity whose class the lexicon knows."""

    category: str  # one of CLASSES
    entity: str  # lower-case name or singular noun; equal names are one entity
    first: int  # index of its first word
    last: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """The text before a pronoun, from the start of a sentence."""

    doc: str
    question: str  # gender or number
    text: str  # up to the pronoun, without it
    forms: tuple[str, str]  # the pronoun of either class, in the grammatical form of the text
    meant: int  # the class of the pronoun in the text
    rest: str  # the text after the pronoun
    mentions: tuple[tuple[Span, ...], tuple[Span, ...]]  # those of each class, in characters of `text`
    entities: tuple[str, str]
    is_first: bool  # no pronoun of either class between the first mention and this one


def pronoun_forms(word: str, next_word: str, question: str) -> tuple[str, str] | None:
    """Returns the forms of both classes for a pronoun of the text; None for other words and unclear forms.

    Without a next word, "her", "it" and "they" are unclear.
    """
    lower, following = word.lower(), next_word.lower()
    forms = _FORMS[question].get(lower)
    if question == "gender" and lower == "her" and following and following not in _UNCLEAR:
        forms = ("her", "him") if following in _AFTER_OBJECT else ("her", "his")
    if lower == "his" and following and following in _AFTER_OBJECT:
        return None  # "it was his": "hers"
    if question == "number" and lower in ("it", "they") and following in _AFTER_SUBJECT:
        forms = ("it", "they")
    if forms and word == lower.capitalize():
        return forms[0].capitalize(), forms[1].capitalize()
    return forms if word == lower else None


def known_class(words: Sequence[str]) -> str:
    """Returns the gender of a mention if the lexicon knows it from exactly one of its words or titles, otherwise ""."""
    classes = {mention.category for mention in find_mentions(words)} & set(CLASSES["gender"])
    return classes.pop() if len(classes) == 1 else ""


def find_prefixes(doc: str, text: str, question: str) -> Iterator[Prefix]:
    """Yields the prefixes of a document, at most one per sentence.

    A prefix is the longest run of whole sentences, followed by the pronoun's sentence, of at most MAX_WORDS words that
    mentions exactly one entity of each class.
    """
    matches = list(WORD.finditer(text))
    words = [match.group() for match in matches]
    starts = sentence_starts(words)
    mentions = [mention for mention in find_mentions(words) if mention.category in CLASSES[question]]
    firsts = [mention.first for mention in mentions]
    for sentence, end in zip(starts, [*starts[1:], len(words)], strict=True):
        for i in range(sentence, end - 1):
            forms = pronoun_forms(words[i], words[i + 1], question)
            rest = text[matches[i].end() : matches[i].end() + _MAX_REST]
            if forms is None or not WORD.search(rest) or words[i - 1].lower() == "of":
                continue  # "one of them" has no singular
            begins = starts[bisect_left(starts, i - MAX_WORDS) : bisect_left(starts, i)]
            near = mentions[bisect_left(firsts, i - MAX_WORDS) : bisect_left(firsts, i)]
            begin, groups = next(_windows(near, begins, question), (0, None))
            if groups is None:
                continue
            offset = matches[begin].start()
            first = min(mention.first for group in groups for mention in group)
            spans = [[(matches[m.first].start() - offset, matches[m.last].end() - offset) for m in g] for g in groups]
            yield Prefix(
                doc=doc,
                question=question,
                text=text[offset : matches[i].start()],
                forms=forms,
                meant=forms.index(words[i]),
                rest=rest,
                mentions=(tuple(spans[0]), tuple(spans[1])),
                entities=(groups[0][0].entity, groups[1][0].entity),
                is_first=not PRONOUNS[question] & {word.lower() for word in words[first:i]},
            )
            break  # one per sentence


def _windows(
    mentions: Sequence[Mention], begins: Iterable[int], question: str
) -> Iterator[tuple[int, tuple[list[Mention], list[Mention]]]]:
    """Yields each start of a window with one entity of each class among the `mentions`, and those of both."""
    for begin in begins:
        inside = [mention for mention in mentions if mention.first >= begin]
        first, second = ([m for m in inside if m.category == category] for category in CLASSES[question])
        entities = [{mention.entity for mention in group} for group in (first, second)]
        if len(entities[0]) == len(entities[1]) == 1 and entities[0] != entities[1]:
            yield begin, (first, second)


def census(documents: Iterable[tuple[str, str]], question: str) -> Counter[str]:
    """Returns how many pronouns and how many mentions of either class the documents contain, by "pronouns" or class."""
    counts: Counter[str] = Counter(dict.fromkeys(("pronouns", *CLASSES[question]), 0))
    for _, text in documents:
        words = WORD.findall(text)
        counts["pronouns"] += sum(word.lower() in PRONOUNS[question] for word in words)
        counts.update(m.category for m in find_mentions(words) if m.category in CLASSES[question])
    return counts


def find_mentions(words: Sequence[str]) -> list[Mention]:
    """Returns the mentions of known entities; neighbouring words for people are one mention.

    Its first word decides the gender ("Mary Stuart"), its last word names the entity ("Aunt Polly").
    """
    mentions: list[Mention] = []
    i = 0
    while i < len(words):
        category, entity, last = _known(words, i)
        if category:
            previous = mentions[-1] if mentions else None
            people = CLASSES["gender"]
            if previous and previous.last == i - 1 and previous.category in people and category in people:
                mentions[-1] = Mention(previous.category, entity, previous.first, last)
            else:
                mentions.append(Mention(category, entity, i, last))
        i = last + 1
    return mentions


def _known(words: Sequence[str], i: int) -> tuple[str, str, int]:
    """Returns the class and the entity that start at word i and the entity's last word; "" if the word is unknown."""
    word, lower = words[i], words[i].lower()
    if word in TITLES:
        name = i + 2 if words[i + 1 : i + 2] == ["."] else i + 1
        is_name = name < len(words) and words[name].istitle() and words[name].isalpha()
        if is_name and words[name].lower() not in _ALL_PRONOUNS:  # "the Master. He" has no surname
            return TITLES[word], f"{lower} {words[name].lower()}", name
    if word in FEMININE_NAMES or lower in FEMININE_NOUNS:
        return "feminine", lower, i
    if word in MASCULINE_NAMES or lower in MASCULINE_NOUNS:
        return "masculine", lower, i
    if lower in SINGULARS:
        return "singular", lower, i
    return ("plural", PLURALS[lower], i) if lower in PLURALS else ("", "", i)


def sentence_starts(words: Sequence[str]) -> list[int]:
    """Returns the index of the first word of each sentence; closing quotes belong to the sentence before them."""
    starts = [0]
    for i, word in enumerate(words[:-1]):
        if word in _ENDS and not (word == "." and i and words[i - 1] in TITLES):
            start = i + 1
            while start < len(words) and (words[start] in _CLOSING or words[start] in _ENDS):
                start += 1
            if start > starts[-1] and start < len(words):
                starts.append(start)
    return starts


def item_rows(prefixes: Iterable[Prefix]) -> list[dict[str, Any]]:
    """Returns two rows per prefix, in the form of story rows (`data.links.link_items`): the first class, the second.

    Each has a link at the word before the pronoun, at the pronoun and, if there is one, at the word after it.
    """
    rows = []
    for prefix in prefixes:
        start = len(prefix.text)
        *_, before = WORD.finditer(prefix.text)
        order = int(prefix.mentions[1][0] < prefix.mentions[0][0])
        for meant, form in enumerate(prefix.forms):
            text = prefix.text + form + prefix.rest
            after = WORD.search(text, start + len(form))
            queries = [before.span(), (start, start + len(form)), *([after.span()] if after else [])]
            links = [
                asdict(Link(
                    level=prefix.question, site=site, pronoun=queries[1], query=query,
                    antecedents=prefix.mentions[meant], distractors=prefix.mentions[1 - meant],
                    subject=None, payoff=None, answers=(), foils=(),
                ))
                for site, query in zip(SITES, queries, strict=False)
            ]  # fmt: skip
            # Prefixes are clustered by document, as stories are by frame.
            rows.append({
                "text": text, "links": links, "family": "natural", "holdout": "", "frame": prefix.doc,
                "pair": " ".join(entity.replace(" ", "_") for entity in prefix.entities),
                "order": order, "meant": meant,
            })  # fmt: skip
    return rows
