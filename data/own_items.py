"""A question of the user's own, in a .jsonl file: blocks of texts with the word to read at and two mentions.

A block has four texts, both orders of two words times which of them is meant, or two texts, one order of the words.

The first line may describe the question; every other line is one text (docs/probe.md).
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from data.errors import UserError
from data.pairs import Link, LinkedText, Span
from data.stories.lexicon import unit_hash

GUARDS = ("induction", "previous", "rests_without_antecedent")  # that a question may switch off
OWN = "own"  # family, level and site of the items
_CELLS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # order and meant of the four texts of a block
_BLOCKS = (_CELLS, _CELLS[:2], _CELLS[2:])  # a block of two has one order
_MAX_NAME = 80  # characters
_MIN_BLOCKS = 2  # in either part; with few the verdict says that no p can be small enough

_Block = list[LinkedText]  # the texts of one block


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """The content of a file of items."""

    file: str
    name: str
    description: str
    link: str  # what a head links: "a verb to its subject"
    guards_off: list[str]  # of GUARDS
    dev: list[LinkedText]  # whole blocks, in the hold-out "iid"
    test: list[LinkedText]  # whole blocks, in the hold-out "headline"
    n_left_out: int  # blocks with words of one part and a frame of the other
    n_alone: int  # blocks of two without a counterpart in the other order
    n_patterns: int  # pairs of texts of one order that differ before the query
    places: dict[str, str]  # "FILE line N" by text, for messages


class _Row(NamedTuple):
    where: str  # "FILE line N"
    values: Mapping[str, Any]
    text: LinkedText


def load_own_question(path: Path) -> OwnQuestion:
    """Return the question of a file; UserError names the line of the first problem.

    Without the field `split`, frames and words are divided by their hashes, so that no test block shares a frame or a
    word with dev; blocks that would are left out.
    """
    lines = _load_lines(path)
    about: Mapping[str, Any] = {}
    if not lines[0][1].keys() & {"text", "query", "block"}:
        where, about = lines.pop(0)
        _check(where, about, _ABOUT, ())
    rows = [_read_row(where, values) for where, values in lines]

    # Whole blocks, each in the part to which it belongs; blocks of two are joined within their part.
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.values["block"])]
    blocks: dict[str | None, list[_Block]] = {"dev": [], "test": [], None: []}
    for group in groups:
        blocks[_part(group)].append([row.text for row in group])
    _check_names(groups)
    whole = {part: _whole_blocks(part, blocks[part]) for part in ("dev", "test")}
    dev, test = (texts for texts, _ in whole.values())
    n_alone = sum(n for _, n in whole.values())
    _check_parts(path, dev, test, n_left_out=len(blocks[None]), n_alone=n_alone)
    return OwnQuestion(
        file=str(path),
        name=about.get("question", path.stem),
        description=about.get("description", path.name),
        link=about.get("link", "the query to its antecedent"),
        guards_off=about.get("guards_off", []),
        dev=dev,
        test=test,
        n_left_out=len(blocks[None]),
        n_alone=n_alone,
        n_patterns=_count_patterns([*dev, *test]),
        places={row.text.text: row.where for row in rows},
    )


def _load_lines(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return "FILE line N" and the object of each line that is not blank; UserError if there are none."""
    try:
        content = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    lines = []
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            where = f"{file} line {number}"
            lines.append((where, _json_object(where, line)))
    if not lines:
        raise UserError(f"{file}: no text in it")
    return lines


def _json_object(where: str, line: str) -> dict[str, Any]:
    """Return the object of one line; UserError if it is none, or no text that can be written to a file."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: one half of a surrogate pair is no character") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise UserError(f"{where}: not JSON (nested too deeply)") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: not an object")
    return value


# Rows


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_name(value: Any) -> bool:
    return _is_text(value) and value.isprintable()


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and re.fullmatch(r"\S+", word) for word in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_guards(value: Any) -> bool:
    return isinstance(value, list) and all(guard in GUARDS for guard in value)


_Checks = Mapping[str, tuple[Callable[[Any], bool], str]]  # what a field must be, as a function and in words
_ABOUT: _Checks = {
    "question": (
        lambda value: _is_name(value) and len(value) <= _MAX_NAME,
        f"one line of text with at most {_MAX_NAME} characters",
    ),
    "description": (_is_name, "one line of text"),
    "link": (_is_name, "one line of text"),
    "guards_off": (_is_guards, f"a list of {', '.join(GUARDS)}"),
}
_MENTIONS = (_is_list, "a list of words, or of [start, end]")
_ROW: _Checks = {
    "text": (_is_text, "a string that is not empty"),
    "query": (bool, "a word of the text, or [start, end]"),
    "antecedents": _MENTIONS,
    "distractors": _MENTIONS,
    "block": (lambda value: True, ""),
    "order": (lambda value: type(value) is int, "0 or 1"),
    "meant": (lambda value: type(value) is int, "0 or 1"),
    "frame": (_is_text, "a string that is not empty"),
    "words": (
        lambda value: _are_words(value) and len(value) == 2,
        "a list of the block's two words, without spaces",
    ),
}
_OPTIONAL: _Checks = {
    "answers": (_are_words, "a list of words"),
    "foils": (_are_words, "a list of words"),
    "payoff": (lambda value: True, ""),
    "split": (lambda value: value in (None, "dev", "test"), "dev or test"),
}


def _check(where: str, values: Mapping[str, Any], checks: _Checks, required: Collection[str]) -> None:
    """Raise UserError for a field that is missing, unknown or wrong."""
    for name in required:
        if name not in values:
            raise UserError(f"{where}: no field {name}")
    for name, value in values.items():
        if name not in checks:
            raise UserError(f"{where}: unknown field {name}; there are {', '.join(checks)}")
        is_right, words = checks[name]
        if not is_right(value):
            raise UserError(f"{where}: {name} must be {words}")


def _read_row(where: str, row: Mapping[str, Any]) -> _Row:
    """Return a row with its text and link; UserError for a row that contradicts itself."""
    _check(where, row, {**_ROW, **_OPTIONAL}, _ROW)
    text = row["text"]
    query = _span(where, "query", text, row["query"])
    payoff = _span(where, "payoff", text, row["payoff"]) if row.get("payoff") else None
    antecedents, distractors = (
        tuple(_span(where, name, text, value) for value in row[name]) for name in ("antecedents", "distractors")
    )
    answers, foils = (tuple(row.get(name, ())) for name in ("answers", "foils"))

    outcome = payoff and text[slice(*payoff)]
    problems = {
        "answers and foils belong together": bool(answers) != bool(foils),
        "answers need the field payoff, the word of the text that is an answer": answers and payoff is None,
        "payoff must come after the query": payoff is not None and payoff[0] < query[1],
        f"payoff {outcome!r} is none of the answers": answers and outcome not in answers,
        "the same word is antecedent and distractor": set(antecedents) & set(distractors),
        "antecedents and distractors must come before the query": max(antecedents + distractors)[1] > query[0],
    }
    for problem, is_wrong in problems.items():
        if is_wrong:
            raise UserError(f"{where}: {problem}")
    link = Link(OWN, OWN, query, query, antecedents, distractors, payoff=payoff, answers=answers, foils=foils)
    pair = " ".join(row["words"])
    return _Row(where, row, LinkedText(text, (link,), OWN, "", row["frame"], pair, row["order"], row["meant"]))


def _span(where: str, name: str, text: str, value: Any) -> Span:
    """Return the characters of a word: given as [start, end), or as a word that the text has once."""
    if isinstance(value, list) and len(value) == 2 and all(type(place) is int for place in value):
        start, end = value
        if 0 <= start < end <= len(text):
            return start, end
        raise UserError(f"{where}: {name} [{start}, {end}] is outside the text of {len(text)} characters")
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: {name} must be a word of the text, or [start, end]")
    found = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text)]
    if len(found) != 1:
        problem = f"{value!r} is not in the text"
        if found:
            problem = f"{value!r} is in the text {len(found)} times; give [start, end]"
        raise UserError(f"{where}: {name}: {problem}")
    return found[0]


# Blocks


def _part(rows: Sequence[_Row]) -> str | None:
    """Return the part of a block, None if its words and its frame are of both; UserError if it is no block."""
    first, last = rows[0], rows[-1]
    for row in rows:
        if any(row.values.get(name) != first.values.get(name) for name in ("frame", "words", "split")):
            raise UserError(f"{row.where}: the texts of a block have the same frame, words and split")
    cells = [(row.text.order, row.text.meant) for row in rows]
    if cells not in _BLOCKS:
        expected = "0 0, 0 1, 1 0, 1 1, or for a block of two 0 0, 0 1 or 1 0, 1 1"
        found = ", ".join(f"{order} {meant}" for order, meant in cells)
        problem = f"the block that ends here has the rows {found} (order and meant)"
        raise UserError(f"{last.where}: {problem}; they must be {expected}")
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        _check_antecedents(other.where, one.text, other.text)

    parts = {"dev" if unit_hash(OWN, part) < 0.5 else "test" for part in (first.text.frame, *first.text.pair.split())}
    return first.values.get("split") or (parts.pop() if len(parts) == 1 else None)


def _check_antecedents(where: str, first: LinkedText, second: LinkedText) -> None:
    """Raise UserError unless two texts of one order have their antecedents exchanged, in the order that they give.

    If a word could be an antecedent in both, a head that always attends to it would be right in both.
    """
    pairs = ((first, second), (second, first))
    for text, other in pairs:
        if not _words(text, text.links[0].antecedents) <= _words(other, other.links[0].distractors):
            raise UserError(f"{where}: the antecedents of each meaning must be distractors of the other one")
    for text, other in pairs:
        (link,) = text.links
        counterparts = _words(other, other.links[0].antecedents)
        rivals = [span for span in link.distractors if _words(text, [span]) <= counterparts]
        if (min(link.antecedents) < min(rivals)) != (text.order == text.meant):
            raise UserError(f"{where}: words[order] must stand first in the text, and words[meant] be the antecedent")


def _words(text: LinkedText, spans: Iterable[Span]) -> set[str]:
    """Return mentions as texts, in small letters."""
    return {text.text[slice(*span)].lower() for span in spans}


def _check_names(blocks: Iterable[Sequence[_Row]]) -> None:
    """Raise UserError for a block that is there twice, or a word or frame with two names: both fake independence."""
    copies: dict[tuple[str, ...], str] = {}  # first row by the texts of a block
    words: dict[str, tuple[str, str]] = {}  # word and row by mention
    frames: dict[str, tuple[str, str]] = {}  # frame and row by text without its mentions
    for rows in blocks:
        where = rows[0].where
        earlier = copies.setdefault(tuple(" ".join(row.text.text.split()) for row in rows), where)
        if earlier != where:
            raise UserError(f"{where}: the block is there already, at {earlier}")
        for where, _, text in rows:
            # Every mention belongs to one word.
            (link,) = text.links
            word = text.pair.split()[text.meant]
            for mention in sorted(_words(text, link.antecedents)):
                known, place = words.setdefault(mention, (word, where))
                if known != word:
                    raise UserError(f"{where}: {mention!r} has the word {word!r} in words, but {known!r} at {place}")

            # Every text without its mentions belongs to one frame; a causal model reads it up to the query.
            rest = text.text[: link.query[1]]
            for start, end in sorted((*link.antecedents, *link.distractors), reverse=True):
                rest = f"{rest[:start]}_{rest[end:]}"
            known, place = frames.setdefault(" ".join(rest.lower().split()), (text.frame, where))
            if known != text.frame:
                problem = f"but for the two words this is the text of {place}; it has another frame there"
                raise UserError(f"{where}: {problem}")


def _check_parts(
    path: Path, dev: Sequence[LinkedText], test: Sequence[LinkedText], *, n_left_out: int, n_alone: int
) -> None:
    """Raise UserError if dev or test is too small, or if they share a frame or a word, which `split` allows."""
    for part, texts in (("dev", dev), ("test", test)):
        n_blocks = len(texts) // len(_CELLS)
        if n_blocks < _MIN_BLOCKS:
            advice = "give more frames and words, or the field split"
            if n_left_out:
                advice = f"{n_left_out} were left out, whose frame is in the other part than a word; {advice}"
            if n_alone:
                advice = "a block of two needs another with the same list of words and the other value of order"
            raise UserError(f"{path}: {n_blocks} {part} blocks, at least {_MIN_BLOCKS} are needed; {advice}")
    names = [({text.frame for text in texts}, {word for text in texts for word in text.pair.split()})
             for texts in (dev, test)]  # fmt: skip
    for kind, of_dev, of_test in zip(("frame", "word"), *names, strict=True):
        if shared := sorted(of_dev & of_test):
            problem = f"dev and test share the {kind} {shared[0]!r}"
            raise UserError(f"{path}: {problem}; leave out the field split, and they are divided")


def _count_patterns(texts: Sequence[LinkedText]) -> int:
    """Return how many of the pairs in whole blocks have texts that differ before the query."""
    starts = [text.text[: text.links[0].query[0]] for text in texts]
    return sum(first != second for first, second in zip(starts[::2], starts[1::2], strict=True))


def _whole_blocks(part: str, blocks: Sequence[_Block]) -> tuple[list[LinkedText], int]:
    """Return the blocks of a part as blocks of four texts, and how many blocks of two found no counterpart.

    Two blocks of two with the same words in either order become a block of four. Their frames differ, so these, and all
    frames that are connected in this way, count as one frame in the statistics.
    """
    texts: list[LinkedText] = []
    twos: dict[str, tuple[list[_Block], list[_Block]]] = {}  # by words, in either order
    n_alone = 0
    for cells in blocks:
        if len(cells) == len(_CELLS):
            texts += cells
        else:
            twos.setdefault(cells[0].pair, ([], []))[cells[0].order].append(cells)
            n_alone += 1

    # Join the blocks of either order, by their frames, and name all frames that this connects alike.
    groups: dict[str, set[str]] = {}
    for of_orders in twos.values():
        by_frame = [sorted(of_order, key=lambda cells: cells[0].frame) for of_order in of_orders]
        for first, second in zip(*by_frame, strict=False):
            texts += [*first, *second]
            n_alone -= 2
            together = {first[0].frame, second[0].frame}
            together |= groups.get(first[0].frame, set()) | groups.get(second[0].frame, set())
            groups |= dict.fromkeys(together, together)
    names = {frame: " / ".join(sorted(group)) for frame, group in groups.items()}
    holdout = "iid" if part == "dev" else "headline"
    return [replace(text, holdout=holdout, frame=names.get(text.frame, text.frame)) for text in texts], n_alone
