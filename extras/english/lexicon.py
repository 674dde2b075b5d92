"""English words whose gender is known: first names and nouns for people (lexicon.txt).

Written by hand for this project. A name is listed if it is common in English books or in the birth records of the US
Social Security Administration (ssa.gov/oact/babynames, public domain) and clearly belongs to one gender there; names
for both (Robin, Frances/Francis in old spelling, Evelyn, Kim) and names that are frequent words (Rose, Will, Mark,
Grace, May, Faith, Joy, Hope, Bill, Art) are left out.
"""

from pathlib import Path

from data.words import word_lists

_WORDS = word_lists(Path(__file__).with_suffix(".txt"))


def word_set(section: str) -> frozenset[str]:
    """Return the words of a section of lexicon.txt."""
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
# The class of each word, 0 feminine and 1 masculine: names as they are written, nouns in small letters
NAME_CLASSES = dict.fromkeys(FEMININE_NAMES, 0) | dict.fromkeys(MASCULINE_NAMES, 1)
NOUN_CLASSES = dict.fromkeys(FEMININE_NOUNS, 0) | dict.fromkeys(MASCULINE_NOUNS, 1)
TITLES = dict.fromkeys(word_set("feminine titles"), 0) | dict.fromkeys(word_set("masculine titles"), 1)
