"""Passages before a pronoun: the place where a causal model must decide between "she" and "he".

A model that has just read "She" need not find out whom it means. One word earlier it has to write "She" or "He", so it
must know the mentioned people and their genders. A passage is the text up to a pronoun of any English text. It mentions
one known person, or exactly one of each class (a woman and a man). Its twin is the same text with every person replaced
by a counterpart of the other class: Lily by Tom, king by queen.

The lexicon (lexicon.py) knows the classes. Nothing is annotated: the author's own pronoun gives the antecedent.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, starmap
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from data.pairs import Cell, Items, Pair, Span, Word, word_positions
from data.tokenizer import encode_text, unknown_id
from data.words import ENGLISH_WORD, with_words
from extras.english.lexicon import COUNTERPARTS, FEMININE_NAMES, MASCULINE_NAMES, NAME_CLASSES, word_set
from extras.english.parsing import PRONOUNS, Mention, ParsedText, pronoun_forms
from settings.errors import UserError

MAX_WORDS = 64  # in a passage, with punctuation marks
SECTION_CHARACTERS = 5000  # longer documents are cut into sections of this size
MAX_SHARE = 0.1  # largest fraction of the passages that may mention the same entity
N_LAST = 2  # words before a pronoun, of `ngram_rule`
_SEARCHED = 4  # times as many passages are tokenized at most, because frequent entities fill their share
MIN_NAME_COUNT = 5  # mentions of a name in a text before it may stand for another name of the text
_EARLIER = PRONOUNS | {"herself", "himself", "hers"}  # earlier pronouns show the class
_OTHER_TITLE = {"Mrs": "Mr", "Miss": "Mr", "Mr": "Mrs", "Lady": "Lord", "Lord": "Lady"}
_FUNCTION_WORDS = word_set("function words")
Document = tuple[str, str]  # its name and its text


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
    place: float | None = None  # log odds of the place rule (place.py) that the nearest entity is meant
    form: tuple[float, ...] = ()  # its features

    @property
    def has_two(self) -> bool:
        return all(self.entities)

    def surfaces(self, side: int) -> list[str]:
        """Return the mentions of a class as the text writes them."""
        return [self.text[start:end] for start, end in self.mentions[side]]

    def with_words(self, changes: Mapping[Span, str]) -> "Passage":
        """Return the passage with other words at some places, by the characters of each."""

        def moved(span: Span) -> Span:
            start, end = span
            for (first, last), word in changes.items():
                shift = len(word) - (last - first)
                start += shift * (last <= span[0])
                end += shift * (last <= span[1])
            return start, end

        feminine, masculine = (tuple(map(moved, spans)) for spans in self.mentions)
        text = with_words(self.text, changes)
        return replace(self, text=text, mentions=(feminine, masculine), subject=moved(self.subject))


def sections(documents: Sequence[str], prefix: str = "") -> list[Document]:
    """Return each document; one of more than SECTION_CHARACTERS is cut after sentences.

    `prefix` begins every name.
    """
    named_sections = list[Document]()
    for number, text in enumerate(documents):
        parts = [""]
        for sentence in re.split(r"(?<=[.!?\u201d\"])(?=\s)", text):  # after a sentence
            parts[-1] += sentence
            if len(parts[-1]) >= SECTION_CHARACTERS:
                parts.append("")
        for part in filter(str.strip, parts):
            suffix = f"s{len(named_sections)}" if len(text) > SECTION_CHARACTERS else ""
            named_sections.append((f"{prefix}d{number}{suffix}", part))
    return named_sections


def passages_in(documents: Iterable[Document]) -> list[Passage]:
    """Return the passages of all documents."""
    return list(chain.from_iterable(starmap(find_passages, documents)))


def with_two(passages: Iterable[Passage]) -> list[Passage]:
    """Return the passages with an entity of each class."""
    return [passage for passage in passages if passage.has_two]


def find_passages(doc: str, text: str) -> Iterator[Passage]:
    """Yield the passages of a document, at most one per sentence, because a later one would have an earlier pronoun.

    A passage is the longest run of whole sentences, followed by the pronoun's sentence up to the pronoun, of at most
    MAX_WORDS words, without an earlier pronoun of either class, that mentions exactly one entity of each class. Failing
    that, one that mentions exactly one entity, of the author's class.
    """
    parsed = ParsedText(text)
    for i, forms in parsed.pronouns():
        meant = forms.index(parsed.words[i])
        window = _best_window(parsed, i, meant)
        if window is None:
            continue
        begin, mentions = window

        start = max(start for start in parsed.sentences if start <= mentions[-1].first)
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


def _best_window(parsed: ParsedText, i: int, meant: int) -> tuple[int, list[Mention]] | None:
    """Return the first word and the mentions of the window before word i that `find_passages` prefers, if any."""
    with_one = None
    for begin in parsed.sentences:  # the longest first
        is_window = i - MAX_WORDS <= begin < i
        if not is_window or not _EARLIER.isdisjoint(map(str.lower, parsed.words[begin:i])):
            continue
        mentions = [mention for mention in parsed.mentions if begin <= mention.first < i]
        entities = {(mention.side, mention.entity) for mention in mentions}
        names = dict(entities)  # by class
        if len(entities) == len(names) == len({*names.values()}) == 2:
            return begin, mentions
        if with_one is None and len(entities) == 1 and meant in names:
            with_one = (begin, mentions)
    return with_one


def name_counts(passages: Iterable[Passage]) -> Counter[str]:
    """Return how often passages mention each person, by the words of the text."""
    counts = Counter[str]()
    for passage in passages:
        counts.update(passage.surfaces(0) + passage.surfaces(1))
    return counts


def names_by_length(
    names: Iterable[str], n_tokens: Callable[[str], int]
) -> defaultdict[int, tuple[list[str], list[str]]]:
    """Return the first names among `names` by their number of tokens (after a space), and by class."""
    pools = defaultdict[int, tuple[list[str], list[str]]](lambda: ([], []))
    for name in names:
        if name in NAME_CLASSES:
            pools[n_tokens(name)][NAME_CLASSES[name]].append(name)
    return pools


class Counterparts:
    """Chooses for each entity the word of the other class that stands in its place in the twin.

    A noun has a fixed counterpart. A name gets a random name of the other gender that is frequent in the text and, if
    there is one, has as many tokens; if both entities are names with as many tokens, they change places.
    """

    def __init__(self, passages: Iterable[Passage], n_tokens: Callable[[str], int], seed: int) -> None:
        """Collect the names of the passages; `n_tokens` counts the tokens of a word after a space."""
        self._n_tokens = n_tokens
        self._rng = np.random.default_rng(seed)
        counts = name_counts(passages)
        self._names = []  # of each class: those that are frequent, all if none is
        for names in (FEMININE_NAMES, MASCULINE_NAMES):
            often = [name for name in sorted(names) if counts[name] >= MIN_NAME_COUNT]
            self._names.append(often or sorted(names))
        self._by_length = names_by_length(chain(*self._names), n_tokens)

    def twin(self, passage: Passage) -> Passage:
        """Return a passage with counterparts of its entities; UserError if one has none.

        The entity in the same place is meant, so that the pronoun is of the other class.
        """
        women, men = (sorted(set(passage.surfaces(side))) for side in (0, 1))
        are_names = len(women) == len(men) == 1 and NAME_CLASSES.keys() >= {*women, *men}
        if are_names and self._n_tokens(women[0]) == self._n_tokens(men[0]):
            words = {women[0]: men[0], men[0]: women[0]}
        else:
            words = {surface: self._counterpart(surface) for surface in women + men}

        changed = passage.with_words({span: words[passage.text[slice(*span)]] for span in chain(*passage.mentions)})
        return replace(changed, meant=1 - passage.meant, mentions=changed.mentions[::-1])

    def _counterpart(self, surface: str) -> str:
        """Return a name, a noun or a title and surname of the other class, with the capitals of `surface`."""
        if surface in NAME_CLASSES:
            side = 1 - NAME_CLASSES[surface]
            pool = self._by_length[self._n_tokens(surface)][side] or self._names[side]
            return pool[int(self._rng.integers(len(pool)))]
        title, _, surname = surface.partition(" ")
        bare_title = title.rstrip(".")
        if surname and bare_title in _OTHER_TITLE:
            return f"{title.replace(bare_title, _OTHER_TITLE[bare_title])} {surname}"
        noun = COUNTERPARTS.get(surface.lower())
        if noun is None:
            raise UserError("no counterpart of the other class")
        return noun.capitalize() if surface.istitle() else noun


def content_words(passage: Passage) -> list[Span]:
    """Return the words of a passage that are neither mentions nor function words."""
    taken = list(chain(*passage.mentions))
    words = []
    for match in ENGLISH_WORD.finditer(passage.text):
        word = match.group()
        is_free = not any(start <= match.start() < end for start, end in taken)
        if is_free and len(word) > 3 and word.isalpha() and word.lower() not in _FUNCTION_WORDS:
            words.append(match.span())
    return words


def ngram_rule(documents: Iterable[Document]) -> Callable[[str], float]:
    """Return a rule that predicts the class of a pronoun from the last words before it, counted in `documents`.

    The rule returns the class, 0 or 1, that is more frequent after the same N_LAST words, backing off to fewer words;
    1/2 for words that it has not seen.
    """
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for _, text in documents:
        words = ENGLISH_WORD.findall(text)
        for i, (word, next_word) in enumerate(pairwise(words)):
            forms = pronoun_forms(word, next_word)
            if forms is not None:
                for ending in _endings(words[:i]):
                    counts[ending][forms.index(word)] += 1

    def rule(text: str) -> float:
        for ending in _endings(ENGLISH_WORD.findall(text)):
            first, second = counts.get(ending, (0, 0))
            if first != second:
                return float(first < second)
        return 0.5

    return rule


def _endings(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the last N_LAST words in small letters, or all if there are not so many, then fewer, then none."""
    last = tuple(map(str.lower, words[-N_LAST:]))
    return [last[n:] for n in range(len(last) + 1)]


class Reader(NamedTuple):
    """How a model reads a text."""

    tokenizer: Tokenizer
    bos_id: int  # the token before every text
    max_tokens: int  # with that token

    def n_tokens(self, word: str) -> int:
        """Return the number of tokens of a word after a space."""
        return len(encode_text(self.tokenizer, f" {word}").ids)


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
    kind = "two" if has_two else "one"
    rng = np.random.default_rng(seed)
    counterparts = Counterparts(usable, reader.n_tokens, seed)
    pairs = list[Pair]()
    left_out = Counter[tuple[str, str]]()
    for i in rng.permutation(len(usable)):
        if len(pairs) == _SEARCHED * limit:
            break
        passage = usable[i]
        try:
            twin = counterparts.twin(passage)
            n_content = len(content_words(passage))
            control = int(rng.integers(n_content)) if n_content else None
            cells = _cells(passage, twin, control, reader)
        except UserError as reason:
            left_out[name, f"{reason} ({kind})"] += 1
            continue
        pair = Pair(
            question=name,
            part="",
            cells=cells,
            texts=(passage.text, twin.text),
            block=len(pairs),
            clusters=(passage.doc, *passage.entities),
            meant=passage.meant,
            forms=passage.forms,
            place=passage.place,
            form=passage.form,
        )
        pairs.append(pair)

    selected = cap_clusters([pair.clusters[1:] for pair in pairs], max_share, limit)
    if len(pairs) > len(selected):
        rest = f"more than enough, or an entity in more than {max_share:.0%} of the passages"
        left_out[name, f"{rest} ({kind})"] = len(pairs) - len(selected)
    return Items([pairs[i] for i in selected], left_out)


def _cells(passage: Passage, twin: Passage, control: int | None, reader: Reader) -> tuple[Cell, Cell]:
    """Return a passage and its twin in the tokens of a model; UserError with the reason why it is left out."""
    first = _cell(passage, control, reader)
    second = _cell(twin, control, reader)
    answers = (*first.answers, *first.foils)
    if answers != (*second.foils, *second.answers) or unknown_id(reader.tokenizer) in answers:
        raise UserError("a pronoun is not one token")
    if max(len(first.tokens), len(second.tokens)) > reader.max_tokens:
        raise UserError("longer than the context")
    return first, second


def _cell(passage: Passage, control: int | None, reader: Reader) -> Cell:
    """Return a passage or its twin in tokens; `control` is the number of a content word."""
    # Both pronouns follow the same tokens and are one token each.
    encodings = [encode_text(reader.tokenizer, passage.text + form) for form in passage.forms]
    answer, foil = encodings[passage.meant], encodings[1 - passage.meant]
    prefix = answer.ids[:-1]
    if foil.ids[:-1] != prefix or passage.text[answer.offsets[-1][0] :].strip():
        raise UserError("a pronoun is not one token")

    spans = list(chain(*passage.mentions))
    if control is not None:
        spans.append(content_words(passage)[control])
    try:
        words = word_positions(passage.text, answer.offsets[:-1], spans)
    except UserError:
        raise UserError("a word shares a token with its neighbour") from None
    tokens = (reader.bos_id, *prefix)
    if unknown_id(reader.tokenizer) in [tokens[i] for i in chain(*words.values())]:
        raise UserError("a word is unknown")
    of_control: Word = () if control is None else words[spans[-1]]
    return Cell(
        tokens=tokens,
        query=len(prefix),
        meant=tuple(words[span] for span in passage.mentions[passage.meant]),
        other=tuple(words[span] for span in passage.mentions[1 - passage.meant]),
        answers=(answer.ids[-1],),
        foils=(foil.ids[-1],),
        payoff=len(prefix),
        control=of_control,
        subject=words[passage.subject],
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
