"""How a story is put together: frames with slots, and the text with the place of every slot.

A frame is a list of words, some of them slots. Words are filled from left to right and each slot depends only on
what stands to its left, so that the exact probability of any next word can be computed by a forward filter.

Slots: {A} {B} the first and second mention, {A.a} its indefinite article, {A.was} was or were.
"""

from dataclasses import dataclass
from functools import cache

from data.links import Span
from data.stories.lexicon import Referent, unit_hash

# At least four words, so that no candidate stands among the first four tokens, where attention sinks live.
OPENERS = [
    "One sunny day ,", "Early in the morning ,", "Once upon a time ,", "On a rainy day ,", "After a long week ,",
    "In the early spring ,", "At the old farm ,", "Late in the evening ,", "Far from the city ,",
    "When school was over ,", "On the first day ,", "Before the long winter ,", "In a quiet village ,",
    "Just before noon ,", "On a cold night ,", "At the last minute ,",
]  # fmt: skip
# Nothing in a filler can be meant by a pronoun of the story's.
FILLERS = [
    "Everything was quiet .", "The air was warm .", "Nobody was in a hurry .", "The sky was blue .", "All was calm .",
    "The sun was bright .", "Nothing was wrong .", "The wind was gentle .", "Spring was near .", "The day was long .",
    "Then night came .", "The moon was full .", "Lunch was over .", "Summer was here .", "The grass was green .",
    "Time went by .", "The snow was deep .", "The news was good .", "The road was empty .", "Music was in the air .",
]  # fmt: skip
ENDINGS = [".", "again .", "for a while .", "all day .", "at once .", "once more ."]

_PREPOSITIONS = (
    "near", "beside", "behind", "by", "next to", "close to", "in front of", "far from", "across from", "not far from",
)  # fmt: skip
_POSTURES = ("sat", "stood", "waited", "stayed", "rested", "{A.was}")
_SIGHTS = ("saw", "found", "noticed", "watched", "photographed")
PLACES = (
    "in the garden", "in the street", "at the market", "on the hill", "at the park", "by the river", "in the yard",
    "on the beach", "at school", "at home",
)  # fmt: skip
_MEETINGS = ("met", "saw", "helped", "visited", "followed", "called", "thanked", "knew", "liked", "passed")


@cache
def noun_frames() -> tuple[str, ...]:
    """Return the frames that introduce two nouns of different number."""
    return (
        *(f"the {{A}} {posture} {prep} the {{B}} ." for posture in _POSTURES for prep in _PREPOSITIONS),
        *(f"there {{A.was}} {{A.a}} {{A}} {prep} the {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} , there {{B.was}} {{B.a}} {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} {posture} the {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"we {sight} the {{A}} {prep} the {{B}} ." for sight in _SIGHTS for prep in _PREPOSITIONS),
        *(f"the {{A}} {{A.was}} {one} and the {{B}} {{B.was}} {two} ." for one, two in _two_places()),
    )


@cache
def name_frames() -> tuple[str, ...]:
    """Return the frames that introduce a girl and a boy."""
    return (
        *(f"{{A}} {posture} {prep} {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"{{A}} {meeting} {{B}} {place} ." for meeting in _MEETINGS for place in PLACES),
        *(f"{prep} {{A}} {posture} {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"{{A}} was {one} and {{B}} was {two} ." for one, two in _two_places()),
    )


@cache
def rest_frames() -> tuple[tuple[str, str], ...]:
    """Return the frames that lay an animal {A} on a rest {B}, as (animal first, rest first)."""
    postures = "lay,sat,slept,rested,stayed,dozed,waited,stretched out,curled up,settled,relaxed,hid,napped".split(",")
    prepositions = ("on", "under", "near", "beside", "behind", "by", "next to", "close to")
    return tuple(
        (f"the {{A}} {posture} {prep} the {{B}} because", f"{prep} the {{B}} {posture} the {{A}} because")
        for posture in postures
        for prep in prepositions
    )


def _two_places() -> list[tuple[str, str]]:
    return [(one, two) for one in PLACES for two in PLACES if one != two][::2]


def held_out(frame: str) -> str:
    """Return "dev" or "test" for a frame kept out of training, a tenth of them each by hash, and "" for the rest."""
    share = unit_hash("frame", frame)
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""


@dataclass(frozen=True, slots=True)
class Text:
    """A finished story: its text and the character span of each slot that was filled."""

    text: str
    spans: dict[str, Span]


def fill(frame: str, slots: dict[str, Referent | str]) -> Text:
    """Write a frame out with its slots filled, spaces before punctuation closed up.

    Each slot that holds a mention or a word gets its span; a slot that is named again gets the span of its last use.
    """
    pieces: list[str] = []
    spans: dict[str, Span] = {}
    length = 0
    for piece in frame.split():
        word, slot = piece, None
        if piece[0] == "{":
            slot, _, form = piece[1:-1].partition(".")
            value = slots[slot]
            word = value if isinstance(value, str) else _form(value, form)
            slot = None if form else slot
        if pieces and word not in ".,":
            pieces.append(" ")
            length += 1
        if slot:
            spans[slot] = (length, length + len(word))
        pieces.append(word)
        length += len(word)
    return Text("".join(pieces), spans)


def _form(referent: Referent, form: str) -> str:
    if form == "was":
        return "were" if referent.plural else "was"
    return referent.article if form == "a" else referent.word
