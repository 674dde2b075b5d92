"""The gold links of a text: which words a pronoun could mean, which it does mean, and where that shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Span = tuple[int, int]  # characters [start, end)


# Readers of whom the surprise at each payoff is known, from the exact filter over the stories' own grammar.
ORACLES = ("blind", "nearest", "first", "subject", "default", "bayes")


Word = tuple[int, ...]  # the positions of a word's tokens, one after the other


@dataclass(frozen=True, slots=True)
class Link:
    """One question to an attention head: standing at `query`, which mention do you look at?

    Spans count characters, so that any tokenizer can read them. `distractors` are the other mentions that
    could have been meant. `antecedents` is empty where nothing is meant ("It was raining").
    """

    level: str  # L1 number decides, L2 gender decides, R a later word decides, N nothing is meant
    site: str  # S1 the pronoun, S2 the word that decides
    pronoun: Span
    query: Span  # where to read: the pronoun at S1, the deciding word at S2
    antecedents: tuple[Span, ...]
    distractors: tuple[Span, ...]
    subject: Span | None  # the mention that is the grammatical subject of its sentence, where one is
    payoff: Span | None  # the first word that only the antecedent explains; None where nothing is meant
    answers: tuple[str, ...]  # the words the payoff is drawn from
    foils: tuple[str, ...]  # the words it would be drawn from if the distractor were meant
    surprisal: tuple[float, ...] = ()  # -log p in nats of the payoff by each of ORACLES


@dataclass(frozen=True, slots=True)
class LinkItem:
    """A link in the tokens of one tokenizer, with its place in the design; positions count the END in front as 0."""

    tokens: tuple[int, ...]  # END and the text up to and including the word before the payoff, or to the query
    query: int  # of a word of several tokens the last, the first that has read it whole
    antecedents: tuple[Word, ...]
    distractors: tuple[Word, ...]
    subject: Word | None
    payoff: int | None  # the position whose next token the antecedent decides
    target: int | None  # the token id that does come there
    answers: tuple[int, ...]  # token ids
    foils: tuple[int, ...]  # token ids
    surprisal: tuple[float, ...]  # -log p(target) in nats by each of ORACLES; empty where it is not known
    family: str
    level: str
    site: str
    holdout: str
    template: str
    pair: str
    block: int  # the same for the four cells of one block
    order: int
    meant: int
    text: str


def link_items(rows: Iterable[dict[str, Any]], tokenizer: Tokenizer, end_id: int) -> list[LinkItem]:
    """Turn dataset rows into items; a word may be one token or several.

    Of the words that could come next one piece each is asked for: the first, a space in front counting as one where it
    is, or after whatever all of them begin with the next. A piece that stands for an answer and for a foil tells
    nothing and is neither; where that leaves a side without any, nothing pays off.

    Args:
        rows: of a stories split, whole blocks in order.
        tokenizer: anything whose `encode(text)` gives `ids` and `char_to_token`.
        end_id: the token that stands before every text.

    Raises:
        ValueError: a word of a link shares a token with its neighbour or has none.

    """
    pieces_of = _pieces(tokenizer)
    items, n_stories = [], 0
    for row in rows:
        if not row["links"]:
            continue
        encoding = encoded(tokenizer, row["text"])
        ids, at = encoding.ids, _Positions(row["text"], encoding)
        for link in row["links"]:
            answers, foils = ({word: pieces_of(word) for word in link[side]} for side in ("answers", "foils"))
            shared = _n_shared([*answers.values(), *foils.values()]) if answers and foils else 0
            own = at.with_space(link["payoff"]) if link["payoff"] else ()
            payoff = own[0] - 1 + shared if own else None
            query = at.of(link["query"])[-1]
            is_known = len(own) == 1 and [one[0] for one in (answers | foils).values()].count(ids[own[0] - 1]) <= 1
            right, wrong = _telling(answers, foils, shared), _telling(foils, answers, shared)
            if own and answers and foils and not (right and wrong):
                payoff = None
            items.append(
                LinkItem(
                    tokens=(end_id, *ids[: max(query, payoff or 0)]),
                    query=query,
                    antecedents=tuple(at.of(span) for span in link["antecedents"]),
                    distractors=tuple(at.of(span) for span in link["distractors"]),
                    subject=at.of(link["subject"]) if link["subject"] else None,
                    payoff=payoff,
                    target=None if payoff is None else encoding.ids[payoff],
                    answers=right,
                    foils=wrong,
                    surprisal=tuple(link["surprisal"]) if is_known else (),  # of a whole word, of no part of it
                    level=link["level"],
                    site=link["site"],
                    block=n_stories // 4,
                    **{name: row[name] for name in ("family", "holdout", "template", "pair", "order", "meant", "text")},
                )
            )
        n_stories += 1
    return items


_BEFORE = "It "  # any word of the stories may follow it


def _pieces(tokenizer: Tokenizer) -> Callable[[str], tuple[int, ...]]:
    """Return what gives the tokens of a word that follows another in a text, the space between them included."""

    @cache  # the same few words answer again and again
    def pieces_of(word: str) -> tuple[int, ...]:
        text = _BEFORE + word
        encoding = encoded(tokenizer, text)
        return tuple(
            encoding.ids[place - 1] for place in _Positions(text, encoding).with_space((len(_BEFORE), len(text)))
        )

    return pieces_of


def _n_shared(words: Sequence[tuple[int, ...]]) -> int:
    """Return how many pieces all of some words begin with, one of each word being left over."""
    most = min(map(len, words)) - 1
    return next((place for place in range(most) if len({word[place] for word in words}) > 1), most)


def encoded(tokenizer: Tokenizer, text: str) -> Any:
    """Return what the tokenizer makes of `text`; ValueError where it cannot write it."""
    try:
        return tokenizer.encode(text)
    except Exception as error:  # of a tokenizer from elsewhere that has no token for something and none for unknown
        raise ValueError(f"the tokenizer cannot write {text!r}: {error}") from None


def _telling(words: dict[str, tuple[int, ...]], others: dict[str, tuple[int, ...]], place: int) -> tuple[int, ...]:
    """Return the pieces that some words have at `place`, each once, but for those that another word of `others` has."""
    there = {(pieces[place], word) for word, pieces in others.items()}
    found = {}
    for word, pieces in words.items():
        if not any(piece == pieces[place] and other != word for piece, other in there):
            found[pieces[place]] = word
    return tuple(found)


def decided(block: Sequence[LinkItem]) -> bool:
    """Whether the text up to the query already tells which mention is meant.

    Args:
        block: the four cells of one block at one site, in their order: two for each order of the mentions.

    Returns:
        False where the two cells of an order have read the same tokens up to and including their queries: whatever
        decides between them comes later, so no row of attention at the query can show it.

    """
    read = [item.tokens[: item.query + 1] for item in block]
    return read[0] != read[1] and read[2] != read[3]


def undecided(items: Iterable[LinkItem]) -> set[tuple[str, str, str]]:
    """Return the (family, level, site) that have a block in which the clue comes after the query.

    There a head can only guess, right in half of the items, and no score may be counted as a finding.
    Blocks that are not whole, and items in which nothing is meant, are passed over.
    """
    blocks: dict[tuple[int, str], list[LinkItem]] = defaultdict(list)
    for item in items:
        if item.antecedents:
            blocks[item.block, item.site].append(item)
    whole = (sorted(some, key=lambda item: (item.order, item.meant)) for some in blocks.values() if len(some) == 4)
    return {(some[0].family, some[0].level, some[0].site) for some in whole if not decided(some)}


def is_flipped(item: LinkItem) -> bool:
    """Whether the second mention is meant."""
    return item.order != item.meant


def flipped(items: Iterable[LinkItem]) -> list[LinkItem]:
    """Return the items in which the second mention is meant: the hold-out of text that mostly means the first."""
    return [item for item in items if is_flipped(item)]


class _Positions:
    def __init__(self, text: str, encoding: Any) -> None:
        self._text, self._encoding = text, encoding

    def of(self, span: Span) -> Word:
        """Return the positions of the tokens that make up the word at `span`, and nothing else."""
        first, last = (self._encoding.char_to_token(char) for char in (span[0], span[1] - 1))
        if first is None or last is None or not self._covers(first, last, span):
            raise ValueError(f"{self._text[span[0] : span[1]]!r} has no tokens of its own in {self._text!r}")
        return tuple(range(first + 1, last + 2))  # the END in front counts

    def with_space(self, span: Span) -> Word:
        """Return `of` with the tokens in front that stand for nothing but the space before the word."""
        first, *others = self.of(span)
        offsets = self._encoding.offsets
        while first > 1 and offsets[first - 2] != (0, 0) and not self._text[slice(*offsets[first - 2])].strip():
            others, first = [first, *others], first - 1
        return (first, *others)

    def _covers(self, first: int, last: int, span: Span) -> bool:
        """Whether tokens first to last hold the word and at most the space before it."""
        start, end = self._encoding.offsets[first][0], self._encoding.offsets[last][1]
        return self._text[start : span[0]].strip() == "" and end == span[1]


def word_pieces(text: str, offsets: Sequence[Span], spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """Return, for each word, the indices of the tokens that overlap it.

    A token of byte-level BPE may begin with the space before its word; it belongs to the word all the same. A character
    of several bytes may be several tokens with the same characters; all of them belong to its word.

    Args:
        text: what was cut into tokens.
        offsets: the characters [start, end) of each token; empty for one that stands for none.
        spans: the characters [start, end) of the words asked for, in any order, none overlapping another.

    Returns:
        for each of `spans` the indices of its tokens, ascending.

    Raises:
        ValueError: a word has no tokens, or they hold more than it and the space around it, as where a token belongs
            to two words.

    """
    real = [(index, start, end) for index, (start, end) in enumerate(offsets) if start < end]
    order = sorted(range(len(spans)), key=lambda i: spans[i])
    for before, after in pairwise(order):
        if spans[before][1] > spans[after][0]:
            raise ValueError(f"the words {text[slice(*spans[before])]!r} and {text[slice(*spans[after])]!r} overlap")
    found: list[tuple[int, ...]] = [()] * len(spans)
    first = 0
    for i in order:
        begin, finish = spans[i]
        while first < len(real) and real[first][2] <= begin:
            first += 1
        last = first
        while last < len(real) and real[last][1] < finish:
            last += 1
        some = real[first:last]
        word = text[begin:finish]
        if not some or text[min(one[1] for one in some) : max(one[2] for one in some)].strip() != word.strip():
            raise ValueError(f"{word!r} has no tokens of its own in {text[max(0, begin - 20) : finish + 20]!r}")
        found[i] = tuple(index for index, _, _ in some)
    return found
