"""Links in texts, and the pairs of texts that heads are measured on.

A `LinkedText` counts characters and so fits every tokenizer; a `Cell` is a text in the tokens of one model. A question
about a head is tested on a `Pair`: a text and its counterpart, which differ only in what decides the antecedent.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from os.path import commonprefix
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data.tokenizer import encode_text
from data.words import words_of
from settings.errors import UserError

CONTROL = "control"  # the hold-out of texts without the link, which a question of the user's own may have
Span = tuple[int, int]  # characters [start, end)
Word = tuple[int, ...]  # the positions of a word's tokens, ascending


@dataclass(frozen=True, slots=True)
class Link:
    """A question to an attention head: at the word `query`, which mention gets the most attention?"""

    question: str  # name of the question that it belongs to
    query: Span  # the word at which heads are read
    antecedents: tuple[Span, ...]
    distractors: tuple[Span, ...]  # the other mentions that fit the pronoun's role
    subject: Span | None = None  # the mention that is the subject of its sentence
    payoff: Span | None = None  # the first word that only the antecedent explains
    answers: tuple[str, ...] = ()  # the words that fit at the payoff
    foils: tuple[str, ...] = ()  # the words that would fit if a distractor were the antecedent
    n_fitting: int = 0  # how many words fit at the payoff, all with the same probability; 0: unknown
    bystanders: tuple[Span, ...] = ()  # mentions that fit the pronoun's role and are meant in no text
    more_foils: tuple[str, ...] = ()  # the words that would fit if a bystander were the antecedent


NO_LINK = Link("", (0, 0), (), ())


@dataclass(frozen=True, slots=True)
class LinkedText:
    """A text with its gold link and its cell of the design; four cells in a row are a block."""

    text: str
    link: Link  # NO_LINK: a text to train on
    family: str
    holdout: str
    frame: str  # the words that texts of different pairs share; stories: the frame's text for order 0
    pair: str  # the two words, separated by a space
    order: int  # index in the pair of the word that is mentioned first
    meant: int  # index in the pair of the antecedent


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with one link in the tokens of one model; position 0 is the token before every text."""

    tokens: tuple[int, ...]  # up to the later of query and payoff
    query: int  # the last token of the query word
    meant: tuple[Word, ...]  # mentions of the antecedent
    other: tuple[Word, ...]  # mentions that the counterpart means; passages: mentions of the other entity
    bystanders: tuple[Word, ...] = ()  # mentions that neither text means
    answers: tuple[int, ...] = ()  # token ids
    foils: tuple[int, ...] = ()  # token ids: the answers of the counterpart
    more_foils: tuple[int, ...] = ()  # token ids that would fit a bystander
    payoff: int | None = None  # the position whose next token depends on the antecedent
    target: int | None = None  # the next token there
    control: Word = ()  # a content word, to compare the mentions with
    subject: Word | None = None
    n_fitting: int = 0  # how many tokens fit as `target`, all with the same probability; 0: unknown
    has_word_tokens: bool = False  # up to the query each token is a word
    has_lost_answer: bool = False  # answers and foils begin with the same tokens


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and its counterpart, which differ only in what decides the antecedent.

    Stories and own questions: the pronoun or cue is exchanged, and two pairs with both orders of the mentions are a
    block. Passages: the entities are exchanged, and a pair is a block of its own.
    """

    question: str
    part: str  # "dev", or the part of a test: "headline", "tested", ...
    cells: tuple[Cell, Cell]
    texts: tuple[str, str]
    block: int
    clusters: tuple[str, str, str]  # frame or document, first word, second word; "" if there is none
    order: int = 0  # index of the word that is mentioned first
    meant: int = 0  # index of the word, or class of the entity, that the first text means
    forms: tuple[str, str] = ("", "")  # the next word for either class
    place: float | None = None  # log odds of the place rule that the nearest entity is meant
    form: tuple[float, ...] = ()  # features of the place rule

    @property
    def has_two(self) -> bool:
        return bool(self.cells[0].other)

    @property
    def is_comparable(self) -> bool:
        """Whether both texts have an answer at the same position, and each mentions what the other means."""
        first, second = self.cells
        if not all(cell.meant and cell.answers and cell.foils and cell.payoff is not None for cell in self.cells):
            return False
        if (first.query, first.payoff, len(first.tokens)) != (second.query, second.payoff, len(second.tokens)):
            return False
        is_after = first.payoff is not None and first.payoff >= first.query
        return is_after and _mentions_all(first, second.meant) and _mentions_all(second, first.meant)


def _mentions_all(cell: Cell, words: tuple[Word, ...]) -> bool:
    """Return whether a text mentions all of `words`, and does not mean all of them."""
    return bool(cell.other) and set(words) <= set(cell.meant + cell.other)


@dataclass(frozen=True)
class Items:
    """The pairs that heads are measured on. N pairs; the two cells of each pair are neighbours in `cells`."""

    pairs: list[Pair]
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)  # how many texts, by question and reason

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def cells(self) -> list[Cell]:
        return [cell for pair in self.pairs for cell in pair.cells]

    def __add__(self, other: "Items") -> "Items":
        return Items([*self.pairs, *other.pairs], self.left_out + other.left_out)

    def reasons(self, question: str) -> dict[str, int]:
        """Return how many texts of a question were left out, by reason."""
        return {reason: count for (name, reason), count in self.left_out.items() if name == question}

    def parts(self, question: str) -> list[str]:
        return list(dict.fromkeys(pair.part for pair in self.pairs if pair.question == question))

    def index(self, question: str, part: str) -> np.ndarray:
        places = [i for i, pair in enumerate(self.pairs) if pair.part == part and pair.question == question]
        return np.array(places, dtype=int)

    def of(self, question: str, part: str) -> "Items":
        return self.take(self.index(question, part))

    def take(self, index: Iterable[int] | np.ndarray) -> "Items":
        return Items([self.pairs[i] for i in index], self.left_out)

    def some(self, about: int) -> "Items":
        """Return about so many pairs, evenly spaced, or all; the step is odd, so both pairs of a block alike."""
        return self.take(range(0, len(self), len(self) // about | 1))

    def take_blocks(self, numbers: np.ndarray) -> "Items":
        """Return the two pairs of each of these blocks, numbered from 0; only for items in blocks."""
        return self.take(two_of_each(numbers))

    def named(self, **names: Any) -> "Items":
        """Return the same pairs as those of another question or part."""
        return Items([replace(pair, **names) for pair in self.pairs], self.left_out)

    def where(self, is_kept: Callable[[Pair], bool]) -> "Items":
        return Items([pair for pair in self.pairs if is_kept(pair)], self.left_out)

    def comparable(self) -> "Items":
        return self.where(lambda pair: pair.is_comparable)

    def clusterings(self, n_values: int | None = None) -> list[np.ndarray]:
        """Return the clusters of N values for the tests: one value for each pair, or each block.

        They are the frames or documents [N] and the labels of both words [N] each. If a word is the first in one block
        and the second in another, as in `verb`, the words are one clustering [N, 2]. A pair without an entity of a
        class is a cluster of its own there.
        """
        step = len(self.pairs) // (n_values or max(1, len(self.pairs)))
        names = [pair.clusters for pair in self.pairs[:: max(1, step)]]
        table = np.array(names, dtype=object).reshape(-1, 3)
        alone = np.array([f"passage {i}" for i in range(len(table))], dtype=object)
        first, *words = [np.where(labels == "", alone, labels).astype(str) for labels in table.T]
        if self.has_blocks and not set(words[0]).isdisjoint(words[1]):
            return [first, np.stack(words, axis=1)]
        return [first, *words]

    def n_clusters(self) -> dict[str, int]:
        """Return how many different frames and words the blocks have, or documents and entities the passages."""
        labels = list(zip(*(pair.clusters for pair in self.pairs), strict=True)) or [(), (), ()]
        counts = [len(set(of_clustering) - {""}) for of_clustering in labels]
        names = ["documents", "first_class", "second_class"]
        if self.has_blocks:
            names = ["frames", "first_words", "second_words", "pairs"]
            counts.append(len({pair.clusters[1:] for pair in self.pairs}))
        return dict(zip(names, counts, strict=True))

    def designs(self, n_values: int | None = None) -> list[Sequence[np.ndarray]]:
        """Return the designs of an interval: frames or documents, crossed with each word and, in blocks, with both.

        The widest of the three covers a little less than 95 % if effects of both words dominate.
        """
        first, *words = self.clusterings(n_values)
        if self.has_blocks:
            both = np.column_stack(words)
            words = [np.array([f"{word} {second_word}" for word, second_word in both]), *words]
        return [(first, labels) for labels in words]

    @property
    def has_blocks(self) -> bool:
        return len(self.pairs) > 1 and self.pairs[0].block == self.pairs[1].block


def two_of_each(index: np.ndarray) -> np.ndarray:
    """Return the places 2 i and 2 i + 1 of each i: the pairs of blocks [N], or the texts of pairs, [2 N]."""
    return (2 * index[:, None] + np.arange(2)).ravel()


def word_positions(text: str, offsets: Sequence[Span], spans: Iterable[Span]) -> dict[Span, Word]:
    """Return the positions of the tokens that overlap each word, counted with BOS in front.

    A byte-level token may begin with the space before its word. The bytes of one character may be several tokens.
    `offsets` are the characters [start, end) of each token but BOS, empty for special tokens. Raise UserError if a word
    has no tokens for itself.
    """
    # Both ends of the tokens ascend, so a binary search finds the tokens of a word.
    tokens = []
    starts = []
    ends = []
    for position, (start, end) in enumerate(offsets, 1):
        if start < end:
            tokens.append(position)
            starts.append(start)
            ends.append(end)
    positions: dict[Span, Word] = {}
    for start, end in spans:
        first = bisect_right(ends, start)
        stop = bisect_left(starts, end)
        word = text[start:end]
        if first >= stop or text[starts[first] : ends[stop - 1]].strip() != word.strip():
            around = text[max(0, start - 20) : end + 20]
            raise UserError(f"{word!r} has no tokens for itself in {around!r}")
        positions[start, end] = tuple(tokens[first:stop])
    return positions


def link_pairs(texts: Iterable[LinkedText], tokenizer: Tokenizer, bos_id: int) -> Items:
    """Return the pairs of whole blocks; UserError if a word has no tokens for itself."""
    # Few words are in many choices: to encode each once takes a fiftieth of the time of eval.py.
    choices_of = cache(partial(_payoff_choices, cache(partial(_tokens_of_answer, tokenizer))))
    cell_of = partial(_cell, tokenizer, bos_id, choices_of)
    pairs = list[Pair]()
    linked = [text for text in texts if text.link != NO_LINK]
    for number, (first, second) in enumerate(zip(linked[::2], linked[1::2], strict=True)):
        first_word, *_, second_word = first.pair.split()
        pair = Pair(
            question=first.link.question,
            part=first.holdout,
            cells=(cell_of(first.text, first.link), cell_of(second.text, second.link)),
            texts=(first.text, second.text),
            block=number // 2,
            clusters=(first.frame, first_word, second_word),
            order=first.order,
        )
        pairs.append(pair)
    return Items(pairs)


def _cell(tokenizer: Tokenizer, bos_id: int, choices_of: Callable[..., "_Choices"], text: str, link: Link) -> Cell:
    encoding = encode_text(tokenizer, text)
    ids = encoding.ids
    named = [link.query, link.subject, link.payoff, *link.antecedents, *link.distractors, *link.bystanders]
    words = word_positions(text, encoding.offsets, filter(None, named))
    choices = choices_of(link.answers, link.foils, link.more_foils)
    query = words[link.query][-1]

    # The payoff is read one token before the first token that differs between answers and foils.
    payoff = target = None
    n_fitting = 0
    if link.payoff and choices.answers and choices.foils:
        word = _with_space(text, encoding.offsets, words[link.payoff])
        payoff = word[0] - 1 + choices.n_shared
        target = ids[payoff]
        # Words of several tokens have other probabilities at the first.
        if len(word) == 1 and choices.first_tokens.count(ids[word[0] - 1]) <= 1:
            n_fitting = link.n_fitting
    subject = words[link.subject] if link.subject else None
    return Cell(
        tokens=(bos_id, *ids[: max(query, payoff or 0)]),
        query=query,
        meant=tuple(words[span] for span in link.antecedents),
        other=tuple(words[span] for span in link.distractors),
        bystanders=tuple(words[span] for span in link.bystanders),
        answers=choices.answers,
        foils=choices.foils,
        more_foils=choices.more_foils,
        payoff=payoff,
        target=target,
        subject=subject,
        n_fitting=n_fitting,
        has_word_tokens=query == len(words_of(text[: link.query[1]])),
        has_lost_answer=bool(link.payoff and link.answers) and payoff is None,
    )


def _with_space(text: str, offsets: Sequence[Span], word: Word) -> Word:
    """Return the positions of a word and of the tokens before it that hold only its space."""
    first = word[0]
    while first > 1 and offsets[first - 2] != (0, 0) and not text[slice(*offsets[first - 2])].strip():
        first -= 1
    return (*range(first, word[0]), *word)


@dataclass(frozen=True)
class _Choices:
    """The tokens that can come at a payoff; where all words begin alike, the first that differ."""

    n_shared: int  # the number of tokens with which all words begin
    answers: tuple[int, ...]  # tokens of answers; a token of an answer and a foil is in neither
    foils: tuple[int, ...]
    more_foils: tuple[int, ...]
    first_tokens: tuple[int, ...]  # one per word


_CONTEXT = "It "  # any word can follow it


def _tokens_of_answer(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    text = _CONTEXT + word
    encoding = encode_text(tokenizer, text)
    (position,) = word_positions(text, encoding.offsets, [(len(_CONTEXT), len(text))]).values()
    return tuple(encoding.ids[i - 1] for i in _with_space(text, encoding.offsets, position))


def _payoff_choices(
    tokens_of: Callable[[str], tuple[int, ...]],
    answers: tuple[str, ...],
    foils: tuple[str, ...],
    more_foils: tuple[str, ...],
) -> _Choices:
    tokens = {word: tokens_of(word) for word in (*answers, *foils, *more_foils)}

    # A word that is the beginning of another must keep a token of its own.
    n_shared = 0
    if answers and foils:
        shortest = min(map(len, tokens.values())) - 1
        n_shared = min(shortest, len(commonprefix(list(tokens.values()))))

    # A token that begins an answer and a foil says nothing.
    sides = [dict.fromkeys(tokens[word][n_shared] for word in words) for words in (answers, foils, more_foils)]
    for token in sides[0].keys() & (sides[1] | sides[2]):
        for side in sides:
            side.pop(token, None)
    of_answers, of_foils, of_more = map(tuple, sides)
    return _Choices(n_shared, of_answers, of_foils, of_more, tuple(ids[0] for ids in tokens.values()))
