"""The sentences of the stories: openers, fillers, endings, and the frames that introduce the mentions.

Slots of a frame: {A} and {B} are the two mentions, {A.a} the indefinite article, {A.was} "was" or "were", {A.child}
"girl" or "boy", {A.gendered} the name with or without "a girl named" in front; {S} and {T} are states of A and B;
{F} and {G} their foods; {P} and {Q} their pets; {C} is a second person.

A frame is a pair of texts, one per order of mention. If both are the same text, {A} is always mentioned first. If they
differ, {A} is always the first member of the pair.
"""

import re
from functools import cache
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
_SIGHTS = ("saw", "found", "noticed", "watched", "photographed")
PLACES = (
    "in the garden", "in the street", "at the market", "on the hill", "at the park", "by the river", "in the yard",
    "on the beach", "at school", "at home",
)  # fmt: skip
_TWO_PLACES = [pair for pair in product(PLACES, PLACES) if pair[0] != pair[1]][::2]
_MEETINGS = ("met", "saw", "helped", "visited", "followed", "called", "thanked", "knew", "liked", "passed")
_CONJUNCTIONS = ("and", ", and", ", but", ", while")
_TAILS = (" .", " that day .", " last week .", " as usual .")
_LIKES = (
    "liked", "had", "wanted", "bought", "picked", "carried", "found", "kept", "got", "chose", "brought", "took",
)  # fmt: skip
_BELONGS = ("belonged to", "went to", "was for", "lived with", "stayed with", "was given to", "was sold to", "ran to")
_OWNS = ("had", "owned", "kept", "found", "got", "bought", "fed", "raised")
OWNING = (*_OWNS, *_BELONGS)  # the verbs between an animal and its owner


def _same_for_both_orders(*texts: str) -> tuple[Frame, ...]:
    return tuple((text, text) for text in texts)


@cache
def noun_frames() -> tuple[Frame, ...]:
    """Return the frames that introduce two nouns of different number."""
    return _same_for_both_orders(
        *(f"the {{A}} {posture} {prep} the {{B}} ." for posture in (*POSTURES, "{A.was}") for prep in _PREPOSITIONS),
        *(f"there {{A.was}} {{A.a}} {{A}} {prep} the {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} , there {{B.was}} {{B.a}} {{B}} ." for prep in _PREPOSITIONS),
        *(f"{prep} the {{A}} {posture} the {{B}} ." for posture in POSTURES for prep in _PREPOSITIONS),
        *(f"we {sight} the {{A}} {prep} the {{B}} ." for sight in _SIGHTS for prep in _PREPOSITIONS),
        *(f"the {{A}} {{A.was}} {place} and the {{B}} {{B.was}} {place_2} ." for place, place_2 in _TWO_PLACES),
    )


@cache
def name_frames() -> tuple[Frame, ...]:
    """Return the frames that introduce two names."""
    return _same_for_both_orders(
        *(f"{{A}} {posture} {prep} {{B}} ." for posture in POSTURES for prep in _PREPOSITIONS),
        *(f"{{A}} {meeting} {{B}} {place} ." for meeting in _MEETINGS for place in PLACES),
        *(f"{prep} {{A}} {posture} {{B}} ." for posture in POSTURES for prep in _PREPOSITIONS),
        *(f"{{A}} was {place} and {{B}} was {place_2} ." for place, place_2 in _TWO_PLACES),
    )


def rest_frames() -> tuple[Frame, ...]:
    """Return the frames that place an animal {A} on a rest {B}: animal first, rest first."""
    postures = "lay,sat,slept,rested,stayed,dozed,waited,stretched out,curled up,settled,relaxed,hid,napped".split(",")
    prepositions = ("on", "under", "near", "beside", "behind", "by", "next to", "close to")
    return tuple(
        (f"the {{A}} {posture} {prep} the {{B}} because", f"{prep} the {{B}} {posture} the {{A}} because")
        for posture in postures
        for prep in prepositions
    )


def told_gender_frames() -> tuple[Frame, ...]:
    """Return the name frames with the gender of both names stated in the text."""
    forms = ("a {{{0}.child}} named {{{0}}}", "{{{0}}} the {{{0}.child}}")
    texts = []
    for i, (text, _) in enumerate(name_frames()):
        form = forms[i % 2]
        texts.append(text.replace("{A}", form.format("A")).replace("{B}", form.format("B")))
    return _same_for_both_orders(*texts)


def maybe_gendered_frames() -> tuple[Frame, ...]:
    """Return the name frames in which each name may have its gender stated."""
    texts = (text.replace("{A}", "{A.gendered}").replace("{B}", "{B.gendered}") for text, _ in name_frames())
    return _same_for_both_orders(*texts)


def state_frames() -> tuple[Frame, ...]:
    """Return the noun frames with a state before each noun: "the hungry cat"."""
    texts = (text for text, _ in noun_frames() if "the {A}" in text and "the {B}" in text)
    return _same_for_both_orders(
        *(text.replace("the {A}", "the {S} {A}").replace("the {B}", "the {T} {B}") for text in texts)
    )


def food_before_owner_frames() -> tuple[Frame, ...]:
    """Return the frames that assign the foods {F} and {G} to their owners, each food before its owner."""
    verbs = ("there were", "we saw", "we found", "we left", "we put", "we kept")
    prepositions = ("for", "with", "near", "by", "beside", "behind")
    combinations = product(verbs, prepositions, _CONJUNCTIONS[:2], _TAILS)
    return _same_for_both_orders(
        *(f"{verb} {{F}} {prep} {{A}} {join} {{G}} {prep} {{B}}{tail}" for verb, prep, join, tail in combinations)
    )


def owner_before_food_frames() -> tuple[Frame, ...]:
    """Return the same with each owner before the food."""
    combinations = product(_LIKES, _CONJUNCTIONS, _TAILS)
    return _same_for_both_orders(
        *(f"{{A}} {verb} {{F}} {join} {{B}} {verb} {{G}}{tail}" for verb, join, tail in combinations)
    )


def pet_before_owner_frames() -> tuple[Frame, ...]:
    """Return the frames that assign the pets {P} and {Q} to their owners, each pet before its owner."""
    combinations = product(_BELONGS, _CONJUNCTIONS, _TAILS)
    return _same_for_both_orders(
        *(f"the {{P}} {verb} {{A}} {join} the {{Q}} {verb} {{B}}{tail}" for verb, join, tail in combinations)
    )


def owner_before_pet_frames() -> tuple[Frame, ...]:
    """Return the same with each owner before the pet."""
    combinations = product(_OWNS, _CONJUNCTIONS, _TAILS)
    return _same_for_both_orders(
        *(f"{{A}} {verb} {{P.a}} {{P}} {join} {{B}} {verb} {{Q.a}} {{Q}}{tail}" for verb, join, tail in combinations)
    )


def couple_frames() -> tuple[Frame, ...]:
    """Return the frames in which a girl {A} and a boy {C} meet near a noun {B}: couple first, noun first."""
    return tuple(
        (f"{{A}} {meeting} {{C}} {prep} the {{B}} .", f"{prep} the {{B}} , {{A}} {meeting} {{C}} .")
        for meeting in _MEETINGS
        for prep in _PREPOSITIONS
    )


def single_mention_frames() -> tuple[Frame, ...]:
    """Return the frames that mention {B} only; {A} comes after the pronoun."""
    return tuple((f"the {{B}} {{B.was}} {place} .", f"there {{B.was}} {{B.a}} {{B}} {place} .") for place in PLACES)


def subject(text: str) -> str:
    """Return the slot of the grammatical subject of a frame: "A", "B", or "" if there is none or more than one."""
    words = text.split()
    if words[0] == "we" or "and" in words or ", but" in text or ", while" in text:
        return ""
    if text.startswith(("the {A}", "the {S} {A}", "{A}", "there {A.was}", "a {A.child}")):
        return "A"
    if text.startswith(("the {B}", "there {B.was}")):
        return "B"
    mentions = [word[1] for word in words if word in ("{A}", "{B}")]
    return mentions[1] if len(mentions) > 1 else ""  # "near the {A} sat the {B}"


def base_frame(text: str) -> str:
    """Return a frame without stated genders and states: the frame from which it was derived."""
    text = re.sub(r"a {(.).child} named {.}|{(.)} the {..child}|{(.).gendered}", r"{\1\2\3}", text)
    return re.sub(r"{[ST]} ", "", text)


def held_out(text: str) -> str:
    """Return "dev" or "test" for a frame held out from training (10 % each, by hash), and "" for the others.

    A derived frame is held out together with its base frame.
    """
    share = unit_hash("frame", base_frame(text))
    return "dev" if share < 0.1 else "test" if share < 0.2 else ""
