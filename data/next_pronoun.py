"""Passages before a pronoun: the place where a causal model must decide between "she" and "he", or "it" and "they".

A model that has just read "She" need not find out whom it means. One word earlier it has to write "She" or "He", so it
must know who is mentioned, and of which gender. A passage is the text up to a pronoun of any English text. It mentions
one known entity, or exactly one of each class (a woman and a man, one thing and several things). Its twin is the same
text with every entity replaced by a counterpart of the other class: Lily by Tom, king by queen, "a dog" by "some dogs".

The lexicon (data/english.py) knows the classes. Nothing is annotated: the author's own pronoun says who is meant.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data.english import COUNTERPARTS, FEMININE_NAMES, MASCULINE_NAMES, PLURALS, SINGULARS, TITLES, plural
from data.links import Span
from data.natural import (
    CLASSES,
    MAX_WORDS,
    PRONOUNS,
    WORD,
    Mention,
    Prefix,
    find_mentions,
    pronoun_forms,
    sentence_starts,
)

KINDS = ("one", "two")  # entities in a passage
MIN_NAME_COUNT = 5  # mentions of a name in a text before it may stand for another name of the text
_MAX_REST = 60  # characters after the pronoun that a passage keeps, for display
# Earlier pronouns show the class; PRONOUNS has only those that a prefix may end in, so "they" is not among them.
_EARLIER = {
    "gender": PRONOUNS["gender"] | {"herself", "himself", "hers"},
    "number": PRONOUNS["number"] | {"they", "theirs", "itself", "themselves"},
}
_REFLEXIVE = {"herself": "himself", "himself": "herself", "hers": "his"}
# Words that show the number of a noun if they stand near it: such a passage has no twin of the other number.
_AGREEING = frozenset(
    "is was are were has have does do isn wasn aren weren hasn haven doesn don this that these those each every both "
    "another one two three four five six seven eight nine ten many few several all itself themselves s".split()
)
_NEAR = 3  # words
_FIXED_DETERMINERS = frozenset("the my your his her their our its".split())
_MAX_ADJECTIVES = 2  # between a determiner and its noun
# Words that are no content words: the edge to one of the others is the comparison for the edge to an entity.
_FUNCTION_WORDS = frozenset(
    "that this with from they them their there then than when what have had were was been very into onto over under "
    "said says about after before because would could should will just like some your yours hers himself herself "
    "upon while where which whose also only even both each many more most such".split()
)


@dataclass(frozen=True, slots=True)
class Passage:
    """The text up to a pronoun, from the start of a sentence; spans are characters of `text`."""

    doc: str
    question: str  # gender or number
    text: str  # ends with the white space before the pronoun
    forms: tuple[str, str]  # the pronoun of either class, in the grammatical form of the text
    meant: int  # the class of the author's pronoun
    mentions: tuple[tuple[Span, ...], tuple[Span, ...]]  # of each class
    entities: tuple[str, str]  # name or singular noun of each class; "" if the class is not mentioned
    pronouns: tuple[Span, ...]  # earlier pronouns of either class
    nearest: int  # class of the last mention
    first: int  # class of the first mention
    subject: int  # class of the first mention in the last sentence that has one
    rest: str  # the text after the pronoun, cut

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return "two" if all(self.entities) else "one"


@dataclass(frozen=True, slots=True)
class Twin:
    """A passage with counterparts in place of its entities."""

    text: str
    mentions: tuple[tuple[Span, ...], tuple[Span, ...]]  # those in the places of the passage's first and second class
    changes: tuple[tuple[Span, int], ...]  # characters of the passage that were replaced, and how many stand there now

    def moved(self, span: Span) -> Span:
        """Returns the characters in the twin of a word of the passage that was not replaced."""
        shift = sum(length - (end - start) for (start, end), length in self.changes if end <= span[0])
        return span[0] + shift, span[1] + shift


def find_passages(doc: str, text: str, question: str) -> Iterator[Passage]:
    """Yields the passages of a document, at most one per sentence.

    A passage is the longest run of whole sentences, followed by the pronoun's sentence up to the pronoun, of at most
    MAX_WORDS words, that mentions exactly one entity of each class and no earlier pronoun of either class. Failing
    that, one that mentions exactly one entity, of the author's class, and no earlier pronoun. Failing that, one with an
    entity of each class and earlier pronouns.
    """
    matches = list(WORD.finditer(text))
    words = [match.group() for match in matches]
    starts = sentence_starts(words)
    mentions = [mention for mention in find_mentions(words) if mention.category in CLASSES[question]]
    firsts = [mention.first for mention in mentions]
    is_pronoun = [word.lower() in _EARLIER[question] for word in words]
    for sentence, end in zip(starts, [*starts[1:], len(words)], strict=True):
        for i in range(sentence, end - 1):
            forms = pronoun_forms(words[i], words[i + 1], question)
            if forms is None or (i and words[i - 1].lower() == "of"):
                continue  # "one of them" has no singular
            begins = starts[bisect_left(starts, i - MAX_WORDS) : bisect_left(starts, i + 1)]
            near = mentions[bisect_left(firsts, i - MAX_WORDS) : bisect_left(firsts, i)]
            window = _best_window(begins, near, i, is_pronoun, question, forms.index(words[i]))
            if window is None:
                continue
            begin, inside = window
            offset, stop = matches[begin].start(), matches[i].start()

            def span(first: int, last: int, offset: int = offset) -> Span:
                return matches[first].start() - offset, matches[last].end() - offset

            by_class = [[m for m in inside if m.category == category] for category in CLASSES[question]]
            classes = [CLASSES[question].index(mention.category) for mention in inside]
            last_sentence = max(bisect_left(starts, mention.first + 1) for mention in inside)
            in_last = [
                c for c, m in zip(classes, inside, strict=True) if bisect_left(starts, m.first + 1) == last_sentence
            ]
            yield Passage(
                doc=doc,
                question=question,
                text=text[offset:stop],
                forms=forms,
                meant=forms.index(words[i]),
                mentions=(
                    tuple(span(m.first, m.last) for m in by_class[0]),
                    tuple(span(m.first, m.last) for m in by_class[1]),
                ),
                entities=(
                    by_class[0][0].entity if by_class[0] else "",
                    by_class[1][0].entity if by_class[1] else "",
                ),
                pronouns=tuple(span(word, word) for word in range(begin, i) if is_pronoun[word]),
                nearest=classes[-1],
                first=classes[0],
                subject=in_last[0],
                rest=text[matches[i].end() : matches[i].end() + _MAX_REST],
            )
            break  # one per sentence


def _best_window(
    begins: Sequence[int], near: Sequence[Mention], i: int, is_pronoun: Sequence[bool], question: str, meant: int
) -> tuple[int, list[Mention]] | None:
    """Returns the first word and the mentions of the window before word i that `find_passages` prefers, if any."""
    ranked: list[tuple[int, int, list[Mention]]] = []
    for begin in begins:
        inside = [mention for mention in near if mention.first >= begin]
        entities = {(mention.category, mention.entity) for mention in inside}
        n_classes = len({category for category, _ in entities})
        has_pronoun = any(is_pronoun[begin:i])
        is_two = len(entities) == 2 and n_classes == 2 and len({entity for _, entity in entities}) == 2
        is_one = len(entities) == 1 and not has_pronoun and inside[0].category == CLASSES[question][meant]
        if is_two or is_one:
            rank = 0 if is_two and not has_pronoun else 1 if is_one else 2
            ranked.append((rank, begin, inside))
    if not ranked:
        return None
    _, begin, inside = min(ranked, key=lambda window: window[:2])
    return begin, inside


def passage_of_gold(prefix: Prefix) -> Passage:
    """Returns a row with annotated antecedents (`probe.gold`) as a passage with two entities."""
    ordered = sorted((span, side) for side in (0, 1) for span in prefix.mentions[side])
    return Passage(
        doc=prefix.doc,
        question=prefix.question,
        text=prefix.text,
        forms=prefix.forms,
        meant=prefix.meant,
        mentions=prefix.mentions,
        entities=(prefix.entities[0] or "?", prefix.entities[1] or "?"),
        pronouns=(),
        nearest=ordered[-1][1],
        first=ordered[0][1],
        subject=ordered[0][1],
        rest=prefix.rest,
    )


# Twins


class Counterparts:
    """Chooses for each entity the word of the other class that stands in its place in the twin.

    A noun has a fixed counterpart. A name gets a random name of the other gender that is frequent in the text and, if
    there is one, has as many tokens; if both entities are names with as many tokens, they change places.
    """

    def __init__(self, passages: Iterable[Passage], n_tokens: Callable[[str], int], seed: int) -> None:
        """Collects the names of the passages; `n_tokens` counts the tokens of a word after a space."""
        self._n_tokens, self._rng = n_tokens, np.random.default_rng(seed)
        counts = Counter[str]()
        for passage in passages:
            counts.update(passage.text[slice(*span)] for group in passage.mentions for span in group)
        self._names: dict[tuple[int, int], list[str]] = defaultdict(list)
        self._all_names: tuple[list[str], list[str]] = ([], [])
        for side, known in enumerate((FEMININE_NAMES, MASCULINE_NAMES)):
            often = [name for name in sorted(known) if counts[name] >= MIN_NAME_COUNT]
            for name in often or sorted(known):
                self._names[side, n_tokens(name)].append(name)
                self._all_names[side].append(name)

    def of(self, passage: Passage) -> Mapping[str, str] | None:
        """Returns the replacement of each mention's text in a passage; None if a mention has none."""
        surfaces = [sorted({passage.text[slice(*span)] for span in group}) for group in passage.mentions]
        if passage.question == "number":
            return _other_numbers(passage)
        names = (FEMININE_NAMES, MASCULINE_NAMES)
        are_names = [len(group) == 1 and group[0] in names[side] for side, group in enumerate(surfaces)]
        if all(are_names) and self._n_tokens(surfaces[0][0]) == self._n_tokens(surfaces[1][0]):
            return {surfaces[0][0]: surfaces[1][0], surfaces[1][0]: surfaces[0][0]}
        replacements: dict[str, str] = {}
        for side, group in enumerate(surfaces):
            for surface in group:
                word = self._name(surface, 1 - side) if surface in names[side] else _counterpart(surface)
                if word is None:
                    return None
                replacements[surface] = word
        return replacements

    def _name(self, name: str, side: int) -> str | None:
        pool = self._names.get((side, self._n_tokens(name))) or self._all_names[side]
        return pool[int(self._rng.integers(len(pool)))] if pool else None


def _counterpart(surface: str) -> str | None:
    """Returns the noun or the title and surname of the other gender, with the capitals of `surface`."""
    title, dot, name = surface.partition(" ")
    if title.rstrip(".") in TITLES and dot:
        other = {"Mrs": "Mr", "Miss": "Mr", "Mr": "Mrs", "Lady": "Lord", "Lord": "Lady"}.get(title.rstrip("."))
        return other and f"{other}{'.' if title.endswith('.') else ''} {name}"
    other = COUNTERPARTS.get(surface.lower())
    if other is None:
        return None
    return other.capitalize() if surface.istitle() else other


def _other_numbers(passage: Passage) -> Mapping[str, str] | None:
    """Returns the other number of each noun, if no word near it shows its number."""
    replacements = {}
    for group in passage.mentions:
        for start, end in group:
            surface = passage.text[start:end]
            before = WORD.findall(passage.text[:start])[-_NEAR:]
            after = WORD.findall(passage.text[end:])[:_NEAR]
            if _AGREEING & {word.lower() for word in (*before, *after)}:
                return None
            lower = surface.lower()
            other = plural(lower) if lower in SINGULARS else PLURALS[lower]
            replacements[surface] = other.capitalize() if surface.istitle() else other
    return replacements


def make_twin(passage: Passage, replacements: Mapping[str, str]) -> Twin | None:
    """Returns the twin of a passage: counterparts for its entities, and the other gender for its earlier pronouns.

    None if an earlier pronoun has no clear counterpart, or if a noun has no article that fits both numbers.
    """
    changes: dict[Span, str] = {}
    for group in passage.mentions:
        for span in group:
            changes[span] = replacements[passage.text[slice(*span)]]
            if passage.question == "number":
                article = _article(passage.text, span, changes[span])
                if article is None:
                    return None
                changes |= article
    for span in passage.pronouns:
        word = passage.text[slice(*span)]
        following = WORD.search(passage.text, span[1])
        forms = pronoun_forms(word, following.group() if following else "", passage.question)
        reflexive = _REFLEXIVE.get(word.lower())
        if forms is None and reflexive is None:
            return None
        changes[span] = forms[1 - forms.index(word)] if forms else str(reflexive)
    text, position = "", 0
    new_spans: dict[Span, Span] = {}
    for span in sorted(changes):
        text += passage.text[position : span[0]]
        new_spans[span] = (len(text), len(text) + len(changes[span]))
        text += changes[span]
        position = span[1]
    groups = tuple(tuple(new_spans[span] for span in group) for group in passage.mentions)
    lengths = tuple((span, len(word)) for span, word in changes.items())
    return Twin(text + passage.text[position:], (groups[0], groups[1]), lengths)


def _article(text: str, span: Span, noun: str) -> dict[Span, str] | None:
    """Returns the change of the noun's article for the other number ("a" to "some"), {} for "the"; None if unclear."""
    before = list(WORD.finditer(text[: span[0]]))[-1 - _MAX_ADJECTIVES :]
    for match in reversed(before):
        word = match.group().lower()
        if word in _FIXED_DETERMINERS:
            return {}
        if word in ("a", "an", "some"):
            following = text[match.end() : span[0]].strip() or noun
            other = "some" if word != "some" else "an" if following[0].lower() in "aeiou" else "a"
            return {match.span(): other.capitalize() if match.group().istitle() else other}
        if not word.isalpha():
            return None
    return None


def content_words(passage: Passage) -> list[Span]:
    """Returns the words of a passage that are neither mentions, pronouns nor function words."""
    taken = [*passage.mentions[0], *passage.mentions[1], *passage.pronouns]
    words = []
    for match in WORD.finditer(passage.text):
        is_free = not any(start < match.end() and match.start() < end for start, end in taken)
        is_content = len(match.group()) > 3 and match.group().isalpha()
        if is_free and is_content and match.group().lower() not in _FUNCTION_WORDS:
            words.append(match.span())
    return words


def ngram_rule(documents: Iterable[tuple[str, str]], question: str, n_words: int = 2) -> Callable[[Passage], float]:
    """Returns a rule that predicts the class of a pronoun from the last words before it, counted in `documents`.

    The rule returns the share of pronouns of the first class after the same `n_words` words, backing off to fewer
    words; 1/2 where it knows nothing.
    """
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for _, text in documents:
        words = [word.lower() for word in WORD.findall(text)]
        originals = WORD.findall(text)
        for i in range(len(words) - 1):
            forms = pronoun_forms(originals[i], words[i + 1], question)
            if forms is not None:
                for n in range(n_words + 1):
                    counts[tuple(words[max(0, i - n) : i])][forms.index(originals[i])] += 1

    def rule(passage: Passage) -> float:
        words = [word.lower() for word in WORD.findall(passage.text)]
        for n in range(n_words, -1, -1):
            first, second = counts.get(tuple(words[len(words) - n :]), (0, 0))
            if first != second:
                return float(first > second)
        return 0.5

    return rule


def mixed_places(documents: Iterable[tuple[str, str]], question: str = "gender") -> int:
    """Returns how many pronouns of a text stand within MAX_WORDS words after entities of both classes."""
    n_places = 0
    for _, text in documents:
        words = WORD.findall(text)
        last_seen = dict.fromkeys(CLASSES[question], -MAX_WORDS - 1)
        mentions = {mention.first: mention for mention in find_mentions(words) if mention.category in CLASSES[question]}
        for i, word in enumerate(words):
            if i in mentions:
                last_seen[mentions[i].category] = i
            n_places += word.lower() in PRONOUNS[question] and i - min(last_seen.values()) <= MAX_WORDS
    return n_places


def find_all(documents: Sequence[tuple[str, str]]) -> dict[str, list[Passage]]:
    """Returns the passages of each question in named documents."""
    return {
        question: [passage for name, text in documents for passage in find_passages(name, text, question)]
        for question in CLASSES
    }
