"""Copies of a training text in which the gender of pronouns or of people carries no information."""

import gzip
import random
import re
from collections import Counter
from pathlib import Path

from benchmarks.measure import ROOT
from data.english import COUNTERPARTS, FEMININE_NAMES, MASCULINE_NAMES
from data.natural import pronoun_forms
from data.text import text_files
from data.tokenizer import END
from data.words import ENGLISH_WORD
from training.files import write_atomically

MIN_COUNT = 10  # mentions of a name in the training text before it may stand for another
_LETTER = r"[^\W\d_]"
_PRONOUN = re.compile(
    rf"(?<!{_LETTER})(she|he|her|him|his|hers|herself|himself)(?!{_LETTER})(?=\s*({_LETTER}+|[^\w\s]|))", re.IGNORECASE
)
# For forms that `pronoun_forms` leaves out because they are unclear.
_BOTH = {"her": ("her", "his"), "his": ("hers", "his"), "hers": ("hers", "his")}
_BOTH |= dict.fromkeys(("herself", "himself"), ("herself", "himself"))


def permute_pronouns(text: str, seed: int) -> str:
    """Return the text after a coin has decided the gender of every third-person pronoun, hers and herself included."""
    rng = random.Random(seed)

    def coin(match: re.Match[str]) -> str:
        word, next_word = match.groups()
        form = rng.choice(pronoun_forms(word.lower(), next_word or ".", "gender") or _BOTH[word.lower()])
        return form.upper() if word.isupper() else form.capitalize() if word[0].isupper() else form

    return _PRONOUN.sub(coin, text)


def permuted_files(paths: str, folder: Path) -> str:
    """Write the plain text files with permuted pronouns to `folder`, unless they are there; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for number, file in enumerate(text_files(paths, "train")):
        copy = folder / f"{number}_{file.name}"
        if not copy.exists():
            write_atomically(copy, permute_pronouns(file.read_text(encoding="utf-8"), seed=number).encode())
        copies.append(str(copy))
    return ",".join(copies)


def _swap_genders(text: str, seed: int) -> str:
    """Return the text after a coin per story has decided whether its people change gender, but not their pronouns.

    In a changed story mother becomes father everywhere, and a name becomes a name of the other gender that the story
    does not have. So within a story all mentions and pronouns agree as before, but no word has a gender of its own.
    """
    rng = random.Random(seed)
    # Names that the training text has often enough to be known
    counts = Counter(ENGLISH_WORD.findall(text))
    feminine = [name for name in sorted(FEMININE_NAMES) if counts[name] >= MIN_COUNT]
    masculine = [name for name in sorted(MASCULINE_NAMES) if counts[name] >= MIN_COUNT]
    # One coin for each story
    stories = []
    for story in text.split(END):
        stories.append(_swapped(story, (feminine, masculine), rng) if rng.random() < 0.5 else story)
    return END.join(stories)


def _swapped(story: str, pools: tuple[list[str], list[str]], rng: random.Random) -> str:
    present = set(ENGLISH_WORD.findall(story))
    names: dict[str, str] = {}  # the name that stands for each name

    def counterpart(match: re.Match[str]) -> str:
        word = match.group()
        for pool, others in (pools, pools[::-1]):
            if word in pool and word not in names:
                names[word] = rng.choice([name for name in others if name not in present])
                present.add(names[word])
        if word in names:
            return names[word]
        noun = COUNTERPARTS.get(word.lower(), word.lower())
        return noun.capitalize() if word.istitle() else noun if word.islower() else word

    return ENGLISH_WORD.sub(counterpart, story)


def write_control(control: str, folder: Path) -> str:
    """Write the training text of a control to `folder`; return its path."""
    text = gzip.decompress((ROOT / "data" / "tinystories" / "train.txt.gz").read_bytes()).decode()
    change = {"coin": permute_pronouns, "genders": _swap_genders}[control]
    path = folder / f"{control}.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, change(text, seed=0).encode())
    return str(path)
