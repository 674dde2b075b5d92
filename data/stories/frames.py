"""The sentences of the stories: what opens, fills and ends them, and the frames that introduce the mentions.

Slots: {A} {B} the two mentions, {A.a} the indefinite article, {A.was} was or were, {A.child} girl or boy, {A.told}
the name with or without its gender said first; {S} {T} their states; {F} {G} and {P} {Q} what belongs to them.
A frame is a pair, its two orders. Where both are the same text, {A} is the mention that comes first; where they
differ, {A} is always the first member of the pair.
"""

import re
from functools import cache

from data.stories.lexicon import unit_hash

Frame = tuple[str, str]

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
# What may close a sentence after its verb.
ENDINGS = [".", "again .", "all day .", "at once ."]

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


def _both(*texts: str) -> tuple[Frame, ...]:
    return tuple((text, text) for text in texts)


@cache
def noun_frames() -> tuple[Frame, ...]:
    """Return the frames that introduce two nouns of different number."""
    return _both(
        *(f"the {{A}} {posture} {prep} the {{B}} ." for posture in _POSTURES for prep in _PREPOSITIONS),
        *(f"there {{A.was}} {{A.a}} {{A}} {prep} the {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} , there {{B.was}} {{B.a}} {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} {posture} the {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"we {sight} the {{A}} {prep} the {{B}} ." for sight in _SIGHTS for prep in _PREPOSITIONS),
        *(f"the {{A}} {{A.was}} {one} and the {{B}} {{B.was}} {two} ." for one, two in _two_places()),
    )


@cache
def name_frames() -> tuple[Frame, ...]:
    """Return the frames that introduce a girl and a boy."""
    return _both(
        *(f"{{A}} {posture} {prep} {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"{{A}} {meeting} {{B}} {place} ." for meeting in _MEETINGS for place in PLACES),
        *(f"{prep} {{A}} {posture} {{B}} ." for posture in _POSTURES[:5] for prep in _PREPOSITIONS),
        *(f"{{A}} was {one} and {{B}} was {two} ." for one, two in _two_places()),
    )


@cache
def rest_frames() -> tuple[Frame, ...]:
    """Return the frames that lay an animal {A} on a rest {B}: animal first, rest first."""
    postures = "lay,sat,slept,rested,stayed,dozed,waited,stretched out,curled up,settled,relaxed,hid,napped".split(",")
    prepositions = ("on", "under", "near", "beside", "behind", "by", "next to", "close to")
    return tuple(
        (f"the {{A}} {posture} {prep} the {{B}} because", f"{prep} the {{B}} {posture} the {{A}} because")
        for posture in postures
        for prep in prepositions
    )


@cache
def told_frames() -> tuple[Frame, ...]:
    """Return the frames that say of two names which is a girl's and which a boy's."""
    told = (("a {A.child} named {A}", "a {B.child} named {B}"), ("{A} the {A.child}", "{B} the {B.child}"))
    return _both(*(text.replace("{A}", a).replace("{B}", b) for ((text, _), (a, b)) in _crossed(name_frames(), told)))


def _crossed(frames: tuple[Frame, ...], told: tuple[tuple[str, str], ...]) -> list[tuple[Frame, tuple[str, str]]]:
    return [(frame, told[i % 2]) for i, frame in enumerate(frames)]


@cache
def state_frames() -> tuple[Frame, ...]:
    """Return the frames in which each of two nouns has its state said before it."""
    plain = (text for text, _ in noun_frames() if "the {A}" in text and "the {B}" in text)
    return _both(*(text.replace("the {A}", "the {S} {A}").replace("the {B}", "the {T} {B}") for text in plain))


_ANDS = ("and", ", and", ", but", ", while")
_TAILS = (" .", " that day .", " last week .", " as usual .")
_LIKES = (
    "liked", "had", "wanted", "bought", "picked", "carried", "found", "kept", "got", "chose", "brought", "took",
)  # fmt: skip
_WITH = ("belonged to", "went to", "was for", "lived with", "stayed with", "was given to", "was sold to", "ran to")
_HAD = ("had", "owned", "kept", "found", "got", "bought", "fed", "raised")
OWNING = (*_HAD, *_WITH)  # what is said of an animal and its owner


_THERE = ("there were", "we saw", "we found", "we left", "we put", "we kept")
_BY = ("for", "with", "near", "by", "beside", "behind")


@cache
def owned_first_frames() -> tuple[Frame, ...]:
    """Return the frames that say whose the foods {F} and {G} are, each food just before its owner."""
    return _both(
        *(
            f"{there} {{F}} {by} {{A}} {join} {{G}} {by} {{B}}{tail}"
            for there in _THERE
            for by in _BY
            for join in _ANDS[:2]
            for tail in _TAILS
        )
    )


@cache
def owner_first_frames() -> tuple[Frame, ...]:
    """Return the same with each owner before the food."""
    return _both(
        *(f"{{A}} {verb} {{F}} {join} {{B}} {verb} {{G}}{tail}" for verb in _LIKES for join in _ANDS for tail in _TAILS)
    )


@cache
def pet_first_frames() -> tuple[Frame, ...]:
    """Return the frames that say whose the animals {P} and {Q} are, each animal before its owner."""
    return _both(
        *(
            f"the {{P}} {verb} {{A}} {join} the {{Q}} {verb} {{B}}{tail}"
            for verb in _WITH
            for join in _ANDS
            for tail in _TAILS
        )
    )


@cache
def keeper_first_frames() -> tuple[Frame, ...]:
    """Return the same with each owner before the animal."""
    return _both(
        *(
            f"{{A}} {verb} {{P.a}} {{P}} {join} {{B}} {verb} {{Q.a}} {{Q}}{tail}"
            for verb in _HAD
            for join in _ANDS
            for tail in _TAILS
        )
    )


@cache
def couple_frames() -> tuple[Frame, ...]:
    """Return the frames in which a girl {A} and a boy {C} meet near a thing or animal {B}: they first, it first."""
    return tuple(
        (f"{{A}} {meeting} {{C}} {prep} the {{B}} .", f"{prep} the {{B}} , {{A}} {meeting} {{C}} .")
        for meeting in _MEETINGS
        for prep in _PREPOSITIONS
    )


@cache
def present_frames() -> tuple[Frame, ...]:
    """Return the frames in which {B} alone has been mentioned."""
    return tuple((f"the {{B}} {{B.was}} {place} .", f"there {{B.was}} {{B.a}} {{B}} {place} .") for place in PLACES)


def subject(text: str) -> str:
    """Return the slot of the mention that is the grammatical subject of `text`, or "" where none or several are."""
    words = text.split()
    if words[0] == "we" or "and" in words or ", but" in text or ", while" in text:
        return ""
    if text.startswith(("the {A}", "the {S} {A}", "{A}", "there {A.was}", "a {A.child}")):
        return "A"
    if text.startswith(("the {B}", "there {B.was}")):
        return "B"
    later = [word[1] for word in words if word in ("{A}", "{B}")]
    return later[1] if len(later) > 1 else ""  # near the {A} sat the {B}


def _two_places() -> list[tuple[str, str]]:
    return [(one, two) for one in PLACES for two in PLACES if one != two][::2]


def plain(text: str) -> str:
    """Return a frame without what it says of the mentions on the way: the one that it was derived from."""
    untold = re.sub(r"a {(.).child} named {.}|{(.)} the {..child}|{(.).told}", r"{\1\2\3}", text)
    return re.sub(r"{[ST]} ", "", untold)


def held_out(text: str) -> str:
    """Return "dev" or "test" for a frame kept out of training, a tenth of them each by hash, and "" for the rest.

    A frame is new only if the one it was derived from is new too.
    """
    share = unit_hash("frame", plain(text))
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""
