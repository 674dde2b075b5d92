"""A question of the user's own, in a .jsonl file: blocks of texts with the word to read at and two mentions.

A block has four texts: both orders of two words times which of them is meant. The first line may describe the question;
every other line is one text (docs/probe.md).
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from data.errors import UserError, one_line
from data.own_split import ENOUGH, MIN_BLOCKS, Names, divided
from data.pairs import Link, LinkedText, Span
from data.typed_json import from_json

GUARDS = ("induction", "previous", "rests_without_antecedent")  # that a question may switch off
OWN = "own"  # family, level and site of the items
_CELLS = [(0, 0), (0, 1), (1, 0), (1, 1)]  # order and meant of the four texts of a block
CONTROL = "control"  # the hold-out of texts without the link
_HOLDOUTS = {"dev": "iid", "test": "headline", None: ""}  # by part
_MAX_NAME = 80  # characters


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line of a file, if it describes the question."""

    question: str | None = None
    description: str | None = None
    link: str = "the query to its antecedent"  # what a head links: "a verb to its subject"
    guards_off: list[str] = field(default_factory=list)  # names in GUARDS


@dataclass(frozen=True, slots=True)
class _Line:
    """Any other line; a word is given by itself, or by its characters [start, end]."""

    text: str
    query: Any
    antecedents: list[Any]
    distractors: list[Any]
    block: Any
    order: int
    meant: int
    frame: str
    words: tuple[str, str]
    answers: list[str] = field(default_factory=list)
    foils: list[str] = field(default_factory=list)
    payoff: Any = None
    cue: Any = None
    control: str | None = None
    split: str | None = None


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """The content of a file of items."""

    file: str
    name: str
    description: str
    link: str
    guards_off: list[str]
    dev: list[LinkedText]  # whole blocks, in the hold-out "iid"
    test: list[LinkedText]  # whole blocks, in the hold-out "headline"
    control: list[LinkedText]  # the texts of test without the link, in the hold-out "control"; empty if not given
    n_left_out: int  # blocks with words of one part and a frame of the other
    n_patterns: int  # pairs of texts of one order that differ before the query, their cues aside
    places: dict[str, str]  # "FILE line N" by text, for messages

    def notes(self) -> list[str]:
        texts = [*self.dev, *self.test]
        notes = []
        n_lacking = sum(not text.links[0].answers for text in texts)
        if 0 < n_lacking < len(texts):
            notes.append(f"{n_lacking} of {len(texts)} texts have no answers: the causal tests lack them.")
        if self.n_left_out:
            of_all = f"{self.n_left_out} of {self.n_left_out + len(texts) // len(_CELLS)} blocks"
            notes.append(f"{of_all} are left out: frame and words are not all in dev, or all in test.")
        if self.n_patterns:
            notes.append(
                f"In {self.n_patterns} of {len(texts) // 2} pairs the text differs before the query: "
                "a head that knows the position from the sentence pattern alone passes too."
            )
        return notes

    def check_lines(self, n_flips: int) -> list[str]:
        """Return blocks and clusters of both parts, and the smallest p that is possible with `n_flips` sign flips."""
        lines = [f"{self.name}: {self.description}"]
        for part, texts in (("dev", self.dev), ("test", self.test)):
            clusters = "{} frames, {} and {} words".format(*_n_clusters(texts))
            lines.append(f"{part:5}{len(texts) // len(_CELLS):5,} blocks: {clusters}")
        if self.control:
            lines.append(f"control: {len(self.control) // len(_CELLS):,} blocks without the link")
        smallest_p = max(2.0 ** -min(_n_clusters(self.test)), 1 / (n_flips + 1))
        lines.append(f"smallest p that is possible: {smallest_p:.4f}; a verdict needs less than 0.01")
        if not any(text.links[0].answers for text in self.test) or GUARDS[2] not in self.guards_off:
            lines.append(f"note: the best verdict is suggestive without answers, or without {GUARDS[2]} in guards_off")
        if min(_n_clusters(self.test)) < ENOUGH:
            lines.append(f"note: give test {ENOUGH} frames and {ENOUGH} words of each side, or more")
        if min(_n_clusters(self.dev)) < MIN_BLOCKS:
            lines.append("note: dev has few frames or words: cross the frames with fixed pairs of words")
        return [*lines, *map("note: {}".format, self.notes())]


class _Row(NamedTuple):
    where: str  # "FILE line N"
    values: _Line
    text: LinkedText
    cue: Span | None
    control: LinkedText | None


def load_question(path: Path) -> OwnQuestion:
    """Return the question of a file; UserError names the line of the first problem.

    Without the field `split`, frames and words are divided so that no test block shares a frame or a word with dev
    (`data.own_split`); blocks that would are left out.
    """
    lines = _load_lines(path)
    header = _Header()
    if not lines[0][1].keys() & {"text", "query", "block"}:
        header = _read_header(*lines.pop(0))
    rows = [_read_row(where, values) for where, values in lines]

    # Blocks, each in the part to which it belongs
    blocks = [list(group) for _, group in groupby(rows, key=lambda row: row.values.block)]
    parts = _parts(blocks)
    _check_names(blocks)
    texts: dict[str | None, list[LinkedText]] = {"dev": [], "test": [], None: []}
    n_patterns = 0
    for part, block in zip(parts, blocks, strict=True):
        texts[part] += [replace(row.text, holdout=_HOLDOUTS[part]) for row in block]
        if part is not None:
            first, second, third, fourth = map(_start, block)
            n_patterns += (first != second) + (third != fourth)
    dev = texts["dev"]
    test = texts["test"]
    n_left_out = parts.count(None)
    _check_parts(path, dev, test, n_left_out)
    return OwnQuestion(
        file=str(path),
        name=header.question or path.stem,
        description=header.description or path.name,
        link=header.link,
        guards_off=header.guards_off,
        dev=dev,
        test=test,
        control=_controls(blocks, parts),
        n_left_out=n_left_out,
        n_patterns=n_patterns,
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
        # Only these ends separate lines; str.splitlines would also cut a text at rare characters.
        if line.strip():
            where = f"{file} line {number}"
            try:
                value = json.loads(line)
                json.dumps(value, ensure_ascii=False).encode()  # one half of a surrogate pair is no character
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({one_line(error)})") from None
            if not isinstance(value, dict):
                raise UserError(f"{where}: not an object")
            lines.append((where, value))
    if not lines:
        raise UserError(f"{file}: no text in it")
    return lines


# Rows


def _read_header(where: str, values: dict[str, Any]) -> _Header:
    """Return the description of a question; UserError if it could not be printed."""
    header: _Header = from_json(_Header, values, where)
    for name in ("question", "description", "link"):
        text = getattr(header, name)
        if text is not None and not (text.strip() and text.isprintable()):
            raise UserError(f"{where}: {name} must be one line of text")
    if len(header.question or "") > _MAX_NAME:
        raise UserError(f"{where}: question must have at most {_MAX_NAME} characters")
    if not {*header.guards_off} <= {*GUARDS}:
        raise UserError(f"{where}: guards_off must be a list of {', '.join(GUARDS)}")
    return header


def _read_row(where: str, values: dict[str, Any]) -> _Row:
    """Return a row with its text and link; UserError for a row that contradicts itself."""
    line = from_json(_Line, values, where)
    text = line.text
    query = _span(where, "query", text, line.query)
    payoff = _span(where, "payoff", text, line.payoff) if line.payoff else None
    cue = _span(where, "cue", text, line.cue) if line.cue else None
    antecedents = tuple(_span(where, "antecedents", text, value) for value in line.antecedents)
    distractors = tuple(_span(where, "distractors", text, value) for value in line.distractors)
    answers = tuple(line.answers)
    foils = tuple(line.foils)

    # All that is wrong in the row itself; the first is reported.
    outcome = payoff and text[slice(*payoff)]
    is_word = re.compile(r"\S+").fullmatch
    problems = {
        "words, answers and foils must be words without spaces": not all(map(is_word, [*line.words, *answers, *foils])),
        "frame must not be empty": not line.frame.strip(),
        "split must be dev or test": line.split not in (None, "dev", "test"),
        "antecedents and distractors must not be empty": not antecedents or not distractors,
        "answers and foils belong together": bool(answers) != bool(foils),
        "answers need the field payoff, the word of the text that is an answer": answers and payoff is None,
        "cue must come before the query": cue is not None and cue[1] > query[0],
        "payoff must come after the query": payoff is not None and payoff[0] < query[1],
        f"payoff {outcome!r} is none of the answers": answers and outcome not in answers,
        "the same word is antecedent and distractor": {*antecedents} & {*distractors},
        "antecedents and distractors must come before the query": max(antecedents + distractors, default=query)[1]
        > query[0],
    }
    for problem, is_wrong in problems.items():
        if is_wrong:
            raise UserError(f"{where}: {problem}")
    link = Link(OWN, query, query, antecedents, distractors, payoff=payoff, answers=answers, foils=foils)
    words = " ".join(line.words)
    linked = LinkedText(text, (link,), OWN, "", line.frame, words, line.order, line.meant)
    return _Row(where, line, linked, cue, None if line.control is None else _without_link(where, linked, line.control))


def _without_link(where: str, linked: LinkedText, control: str) -> LinkedText:
    """Return the control of a text, with the words of its row; UserError unless it differs before the query alone."""
    n_same = len(commonprefix([linked.text, control]))

    def moved(span: Span) -> Span:
        shift = len(control) - len(linked.text) if span[1] > n_same else 0
        return span[0] + shift, span[1] + shift

    (link,) = linked.links
    named = [link.query, *link.antecedents, *link.distractors, *([link.payoff] if link.payoff else [])]
    is_moved = all(linked.text[slice(*span)] == control[slice(*moved(span))] for span in named)
    if not is_moved or n_same >= link.query[0] or control.split() == linked.text.split():
        raise UserError(f"{where}: control must be the text with another word in place of one before the query")
    antecedents, distractors = (tuple(map(moved, spans)) for spans in (link.antecedents, link.distractors))
    query, payoff = moved(link.query), link.payoff and moved(link.payoff)
    new = replace(link, pronoun=query, query=query, antecedents=antecedents, distractors=distractors, payoff=payoff)
    return replace(linked, text=control, links=(new,), holdout=CONTROL)


def _span(where: str, name: str, text: str, value: Any) -> Span:
    """Return the characters of a word: given as [start, end), or as a word that the text has once."""
    if isinstance(value, list) and len(value) == 2 and all(type(place) is int for place in value):
        start, end = value
        if 0 <= start < end <= len(text):
            return start, end
        raise UserError(f"{where}: {name} [{start}, {end}] is outside the text of {len(text)} characters")
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: {name} must be a word of the text, or [start, end]")
    matches = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text)]
    if len(matches) != 1:
        problem = f"{value!r} is not in the text"
        if matches:
            problem = f"{value!r} is in the text {len(matches)} times; give [start, end]"
        raise UserError(f"{where}: {name}: {problem}")
    return matches[0]


# Blocks


def _parts(blocks: Sequence[Sequence[_Row]]) -> list[str | None]:
    """Return the part of each block, None if its words and its frame are of both; UserError if one is no block."""
    for block in blocks:
        _check_block(block)
    lines = [block[0].values for block in blocks]  # the lines of a block share what decides
    free = [Names(line.frame, *line.words) for line in lines if line.split is None]
    parts = iter(divided(free))
    return [line.split or next(parts) for line in lines]


def _check_block(rows: Sequence[_Row]) -> None:
    """Raise UserError unless the texts are both orders of two words times which of them is meant."""
    first = rows[0]
    for row in rows:
        if any(getattr(row.values, name) != getattr(first.values, name) for name in ("frame", "words", "split")):
            raise UserError(f"{row.where}: the texts of a block have the same frame, words and split")
    cells = [(row.text.order, row.text.meant) for row in rows]
    if cells != _CELLS:
        listing = ", ".join(f"{order} {meant}" for order, meant in cells)
        problem = f"the block that ends here has the rows {listing} (order and meant)"
        raise UserError(f"{rows[-1].where}: {problem}; they must be 0 0, 0 1, 1 0, 1 1")
    for first_row, second_row in zip(rows[::2], rows[1::2], strict=True):
        _check_antecedents(second_row.where, first_row.text, second_row.text)


def _controls(blocks: Sequence[Sequence[_Row]], parts: Sequence[str | None]) -> list[LinkedText]:
    """Return the controls of the test blocks; UserError if some rows have none, and others have."""
    rows = [row for part, block in zip(parts, blocks, strict=True) if part == "test" for row in block]
    lacking = [row for row in rows if row.control is None]
    if 0 < len(lacking) < len(rows):
        raise UserError(f"{lacking[0].where}: has no control, but other rows of the test part have one")
    return [row.control for row in rows if row.control is not None]


def _start(row: _Row) -> str:
    """Return the text before the query, without its cue, which may differ within a pair."""
    start = row.text.text[: row.text.links[0].query[0]]
    return start if row.cue is None else f"{start[: row.cue[0]]}_{start[row.cue[1] :]}"


def _n_clusters(texts: Sequence[LinkedText]) -> tuple[int, int, int]:
    """Return the numbers of frames, and of words of each side."""
    frames, first, second = zip(*((text.frame, *text.pair.split()) for text in texts), strict=True)
    return len(set(frames)), len(set(first)), len(set(second))


def _check_antecedents(where: str, first: LinkedText, second: LinkedText) -> None:
    """Raise UserError unless two texts of one order have their antecedents exchanged, in the order that they give."""
    # If a word could be an antecedent in both, a head that always attends to it would be right in both.
    pairs = ((first, second), (second, first))
    for text, counterpart in pairs:
        if not _words(text, text.links[0].antecedents) <= _words(counterpart, counterpart.links[0].distractors):
            raise UserError(f"{where}: the antecedents of each meaning must be distractors of the other one")
    for text, counterpart in pairs:
        (link,) = text.links
        rival_words = _words(counterpart, counterpart.links[0].antecedents)
        rivals = [span for span in link.distractors if _words(text, [span]) <= rival_words]
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
        for where, _, text, *_ in rows:
            # Every mention belongs to one word.
            (link,) = text.links
            word = text.pair.split()[text.meant]
            for mention in sorted(_words(text, link.antecedents)):
                label, place = words.setdefault(mention, (word, where))
                if label != word:
                    raise UserError(f"{where}: {mention!r} has the word {word!r} in words, but {label!r} at {place}")

            # Every text without its mentions belongs to one frame; a causal model reads it up to the query.
            rest = text.text[: link.query[1]]
            for start, end in sorted((*link.antecedents, *link.distractors), reverse=True):
                rest = f"{rest[:start]}_{rest[end:]}"
            label, place = frames.setdefault(" ".join(rest.lower().split()), (text.frame, where))
            if label != text.frame:
                raise UserError(
                    f"{where}: but for the two words this is the text of {place}; it has another frame there"
                )


def _check_parts(path: Path, dev: Sequence[LinkedText], test: Sequence[LinkedText], n_left_out: int) -> None:
    """Raise UserError if dev or test is too small, or if they share a frame or a word, which `split` allows."""
    names: dict[str, list[set[str]]] = {"frame": [], "word": []}
    for part, texts in (("dev", dev), ("test", test)):
        n_blocks = len(texts) // len(_CELLS)
        if n_blocks < MIN_BLOCKS:
            advice = (
                f"give {ENOUGH} frames and {ENOUGH} words of each side in test, and some in dev, or the field split"
            )
            if n_left_out:
                advice = f"{n_left_out} were left out, whose frame is in the other part than a word; {advice}"
            raise UserError(f"{path}: {n_blocks} {part} blocks, at least {MIN_BLOCKS} are needed; {advice}")
        names["frame"].append({text.frame for text in texts})
        names["word"].append({word for text in texts for word in text.pair.split()})
    for kind, (of_dev, of_test) in names.items():
        if of_dev & of_test:
            problem = f"dev and test share the {kind} {min(of_dev & of_test)!r}"
            raise UserError(f"{path}: {problem}; leave out the field split, and they are divided")
