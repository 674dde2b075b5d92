"""Blocks of four in plain English whose payoff is the next pronoun.

"Lily met Tom near a big tree. Tom was sad because": the next pronoun is about the person who is named
again. Two orders of the people x two named again, as in the stories, so the same tests apply to a
model of any English text. That person is also the last one mentioned. Only names that the training
text contains are used. Dev and the headline of test differ in names, introductions and continuations.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from random import Random

from tokenizers import Tokenizer

from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.errors import UserError
from data.links import Link, LinkedText, LinkItem, Span, link_items
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
_PRONOUNS = ("she", "he")
# A name is used if the training text has it often enough.
MIN_COUNT = 10  # occurrences of a name in the training text
# The least number of names of each gender in dev and in test: sign flips of 8 names allow a p of
# 1 / 2^8, of 6 none below 0.01.
_LEAST_DEV = 3
_LEAST_TEST = 8
_DEV_SHARE = 1 / 3  # for names, introductions and continuations
_Names = tuple[list[str], list[str]]  # feminine, masculine


def english_texts(
    counts: Mapping[str, int] | None, *, n_frames: int, n_pairs: int, seed: int
) -> dict[str, list[LinkedText]]:
    """Return the texts of dev and test, in blocks of four.

    `counts` has the words of the training text; if None, it is unknown and every name is used. Test
    has `n_frames` frames, dev half as many; each has `n_pairs` pairs of names. Raise UserError if the
    training text has too few of the names.
    """
    dev = _known_names(counts, "dev")
    test = _known_names(counts, "test")
    for gender, of_dev, of_test in zip(("feminine", "masculine"), dev, test, strict=True):
        if len(of_dev) < _LEAST_DEV or len(of_test) < _LEAST_TEST:
            raise UserError(
                f"blocks of sentences: {len(of_dev)} + {len(of_test)} words of the list {gender} "
                f"(dev + test) occur {MIN_COUNT} times or more in the training text; "
                f"needed: {_LEAST_DEV} + {_LEAST_TEST}"
            )

    # Test has the names of dev too, in its own frames.
    rng = Random(f"english {seed}")
    texts: dict[str, list[LinkedText]] = {"dev": [], "test": []}
    parts = (("dev", "iid", dev), ("test", "iid", dev), ("test", "headline", test))
    for split, holdout, names in parts:
        frames = list(product(_part(_INTRODUCTIONS, split), _part(_CONTINUATIONS, split)))
        n_drawn = min(len(frames), n_frames // 2 if split == "dev" else n_frames)
        for introduction, continuation in rng.sample(frames, n_drawn):
            for _ in range(n_pairs):
                texts[split] += _block(rng, introduction, continuation, names, holdout)

    # Blocks in which the last sentence has an "it" without antecedent.
    for _ in range(n_frames * n_pairs):
        introduction = rng.choice(_part(_INTRODUCTIONS, "test"))
        texts["test"] += _block(rng, introduction, rng.choice(_NO_ANTECEDENT), test, "headline")
    return texts


def english_items(
    counts: Mapping[str, int] | None,
    tokenizer: Tokenizer,
    bos_id: int,
    context_length: int,
    *,
    n_frames: int,
    n_pairs: int,
    seed: int,
    splits: Sequence[str] = ("dev", "test"),
) -> dict[str, list[LinkItem]]:
    """Return the texts of `english_texts` in some splits as items, with `bos_id` before every text.

    Raise UserError also if a word of a link has no tokens for itself, or if a text is longer than the
    context.
    """
    texts = english_texts(counts, n_frames=n_frames, n_pairs=n_pairs, seed=seed)
    items = {split: link_items(texts[split], tokenizer, bos_id) for split in splits}
    longest = max(len(item.tokens) for item in chain.from_iterable(items.values()))
    if longest > context_length:
        problem = f"have up to {longest} tokens, but the model reads {context_length}"
        raise UserError(f"blocks of sentences: {problem}")
    return items


def _known_names(counts: Mapping[str, int] | None, split: str) -> _Names:
    """Return the names of one split that occur at least MIN_COUNT times in the training text, if it is known."""
    names: _Names = ([], [])
    for known, all_names in zip(names, (FEMININE_NAMES, MASCULINE_NAMES), strict=True):
        for name in sorted(all_names):
            is_often = counts is None or counts.get(name, 0) >= MIN_COUNT
            is_dev = unit_hash("english", name) < _DEV_SHARE
            if is_often and is_dev == (split == "dev"):
                known.append(name)
    return names


def _part(texts: tuple[str, ...], split: str) -> tuple[str, ...]:
    n_dev = round(_DEV_SHARE * len(texts))
    return texts[:n_dev] if split == "dev" else texts[n_dev:]


def _block(rng: Random, introduction: str, ending: str, names: _Names, holdout: str) -> list[LinkedText]:
    """Return the four cells of a block: each person first x each person named again."""
    people = [rng.choice(of_gender) for of_gender in names]
    opener = rng.choice(_OPENERS)
    # A text about a named person ends with the pronoun, which is the payoff.
    has_antecedent = "{X}" in ending
    frame = f"{introduction} {ending}"
    cells = []
    for order in (0, 1):
        for meant in (0, 1):
            slots = {"A": people[order], "B": people[1 - order], "X": people[meant]}
            pronoun = f" {_PRONOUNS[meant]}" if has_antecedent else ""
            text, spans = _filled(f"{opener} {frame}{pronoun}", slots)
            cell = LinkedText(
                text=text,
                links=(_link(spans, order, meant, ending.split()[-1]),),
                family="english" if has_antecedent else "no_antecedent",
                holdout=holdout,
                frame=frame,
                pair=" ".join(people),
                order=order,
                meant=meant,
            )
            cells.append(cell)
    return cells


def _filled(frame: str, slots: Mapping[str, str]) -> tuple[str, dict[str, Span]]:
    """Return the text of a frame and the characters of each slot and word; for equal words, of the last."""
    text = ""
    spans: dict[str, Span] = {}
    for symbol in frame.split():
        word = slots.get(symbol.strip("{}"), symbol)
        text += word if symbol in (".", ",") or not text else f" {word}"
        spans[symbol.strip("{}")] = (len(text) - len(word), len(text))
    return text, spans


def _link(spans: Mapping[str, Span], order: int, meant: int, last_word: str) -> Link:
    """Return the link of a text; in one without a named person, the "it" of its last sentence refers to nothing."""
    # The person who is named again, and the other.
    mentions = (spans["A"], spans["B"]) if order == meant else (spans["B"], spans["A"])
    if "X" not in spans:
        pronoun = spans["it"]
        return Link(
            level="no_antecedent",
            site="pronoun",
            pronoun=pronoun,
            query=pronoun,
            antecedents=(),
            distractors=mentions,
        )
    pronoun = spans[_PRONOUNS[meant]]
    return Link(
        level="gender",
        site="before_pronoun",
        pronoun=pronoun,
        query=spans[last_word],
        antecedents=(mentions[0], spans["X"]),
        distractors=mentions[1:],
        payoff=pronoun,
        answers=(_PRONOUNS[meant],),
        foils=(_PRONOUNS[1 - meant],),
    )
