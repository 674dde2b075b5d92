"""A question of the user's own, in a .jsonl file: blocks of texts with the word to read at and two mentions.

A block has four texts, both orders of two words times which of them is meant, or two texts, one order of the words.

The first line may describe the question; every other line is one text (docs/probe.md).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.pairs import Link, LinkedText, Span
from data.stories.lexicon import unit_hash

GUARDS = ("induction", "previous", "rests_without_antecedent")  # that a question may switch off
OWN = "own"  # family, level and site of the items
_ABOUT = {"question", "description", "link", "guards_off"}
_REQUIRED = ("text", "query", "antecedents", "distractors", "block", "order", "meant", "frame", "words")
_OPTIONAL = ("answers", "foils", "payoff", "split")
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


def load_own_question(path: Path) -> OwnQuestion:
    """Return the question of a file; UserError names the line of the first problem.

    Without the field `split`, frames and words are divided by their hashes, so that no test block shares a frame or a
    word with dev; blocks that would are left out.
    """
    rows: list[tuple[str, dict[str, Any]]] = []
    about: dict[str, Any] = {}
    for where, line in _load_lines(path).items():
        value = _json_object(where, line)
        if not rows and not about and not value.keys() & set(_REQUIRED):
            about = _checked_about(value, where)
        else:
            rows.append((where, value))

    # Whole blocks, each in the part to which it belongs; blocks of two are joined within their part.
    blocks: dict[str, list[_Block]] = {"dev": [], "test": []}
    n_left_out = 0
    names = _Names()
    for _, group in groupby(rows, key=_block_key):
        of_block = list(group)
        texts, split = _read_block(of_block)
        names.add([where for where, _ in of_block], texts)
        if split is None:
            n_left_out += 1
        else:
            blocks[split].append(texts)
    dev, n_alone_dev = _whole_blocks(blocks["dev"])
    test, n_alone_test = _whole_blocks(blocks["test"])
    for name, part in (("dev", dev), ("test", test)):
        n_blocks = len(part) // len(_CELLS)
        if n_blocks < _MIN_BLOCKS:
            advice = "give more frames and words, or the field split"
            if n_left_out:
                advice = f"{n_left_out} were left out, whose frame is in the other part than a word; {advice}"
            if n_alone_dev + n_alone_test:
                advice = "a block of two needs another with the same list of words and the other value of order"
            raise UserError(f"{path}: {n_blocks} {name} blocks, at least {_MIN_BLOCKS} are needed; {advice}")
    _check_parts(path, dev, test)
    return OwnQuestion(
        file=str(path),
        name=str(about.get("question", path.stem)),
        description=str(about.get("description", path.name)),
        link=str(about.get("link", "the query to its antecedent")),
        guards_off=list(about.get("guards_off", [])),
        dev=dev,
        test=test,
        n_left_out=n_left_out,
        n_alone=n_alone_dev + n_alone_test,
        n_patterns=_count_patterns([*dev, *test]),
        places={row["text"]: where for where, row in rows},
    )


def _load_lines(file: Path) -> dict[str, str]:
    """Return the non-blank lines by "FILE line N"; UserError if there are none or the text is not UTF-8."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    lines = {f"{file} line {number}": line for number, line in enumerate(text.split("\n"), 1) if line.strip()}
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


def _checked_about(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the description of a question; UserError for an unknown field or value."""
    if unknown := sorted(value.keys() - _ABOUT):
        raise UserError(f"{where}: unknown field {unknown[0]}; a description has {', '.join(sorted(_ABOUT))}")
    guards_off = value.get("guards_off", [])
    if not isinstance(guards_off, list) or not set(map(str, guards_off)) <= set(GUARDS):
        raise UserError(f"{where}: guards_off must be a list of {', '.join(GUARDS)}")
    for name in ("question", "description", "link"):
        text = value.get(name, "a")
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            raise UserError(f"{where}: {name} must be one line of text")
    if len(value.get("question", "")) > _MAX_NAME:
        raise UserError(f"{where}: question is a name of at most {_MAX_NAME} characters")
    return dict(value)


def _block_key(row: tuple[str, Mapping[str, Any]]) -> Any:
    where, values = row
    if "block" not in values:
        raise UserError(f"{where}: no field block")
    return values["block"]


def _read_block(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[_Block, str | None]:
    """Return the texts of a block and its part, None if it belongs to neither; UserError for a wrong row."""
    first, last = rows[0], rows[-1]
    for where, row in rows:
        for name in _REQUIRED:
            if name not in row:
                raise UserError(f"{where}: no field {name}")
        if unknown := sorted(row.keys() - {*_REQUIRED, *_OPTIONAL}):
            raise UserError(f"{where}: unknown field {unknown[0]}")
    texts = [_linked_text(where, row) for where, row in rows]

    # One block?
    for where, row in rows:
        if any(row.get(name) != first[1].get(name) for name in ("frame", "words", "split")):
            raise UserError(f"{where}: the texts of a block have the same frame, words and split")
    cells = [(row["order"], row["meant"]) for _, row in rows]
    if cells not in _BLOCKS:
        expected = "0 0, 0 1, 1 0, 1 1, or for a block of two 0 0, 0 1 or 1 0, 1 1"
        found = ", ".join(f"{order} {meant}" for order, meant in cells)
        problem = f"the block that ends here has the rows {found} (order and meant)"
        raise UserError(f"{last[0]}: {problem}; they must be {expected}")
    for (_, meant_first), (where, meant_second) in zip(rows[::2], rows[1::2], strict=True):
        _check_antecedents(where, meant_first, meant_second)

    # Its part
    words = texts[0].pair.split()
    split = first[1].get("split")
    if split not in (None, "dev", "test"):
        raise UserError(f"{first[0]}: split must be dev or test")
    parts = {"dev" if unit_hash(OWN, part) < 0.5 else "test" for part in (texts[0].frame, *words)}
    if split is None and len(parts) == 1:
        (split,) = parts
    holdout = "iid" if split == "dev" else "headline"
    return [replace(text, holdout=holdout) for text in texts], split


def _check_antecedents(where: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Raise UserError unless two texts of one order have their antecedents exchanged, in the order that they give.

    If a word could be an antecedent in both, a head that always attends to it would be right in both.
    """
    for one, other in ((first, second), (second, first)):
        if not _words_of(one, "antecedents") <= _words_of(other, "distractors"):
            raise UserError(f"{where}: the antecedents of each meaning must be distractors of the other one")
    for row, other in ((first, second), (second, first)):
        counterparts = _words_of(other, "antecedents")
        antecedent = min(span[0] for span in _spans(row, "antecedents"))
        distractor = min(span[0] for span in _spans(row, "distractors") if _word(row, span) in counterparts)
        if (antecedent < distractor) != (row["order"] == row["meant"]):
            raise UserError(f"{where}: words[order] must stand first in the text, and words[meant] be the antecedent")


def _spans(row: Mapping[str, Any], name: str) -> list[Span]:
    """Return the mentions of a row that has been checked."""
    return [_span("", name, row["text"], value) for value in row[name]]


def _word(row: Mapping[str, Any], span: Span) -> str:
    """Return a mention as text, in small letters."""
    return str(row["text"][slice(*span)]).lower()


def _words_of(row: Mapping[str, Any], name: str) -> set[str]:
    return {_word(row, span) for span in _spans(row, name)}


class _Names:
    """What the rows call the words and frames of their texts: a new name for each text would fake independence."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, ...], str] = {}  # first row by the texts of a block
        self._words: dict[str, tuple[str, str]] = {}  # word and row by mention
        self._frames: dict[str, tuple[str, str]] = {}  # frame and row by text without its mentions

    def add(self, rows: Sequence[str], texts: _Block) -> None:
        """Compare a block with the earlier ones; UserError if it is there already, or has other names."""
        earlier = self._blocks.setdefault(tuple(" ".join(text.text.split()) for text in texts), rows[0])
        if earlier != rows[0]:
            raise UserError(f"{rows[0]}: the block is there already, at {earlier}")
        for where, text in zip(rows, texts, strict=True):
            self._add_names(where, text)

    def _add_names(self, where: str, text: LinkedText) -> None:
        (link,) = text.links

        # Every mention belongs to one word.
        for span in link.antecedents:
            mention = text.text[slice(*span)].lower()
            word = text.pair.split()[text.meant]
            known, row = self._words.setdefault(mention, (word, where))
            if known != word:
                raise UserError(f"{where}: {mention!r} has the word {word!r} in words, but {known!r} at {row}")

        # Every text without its mentions belongs to one frame; a causal model reads it up to the query.
        pieces, end = [], 0
        for span in sorted((*link.antecedents, *link.distractors)):
            pieces.append(text.text[end : span[0]])
            end = span[1]
        pieces.append(text.text[end : link.query[1]])
        rest = " ".join("_".join(pieces).lower().split())
        known, row = self._frames.setdefault(rest, (text.frame, where))
        if known != text.frame:
            raise UserError(f"{where}: but for the two words this is the text of {row}; it has another frame there")


def _check_parts(path: Path, dev: Sequence[LinkedText], test: Sequence[LinkedText]) -> None:
    """Raise UserError if dev and test share a frame or a word, which the field `split` allows."""
    for name, of_dev, of_test in (
        ("frame", {text.frame for text in dev}, {text.frame for text in test}),
        ("word", _words_in(dev), _words_in(test)),
    ):
        if shared := sorted(of_dev & of_test):
            problem = f"dev and test share the {name} {shared[0]!r}"
            raise UserError(f"{path}: {problem}; leave out the field split, and they are divided")


def _count_patterns(texts: Sequence[LinkedText]) -> int:
    """Return how many of the pairs in whole blocks have texts that differ before the query."""
    n_different = 0
    for first, second in zip(texts[::2], texts[1::2], strict=True):
        starts = {text.text[: text.links[0].query[0]] for text in (first, second)}
        n_different += len(starts) == 2
    return n_different


def _words_in(texts: Sequence[LinkedText]) -> set[str]:
    words: set[str] = set()
    for text in texts:
        words.update(text.pair.split())
    return words


def _whole_blocks(blocks: Sequence[_Block]) -> tuple[list[LinkedText], int]:
    """Return blocks of four texts, and how many blocks of two found no counterpart.

    Two blocks of two with the same words in either order become a block of four. Their frames differ, so these, and all
    frames that are connected in this way, count as one frame in the statistics.
    """
    texts: list[LinkedText] = []
    twos: dict[str, tuple[list[_Block], list[_Block]]] = {}  # by words, in either order
    for cells in blocks:
        if len(cells) == len(_CELLS):
            texts += cells
        else:
            twos.setdefault(cells[0].pair, ([], []))[cells[0].order].append(cells)

    # The blocks of either order, by their frames
    joined: list[tuple[_Block, _Block]] = []
    for of_orders in twos.values():
        by_frame = [sorted(part, key=lambda cells: cells[0].frame) for part in of_orders]
        joined += zip(*by_frame, strict=False)
    names = _connected([(first[0].frame, second[0].frame) for first, second in joined])
    for pair in joined:
        texts += [replace(text, frame=names[text.frame]) for text in chain(*pair)]
    n_two = sum(len(cells) == 2 for cells in blocks)
    return texts, n_two - 2 * len(joined)


def _connected(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return one name for all frames that pairs connect, by frame."""
    groups: dict[str, set[str]] = {}
    for first, second in pairs:
        together = groups.get(first, {first}) | groups.get(second, {second})
        groups |= dict.fromkeys(together, together)
    return {frame: " / ".join(sorted(group)) for frame, group in groups.items()}


def _linked_text(where: str, row: Mapping[str, Any]) -> LinkedText:
    """Return the text of a row with its link."""
    text = row["text"]
    words = row["words"]
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}: text must be a string that is not empty")
    if not isinstance(words, list) or len(words) != 2 or not all(_is_word(word) for word in words):
        raise UserError(f"{where}: words must be a list of the block's two words, without spaces")

    def spans(name: str) -> tuple[Span, ...]:
        values = row[name]
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: {name} must be a list of words, or of [start, end]")
        return tuple(_span(where, name, text, value) for value in values)

    def choices(name: str) -> tuple[str, ...]:
        values = row.get(name, [])
        if not isinstance(values, list) or not all(_is_word(value) for value in values):
            raise UserError(f"{where}: {name} must be a list of words")
        return tuple(values)

    for name in ("order", "meant"):
        if type(row[name]) is not int:
            raise UserError(f"{where}: {name} must be 0 or 1")
    if not isinstance(row["frame"], str) or not row["frame"].strip():
        raise UserError(f"{where}: frame must be a string that is not empty")
    query = _span(where, "query", text, row["query"])
    answers, foils = choices("answers"), choices("foils")
    if bool(answers) != bool(foils):
        raise UserError(f"{where}: answers and foils belong together")
    payoff = _span(where, "payoff", text, row["payoff"]) if row.get("payoff") else None
    if answers and payoff is None:
        raise UserError(f"{where}: answers need the field payoff, the word of the text that is an answer")
    if payoff is not None and payoff[0] < query[1]:
        raise UserError(f"{where}: payoff must come after the query")
    if payoff is not None and answers and text[slice(*payoff)] not in answers:
        raise UserError(f"{where}: payoff {text[slice(*payoff)]!r} is none of the answers")
    antecedents, distractors = spans("antecedents"), spans("distractors")
    if set(antecedents) & set(distractors):
        raise UserError(f"{where}: the same word is antecedent and distractor")
    if any(end > query[0] for _, end in (*antecedents, *distractors)):
        raise UserError(f"{where}: antecedents and distractors must come before the query")
    link = Link(
        level=OWN,
        site=OWN,
        pronoun=query,
        query=query,
        antecedents=antecedents,
        distractors=distractors,
        payoff=payoff,
        answers=answers,
        foils=foils,
    )
    pair = " ".join(words)
    return LinkedText(text, (link,), OWN, "", str(row["frame"]), pair, row["order"], row["meant"])


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not re.search(r"\s", value)


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
