"""Passages before a pronoun in the tokens of a model, each with its twin (`data.next_pronoun`)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from data.links import Span, Word, token_spans
from data.next_pronoun import Counterparts, Passage, Twin, content_words, make_twin
from data.tokenizer import encode_text, unknown_id
from probe.statistics import Design, cap_clusters

MAX_SHARE = 0.1  # largest fraction of the passages of one kind that may mention the same entity
_SEARCHED = 4  # times as many passages are tokenized at most, because frequent entities fill their share


@dataclass(frozen=True, slots=True)
class PassageItem:
    """A passage and its twin in the tokens of a model. Position 0 is the token before every text."""

    passage: Passage
    texts: tuple[tuple[int, ...], ...]  # tokens of the passage and, if it has one, of its twin; both end at the site
    forms: tuple[int, int]  # token of the pronoun of each class
    mentions: tuple[tuple[Word, Word], ...]  # for each text, positions of the mentions of either class
    content_word: tuple[Word, ...]  # for each text, positions of the same random content word; empty without one


@dataclass(frozen=True)
class PassageItems:
    """The items of one question and kind."""

    items: list[PassageItem]
    left_out: Counter[str] = field(default_factory=Counter)  # how many passages, by reason

    @property
    def clusterings(self) -> list[np.ndarray]:
        """The document and the entity of each class of each passage, each [N].

        A passage without an entity of a class is a cluster of its own there.
        """
        names = [(item.passage.doc, *item.passage.entities) for item in self.items]
        table = np.array(names, dtype=object).reshape(-1, 3)
        alone = np.array([f"passage {i}" for i in range(len(table))], dtype=object)
        return [np.where(labels == "", alone, labels).astype(str) for labels in table.T]

    def designs(self) -> list[Design]:
        """Return the designs of an interval: documents crossed with entities (see `probe.statistics`)."""
        documents, *entities = self.clusterings
        return [(documents, labels) for labels in entities]

    def n_entities(self, side: int) -> int:
        """Return how many different entities of a class there are."""
        return len({item.passage.entities[side] for item in self.items} - {""})

    def take(self, index: np.ndarray) -> "PassageItems":
        """Return the items at `index`."""
        return PassageItems([self.items[i] for i in index], self.left_out)


def make_passage_items(
    passages: Sequence[Passage],
    kind: str,
    tokenizer: Tokenizer,
    bos_id: int,
    max_tokens: int,
    seed: int,
    limit: int,
    *,
    has_earlier: bool = False,
    max_share: float = MAX_SHARE,
) -> PassageItems:
    """Return up to `limit` passages of a kind, drawn at random, in the tokens of a model.

    They have no earlier pronoun, or with `has_earlier` all have one. No entity of a class is in more than `max_share`
    of them. A passage is left out, and counted by reason, if the pronouns are not one token each, if there is no
    counterpart, if a word shares a token with its neighbour or is unknown, or if the text does not
    fit into the context.
    """
    usable = [passage for passage in passages if passage.kind == kind and bool(passage.pronouns) == has_earlier]
    rng = np.random.default_rng(seed)
    counterparts = Counterparts(usable, lambda word: len(encode_text(tokenizer, f" {word}").ids), seed)
    unknown = unknown_id(tokenizer)
    found = PassageItems([])
    for i in rng.permutation(len(usable)):
        if len(found.items) == _SEARCHED * limit:
            break
        passage = usable[i]

        # The twin, and a content word to compare the mentions with.
        replacements = counterparts.of(passage)
        twin = None if replacements is None else make_twin(passage, replacements)
        if twin is None:
            found.left_out["no counterpart of the other class"] += 1
            continue
        content = content_words(passage)
        word = content[int(rng.integers(len(content)))] if content else None

        # Both in the tokens of the model.
        item = _make_passage_item(passage, twin, word, tokenizer, bos_id, max_tokens, unknown)
        if isinstance(item, str):
            found.left_out[item] += 1
        else:
            found.items.append(item)

    # No entity may dominate.
    n_found = len(found.items)
    selected = cap_clusters(found.clusterings[1:], max_share, limit) if n_found else list[int]()
    if n_found > len(selected):
        reason = f"more than enough, or an entity in more than {max_share:.0%} of the passages"
        found.left_out[reason] = n_found - len(selected)
    return found.take(np.array(selected, dtype=int))


def _make_passage_item(
    passage: Passage,
    twin: Twin | None,
    word: Span | None,
    tokenizer: Tokenizer,
    bos_id: int,
    max_tokens: int,
    unknown: int | None = None,
) -> PassageItem | str:
    """Return a passage and its twin in the tokens of a model, or the reason why it is left out.

    `word` is a span of the passage that is compared with the mentions, if any; `unknown` is the token of unknown words.
    """
    texts = list[tuple[int, ...]]()
    mentions = list[tuple[Word, Word]]()
    content_word = list[Word]()
    all_forms = set[tuple[int, int]]()
    for text, groups, extra in _versions(passage, twin, word):
        # Both pronouns follow the same tokens and are one token each.
        first, second = (encode_text(tokenizer, text + form) for form in passage.forms)
        before = tuple(first.ids[:-1])
        if tuple(second.ids[:-1]) != before or text[first.offsets[-1][0] :].strip():
            return "a pronoun is not one token"
        all_forms.add((first.ids[-1], second.ids[-1]))
        try:
            words = token_spans(text, first.offsets[:-1], [*groups[0], *groups[1], *extra])
        except ValueError:
            return "a word shares a token with its neighbour"

        # A text without twin loses its beginning if it is longer than the context; position 0 is the first token.
        lost = 0 if twin else max(0, len(before) + 1 - max_tokens)
        tokens = (bos_id, *before[lost:])
        places = [_moved(positions, lost) for positions in words]
        if unknown in {tokens[i] for i in _joined(places)}:
            return "a word is unknown"

        # Mentions of each class, and the content word if there is one.
        n_first = len(groups[0])
        n_mentions = n_first + len(groups[1])
        sides = (_joined(places[:n_first]), _joined(places[n_first:n_mentions]))
        if any(group and not selected for group, selected in zip(groups, sides, strict=True)):
            return "every mention of an entity lies outside the context"
        texts.append(tokens)
        mentions.append(sides)
        content_word.append(places[-1] if extra else ())
    forms = all_forms.pop()
    if all_forms or forms[0] == forms[1] or unknown in forms:
        return "a pronoun is not one token"
    if max(map(len, texts)) > max_tokens:
        return "longer than the context"
    return PassageItem(passage, tuple(texts), forms, tuple(mentions), tuple(content_word))


def _moved(positions: Word, lost: int) -> Word:
    """Return token positions of a text as those of the model's input, which begins with one token more."""
    return tuple(i + 1 - lost for i in positions if i >= lost)


def _joined(words: Sequence[Word]) -> Word:
    joined: list[int] = []
    for word in words:
        joined += word
    return tuple(joined)


def _versions(
    passage: Passage, twin: Twin | None, word: Span | None
) -> Iterator[tuple[str, tuple[Sequence[Span], Sequence[Span]], list[Span]]]:
    """Yield text, mentions of each class and content word of a passage and of its twin, if it has one."""
    yield passage.text, passage.mentions, [word] if word else []
    if twin:
        moved = [twin.moved(word)] if word else []
        yield twin.text, (twin.mentions[1], twin.mentions[0]), moved
