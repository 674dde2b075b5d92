"""The sentences of the stories: openers, fillers, endings, and the frames that introduce the mentions.

Slots of a frame: {A} and {B} are the two mentions, {A.a} the indefinite article, {A.was} "was" or "were",
{A.gendered} the name with or without "a girl named" in front, {FEELING} and {QUALITY} an adjective.

A frame is a pair of texts, one per order of mention. If both are the same text, {A} is always mentioned first. If they
differ, {A} is always the first member of the pair.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import product

from data.stories.lexicon import unit_hash

Frame = tuple[str, str]

# At least four words, so that no candidate is among the first four tokens, which often act as attention sinks.
OPENERS = [
    "One sunny day ,", "Early in the morning ,", "Once upon a time ,", "On a rainy day ,", "After a long week ,",
    "In the early spring ,", "At the old farm ,", "Late in the evening ,", "Far from the city ,",
    "When school was over ,", "On the first day ,", "Before the long winter ,", "In a quiet village ,",
    "Just before noon ,", "On a cold night ,", "At the last minute ,",
]  # fmt: skip
# Neutral sentences: no pronoun of a story can refer to anything in them.
FILLERS = [
    "Everything was quiet .", "The air was warm .", "Nobody was in a hurry .", "The sky was blue .", "All was calm .",
    "The sun was bright .", "Nothing was wrong .", "The wind was gentle .", "Spring was near .", "The day was long .",
    "Then night came .", "The moon was full .", "Lunch was over .", "Summer was here .", "The grass was green .",
    "Time went by .", "The snow was deep .", "The news was good .", "The road was empty .", "Music was in the air .",
]  # fmt: skip
# The end of a sentence after its verb.
ENDINGS = [".", "again .", "all day .", "at once ."]

_PREPOSITIONS = (
    "near", "beside", "behind", "by", "next to", "close to", "in front of", "far from", "across from", "not far from",
)  # fmt: skip
POSTURES = ("sat", "stood", "waited", "stayed", "rested")
_LYING_POSTURES = (
    "lay", "sat", "slept", "rested", "stayed", "dozed", "waited", "stretched out", "curled up", "settled", "relaxed",
    "hid", "napped",
)  # fmt: skip
_SIGHTS = ("saw", "found", "noticed", "watched", "photographed")
PLACES = (
    "in the garden", "in the street", "at the market", "on the hill", "at the park", "by the river", "in the yard",
    "on the beach", "at school", "at home",
)  # fmt: skip
_TWO_PLACES = [pair for pair in product(PLACES, PLACES) if pair[0] != pair[1]][::2]
_MEETINGS = ("met", "saw", "helped", "visited", "followed", "called", "thanked", "knew", "liked", "passed")


def _frames(text: str, other_order: str = "", **choices: Sequence[str]) -> tuple[Frame, ...]:
    """Return a frame for each combination of choices; a choice takes the place of its name in the text."""
    frames = [(text, other_order or text)]
    for name, words in choices.items():
        frames = [(first.replace(name, word), second.replace(name, word)) for first, second in frames for word in words]
    return tuple(frames)


def _same_for_both_orders(texts: Iterable[str]) -> tuple[Frame, ...]:
    return tuple((text, text) for text in texts)


# Two nouns of different number.
NOUN_FRAMES = (
    *_frames("the {A} POSTURE PREP the {B} .", POSTURE=(*POSTURES, "{A.was}"), PREP=_PREPOSITIONS),
    *_frames("there {A.was} {A.a} {A} PREP the {B} .", PREP=_PREPOSITIONS),
    *_frames("PREP the {A} , there {B.was} {B.a} {B} .", PREP=_PREPOSITIONS),
    *_frames("PREP the {A} POSTURE the {B} .", POSTURE=POSTURES, PREP=_PREPOSITIONS),
    *_frames("we SAW the {A} PREP the {B} .", SAW=_SIGHTS, PREP=_PREPOSITIONS),
    *_same_for_both_orders(
        f"the {{A}} {{A.was}} {place} and the {{B}} {{B.was}} {place_2} ." for place, place_2 in _TWO_PLACES
    ),
)
# Two names.
NAME_FRAMES = (
    *_frames("{A} POSTURE PREP {B} .", POSTURE=POSTURES, PREP=_PREPOSITIONS),
    *_frames("{A} MET {B} PLACE .", MET=_MEETINGS, PLACE=PLACES),
    *_frames("PREP {A} POSTURE {B} .", POSTURE=POSTURES, PREP=_PREPOSITIONS),
    *_same_for_both_orders(f"{{A}} was {place} and {{B}} was {place_2} ." for place, place_2 in _TWO_PLACES),
)
# The same with the gender of each name stated or not.
MAYBE_GENDERED_FRAMES = _same_for_both_orders(re.sub("{(.)}", r"{\1.gendered}", text) for text, _ in NAME_FRAMES)
# An animal {A} on a rest {B}: animal first, rest first.
REST_FRAMES = _frames(
    "the {A} LAY ON the {B} because",
    "ON the {B} LAY the {A} because",
    LAY=_LYING_POSTURES,
    ON=("on", "under", "near", "beside", "behind", "by", "next to", "close to"),
)
# One near the other. After "tired" comes an animal, not the rest that was named: so a cue learns which held-out nouns
# do not fit it. Without these, one model in ten failed, since its head attended to such nouns.
NEAR_FRAMES = tuple(
    (f"{place} the {{A}} {seen} a {{QUALITY}} {{B}} .", f"{place} the {{B}} {seen} a {{FEELING}} {{A}} .")
    for place in ("near", "beside", "behind", "by", "next to", "close to", "in front of", "not far from")
    for seen in (", there was", "we saw", "was")
)


def subject(text: str) -> str:
    """Return the slot of the grammatical subject of a frame: "A", "B", or "" if there is none or more than one."""
    words = text.split()
    if words[0] == "we" or "and" in words:
        return ""
    if text.startswith(("the {A}", "{A}", "there {A.was}")):
        return "A"
    _, second = (word[1] for word in words if word in ("{A}", "{B}"))
    return second  # "near the {A} sat the {B}"


def base_frame(text: str) -> str:
    """Return a frame with the names alone: the frame from which it was derived."""
    return text.replace(".gendered}", "}")


def held_out(text: str) -> str:
    """Return "dev" or "test" for a frame held out from training (10 % each, by hash), and "" for the others.

    A derived frame is held out together with its base frame.
    """
    share = unit_hash("frame", base_frame(text))
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""
