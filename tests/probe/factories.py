"""Items, models, settings and made-up dataclasses that the tests of several modules share, each made once."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import product
from random import Random
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from tokenizers import Tokenizer

from antecedent_lab.sources import story_items
from data.pairs import NO_LINK, Cell, Items, LinkedText, Pair, Word, link_pairs
from data.stories import generate_split
from data.tokenizer import end_id, word_tokenizer
from extras.english.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from extras.english.passages import Passage, Reader, passages_in
from extras.english.source import passages_of
from extras.own.file import OwnQuestion
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel
from tests.copying_model import CopyingModel
from tests.data.small_corpora import CONFIG
from tests.planted import plant
from tests.tiny_models import config as model_config
from tests.tiny_models import random_model, random_view, untrained

SETTINGS = ProbeConfig(seed=0, tokens_per_batch=4096, n_bootstrap=200, n_untrained=2, n_controls=10)
SIZES: dict[str, Any] = {"d_model": 48, "context_length": 64}


@cache
def story_tokenizer() -> Tokenizer:
    return word_tokenizer([story.text for story in generate_split(CONFIG, "train")])


@cache
def story_pairs(split: str, *questions: str) -> Items:
    """Return the pairs of a split, or those of some questions; "study" has those that a study needs."""
    if questions:
        return story_pairs(split).where(lambda pair: pair.question in questions)
    reader = (story_tokenizer(), end_id(story_tokenizer()))
    if split == "study":
        return story_items(*(generate_split(CONFIG, name) for name in ("dev", "test")), reader)
    return link_pairs(generate_split(CONFIG, split), *reader)


def own_question(name: str, *, has_control: bool) -> OwnQuestion:
    """Return a question of a file without its texts, but for one of the control."""
    control = [LinkedText("", NO_LINK, "", "", "", "", 0, 0)] if has_control else []
    return OwnQuestion("a.jsonl", name, "nouns", dev=[], test=[], control=control, n_left_out=0, places={})


def planted(kind: str, **options: Any) -> Transformer:
    return plant(model_config(**SIZES), story_tokenizer().get_vocab(), kind, **options)


def story_model(**switches: Any) -> Transformer:
    return random_model(story_tokenizer().get_vocab_size(), **SIZES | switches)


def untrained_view(seed: int) -> TransformerView:
    return TransformerView(untrained(story_tokenizer().get_vocab_size(), 5 + seed, **SIZES))


def cell(tokens: Sequence[int], words: tuple[Word, Word], meant: int, /, **changes: Any) -> Cell:
    """Return a text whose antecedent is one of two words, one with two answers, the other with three."""
    answers = ((41, 43), (44, 45, 46))
    last = len(tokens) - 1
    values: dict[str, Any] = {
        "tokens": tuple(tokens), "query": last, "payoff": last, "meant": (words[meant],), "other": (words[1 - meant],),
        "answers": answers[meant], "foils": answers[1 - meant], "target": answers[meant][0],
    }  # fmt: skip
    return Cell(**values | changes)


def block_of(number: int, cells: Sequence[Cell], **changes: Any) -> list[Pair]:
    """Return the two pairs of a block: both orders of the mentions, each with both meanings."""
    values: dict[str, Any] = {"question": "number", "part": "headline", "block": number, "texts": ("a text", "another")}
    values |= {"clusters": (f"t{number % 3}", f"a{number % 2}", f"b{number}")}
    return [Pair(**values | {"cells": (cells[2 * o], cells[2 * o + 1]), "order": o} | changes) for o in (0, 1)]


def random_pairs() -> Items:
    """Return five blocks of random tokens: mentions of one to three tokens, many lengths, payoffs after the query.

    In the third block the texts of a pair differ before the query; the fourth has a mention that is never meant.
    """
    rng = np.random.default_rng(0)
    shapes = ((0, 1, 1, 2, 2, 0), (4, 2, 1, 3, 1, 0), (2, 1, 3, 1, 2, 3), (3, 1, 1, 5, 1, 2), (2, 2, 2, 2, 0, 0))
    pairs = []
    for number, (n_before, *lengths, n_between, n_behind, n_after) in enumerate(shapes):
        parts = [rng.integers(1, 30, n).tolist() for n in (*lengths, n_before, n_between, n_behind)]
        names, gaps = parts[:2], parts[2:]
        cells = []
        for order, meant in product((0, 1), (0, 1)):
            first, second = names[order], names[1 - order]
            prefix = [0, *gaps[0], *first, *gaps[1], *second, *gaps[2]]
            start, later = n_before + 1, n_before + 1 + len(first) + n_between
            mentions = (tuple(range(start, start + len(first))), tuple(range(later, later + len(second))))
            prefix[-1] = 30 + meant if number == 2 else prefix[-1]
            places = {"query": len(prefix), "control": (0,)}
            tokens = [*prefix, 32 + meant, *range(34, 34 + n_after)]
            cells.append(cell(tokens, mentions if order == 0 else mentions[::-1], meant, **places))
        pairs += block_of(number, cells)
    return Items(pairs)


def pair_view(**switches: Any) -> TransformerView:
    return random_view(53, **{"context_length": 64} | switches)


# A model of ten tokens in which three heads attend equally from a pronoun to the nouns of its kind. Head 0 writes the
# noun's verb, head 1 nothing, head 2 a direction that no answer uses. A large eps makes each norm the identity.
START, OTHER, VERB, PRONOUN, NOUN = 0, 1, (2, 3), (4, 5), (6, 7, 8, 9)  # nouns of kind 0, 1, 0, 1
GAIN = 3.0


def three_heads(strength: float = 1.0, writing: Sequence[int] = (0,)) -> TransformerView:
    """Return the model; at a query the antecedent has the score `strength`, the other mention -strength, the rest 0.

    The heads `writing` write the verb.
    """
    sizes = {"n_layer": 1, "n_head": 3, "d_model": 12, "d_mlp": 5, "context_length": 31}
    model = untrained(10, **sizes, rope_theta=1e24, norm_eps=1e12)
    attention = model.blocks[0].attention
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1e6 if name.endswith("gain") else 0)
        model.token_embedding.weight.copy_(torch.eye(10, 12))
        for kind, head in product((0, 1), range(3)):
            sign = 1 - 2 * kind
            nouns = list(NOUN[kind::2])
            attention.query.weight[4 * head + 1, PRONOUN[kind]] = 2.0 * sign * strength  # divided by sqrt(4)
            attention.key.weight[4 * head + 1, nouns] = sign
            attention.value.weight[4 * head + kind, nouns] = 1
            if head in writing:
                attention.output.weight[VERB[kind], 4 * head + kind] = GAIN
            elif head == 2:
                attention.output.weight[10, 4 * head + kind] = 7.0
    return TransformerView(model)


def noun_pairs() -> Items:
    """Return four blocks for `three_heads`: two nouns of different kind, then a pronoun; the verb is the answer."""
    pairs = []
    for number, nouns in enumerate(((6, 7), (8, 9), (6, 9), (8, 7))):
        cells = []
        for order, meant in product((0, 1), (0, 1)):
            words = ((2,), (4,)) if order == 0 else ((4,), (2,))
            tokens = [START, OTHER, nouns[order], OTHER, nouns[1 - order], *[OTHER] * number, PRONOUN[meant]]
            of_verbs = {"answers": (VERB[meant],), "foils": (VERB[1 - meant],), "target": VERB[meant]}
            cells.append(cell(tokens, words, meant, **of_verbs))
        pairs += block_of(number, cells, clusters=(f"t{number}", str(nouns[0]), str(nouns[1])))
    return Items(pairs)


FRAMES = (
    ("{A} met {B} in the quiet park. {P} slept.", "Yesterday {B} saw {A} under trees, and then {p} ran home.",
     "{A} came with bread. Then {B} cooked. {P} slept."),
    ("{A} went to the quiet park. {P} slept.", "Happy people saw {A} there, and then {p} ran home."),
)  # fmt: skip


@cache
def documents(n: int = 120) -> list[tuple[str, str]]:
    """Return named documents of one passage each, by turns with two people and with one."""
    rng = Random(1)
    found = []
    for i in range(n):
        sides = [rng.choice(sorted(names)[:24]) for names in (FEMININE_NAMES, MASCULINE_NAMES)]
        first, meant = rng.randrange(2), rng.randrange(2)
        first = meant if i % 2 else first
        pronoun = ("she", "he")[meant]
        slots = {"A": sides[first], "B": sides[1 - first], "p": pronoun, "P": pronoun.capitalize()}
        found.append((f"d{i}", rng.choice(FRAMES[i % 2]).format(**slots)))
    return found


@cache
def passage_tokenizer() -> Tokenizer:
    return word_tokenizer([*(text for _, text in documents()), *FEMININE_NAMES, *MASCULINE_NAMES])


@cache
def passages() -> list[Passage]:
    return passages_in(documents())


def passage_items(found: Sequence[Passage] | None = None) -> Items:
    reader = Reader(passage_tokenizer(), end_id(passage_tokenizer()), CopyingModel.context_length)
    return passages_of(reader, 1, passages() if found is None else found, SETTINGS)


def copying_model(gains: Sequence[float], seed: int = 0, *, knows_gender: bool = True) -> CopyingModel:
    return CopyingModel(gains, passage_tokenizer(), seed=seed, knows_gender=knows_gender)


def word_model(texts: Sequence[str], **changes: Any) -> OpenedModel:
    """Return a random model, opened as an external one, that knows the words of `texts`."""
    tokenizer = word_tokenizer(texts)
    model = random_view(tokenizer.get_vocab_size(), **SIZES | changes)
    facts = {"name": "small", "source": "nowhere", "data_fingerprint": "english", "shape": {}, "environment": {}}
    facts |= {"model": model, "untrained": None, "view": None, "tokenizer": tokenizer, "departures": ()}
    return blank(OpenedModel, bos_id=end_id(tokenizer), **facts)


def blank(kind: Any, **values: Any) -> Any:
    """Return a dataclass with these values, and an empty value in every other field without a default."""
    hints = get_type_hints(kind)
    for part in fields(kind):
        if part.name not in values and part.default is part.default_factory:  # both are MISSING
            values[part.name] = _empty(hints[part.name])
    return kind(**values)


def _empty(kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:
        return None
    if origin is tuple:
        return tuple(_empty(part) for part in parts if part is not Ellipsis)
    return blank(kind) if is_dataclass(kind) else (origin or kind)()  # 0, 0.0, "", [] or {}
