"""The sentences of the stories (grammar.txt), and the frames: those that introduce the mentions.

{A} is the mention that comes first. {A.gendered} is the name with or without "a girl named" in front.
"""

import re
from itertools import permutations
from pathlib import Path

from data.stories.lexicon import unit_hash
from data.words import word_lists

TEXTS = {
    slot: re.split(r"\n| \| ", texts) for slot, texts in word_lists(Path(__file__).with_name("grammar.txt")).items()
}
FILLERS = TEXTS["FILLER"]
_TWO_PLACES = list(permutations(TEXTS["PLACE"], 2))[::2]


def _frames(slots: str, text: str) -> tuple[str, ...]:
    """Return a frame for each combination of texts of the slots, whose names stand in `text`."""
    frames = [text]
    for slot in slots.split():
        frames = [frame.replace(slot, word) for frame in frames for word in TEXTS[slot]]
    return tuple(frames)


def _cause_frames(did: str, did_often: str) -> tuple[str, ...]:
    """Return the frames of two animals and a verb that decides which of them a pronoun means."""
    return (
        *_frames("PLACE", f"the {{A}} {did} the {{B}} PLACE because"),
        *_frames("PLACE", f"PLACE the {{A}} {did} the {{B}} because"),
        *_frames("PLACE", f"the {{A}} that was PLACE {did} the {{B}} because"),
        *_frames("PLACE", f"the {{A}} {did} the {{B}} that was PLACE because"),
        *_frames("OFTEN", f"the {{A}} {did_often} the {{B}} because"),
        *_frames("OFTEN PLACE", f"PLACE the {{A}} {did_often} the {{B}} because"),
    )


def _third_frames(did: str) -> tuple[str, ...]:
    """Return frames with a third animal {C}, which no pronoun means: before the two, between them, or after them."""
    return (
        *_frames("PLACE", f"the {{SIZED}} {{C}} was PLACE . The {{SIZED}} {{A}} {did} the {{SIZED}} {{B}} because"),
        *_frames("NEAR", f"NEAR the {{SIZED}} {{C}} the {{SIZED}} {{A}} {did} the {{SIZED}} {{B}} because"),
        *_frames("NEAR", f"the {{SIZED}} {{A}} NEAR the {{SIZED}} {{C}} {did} the {{SIZED}} {{B}} because"),
        *_frames("SIGHT", f"the {{SIZED}} {{A}} that SIGHT the {{SIZED}} {{C}} {did} the {{SIZED}} {{B}} because"),
        *_frames("NEAR", f"the {{SIZED}} {{A}} {did} the {{SIZED}} {{B}} NEAR the {{SIZED}} {{C}} because"),
        *_frames("SIGHT", f"the {{SIZED}} {{A}} {did} the {{SIZED}} {{B}} that SIGHT the {{SIZED}} {{C}} because"),
    )


NOUN_FRAMES = (
    *_frames("POSTURE PREPOSITION", "the {A} POSTURE PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "the {A} {A.was} PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "there {A.was} {A.a} {A} PREPOSITION the {B} ."),
    *_frames("PREPOSITION", "PREPOSITION the {A} , there {B.was} {B.a} {B} ."),
    *_frames("POSTURE PREPOSITION", "PREPOSITION the {A} POSTURE the {B} ."),
    *_frames("SIGHT PREPOSITION", "we SIGHT the {A} PREPOSITION the {B} ."),
    *(f"the {{A}} {{A.was}} {place} and the {{B}} {{B.was}} {place_2} ." for place, place_2 in _TWO_PLACES),
)
NAME_FRAMES = (
    *_frames("POSTURE PREPOSITION", "{A} POSTURE PREPOSITION {B} ."),
    *_frames("MEETING PLACE", "{A} MEETING {B} PLACE ."),
    *_frames("POSTURE PREPOSITION", "PREPOSITION {A} POSTURE {B} ."),
    *(f"{{A}} was {place} and {{B}} was {place_2} ." for place, place_2 in _TWO_PLACES),
)
# The same with the gender of each name stated or not.
MAYBE_GENDERED_FRAMES = tuple(re.sub("{(.)}", r"{\1.gendered}", text) for text in NAME_FRAMES)
ACTIVE_FRAMES = _cause_frames("{CAUSE}", "OFTEN {CAUSE}")
PASSIVE_FRAMES = _cause_frames("was {CAUSED} by", "was OFTEN {CAUSED} by")
ACTIVE_THIRD_FRAMES = _third_frames("{CAUSE}")
PASSIVE_THIRD_FRAMES = _third_frames("was {CAUSED} by")
STATE_FRAMES = (
    "the {A} {A.on} the {B} because",
    *_frames("PLACE", "the {A} {A.on} the {B} PLACE because"),
    *_frames("PLACE", "PLACE the {A} {A.on} the {B} because"),
)


def subject(text: str) -> str:
    """Return the slot of the grammatical subject of a frame: "A", "B", or "" if there is none or more than one."""
    words = text.split()
    if "because" in words:
        return "A"
    if words[0] == "we" or "and" in words:
        return ""
    if text.startswith(("the {A}", "{A}", "there {A.was}")):
        return "A"
    return "B"  # "near the {A} sat the {B}"


def base_frame(text: str) -> str:
    """Return a frame with the names alone: the frame from which it was derived."""
    return text.replace(".gendered}", "}")


def held_out(text: str) -> str:
    """Return "dev" or "test" for a held-out frame and those derived from it (10 % each, by hash), else ""."""
    share = unit_hash("frame", base_frame(text))
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""
