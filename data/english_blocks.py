"""Blocks of four in plain English whose payoff is in the context.

"Lily had a ball and Tom had a kite. She liked the ball." Two orders of the people x two pronouns, as in the stories, so
the same tests apply to a model of any English text. Only words that the training text contains are used. Dev and the
headline of test differ in names, objects and frames.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from random import Random
from typing import Any

from data.english import FEMININE_NAMES, MASCULINE_NAMES, SINGULARS
from data.links import Link, Span
from data.stories.lexicon import unit_hash

# {A} is mentioned before {B}; {P} belongs to {A} and {Q} to {B}.
_INTRODUCTIONS = (
    "{A} had a {P} and {B} had a {Q} .", "{A} found a {P} , and {B} found a {Q} .", "{A} got a {P} . {B} got a {Q} .",
    "{A} bought a {P} and {B} bought a {Q} .", "there was a {P} for {A} and a {Q} for {B} .",
    "{A} brought a {P} , but {B} brought a {Q} .", "{A} saw a {P} . {B} saw a {Q} .",
    "{A} made a {P} and {B} made a {Q} .",
)  # fmt: skip
_CONTINUATIONS = (
    "{PRONOUN} liked the", "{PRONOUN} loved the", "{PRONOUN} took the", "{PRONOUN} looked at the",
    "{PRONOUN} was happy with the", "{PRONOUN} put down the", "{PRONOUN} held the", "{PRONOUN} picked up the",
)  # fmt: skip
FRAMES = tuple((intro, continuation) for intro in _INTRODUCTIONS for continuation in _CONTINUATIONS)
_OPENERS = ("One day ,", "In the morning ,", "After lunch ,", "That day ,", "On a sunny day ,", "In the evening ,")
_WITHOUT_ANTECEDENT = (
    "Outside , it was raining .",
    "Soon it was dark .",
    "Then it was late .",
    "That day it was cold .",
)
PRONOUNS = ("She", "He")
OBJECTS = SINGULARS & set(
    "apple bag ball balloon banana basket bell bicycle book bottle bowl box bracelet broom bucket button cake "
    "candle cap car coat coin cookie crown cup desk diamond doll drum flag flower fork gift hammer hat horn jar "
    "jewel key kite knife ladder lamp lantern letter map marble mask mirror needle net nut orange pan pear pearl "
    "pebble pen pencil picture pie pillow pin plate pot puppet purse puzzle ribbon ring robot rock rope sack scarf "
    "shell ship shirt shoe shovel spoon star stick stone sword toy train trumpet umbrella vase wagon whistle".split()
)
MIN_COUNT = 10  # occurrences of a name or an object in the training text
MIN_NAMES, MIN_OBJECTS = 12, 16  # of each gender; fewer could not give a corrected p below 0.01
_DEV_SHARE = 1 / 3  # of names, objects and frames


def english_rows(counts: Mapping[str, int] | None, *, n_frames: int, n_pairs: int, seed: int) -> dict[str, list[Any]]:
    """Returns the rows of dev and test, in the form of story rows.

    Args:
        counts: occurrences of each word in the training text; None: every word is known.
        n_frames: frames of test; dev has half as many.
        n_pairs: pairs of names per frame.
        seed: of the random draws.

    Raises:
        ValueError: the training text has too few of the names or objects.

    """
    pools = {name: known(words, counts) for name, words in
             (("feminine", FEMININE_NAMES), ("masculine", MASCULINE_NAMES), ("objects", OBJECTS))}  # fmt: skip
    if min(len(pools["feminine"]), len(pools["masculine"])) < MIN_NAMES or len(pools["objects"]) < MIN_OBJECTS:
        sizes = f"{len(pools['feminine'])} feminine and {len(pools['masculine'])} masculine names"
        raise ValueError(
            f"blocks of sentences: {sizes} and {len(pools['objects'])} objects occur {MIN_COUNT} times or more in the "
            f"training text; needed: {MIN_NAMES} names of each gender and {MIN_OBJECTS} objects"
        )
    rng = Random(f"english {seed}")
    parts = {split: {name: [word for word in words if _split(word) == split] for name, words in pools.items()}
             for split in ("dev", "test")}  # fmt: skip
    frames = {split: [frame for frame in FRAMES if _split(*frame) == split] for split in ("dev", "test")}
    rows: dict[str, list[Any]] = {"dev": [], "test": []}
    for split, holdout, words in (("dev", "iid", "dev"), ("test", "iid", "dev"), ("test", "headline", "test")):
        chosen = rng.sample(frames[split], min(len(frames[split]), n_frames // 2 if split == "dev" else n_frames))
        for frame in chosen:
            for _ in range(n_pairs):
                rows[split] += _block(rng, frame, parts[words], holdout)
    for _ in range(n_frames * n_pairs):
        rows["test"] += _block(
            rng, (rng.choice(_INTRODUCTIONS), rng.choice(_WITHOUT_ANTECEDENT)), parts["test"], "headline"
        )
    return rows


def known(words: frozenset[str] | set[str], counts: Mapping[str, int] | None) -> list[str]:
    """Returns the words, in order, that the training text contains at least MIN_COUNT times."""
    return sorted(word for word in words if counts is None or counts.get(word, 0) >= MIN_COUNT)


def _split(*strings: str) -> str:
    return "dev" if unit_hash("english", *strings) < _DEV_SHARE else "test"


def _block(rng: Random, frame: tuple[str, str], words: Mapping[str, list[str]], holdout: str) -> list[dict[str, Any]]:
    """Returns the four cells of a block: each person first x each person meant; the objects stay with their owners."""
    people = rng.choice(words["feminine"]), rng.choice(words["masculine"])
    objects, opener = rng.sample(words["objects"], 2), rng.choice(_OPENERS)
    rows = []
    for order in (0, 1):
        for meant in (0, 1):
            slots = {"A": people[order], "B": people[1 - order], "P": objects[order], "Q": objects[1 - order]}
            slots |= {"PRONOUN": PRONOUNS[meant], "PAYOFF": objects[meant]}
            is_empty = "{PRONOUN}" not in frame[1]
            text, spans = _filled(f"{opener} {frame[0]} {frame[1]}" + ("" if is_empty else " {PAYOFF} ."), slots)
            mentions = (spans["A"], spans["B"]) if order == meant else (spans["B"], spans["A"])
            rows.append({
                "text": text,
                "links": [asdict(_empty_link(text, mentions) if is_empty else _link(spans, mentions, objects, meant))],
                "family": "no_antecedent" if is_empty else "english",
                "holdout": holdout, "template": " ".join(frame), "pair": " ".join(people),
                "order": order, "meant": meant,
            })  # fmt: skip
    return rows


def _filled(template: str, slots: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    """Returns the text of a template and the characters of each slot."""
    text, spans = "", dict[str, Span]()
    for symbol in template.split():
        word = slots.get(symbol.strip("{}"), symbol)
        if word[0] in "aeiou" and symbol[0] == "{" and text.endswith(" a"):
            text += "n"
        text += word if symbol in (".", ",") or not text else f" {word}"
        if symbol[0] == "{":
            spans[symbol.strip("{}")] = (len(text) - len(word), len(text))
    return text, spans


def _link(spans: Mapping[str, Span], mentions: tuple[Span, Span], objects: list[str], meant: int) -> Link:
    return Link(
        level="gender", site="pronoun", pronoun=spans["PRONOUN"], query=spans["PRONOUN"], antecedents=mentions[:1],
        distractors=mentions[1:], subject=None, payoff=spans["PAYOFF"], answers=(objects[meant],),
        foils=(objects[1 - meant],),
    )  # fmt: skip


def _empty_link(text: str, mentions: tuple[Span, Span]) -> Link:
    """Returns the link of a text whose last sentence has an "it" that refers to nothing."""
    (pronoun,) = (match.span() for match in re.finditer(r"\bit\b", text))
    return Link(
        level="no_antecedent", site="pronoun", pronoun=pronoun, query=pronoun, antecedents=(), distractors=mentions,
        subject=None, payoff=None, answers=(), foils=(),
    )  # fmt: skip
