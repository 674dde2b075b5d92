"""A question of the user's own, in a .jsonl file: each line a sentence pattern and two words (docs/probe.md).

The four texts of a line are a block. The first line may describe the question.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from data.pairs import CONTROL, LinkedText
from extras.own.pattern import fill, start_of
from extras.own.split import ENOUGH, divided
from settings.errors import UserError, one_line
from settings.files import found
from settings.typed_json import from_json

_CELLS = 4  # texts of a block
MOST_BLOCKS = 10_000  # a file of a million lines took 145 s and 4.1 GB
_MIN_BLOCKS = 2  # in either part; with few the verdict says that no p can be small enough
_HOLDOUTS = {"dev": "iid", "test": "headline", "": ""}  # by part

Texts = list[LinkedText]


@dataclass(frozen=True)
class _Header:
    """The first line of a file, if it describes the question."""

    question: str = ""
    description: str = ""
    head_type: str = ""  # previous or induction, if the question asks for such heads: else they get no claim


@dataclass(frozen=True)
class _Line:
    """Any other line."""

    pattern: Any  # a text, or a text for each order of the words
    words: tuple[str, str]
    answers: tuple[list[str], list[str]] | None = None  # that fit if the first, the second word is meant
    control: Any = None  # as pattern, without the link
    frame: str | None = None
    split: str | None = None


class _Block(NamedTuple):
    where: str  # "FILE line N"
    split: str | None
    texts: Texts  # four
    controls: Texts  # four or none


@dataclass(frozen=True)
class OwnQuestion:
    """The content of a file of items."""

    file: str
    name: str
    description: str
    dev: Texts  # whole blocks, in the hold-out "iid"
    test: Texts  # whole blocks, in the hold-out "headline"
    control: Texts  # the texts of test without the link, in the hold-out "control"; empty if not given
    n_left_out: int  # blocks with words of one part and a frame of the other
    places: dict[str, str]  # "FILE line N" by text, for messages
    head_type: str = ""  # previous or induction, if the question asks for such heads

    def notes(self) -> list[str]:
        """Return what weakens the test: texts without answers, blocks that are left out, and patterns with {X}."""
        texts = [*self.dev, *self.test]
        notes = []
        n_lacking = sum(not text.link.answers for text in texts)
        if 0 < n_lacking < len(texts):
            notes.append(f"{n_lacking} of {len(texts)} texts have no answers: the causal tests lack them.")
        if self.n_left_out:
            of_all = f"{self.n_left_out} of {self.n_left_out + len(texts) // _CELLS} blocks"
            notes.append(f"{of_all} are left out: frame and words are not all in dev, or all in test.")
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        n_repeated = sum(len(first.link.antecedents) > len(second.link.distractors) for first, second in pairs)
        if n_repeated:
            which = f"In {n_repeated} of {len(pairs)} pairs"
            notes.append(f"{which} {{X}} stands before the query: a head that attends to this place passes too.")
        return notes

    def check_lines(self, n_flips: int) -> list[str]:
        """Return blocks and clusters of both parts, and the smallest p that is possible with `n_flips` sign flips."""
        lines = [f"{self.name}: {self.description}"]
        for part, texts, use in (("dev", self.dev, "choose a head"), ("test", self.test, "make the verdict")):
            clusters = "{} frames, {} and {} words".format(*_n_clusters(texts))
            lines.append(f"{part:5}{len(texts) // _CELLS:5,} blocks {use}: {clusters}")
        if self.control:
            lines.append(f"control: {len(self.control) // _CELLS:,} blocks without the link")
        n_clusters = min(_n_clusters(self.test))
        smallest_p = max(2.0**-n_clusters, 1 / (n_flips + 1))
        lines.append(f"smallest p that is possible: {smallest_p:.4f}; a verdict needs less than 0.01")
        if not any(text.link.answers for text in self.test):
            lines.append("note: without a [payoff] the best verdict is suggestive")
        if n_clusters < ENOUGH:
            lines.append(f"note: give test {ENOUGH} frames and {ENOUGH} words of each side, or more")
        return lines + [f"note: {note}" for note in self.notes()]


def load_question(path: Path) -> OwnQuestion:
    """Return the question of a file; UserError names the line of the first problem.

    Without the field `split`, frames and words are divided so that no test block shares a frame or a word with dev
    (`extras.own.split`); blocks that would are left out.
    """
    header = _Header()
    blocks: list[_Block] = []
    known: dict[Any, tuple[str, str]] = {}  # name and line of texts, words and frames
    for where, values in _objects(path):
        if not blocks and not values.keys() & {"pattern", "words"}:
            header = from_json(_Header, values, where)
            if header.head_type not in ("", "previous", "induction"):
                raise UserError(f"{where}.head_type: {header.head_type!r} is not previous or induction")
            if not (header.question + header.description).isprintable():
                raise UserError(f"{where}: question and description must be one line of text")
            continue
        if len(blocks) == MOST_BLOCKS:
            raise UserError(f"{where}: a question has at most {MOST_BLOCKS:,} blocks, a line each")
        blocks.append(_read_block(where, values))
        _check_new(blocks[-1], known)
        if bool(blocks[-1].controls) != bool(blocks[0].controls):
            raise UserError(f"{where}: give all lines the field control, or none")

    parts = iter(divided([_names(block.texts[0]) for block in blocks if block.split is None]))
    texts = defaultdict[str, Texts](list)  # by part
    places = dict[str, str]()
    controls: Texts = []
    for block in blocks:
        part = block.split or next(parts)
        for text in block.texts:
            texts[part].append(replace(text, holdout=_HOLDOUTS[part]))
            places[text.text] = block.where
        if part == "test":
            controls += block.controls
    _check_parts(path, texts["dev"], texts["test"])
    return OwnQuestion(
        file=str(path),
        name=header.question or path.stem,
        description=header.description or path.name,
        dev=texts["dev"],
        test=texts["test"],
        control=controls,
        n_left_out=len(texts[""]) // _CELLS,
        places=places,
        head_type=header.head_type,
    )


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield "FILE line N" and the object of each line that is not blank; UserError if one is none."""
    with found(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                value = json.loads(line.decode("utf-8-sig"))
                json.dumps(value, ensure_ascii=False).encode()  # one half of a surrogate pair is no character
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON in UTF-8 ({one_line(error)})") from None
            if not isinstance(value, dict):
                raise UserError(f"{where}: not an object")
            yield where, value


def _read_block(where: str, values: dict[str, Any]) -> _Block:
    """Return the block of a line; UserError if it contradicts itself."""
    line = from_json(_Line, values, where)
    words = [*line.words]
    if " ".join(words).split() != words or words[0].lower() == words[1].lower():
        raise UserError(f"{where}: words must be two different words without spaces")
    if line.split not in (None, "dev", "test"):
        raise UserError(f"{where}: split must be dev or test")
    texts = _texts(where, line, line.pattern, line.frame, "")
    controls = [] if line.control is None else _texts(where, line, line.control, texts[0].frame, CONTROL)
    if controls and controls[0].text == texts[0].text:
        raise UserError(f"{where}: control is the pattern itself; write it without the link")
    return _Block(where, line.split, texts, controls)


def _texts(where: str, line: _Line, value: Any, frame: str | None, holdout: str) -> Texts:
    """Return the four texts of a pattern, or of a list with one for each order."""
    patterns = (value, value) if isinstance(value, str) else from_json(tuple[str, str], value, f"{where}: patterns")
    texts = []
    for order, pattern in enumerate(patterns):
        pair = [fill(where, pattern, line.words, order, meant) for meant in (0, 1)]
        frame = frame or start_of(pair[0])
        payoffs = [text.link.answers for text in pair]
        if line.answers and not payoffs[0]:
            raise UserError(f"{where}: answers need the [payoff] in the pattern")
        choices = line.answers or payoffs
        for text, payoff, answers, foils in zip(pair, payoffs, choices, choices[::-1], strict=True):
            if not {*payoff} <= {*answers} - {*foils}:
                raise UserError(f"{where}: {payoff[0]!r} must be an answer for one of the words, and for it alone")
            link = replace(text.link, answers=tuple(answers), foils=tuple(foils))
            texts.append(replace(text, link=link, frame=frame, holdout=holdout))
        # A causal model reads no further.
        starts = {text.text[: text.link.query[1]] for text in pair}
        if len(starts) == 1 and holdout != CONTROL:
            ways = "write <one|two>, {one|two} or {X} there"
            raise UserError(f"{where}: nothing up to the <query> says which word is meant; {ways}")
    return texts


def _check_new(block: _Block, known: dict[Any, tuple[str, str]]) -> None:
    """Raise UserError for a block that is there already, or a word or frame with two names: both fake independence."""
    copy = frozenset(" ".join(text.text.split()) for text in block.texts)
    place = known.setdefault(copy, ("", block.where))[1]
    if place != block.where:
        raise UserError(f"{block.where}: the block is there already, at {place}")
    names = {("word", word.lower()): word for word in block.texts[0].pair.split()}
    names |= {("frame", start_of(text)): text.frame for text in block.texts}
    for key, name in names.items():
        earlier, place = known.setdefault(key, (name, block.where))
        if earlier != name:
            raise UserError(f"{block.where}: {key[1]!r} has the {key[0]} {name!r}, but {earlier!r} at {place}")


def _names(text: LinkedText) -> tuple[str, str, str]:
    """Return the frame and both words."""
    first, second = text.pair.split()
    return text.frame, first, second


def _n_clusters(texts: Sequence[LinkedText]) -> tuple[int, int, int]:
    """Return the numbers of frames and of the words of each side, or of all words if the sides share some."""
    frames, first, second = map(set, zip(*map(_names, texts), strict=True))
    if not first.isdisjoint(second):
        first = second = first | second
    return len(frames), len(first), len(second)


def _check_parts(path: Path, dev: Sequence[LinkedText], test: Sequence[LinkedText]) -> None:
    """Raise UserError if dev or test is too small, or if they share a frame or a word, which `split` allows."""
    names: list[set[str]] = []
    for part, texts in (("dev", dev), ("test", test)):
        n_blocks = len(texts) // _CELLS
        if n_blocks < _MIN_BLOCKS:
            advice = f"give {ENOUGH} frames and {ENOUGH} words of each side for test, and some for dev"
            raise UserError(f"{path}: {n_blocks} {part} blocks, at least {_MIN_BLOCKS} are needed; {advice}")
        names.append(set())
        for frame, first, second in map(_names, texts):
            names[-1] |= {f"frame {frame!r}", f"word {first!r}", f"word {second!r}"}
    for shared in sorted(names[0] & names[1]):
        raise UserError(f"{path}: dev and test share the {shared}; leave out the field split, and they are divided")
