"""English words whose gender or number is known: first names, nouns for people, and countable nouns (english.txt).

Written by hand for this project. A name is listed if it is common in English books or in the birth records of the US
Social Security Administration (ssa.gov/oact/babynames, public domain) and clearly belongs to one gender there; names
for both (Robin, Frances/Francis in old spelling, Evelyn, Kim) and names that are frequent words (Rose, Will, Mark,
Grace, May, Faith, Joy, Hope, Bill, Art) are left out, and nouns of one form (sheep) or other uses (orange, watch).
"""

from pathlib import Path

from data.words import word_lists

_WORDS = word_lists(Path(__file__).with_suffix(".txt"))
FEMININE_NAMES = frozenset(_WORDS["feminine names"].split())
MASCULINE_NAMES = frozenset(_WORDS["masculine names"].split())

# Nouns for people of the other gender; the first of several is the counterpart of the other side.
_PAIRED = _WORDS["pairs"].split()
COUNTERPARTS: dict[str, str] = {}
for _feminine, _masculine in zip(_PAIRED[::2], _PAIRED[1::2], strict=True):
    COUNTERPARTS.setdefault(_feminine, _masculine)
    COUNTERPARTS.setdefault(_masculine, _feminine)
FEMININE_NOUNS = frozenset(_PAIRED[::2] + _WORDS["feminine nouns"].split())
MASCULINE_NOUNS = frozenset(_PAIRED[1::2] + _WORDS["masculine nouns"].split())
_IRREGULAR = {"goose": "geese", "knife": "knives", "leaf": "leaves", "mouse": "mice", "ox": "oxen", "scarf": "scarves",
              "wolf": "wolves", "potato": "potatoes"}  # fmt: skip


def plural(noun: str) -> str:
    """Return the plural of a countable noun."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


SINGULARS = frozenset(_WORDS["things"].split())
PLURALS = {plural(noun): noun for noun in SINGULARS}

# Titles before a surname: "Mrs. Bennet" is one mention.
TITLES = {"Mrs": "feminine", "Miss": "feminine", "Madam": "feminine", "Mr": "masculine", "Master": "masculine",
          "Lady": "feminine", "Lord": "masculine", "Sir": "masculine"}  # fmt: skip
