"""A sentence pattern and two words: "{A} met {B}. <She|He> [slept|ran]" is four texts (docs/probe.md)."""

import re
from collections.abc import Sequence
from dataclasses import replace

from data.pairs import Link, LinkedText, Span
from data.words import with_words
from settings.errors import UserError

OWN = "own"  # family of the items, until a question gives its name
_FORM = "a pattern has {A} and later {B}, then the <query>, and perhaps a [payoff]; {X}, {Y} and {one|two} anywhere"
_TEXT = r"([^<>\[\]{}]*)"
_WORD = r"([^<>\[\]{}]+)"
_MARKED = re.compile(rf"{_TEXT}<{_WORD}>{_TEXT}(?:\[{_WORD}\]{_TEXT})?")
_CHOICE = re.compile(r"\{([^{}|]*)\|([^{}|]*)\}")
_SHORT = re.compile(r"([<\[])([^<>\[\]{}]*\|[^<>\[\]{}]*)")  # <one|two> is short for <{one|two}>


def fill(where: str, pattern: str, words: Sequence[str], order: int, meant: int) -> LinkedText:
    """Return the text in which words[order] stands first and words[meant] is meant.

    Every place of a word before the query is a mention; the payoff is the answer. UserError if the text is no pattern.
    """
    filled = pattern
    for letter, number in {"A": order, "B": 1 - order, "X": meant, "Y": 1 - meant}.items():
        filled = filled.replace(f"{{{letter}}}", words[number])
    filled = _SHORT.sub(r"\1{\2}", filled)
    parts = _MARKED.fullmatch(_CHOICE.sub(lambda choice: choice[1 + meant], filled))
    if parts is None:
        raise UserError(f"{where}: {_FORM}")
    mentions: dict[str, tuple[Span, ...]] = dict.fromkeys(words, ())
    either = "|".join(map(re.escape, sorted(words, reverse=True)))
    for mention in re.finditer(rf"(?<!\w)({either})(?!\w)", parts[1]):
        mentions[mention[0]] += (mention.span(),)
    first, second = mentions[words[order]], mentions[words[1 - order]]
    if not first or not second or first > second:
        raise UserError(f"{where}: {_FORM}")
    # The text has no marks, of which one stands before the query, and three before the payoff.
    query = parts.start(2) - 1, parts.end(2) - 1
    link = Link(OWN, query, mentions[words[meant]], mentions[words[1 - meant]])
    if parts[4]:
        link = replace(link, payoff=(parts.start(4) - 3, parts.end(4) - 3), answers=(parts[4],))
    return LinkedText("".join(parts.groups("")), link, OWN, "", "", " ".join(words), order, meant)


def start_of(text: LinkedText) -> str:
    """Return what stands before the query, in small letters, with _ for each mention."""
    link = text.link
    start = with_words(text.text[: link.query[0]], dict.fromkeys(link.antecedents + link.distractors, "_"))
    return " ".join(start.lower().split())
