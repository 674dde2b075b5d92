"""Gold links: the mentions that a pronoun could refer to, the one that it refers to, and the word that shows it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from os.path import commonprefix
from typing import Any

from tokenizers import Tokenizer

from data.tokenizer import encode_text

Span = tuple[int, int]  # characters [start, end)
Word = tuple[int, ...]  # the positions of a word's tokens, ascending

# Predictors with a known surprisal at each payoff: with all but the antecedent, and Bayes-optimal.
ORACLES = ("blind", "bayes")


@dataclass(frozen=True, slots=True)
class Link:
    """A question to an attention head: at the word `query`, which mention gets the most attention?

    Spans count characters and so fit every tokenizer.
    """

    level: str  # what decides: number, gender, told_gender, state, before, after, object, later_cue, ...
    site: str  # where the head is read: before_pronoun, pronoun, cue, before_repeat
    pronoun: Span
    query: Span  # the word of the site
    antecedents: tuple[Span, ...]  # empty if the pronoun refers to nothing ("It was raining")
    distractors: tuple[Span, ...]  # the other mentions that fit the pronoun's role
    subject: Span | None  # the mention that is the subject of its sentence
    payoff: Span | None  # the first word that only the antecedent explains
    answers: tuple[str, ...]  # the words that fit at the payoff
    foils: tuple[str, ...]  # the words that would fit if a distractor were the antecedent
    surprisal: tuple[float, ...] = ()  # -log p in nats of the payoff for each of ORACLES


@dataclass(frozen=True, slots=True)
class LinkItem:
    """A link in the tokens of one tokenizer, with its place in the design; position 0 is the END token."""

    tokens: tuple[int, ...]  # END and the text up to the query, or to the token before the payoff if that is later
    query: int  # the last token of the query word
    antecedents: tuple[Word, ...]
    distractors: tuple[Word, ...]
    subject: Word | None
    payoff: int | None  # the position whose next token depends on the antecedent
    target: int | None  # the next token at that position
    answers: tuple[int, ...]  # token ids
    foils: tuple[int, ...]  # token ids
    surprisal: tuple[float, ...]  # -log p(target) in nats for each of ORACLES; empty if it is not known
    family: str
    level: str
    site: str
    holdout: str
    frame: str
    pair: str
    block: int  # the same for the four cells of one block
    order: int  # the member of the pair that is mentioned first
    meant: int  # the member of the pair that the pronoun refers to
    text: str


def is_flipped(item: LinkItem) -> bool:
    """Returns True if the antecedent is the second mention."""
    return item.order != item.meant


def token_spans(text: str, offsets: Sequence[Span], spans: Iterable[Span]) -> list[Word]:
    """Returns the indices of the tokens of each word: the tokens that overlap it.

    A byte-level token may begin with the space before its word. The bytes of one character may be several tokens.
    `offsets` are the characters [start, end) of each token, empty for special tokens. Raises ValueError if words
    overlap or a word has no tokens for itself.
    """
    spans = list(spans)
    for (start, end), (next_start, next_end) in pairwise(sorted(set(spans))):
        if end > next_start:
            raise ValueError(f"the words {text[start:end]!r} and {text[next_start:next_end]!r} overlap")
    tokens = [i for i, (start, end) in enumerate(offsets) if start < end]
    starts, ends = [offsets[i][0] for i in tokens], [offsets[i][1] for i in tokens]
    words = []
    for start, end in spans:
        first, stop = bisect_right(ends, start), bisect_left(starts, end)
        word = text[start:end]
        if first >= stop or text[min(starts[first:stop]) : max(ends[first:stop])].strip() != word.strip():
            raise ValueError(f"{word!r} has no tokens for itself in {text[max(0, start - 20) : end + 20]!r}")
        words.append(tuple(tokens[first:stop]))
    return words


def link_items(rows: Iterable[dict[str, Any]], tokenizer: Tokenizer, end_id: int) -> list[LinkItem]:
    """Returns the items of story rows (whole blocks in order) with the token `end_id` before every text.

    A word may be several tokens. Raises ValueError if a word of a link has no tokens for itself.
    """
    payoff_choices = cache(partial(_payoff_choices, tokenizer))
    items: list[LinkItem] = []
    for story_number, row in enumerate(row for row in rows if row["links"]):
        text, encoding = row["text"], encode_text(tokenizer, row["text"])
        position = _word_positions(text, encoding.offsets, row["links"])
        design = {name: row[name] for name in ("family", "holdout", "frame", "pair", "order", "meant", "text")}
        for link in row["links"]:
            query = position[tuple(link["query"])][-1]
            choices = payoff_choices(tuple(link["answers"]), tuple(link["foils"]))
            payoff, is_whole_word = None, False
            if link["payoff"] and choices.answers and choices.foils:
                word = _with_space(text, encoding.offsets, position[tuple(link["payoff"])])
                payoff = word[0] - 1 + choices.n_shared
                is_whole_word = len(word) == 1 and choices.first_tokens.count(encoding.ids[word[0] - 1]) <= 1
            items.append(
                LinkItem(
                    tokens=(end_id, *encoding.ids[: max(query, payoff or 0)]),
                    query=query,
                    antecedents=tuple(position[tuple(span)] for span in link["antecedents"]),
                    distractors=tuple(position[tuple(span)] for span in link["distractors"]),
                    subject=position[tuple(link["subject"])] if link["subject"] else None,
                    payoff=payoff,
                    target=None if payoff is None else encoding.ids[payoff],
                    answers=choices.answers,
                    foils=choices.foils,
                    surprisal=tuple(link["surprisal"]) if is_whole_word else (),
                    level=link["level"],
                    site=link["site"],
                    block=story_number // 4,
                    **design,
                )
            )
    return items


def _word_positions(text: str, offsets: Sequence[Span], links: Sequence[dict[str, Any]]) -> dict[Span, Word]:
    """Returns the positions of the words of all links, counted with the END token in front."""
    spans = set[Span]()
    for link in links:
        words = [link["query"], link["subject"], link["payoff"], *link["antecedents"], *link["distractors"]]
        spans.update(tuple(span) for span in words if span)
    ordered = sorted(spans)
    words_of_spans = zip(ordered, token_spans(text, offsets, ordered), strict=True)
    return {span: tuple(i + 1 for i in word) for span, word in words_of_spans}


def _with_space(text: str, offsets: Sequence[Span], word: Word) -> Word:
    """Returns the positions of a word and of the tokens before it that hold nothing but its space."""
    first = word[0]
    while first > 1 and offsets[first - 2] != (0, 0) and not text[slice(*offsets[first - 2])].strip():
        first -= 1
    return (*range(first, word[0]), *word)


@dataclass(frozen=True, slots=True)
class _Choices:
    """The tokens that can come at a payoff. Where all words begin alike, the first token that differs is measured."""

    n_shared: int  # the number of tokens with which all words begin
    answers: tuple[int, ...]  # tokens of answers; a token of an answer and a foil is in neither
    foils: tuple[int, ...]
    first_tokens: tuple[int, ...]  # one per word


_CONTEXT = "It "  # any word can follow it


def _payoff_choices(tokenizer: Tokenizer, answers: tuple[str, ...], foils: tuple[str, ...]) -> _Choices:
    tokens: dict[str, Word] = {}
    for word in (*answers, *foils):
        text = _CONTEXT + word
        encoding = encode_text(tokenizer, text)
        (indices,) = token_spans(text, encoding.offsets, [(len(_CONTEXT), len(text))])
        positions = _with_space(text, encoding.offsets, tuple(i + 1 for i in indices))
        tokens[word] = tuple(encoding.ids[position - 1] for position in positions)
    n_shared = 0
    if answers and foils:
        shortest = min(map(len, tokens.values())) - 1
        n_shared = len(commonprefix([word[:shortest] for word in tokens.values()]))
    answer_ids, foil_ids = ([tokens[word][n_shared] for word in words] for words in (answers, foils))
    answer_tokens = tuple(dict.fromkeys(token for token in answer_ids if token not in foil_ids))
    foil_tokens = tuple(dict.fromkeys(token for token in foil_ids if token not in answer_ids))
    return _Choices(n_shared, answer_tokens, foil_tokens, tuple(ids[0] for ids in tokens.values()))
