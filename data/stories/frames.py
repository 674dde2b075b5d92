"""The sentences of the stories (grammar.txt), and the frames: those that introduce the mentions.

In a frame {A.gendered} is the name with or without "a girl named" in front.

A frame is a pair of texts, one per order of mention. If both are the same text, {A} is always mentioned first. If they
differ, {A} is always the first member of the pair.
"""

import re
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path

from data.stories.lexicon import unit_hash
from data.words import word_lists

Frame = tuple[str, str]

# The texts of each slot
TEXTS = {
    slot: re.split(r"\n| \| ", texts) for slot, texts in word_lists(Path(__file__).with_name("grammar.txt")).items()
}
FILLERS = TEXTS["FILLER"]
_TWO_PLACES = list(permutations(TEXTS["PLACE"], 2))[::2]


def _frames(slots: str, text: str, other_order: str = "") -> tuple[Frame, ...]:
    """Return a frame for each combination of texts of the slots, whose names stand in `text` and `other_order`."""
    frames = [(text, other_order or text)]
    for slot in slots.split():
        words = TEXTS[slot]
        frames = [(first.replace(slot, word), second.replace(slot, word)) for first, second in frames for word in words]
    return tuple(frames)


def _same_for_both_orders(texts: Iterable[str]) -> tuple[Frame, ...]:
    return tuple((text, text) for text in texts)


# Two nouns of different number.
NOUN_FRAMES = (
    *_frames("POSTURE PREPOSITION", "the {A} POSTURE PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "the {A} {A.was} PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "there {A.was} {A.a} {A} PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "PREPOSITION the {A} , there {B.was} {B.a} {B} ."),
    *_frames("POSTURE PREPOSITION", "PREPOSITION the {A} POSTURE the {B} ."),
    *_frames("SIGHT PREPOSITION", "we SIGHT the {A} PREPOSITION the {B} ."),
    *_same_for_both_orders(
        f"the {{A}} {{A.was}} {place} and the {{B}} {{B.was}} {place_2} ." for place, place_2 in _TWO_PLACES
    ),
)
# Two names.
NAME_FRAMES = (
    *_frames("POSTURE PREPOSITION", "{A} POSTURE PREPOSITION {B} ."),
    *_frames("MEETING PLACE", "{A} MEETING {B} PLACE ."),
    *_frames("POSTURE PREPOSITION", "PREPOSITION {A} POSTURE {B} ."),
    *_same_for_both_orders(f"{{A}} was {place} and {{B}} was {place_2} ." for place, place_2 in _TWO_PLACES),
)
# The same with the gender of each name stated or not.
MAYBE_GENDERED_FRAMES = _same_for_both_orders(re.sub("{(.)}", r"{\1.gendered}", text) for text, _ in NAME_FRAMES)
# An animal {A} on a rest {B}: animal first, rest first.
REST_FRAMES = _frames("LYING NEXT_TO", "the {A} LYING NEXT_TO the {B} because", "NEXT_TO the {B} LYING the {A} because")
# One near the other. After "tired" comes an animal, not the rest that was named: so a cue learns which held-out nouns
# do not fit it. Without these, one model in ten failed, since its head attended to such nouns.
NEAR_FRAMES = _frames(
    "CLOSE_TO SEEN", "CLOSE_TO the {A} SEEN a {QUALITY} {B} .", "CLOSE_TO the {B} SEEN a {FEELING} {A} ."
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
    """Return "dev" or "test" for a held-out frame and those derived from it (10 % each, by hash), else ""."""
    share = unit_hash("frame", base_frame(text))
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""
