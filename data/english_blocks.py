"""Blocks of four in plain English whose payoff is the next pronoun.

"Lily met Tom near a big tree. Tom was sad because": the next pronoun is about the person who is named again. Two orders
of the people x two named again, as in the stories, so the same tests apply to a model of any English text. That person
is also the last one mentioned. Only names that the training text contains are used. Dev and the headline of test
differ in names, introductions and continuations.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from itertools import product
from random import Random
from typing import Any

from tokenizers import Tokenizer

from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.links import Link, LinkItem, Span, link_items
from data.stories.lexicon import unit_hash

# {A} is mentioned before {B}; {X} is the one of both who is named again.
_INTRODUCTIONS = (
    "{A} met {B} near a big tree .", "{A} saw {B} in the park .", "{A} played with {B} in the garden .",
    "{A} went to the shop with {B} .", "{A} sat next to {B} at home .", "{A} ran to the river with {B} .",
    "{A} was in the kitchen with {B} .", "{A} walked to school with {B} .",
)  # fmt: skip
_CONTINUATIONS = (
    "{X} was sad because", "{X} was tired , so", "{X} was happy because", "{X} was hungry , so", "{X} smiled because",
    "{X} was scared because", "{X} felt cold , so", "{X} was proud because",
)  # fmt: skip
_OPENERS = ("One day ,", "In the morning ,", "After lunch ,", "That day ,", "On a sunny day ,", "In the evening ,")
_NO_ANTECEDENT = ("Outside , it was raining .", "Soon it was dark .", "Then it was late .", "That day it was cold .")
PRONOUNS = ("she", "he")
MIN_COUNT = 10  # occurrences of a name in the training text
# The least number of words of dev and of test: sign flips of 8 names allow a p of 1 / 2^8, of 6 none below 0.01.
LEAST = {"feminine": (3, 8), "masculine": (3, 8)}
_DEV_SHARE = 1 / 3  # for names, introductions and continuations


def english_rows(counts: Mapping[str, int] | None, *, n_frames: int, n_pairs: int, seed: int) -> dict[str, list[Any]]:
    """Returns the rows of dev and test, in the form of story rows.

    `counts` has the words of the training text; if None, it is unknown and every word is used.

    Test has `n_frames` frames, dev half as many; each has `n_pairs` pairs of names. Raises ValueError if the training
    text has too few of the names.
    """
    pools = {"feminine": FEMININE_NAMES, "masculine": MASCULINE_NAMES}
    parts = {split: {name: known(words, counts, split) for name, words in pools.items()} for split in ("dev", "test")}
    for name, least in LEAST.items():
        n_dev, n_test = (len(parts[split][name]) for split in ("dev", "test"))
        if n_dev < least[0] or n_test < least[1]:
            raise ValueError(
                f"blocks of sentences: {n_dev} + {n_test} words of the list {name} (dev + test) occur {MIN_COUNT} "
                f"times or more in the training text; needed: {least[0]} + {least[1]}"
            )
    rng = Random(f"english {seed}")
    rows: dict[str, list[Any]] = {"dev": [], "test": []}
    for split, holdout, words in (("dev", "iid", "dev"), ("test", "iid", "dev"), ("test", "headline", "test")):
        frames = list(product(_part(_INTRODUCTIONS, split), _part(_CONTINUATIONS, split)))
        for frame in rng.sample(frames, min(len(frames), n_frames // 2 if split == "dev" else n_frames)):
            for _ in range(n_pairs):
                rows[split] += _block(rng, frame, parts[words], holdout)
    for _ in range(n_frames * n_pairs):
        frame = rng.choice(_part(_INTRODUCTIONS, "test")), rng.choice(_NO_ANTECEDENT)
        rows["test"] += _block(rng, frame, parts["test"], "headline")
    return rows


def english_items(
    counts: Mapping[str, int] | None,
    tokenizer: Tokenizer,
    start: int,
    context_length: int,
    *,
    n_frames: int,
    n_pairs: int,
    seed: int,
    splits: Sequence[str] = ("dev", "test"),
) -> dict[str, list[LinkItem]]:
    """Returns the rows of `english_rows` in some splits as items, with the token `start` before every text.

    Raises ValueError also if a word of a link has no tokens for itself, or if a text is longer than the context.
    """
    rows = english_rows(counts, n_frames=n_frames, n_pairs=n_pairs, seed=seed)
    items = {split: link_items(rows[split], tokenizer, start) for split in splits}
    longest = max(len(item.tokens) for split in items.values() for item in split)
    if longest > context_length:
        raise ValueError(f"blocks of sentences: have up to {longest} tokens, but the model reads {context_length}")
    return items


def known(words: Set[str], counts: Mapping[str, int] | None, split: str) -> list[str]:
    """Returns the words of one split, in order, that the training text contains at least MIN_COUNT times, if known."""
    often = (word for word in words if counts is None or counts.get(word, 0) >= MIN_COUNT)
    return sorted(word for word in often if (unit_hash("english", word) < _DEV_SHARE) == (split == "dev"))


def _part(texts: tuple[str, ...], split: str) -> tuple[str, ...]:
    """Returns the introductions or continuations of one split."""
    n_dev = round(_DEV_SHARE * len(texts))
    return texts[:n_dev] if split == "dev" else texts[n_dev:]


def _block(rng: Random, frame: tuple[str, str], words: Mapping[str, list[str]], holdout: str) -> list[dict[str, Any]]:
    """Returns the four cells of a block: each person first x each person named again."""
    people, opener = (rng.choice(words["feminine"]), rng.choice(words["masculine"])), rng.choice(_OPENERS)
    rows = []
    for order in (0, 1):
        for meant in (0, 1):
            slots = {"A": people[order], "B": people[1 - order], "X": people[meant], "PRONOUN": PRONOUNS[meant]}
            is_empty = "{X}" not in frame[1]
            text, spans = _filled(f"{opener} {frame[0]} {frame[1]}" + ("" if is_empty else " {PRONOUN}"), slots)
            mentions = (spans["A"], spans["B"]) if order == meant else (spans["B"], spans["A"])
            last_word = frame[1].split()[-1]
            rows.append({
                "text": text,
                "links": [asdict(_link(spans, mentions, last_word, meant))],
                "family": "no_antecedent" if is_empty else "english",
                "holdout": holdout, "frame": " ".join(frame), "pair": " ".join(people),
                "order": order, "meant": meant,
            })  # fmt: skip
    return rows


def _filled(frame: str, slots: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    """Returns the text of a frame and the characters of each slot and word; for equal words, of the last."""
    text, spans = "", dict[str, Span]()
    for symbol in frame.split():
        word = slots.get(symbol.strip("{}"), symbol)
        text += word if symbol in (".", ",") or not text else f" {word}"
        spans[symbol.strip("{}")] = (len(text) - len(word), len(text))
    return text, spans


def _link(spans: Mapping[str, Span], mentions: tuple[Span, Span], last_word: str, meant: int) -> Link:
    """Returns the link of a text; in one without a named person, the "it" of its last sentence refers to nothing."""
    if "X" not in spans:
        return Link(
            level="no_antecedent", site="pronoun", pronoun=spans["it"], query=spans["it"], antecedents=(),
            distractors=mentions, subject=None, payoff=None, answers=(), foils=(),
        )  # fmt: skip
    return Link(
        level="gender", site="before_pronoun", pronoun=spans["PRONOUN"], query=spans[last_word],
        antecedents=(mentions[0], spans["X"]), distractors=mentions[1:], subject=None, payoff=spans["PRONOUN"],
        answers=(PRONOUNS[meant],), foils=(PRONOUNS[1 - meant],),
    )  # fmt: skip
