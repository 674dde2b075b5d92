"""Passages before a pronoun: the place where a causal model must decide between "she" and "he".

A model that has just read "She" need not find out whom it means. One word earlier it has to write "She" or "He", so it
must know the mentioned people and their genders. A passage is the text up to a pronoun of any English text. It mentions
one known person, or exactly one of each class (a woman and a man). Its twin is the same text with every person replaced
by a counterpart of the other class: Lily by Tom, king by queen.

The lexicon (english.py) knows the classes. Nothing is annotated: the author's own pronoun gives the antecedent.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from data.pairs import Cell, Items, Pair, Span, word_positions
from data.tokenizer import encode_text, unknown_id
from data.words import ENGLISH_WORD, with_words
from extras.english.lexicon import COUNTERPARTS, FEMININE_NAMES, MASCULINE_NAMES, TITLES, word_set
from extras.english.parsing import PRONOUNS, Mention, ParsedText, pronoun_forms
from settings.errors import UserError

SECTION_CHARACTERS = 5000  # longer documents are cut into sections of this size
MAX_SHARE = 0.1  # largest fraction of the passages that may mention the same entity
N_LAST = 2  # words before a pronoun, of `ngram_rule`
_SEARCHED = 4  # times as many passages are tokenized at most, because frequent entities fill their share
MIN_NAME_COUNT = 5  # mentions of a name in a text before it may stand for another name of the text
_EARLIER = PRONOUNS | {"herself", "himself", "hers"}  # earlier pronouns show the class
_OTHER_TITLE = {"Mrs": "Mr", "Miss": "Mr", "Mr": "Mrs", "Lady": "Lord", "Lord": "Lady"}
_FUNCTION_WORDS = word_set("function words")


@dataclass(frozen=True, slots=True)
class Passage:
    """The text up to a pronoun, from the start of a sentence; spans are characters of `text`."""

    doc: str
    text: str  # ends with the white space before the pronoun
    forms: tuple[str, str]  # the pronoun of either class, in the grammatical form of the text
    meant: int  # the class of the author's pronoun
    mentions: tuple[tuple[Span, ...], tuple[Span, ...]]  # by class
    entities: tuple[str, str]  # name or noun of each class; "" if it is not mentioned
    subject: Span  # the first mention in the last sentence that has one
    place: float | None = None  # log odds of the place rule (data.place) that the nearest entity is meant
    form: tuple[float, ...] = ()  # its features

    @property
    def has_two(self) -> bool:
        return all(self.entities)

    def surfaces(self, side: int) -> list[str]:
        return [self.text[start:end] for start, end in self.mentions[side]]


@dataclass(frozen=True, slots=True)
class Twin:
    """A passage with counterparts in place of its entities."""

    text: str
    changes: Mapping[Span, str] = field(default_factory=dict)  # new words by their characters of the passage

    def moved(self, span: Span) -> Span:
        """Return the characters in the twin of a word of the passage."""
        first, last = span
        for (start, end), word in self.changes.items():
            shift = len(word) - (end - start)
            first += shift if end <= span[0] else 0
            last += shift if end <= span[1] else 0
        return first, last


def sections(documents: Sequence[str]) -> list[tuple[str, str]]:
    """Return (name, text) of each document; one of more than SECTION_CHARACTERS is cut after sentences."""
    named_sections = list[tuple[str, str]]()
    for number, text in enumerate(documents):
        if len(text) <= SECTION_CHARACTERS:
            named_sections.append((f"d{number}", text))
            continue
        section = ""
        for sentence in re.split(r"(?<=[.!?\u201d\"])(?=\s)", text):  # after a sentence
            section += sentence
            if len(section) >= SECTION_CHARACTERS:
                named_sections.append((f"d{number}s{len(named_sections)}", section))
                section = ""
        if section.strip():
            named_sections.append((f"d{number}s{len(named_sections)}", section))
    return named_sections


def passages_in(documents: Iterable[tuple[str, str]]) -> list[Passage]:
    """Return the passages of all documents, (name, text) each."""
    found: list[Passage] = []
    for name, text in documents:
        found += find_passages(name, text)
    return found


def with_two(passages: Iterable[Passage]) -> list[Passage]:
    """Return the passages with an entity of each class."""
    return [passage for passage in passages if passage.has_two]


def find_passages(doc: str, text: str) -> Iterator[Passage]:
    """Yield the passages of a document, at most one per sentence.

    A passage is the longest run of whole sentences, followed by the pronoun's sentence up to the pronoun, of at most
    MAX_WORDS words, without an earlier pronoun of either class, that mentions exactly one entity of each class. Failing
    that, one that mentions exactly one entity, of the author's class.
    """
    parsed = ParsedText(text)
    is_pronoun = [word.lower() in _EARLIER for word in parsed.words]
    last_sentence = -1  # index of the sentence with the last passage
    for sentence, i, forms in parsed.pronouns():
        if sentence == last_sentence:
            continue
        meant = forms.index(parsed.words[i])
        window = _best_window(parsed, i, is_pronoun, meant)
        if window is None:
            continue
        begin, mentions = window

        start = parsed.sentences[bisect_right(parsed.sentences, mentions[-1].first) - 1]
        subject = next(mention for mention in mentions if mention.first >= start)
        spans: tuple[list[Span], list[Span]] = ([], [])
        entities = ["", ""]
        for mention in mentions:
            spans[mention.side].append(parsed.span(mention, begin))
            entities[mention.side] = mention.entity
        yield Passage(
            doc=doc,
            text=text[parsed.matches[begin].start() : parsed.matches[i].start()],
            forms=forms,
            meant=meant,
            mentions=(tuple(spans[0]), tuple(spans[1])),
            entities=(entities[0], entities[1]),
            subject=parsed.span(subject, begin),
        )
        last_sentence = sentence


def _best_window(
    parsed: ParsedText, i: int, is_pronoun: Sequence[bool], meant: int
) -> tuple[int, list[Mention]] | None:
    """Return the first word and the mentions of the window before word i that `find_passages` prefers, if any."""
    ranked: list[tuple[int, int, list[Mention]]] = []  # (rank, first word, mentions): the lowest is preferred
    for begin, mentions in parsed.windows(i):
        if any(is_pronoun[begin:i]):
            continue
        entities = {(mention.side, mention.entity) for mention in mentions}
        if len(entities) == 2 and not set.intersection(*map(set, entities)):  # two classes and two names
            ranked.append((0, begin, mentions))
        elif len(entities) == 1 and mentions[0].side == meant:
            ranked.append((1, begin, mentions))
    best = min(ranked, key=lambda window: window[:2], default=None)
    return best and best[1:]


class Counterparts:
    """Chooses for each entity the word of the other class that stands in its place in the twin.

    A noun has a fixed counterpart. A name gets a random name of the other gender that is frequent in the text and, if
    there is one, has as many tokens; if both entities are names with as many tokens, they change places.
    """

    def __init__(self, passages: Iterable[Passage], n_tokens: Callable[[str], int], seed: int) -> None:
        """Collect the names of the passages; `n_tokens` counts the tokens of a word after a space."""
        self._n_tokens = n_tokens
        self._rng = np.random.default_rng(seed)
        counts = Counter[str]()
        for passage in passages:
            counts.update(passage.surfaces(0) + passage.surfaces(1))

        # The names of each side by number of tokens, and all of them as 0; all known names if none is frequent
        self._names: dict[tuple[int, int], list[str]] = defaultdict(list)
        for side, names in enumerate((FEMININE_NAMES, MASCULINE_NAMES)):
            often = [name for name in sorted(names) if counts[name] >= MIN_NAME_COUNT]
            for name in often or sorted(names):
                self._names[side, n_tokens(name)].append(name)
                self._names[side, 0].append(name)

    def of(self, passage: Passage) -> Mapping[str, str] | None:
        """Return the replacement of each mention's text in a passage; None if a mention has none."""
        sides = [sorted({*passage.surfaces(side)}) for side in (0, 1)]
        if len(sides[0]) == len(sides[1]) == 1:
            (name,), (counterpart,) = sides
            are_names = name in FEMININE_NAMES and counterpart in MASCULINE_NAMES
            if are_names and self._n_tokens(name) == self._n_tokens(counterpart):
                return {name: counterpart, counterpart: name}

        replacements: dict[str, str] = {}
        for side, surfaces in enumerate(sides):
            for surface in surfaces:
                is_name = surface in (FEMININE_NAMES, MASCULINE_NAMES)[side]
                word = self._name(surface, 1 - side) if is_name else _counterpart(surface)
                if word is None:
                    return None
                replacements[surface] = word
        return replacements

    def _name(self, name: str, side: int) -> str:
        pool = self._names.get((side, self._n_tokens(name))) or self._names[side, 0]
        return pool[int(self._rng.integers(len(pool)))]


def _counterpart(surface: str) -> str | None:
    """Return the noun or the title and surname of the other gender, with the capitals of `surface`."""
    title, space, name = surface.partition(" ")
    bare_title = title.rstrip(".")
    if bare_title in TITLES and space:
        counterpart = _OTHER_TITLE.get(bare_title)
        dot = "." if title.endswith(".") else ""
        return counterpart and f"{counterpart}{dot} {name}"
    counterpart = COUNTERPARTS.get(surface.lower())
    return counterpart.capitalize() if counterpart and surface.istitle() else counterpart


def make_twin(passage: Passage, replacements: Mapping[str, str]) -> Twin:
    """Return a passage with counterparts of its entities."""
    changes: dict[Span, str] = {}
    for span in chain(*passage.mentions):
        changes[span] = replacements[passage.text[slice(*span)]]
    return Twin(with_words(passage.text, changes), changes)


def content_words(passage: Passage) -> list[Span]:
    """Return the words of a passage that are neither mentions nor function words."""
    taken = list(chain(*passage.mentions))
    words = []
    for match in ENGLISH_WORD.finditer(passage.text):
        word = match.group()
        is_free = all(match.end() <= start or end <= match.start() for start, end in taken)
        if is_free and len(word) > 3 and word.isalpha() and word.lower() not in _FUNCTION_WORDS:
            words.append(match.span())
    return words


def ngram_rule(documents: Iterable[tuple[str, str]]) -> Callable[[str], float]:
    """Return a rule that predicts the class of a pronoun from the last words before it, counted in `documents`.

    The rule returns 1 for the first class, 0 for the second: the one that is more frequent after the
    same N_LAST words, backing off to fewer words; 1/2 for words that it has not seen.
    """
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for _, text in documents:
        originals = ENGLISH_WORD.findall(text)
        words = list(map(str.lower, originals))
        for i in range(len(words) - 1):
            forms = pronoun_forms(originals[i], words[i + 1])
            if forms is not None:
                for n in range(N_LAST + 1):
                    counts[tuple(words[max(0, i - n) : i])][forms.index(originals[i])] += 1

    def rule(text: str) -> float:
        words = list(map(str.lower, ENGLISH_WORD.findall(text)))
        for n in range(N_LAST, -1, -1):
            first, second = counts.get(tuple(words[len(words) - n :]), (0, 0))
            if first != second:
                return float(first > second)
        return 0.5

    return rule


class Reader(NamedTuple):
    """How a model reads a text."""

    tokenizer: Tokenizer
    bos_id: int  # the token before every text
    max_tokens: int  # with that token

    def n_tokens(self, word: str) -> int:
        """Return the number of tokens of a word after a space."""
        return len(encode_text(self.tokenizer, f" {word}").ids)


def passage_parts(passages: Sequence[Passage], name: str, reader: Reader, seed: int, limits: tuple[int, int]) -> Items:
    """Return the passages of the question `name` in the parts "dev" and "tested".

    All passages of a document or section are in dev, a random half, or in tested. `limits` are the most passages with
    one entity, and with two.
    """
    make = partial(passage_items, passages, name, reader, seed)
    items = make(limits[0], has_two=False) + make(limits[1], has_two=True)

    names = np.unique(np.array([pair.clusters[0] for pair in items.pairs], dtype=str))
    chosen = set(np.random.default_rng(seed).permutation(names)[: len(names) // 2].tolist())
    pairs = [replace(pair, part="dev" if pair.clusters[0] in chosen else "tested") for pair in items.pairs]
    return Items(pairs, items.left_out)


def passage_items(
    passages: Sequence[Passage],
    name: str,
    reader: Reader,
    seed: int,
    limit: int,
    *,
    has_two: bool,
    max_share: float = MAX_SHARE,
) -> Items:
    """Return up to `limit` passages with their twins, drawn at random, as pairs of the question `name`.

    They mention one entity, or with `has_two` one of each class. No entity of a class is in more than `max_share` of
    them. A passage is left out, and counted by reason, if the pronouns are not one token each, if there is no
    counterpart, if a word shares a token with its neighbour or is unknown, or if the text does not fit into the
    context.
    """
    usable = [passage for passage in passages if passage.has_two == has_two]
    rng = np.random.default_rng(seed)
    counterparts = Counterparts(usable, reader.n_tokens, seed)
    pairs = list[Pair]()
    left_out = Counter[str]()
    for i in rng.permutation(len(usable)):
        if len(pairs) == _SEARCHED * limit:
            break
        passage = usable[i]

        replacements = counterparts.of(passage)
        if replacements is None:
            left_out["no counterpart of the other class"] += 1
            continue
        twin = make_twin(passage, replacements)
        content = content_words(passage)
        control = content[int(rng.integers(len(content)))] if content else None

        try:
            cells = _cells(passage, twin, control, reader)
        except UserError as reason:
            left_out[str(reason)] += 1
            continue
        texts = (passage.text, twin.text)
        clusters = (passage.doc, *passage.entities)
        pair = Pair(name, "", cells, texts, len(pairs), clusters, meant=passage.meant, forms=passage.forms)
        pairs.append(replace(pair, place=passage.place, form=passage.form))

    selected = cap_clusters([pair.clusters[1:] for pair in pairs], max_share, limit)
    if len(pairs) > len(selected):
        rest = f"more than enough, or an entity in more than {max_share:.0%} of the passages"
        left_out[rest] = len(pairs) - len(selected)
    kind = "two" if has_two else "one"
    named = Counter({(name, f"{reason} ({kind})"): count for reason, count in left_out.items()})
    return Items([pairs[i] for i in selected], named)


def _cells(passage: Passage, twin: Twin, control: Span | None, reader: Reader) -> tuple[Cell, Cell]:
    """Return a passage and its twin in the tokens of a model; UserError with the reason why it is left out."""
    # The entity in the same place is meant in the twin, where the pronoun is of the other class.
    forms = (passage.forms[passage.meant], passage.forms[1 - passage.meant])
    first = _cell(passage, Twin(passage.text), forms, control, reader)
    second = _cell(passage, twin, forms[::-1], control, reader)

    answers = (*first.answers, *first.foils)
    is_unknown = unknown_id(reader.tokenizer) in answers
    if answers != (*second.foils, *second.answers) or first.answers == first.foils or is_unknown:
        raise UserError("a pronoun is not one token")
    if max(len(first.tokens), len(second.tokens)) > reader.max_tokens:
        raise UserError("longer than the context")
    return first, second


def _cell(passage: Passage, twin: Twin, forms: tuple[str, str], control: Span | None, reader: Reader) -> Cell:
    """Return a passage or its twin in tokens; `forms` are the pronoun of the meant person and the other one."""
    # Both pronouns follow the same tokens and are one token each.
    answer, foil = (encode_text(reader.tokenizer, twin.text + form) for form in forms)
    prefix = tuple(answer.ids[:-1])
    if tuple(foil.ids[:-1]) != prefix or twin.text[answer.offsets[-1][0] :].strip():
        raise UserError("a pronoun is not one token")

    spans = [*chain(*passage.mentions), *([control] if control else [])]
    try:
        words = word_positions(twin.text, answer.offsets[:-1], map(twin.moved, spans))
    except UserError:
        raise UserError("a word shares a token with its neighbour") from None
    tokens = (reader.bos_id, *prefix)
    if unknown_id(reader.tokenizer) in [tokens[i] for i in chain(*words.values())]:
        raise UserError("a word is unknown")
    return Cell(
        tokens=tokens,
        query=len(prefix),
        meant=tuple(words[twin.moved(span)] for span in passage.mentions[passage.meant]),
        other=tuple(words[twin.moved(span)] for span in passage.mentions[1 - passage.meant]),
        answers=(answer.ids[-1],),
        foils=(foil.ids[-1],),
        payoff=len(prefix),
        control=words[twin.moved(control)] if control else (),
        subject=words[twin.moved(passage.subject)],
    )


def cap_clusters(labels: Sequence[tuple[str, ...]], max_share: float, limit: int) -> list[int]:
    """Return the indices of up to `limit` values of which no cluster has more than `max_share`, in their order.

    Each value has a label per clustering, "" for no cluster. A cluster may always have one value. The cap is the
    largest number of values per cluster that is at most `max_share` of those that remain.
    """
    cap = max(1, int(max_share * min(len(labels), limit)))
    while True:
        counts = Counter[tuple[int, str]]()
        selected: list[int] = []
        for i, of_value in enumerate(labels):
            clusters = [place for place in enumerate(of_value) if place[1]]
            if len(selected) < limit and all(counts[place] < cap for place in clusters):
                selected.append(i)
                counts.update(clusters)
        if cap <= max_share * len(selected) or cap == 1:
            return selected
        cap -= 1
