"""Gold links: the mentions that a pronoun could refer to, the one that it refers to, and the word that shows it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from os.path import commonprefix

from tokenizers import Encoding, Tokenizer

from data.errors import UserError
from data.tokenizer import encode_text

Span = tuple[int, int]  # characters [start, end)
Word = tuple[int, ...]  # the positions of a word's tokens, ascending

# Predictors with a known surprisal at each payoff: with all but the antecedent, and Bayes-optimal.
ORACLES = ("blind", "bayes")
_CELLS = 4  # texts per block


@dataclass(frozen=True, slots=True)
class Link:
    """A question to an attention head: at the word `query`, which mention gets the most attention?

    Spans count characters and so fit every tokenizer.
    """

    level: str  # what decides: number, gender, told_gender, later_cue, ...
    site: str  # where the head is read: before_pronoun, pronoun, cue, before_repeat
    pronoun: Span
    query: Span  # the word of the site
    antecedents: tuple[Span, ...]  # empty if the pronoun refers to nothing ("It was raining")
    distractors: tuple[Span, ...]  # the other mentions that fit the pronoun's role
    subject: Span | None = None  # the mention that is the subject of its sentence
    payoff: Span | None = None  # the first word that only the antecedent explains
    answers: tuple[str, ...] = ()  # the words that fit at the payoff
    foils: tuple[str, ...] = ()  # the words that would fit if a distractor were the antecedent
    surprisal: tuple[float, ...] = ()  # -log p in nats of the payoff for each of ORACLES


@dataclass(frozen=True, slots=True)
class LinkedText:
    """A text with its gold links and its cell of the design; four cells in a row are a block."""

    text: str
    links: tuple[Link, ...]
    family: str
    holdout: str
    frame: str  # what texts of different pairs share; of a story, the frame's text for order 0
    pair: str  # the two words, separated by a space
    order: int  # index in the pair of the word that is mentioned first
    meant: int  # index in the pair of the antecedent


@dataclass(frozen=True, slots=True)
class LinkItem:
    """A link in the tokens of one tokenizer, with its place in the design; position 0 is BOS."""

    tokens: tuple[int, ...]  # BOS and the text up to the later of query and payoff
    query: int  # the last token of the query word
    antecedents: tuple[Word, ...]
    distractors: tuple[Word, ...]
    subject: Word | None
    payoff: int | None  # the position whose next token depends on the antecedent
    target: int | None  # the next token at that position
    answers: tuple[int, ...]  # token ids
    foils: tuple[int, ...]  # token ids
    surprisal: tuple[float, ...]  # -log p(target) in nats for each of ORACLES; empty if unknown
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
    """Return True if the antecedent is the second mention."""
    return item.order != item.meant


def token_spans(text: str, offsets: Sequence[Span], spans: Iterable[Span]) -> list[Word]:
    """Return the indices of the tokens of each word: the tokens that overlap it.

    A byte-level token may begin with the space before its word. The bytes of one character may be
    several tokens. `offsets` are the characters [start, end) of each token, empty for special
    tokens. Raise UserError if words overlap or a word has no tokens for itself.
    """
    spans = list(spans)
    for (start, end), (next_start, next_end) in pairwise(sorted(set(spans))):
        if end > next_start:
            raise UserError(f"the words {text[start:end]!r} and {text[next_start:next_end]!r} overlap")

    # Both ends of the tokens ascend, so a binary search finds the tokens of a word.
    tokens = [i for i, (start, end) in enumerate(offsets) if start < end]
    starts = [offsets[i][0] for i in tokens]
    ends = [offsets[i][1] for i in tokens]
    words = []
    for start, end in spans:
        # The tokens that end after the start of the word and begin before its end.
        first = bisect_right(ends, start)
        stop = bisect_left(starts, end)
        word = text[start:end]
        # Together the tokens must spell the word and nothing else.
        if first >= stop or text[min(starts[first:stop]) : max(ends[first:stop])].strip() != word.strip():
            around = text[max(0, start - 20) : end + 20]
            raise UserError(f"{word!r} has no tokens for itself in {around!r}")
        words.append(tuple(tokens[first:stop]))
    return words


def link_items(texts: Iterable[LinkedText], tokenizer: Tokenizer, bos_id: int) -> list[LinkItem]:
    """Return the items of texts (whole blocks in order) with the token `bos_id` before each.

    A word may be several tokens. Raise UserError if a word of a link has no tokens for itself.
    """
    payoff_choices = cache(partial(_payoff_choices, tokenizer))
    items: list[LinkItem] = []
    with_links = [linked_text for linked_text in texts if linked_text.links]
    for number, linked_text in enumerate(with_links):
        text = linked_text.text
        encoding = encode_text(tokenizer, text)
        ids = encoding.ids
        # The positions of the tokens of every word that a link names.
        words = _word_positions(text, encoding, linked_text.links)
        for link in linked_text.links:
            query = words[link.query][-1]

            # The payoff is read one token before the first token that tells answers from foils.
            choices = payoff_choices(link.answers, link.foils)
            payoff = None
            surprisal: tuple[float, ...] = ()
            if link.payoff and choices.answers and choices.foils:
                word = _with_space(text, encoding.offsets, words[link.payoff])
                payoff = word[0] - 1 + choices.n_shared
                # The oracles predict words, so their surprisal is that of a one-token word only.
                if len(word) == 1 and choices.first_tokens.count(ids[word[0] - 1]) <= 1:
                    surprisal = link.surprisal

            items.append(
                LinkItem(
                    tokens=(bos_id, *ids[: max(query, payoff or 0)]),
                    query=query,
                    antecedents=tuple(words[span] for span in link.antecedents),
                    distractors=tuple(words[span] for span in link.distractors),
                    subject=words[link.subject] if link.subject else None,
                    payoff=payoff,
                    target=None if payoff is None else ids[payoff],
                    answers=choices.answers,
                    foils=choices.foils,
                    surprisal=surprisal,
                    family=linked_text.family,
                    level=link.level,
                    site=link.site,
                    holdout=linked_text.holdout,
                    frame=linked_text.frame,
                    pair=linked_text.pair,
                    block=number // _CELLS,
                    order=linked_text.order,
                    meant=linked_text.meant,
                    text=text,
                )
            )
    return items


def _word_positions(text: str, encoding: Encoding, links: Iterable[Link]) -> dict[Span, Word]:
    """Return the positions of the words of all links, counted with BOS in front."""
    spans = set[Span]()
    for link in links:
        words = [link.query, link.subject, link.payoff, *link.antecedents, *link.distractors]
        spans.update(span for span in words if span)
    ordered = sorted(spans)
    indices = token_spans(text, encoding.offsets, ordered)
    return {span: _after_bos(word) for span, word in zip(ordered, indices, strict=True)}


def _after_bos(indices: Word) -> Word:
    return tuple(i + 1 for i in indices)


def _with_space(text: str, offsets: Sequence[Span], word: Word) -> Word:
    """Return the positions of a word and of the tokens before it that hold only its space."""
    first = word[0]
    while first > 1 and offsets[first - 2] != (0, 0) and not text[slice(*offsets[first - 2])].strip():
        first -= 1
    return (*range(first, word[0]), *word)


@dataclass(frozen=True, slots=True)
class _Choices:
    """The tokens that can come at a payoff; where all words begin alike, the first that differ."""

    n_shared: int  # the number of tokens with which all words begin
    answers: tuple[int, ...]  # tokens of answers; a token of an answer and a foil is in neither
    foils: tuple[int, ...]
    first_tokens: tuple[int, ...]  # one per word


_CONTEXT = "It "  # any word can follow it


def _payoff_choices(tokenizer: Tokenizer, answers: tuple[str, ...], foils: tuple[str, ...]) -> _Choices:
    # The tokens of each word as they are inside a sentence.
    tokens: dict[str, Word] = {}
    for word in (*answers, *foils):
        text = _CONTEXT + word
        encoding = encode_text(tokenizer, text)
        (indices,) = token_spans(text, encoding.offsets, [(len(_CONTEXT), len(text))])
        positions = _with_space(text, encoding.offsets, _after_bos(indices))
        tokens[word] = tuple(encoding.ids[position - 1] for position in positions)

    # A word that is the beginning of another must keep a token of its own.
    n_shared = 0
    if answers and foils:
        shortest = min(map(len, tokens.values())) - 1
        n_shared = len(commonprefix([word[:shortest] for word in tokens.values()]))

    # A token that begins an answer and a foil tells nothing.
    answer_ids = [tokens[word][n_shared] for word in answers]
    foil_ids = [tokens[word][n_shared] for word in foils]
    return _Choices(
        n_shared,
        answers=tuple(dict.fromkeys(token for token in answer_ids if token not in foil_ids)),
        foils=tuple(dict.fromkeys(token for token in foil_ids if token not in answer_ids)),
        first_tokens=tuple(ids[0] for ids in tokens.values()),
    )
