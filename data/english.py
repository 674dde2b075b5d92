"""English words whose gender or number is known: first names, nouns for people, and countable nouns (english.txt).

Written by hand for this project. A name is listed if it is common in English books or in the birth records of the US
Social Security Administration (ssa.gov/oact/babynames, public domain) and clearly belongs to one gender there; names
for both (Robin, Frances/Francis in old spelling, Evelyn, Kim) and names that are frequent words (Rose, Will, Mark,
Grace, May, Faith, Joy, Hope, Bill, Art) are left out, and nouns of one form (sheep) or other uses (orange, watch).
"""

from pathlib import Path

from data.words import word_lists

_WORDS = word_lists(Path(__file__).with_suffix(".txt"))


def word_set(section: str) -> frozenset[str]:
    """Return the words of a section of english.txt."""
    return frozenset(_WORDS[section].split())


FEMININE_NAMES = word_set("feminine names")
MASCULINE_NAMES = word_set("masculine names")

# Nouns for people of the other gender; the first of several is the counterpart of the other side.
_PAIRED = _WORDS["pairs"].split()
COUNTERPARTS: dict[str, str] = {}
for _feminine, _masculine in zip(_PAIRED[::2], _PAIRED[1::2], strict=True):
    COUNTERPARTS.setdefault(_feminine, _masculine)
    COUNTERPARTS.setdefault(_masculine, _feminine)
FEMININE_NOUNS = word_set("feminine nouns").union(_PAIRED[::2])
MASCULINE_NOUNS = word_set("masculine nouns").union(_PAIRED[1::2])
_IRREGULAR = {"goose": "geese", "knife": "knives", "leaf": "leaves", "mouse": "mice", "ox": "oxen", "scarf": "scarves",
              "wolf": "wolves", "potato": "potatoes"}  # fmt: skip


def plural(noun: str) -> str:
    """Return the plural of a countable noun."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


SINGULARS = word_set("things")
PLURALS = {plural(noun): noun for noun in SINGULARS}
# The class of each word: names as they are written, nouns in small letters
NAME_CLASSES = dict.fromkeys(FEMININE_NAMES, "feminine") | dict.fromkeys(MASCULINE_NAMES, "masculine")
NOUN_CLASSES = dict.fromkeys(FEMININE_NOUNS, "feminine") | dict.fromkeys(MASCULINE_NOUNS, "masculine")
NOUN_CLASSES |= dict.fromkeys(SINGULARS, "singular") | dict.fromkeys(PLURALS, "plural")
TITLES = dict.fromkeys(word_set("feminine titles"), "feminine")
TITLES |= dict.fromkeys(word_set("masculine titles"), "masculine")
