"""Text to token arrays in constant memory, by a process that may be killed at any moment and goes on where it was.

A corpus is written into a folder beside its place, `.part-<its name>`, that one process holds by a lock. There the
tokens are appended to the arrays themselves, and every few seconds, when what was written is safe on the disk, a
journal says how far that is. Who finds such a folder cuts the arrays back to the journal and reads on behind it, so
the result is the same to the byte as of a process that nobody stopped.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from tokenizers import Tokenizer

from data.config import HubConfig, TextConfig, TokenizerKind
from data.documents import Source, read_pieces
from data.tokenizer import (
    bpe_tokenizer,
    character_tokenizer,
    encode,
    end_id,
    file_tokenizer,
    load_tokenizer,
    unknown_id,
    word_tokenizer,
)

SPLITS = ("train", "validation")
# What BPE and words learn from, spread over the training text. Twice as much makes 0.2-0.3 % fewer tokens from 3.6 to
# 7.2 M characters already (docs/data.md), and half a minute is enough to wait.
_SAMPLE_CHARACTERS = 1 << 25
_BATCH_CHARACTERS = 1 << 19  # encoded at a time: an encoding takes about a hundred bytes a token
_JOURNAL_SECONDS = 3.0  # of work that a kill can cost
_HEADER_BYTES = 128  # of a .npy of one axis, whatever its length
_LOCK, _JOURNAL = "lock", "journal.json"


@dataclass(frozen=True, slots=True)
class Texts:
    """Where a corpus comes from."""

    train: list[Source]
    validation: list[Source] | None  # None: hold out the last part of train
    joined: bool = False  # no document begins where a row does: all of it is one

    def pieces(self, sources: list[Source], column: str) -> Iterator[tuple[str, bool]]:
        """Yield (text, whether it begins a document) of some of the sources."""
        return ((text, begins and not self.joined) for text, begins in read_pieces(sources, column))


@dataclass(frozen=True, slots=True)
class Extent:
    """How much text there is, counted before any of it is cut into tokens. In characters."""

    characters: int  # read of texts.train, what is held out included
    cut: int  # where in them the held-out part begins
    at_document: bool  # it begins with the first document from there on, not in the middle of one
    validation: int  # of texts.validation


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two pieces of a corpus."""

    source: int = 0  # of train's and validation's, counted through
    pieces: int = 0  # of that source that lie before
    characters: int = 0  # that lie before, of all sources
    held_out: bool = False  # the first document of the held-out part has begun


@dataclass(slots=True)
class Journal:
    """How far the writing of a corpus is, all of it safe on the disk."""

    extent: Extent
    notes: list[str]  # what is to be known of the tokenizer
    place: Place
    n_tokens: dict[str, int]  # by split
    n_bytes: dict[str, int]  # of UTF-8
    n_unknown: dict[str, int]  # tokens that stand for whatever the tokenizer has none for
    round_trips: bool  # every piece that was decoded again came back as it was


def write_once(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside `folder` and move it into place, unless another process has done so.

    What is written stays for the next try when the process dies or its disk or network fails, and is removed where
    `write` raises ValueError: then the text is at fault, and going on would not help.
    """
    part = folder.with_name(f".part-{folder.name}")
    while not folder.is_dir():
        with _held(part) as held:
            if held and folder.is_dir():
                shutil.rmtree(part, ignore_errors=True)  # made when another process had just moved its own into place
            elif held:
                try:
                    write(part)
                except ValueError:
                    shutil.rmtree(part, ignore_errors=True)  # who waits may be opening the lock in it
                    raise
                part.rename(folder)
                for name in (_JOURNAL, _LOCK):
                    (folder / name).unlink(missing_ok=True)


@contextmanager
def _held(part: Path) -> Iterator[bool]:
    """Hold a folder against every other process, waiting for one that does; False if it is not the same any more."""
    import fcntl  # not on Windows, where only the stories can be read

    part.mkdir(exist_ok=True)
    with ExitStack() as stack:
        try:
            lock = stack.enter_context((part / _LOCK).open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another process that writes {part}", file=sys.stderr)
                fcntl.flock(lock, fcntl.LOCK_EX)
            same = os.path.sameopenfile(lock.fileno(), stack.enter_context((part / _LOCK).open()).fileno())
        except FileNotFoundError:
            same = False
        yield same


def write_texts(texts: Texts, config: TextConfig | HubConfig, part: Path) -> None:
    """Write tokenizer.json, train.npy, validation.npy and meta.json into `part`, or go on doing so.

    Raises:
        ValueError: the text or the tokenizer cannot be used, in one line.
        OSError: there is no room, or the network fails: what is written can be gone on with.

    """
    try:
        journal = _read_journal(part) or _begin(texts, config, part)
        tokenizer = load_tokenizer(part / "tokenizer.json")
        _check_room(texts, config.column, tokenizer, journal, part)
        _write_tokens(texts, config.column, tokenizer, journal, part)
    finally:
        show("")
    for split in SPLITS:
        if journal.n_tokens[split] < 2:
            raise ValueError(f"{_setting(config, split)}: no text is left for {split}")
    meta = {name: getattr(journal, name) for name in ("n_bytes", "n_tokens", "n_unknown", "round_trips", "notes")}
    if isinstance(config, HubConfig):
        meta |= {"name": config.name, "revision": config.revision}
    (part / "meta.json").write_text(json.dumps(meta))


def _setting(config: TextConfig | HubConfig, split: str) -> str:
    """Return what the user has set of where a split comes from, for the errors."""
    if isinstance(config, TextConfig):
        return "data.validation_path" if split == "validation" and config.validation_path else "data.path"
    if config.files is not None:
        return "data.files"
    return "data.validation_split" if split == "validation" and config.validation_split else "data.split"


def _begin(texts: Texts, config: TextConfig | HubConfig, part: Path) -> Journal:
    """Measure the text, make its tokenizer and write both down."""
    show("reading the text")
    extent = _measure(texts, config)
    show("making the tokenizer")
    tokenizer, notes = _make_tokenizer(texts, config, extent)
    tokenizer.save(str(part / "tokenizer.json"))
    n_tokens, n_bytes, n_unknown = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    journal = Journal(extent, notes, Place(), n_tokens, n_bytes, n_unknown, round_trips=True)
    _write_journal(part, journal)
    return journal


def _measure(texts: Texts, config: TextConfig | HubConfig) -> Extent:
    """Count the text, and find where the held-out part begins: with a document where there are several.

    For one document that is int(characters x share), which for characters is nanoGPT's 90/10 split.
    """
    length = n_bytes = last = 0  # last: where the last document begins
    for text, begins in texts.pieces(texts.train, config.column):
        if config.max_bytes is not None:
            n_bytes += len(text.encode())
            if n_bytes > config.max_bytes:
                if length == 0:
                    length = len(text.encode()[: config.max_bytes].decode(errors="ignore"))
                break
        last = length if begins else last
        length += len(text)
    if length == 0:
        raise ValueError(f"{_setting(config, 'train')}: there is no text in it")
    if texts.validation is not None:
        held_out = sum(len(text) for text, _ in texts.pieces(texts.validation, config.column))
        if held_out == 0:
            raise ValueError(f"{_setting(config, 'validation')}: there is no text in it")
        return Extent(length, length, False, held_out)
    cut = int(length * (1 - config.validation_fraction))
    return Extent(length, cut, last >= cut and last > 0, 0)


def _parted(texts: Texts, column: str, extent: Extent, start: Place) -> Iterator[tuple[str, str, bool, Place]]:
    """Yield (text of train, text of validation, whether they begin a document, the place behind them) from `start` on.

    One of the two is empty, but where a single document is cut.
    """
    at, held_out = start.characters, start.held_out
    for index, source in enumerate([*texts.train, *(texts.validation or [])]):
        trains = index < len(texts.train)
        if index < start.source or (trains and at >= extent.characters):  # max_bytes may end before the last source
            continue
        done = start.pieces if index == start.source else 0
        for number, (text, begins) in enumerate(texts.pieces([source], column), start=1):
            if number <= done:
                continue
            text = text[: extent.characters - at] if trains else text
            held_out |= not trains or (extent.at_document and begins and at >= extent.cut)
            own = 0 if held_out else len(text) if extent.at_document else min(len(text), max(0, extent.cut - at))
            at += len(text)
            yield text[:own], text[own:], begins, Place(index, number, at, held_out)
            if trains and at >= extent.characters:
                break


def _make_tokenizer(texts: Texts, config: TextConfig | HubConfig, extent: Extent) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer that the config asks for and what is to be said of it."""
    if config.tokenizer is TokenizerKind.file:
        return file_tokenizer(Path(str(config.tokenizer_path)))
    if config.tokenizer is TokenizerKind.characters:
        parts = _parted(texts, config.column, extent, Place())
        return character_tokenizer(text for own, held_out, *_ in parts for text in (own, held_out)), []
    make = word_tokenizer if config.tokenizer is TokenizerKind.words else bpe_tokenizer
    return make(_sample(texts, config.column, extent, _SAMPLE_CHARACTERS), config.vocab_size), []


def _sample(texts: Texts, column: str, extent: Extent, n_characters: int) -> Iterator[str]:
    """Yield pieces of the training text spread over it, of about `n_characters` together, or all of it."""
    taken = 0
    for own, _, _, place in _parted(texts, column, extent, Place()):
        if not own:
            return
        if taken * extent.cut <= (place.characters - len(own)) * n_characters:
            taken += len(own)
            yield own


def _check_room(texts: Texts, column: str, tokenizer: Tokenizer, journal: Journal, part: Path) -> None:
    """Raise OSError where the disk cannot hold the tokens that are still to be written."""
    free, width = shutil.disk_usage(part).free, _kind(tokenizer).itemsize
    left = journal.extent.characters + journal.extent.validation - journal.place.characters
    if 5 * left * width <= free:  # four bytes a character at most, and an END
        return
    sample = list(_sample(texts, column, journal.extent, 1 << 20))
    rate = sum(len(ids) + 1 for ids in encode(tokenizer, sample)) / sum(map(len, sample))
    if (needed := int(left * rate * width)) > free:
        raise OSError(
            f"the tokens need about {needed / 1e9:.3g} GB and {part.parent} has {free / 1e9:.3g} GB free: "
            "set cache_dir=FOLDER on a larger disk, or read less with data.max_bytes=N"
        )


def _write_tokens(texts: Texts, column: str, tokenizer: Tokenizer, journal: Journal, part: Path) -> None:
    """Append the ids of all pieces behind the journal's place, `END` before each document, and keep the journal."""
    end, unknown, kind = end_id(tokenizer), unknown_id(tokenizer), _kind(tokenizer)
    total = journal.extent.characters + journal.extent.validation
    with ExitStack() as stack:
        streams = {split: stack.enter_context(_array(part, split, kind, journal)) for split in SPLITS}
        saved = time.monotonic()
        for pieces in _batches(_parted(texts, column, journal.extent, journal.place)):
            named = [
                (split, text, begins)
                for *both, begins, _ in pieces
                for split, text in zip(SPLITS, both, strict=True)
                if text
            ]
            every = encode(tokenizer, [text for _, text, _ in named])
            for (split, text, begins), own in zip(named, every, strict=True):
                ids = np.array([end, *own] if begins or not journal.n_tokens[split] else own, dtype=kind)
                streams[split].write(ids.tobytes())
                journal.n_tokens[split] += len(ids)
                journal.n_bytes[split] += len(text.encode())
                journal.n_unknown[split] += int((ids == unknown).sum()) if unknown is not None else 0
            journal.round_trips &= tokenizer.decode(every[0], skip_special_tokens=False) == named[0][1]
            journal.place = pieces[-1][-1]
            show(f"tokenizing {named[-1][0]} {100 * journal.place.characters // total} %")
            if time.monotonic() - saved >= _JOURNAL_SECONDS:
                for stream in streams.values():
                    _sync(stream)
                _write_journal(part, journal)
                saved = time.monotonic()
        for split, stream in streams.items():
            _write_header(stream, kind, journal.n_tokens[split])
            _sync(stream)


def _batches(pieces: Iterator[tuple[str, str, bool, Place]]) -> Iterator[list[tuple[str, str, bool, Place]]]:
    """Gather pieces; where a batch ends depends on nothing but where it begins, so a resumed run has the same."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece[0]) + len(piece[1])
        if size >= _BATCH_CHARACTERS:
            yield held
            held, size = [], 0
    if held:
        yield held


def _kind(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)


def _array(part: Path, split: str, kind: np.dtype, journal: Journal) -> IO[bytes]:
    """Open a split's .npy behind the tokens that the journal knows; what lies there is cut off."""
    path = part / f"{split}.npy"
    stream = path.open("r+b" if path.exists() else "w+b")
    _write_header(stream, kind, journal.n_tokens[split])
    stream.truncate(_HEADER_BYTES + journal.n_tokens[split] * kind.itemsize)
    stream.seek(0, os.SEEK_END)
    return stream


def _write_header(stream: IO[bytes], kind: np.dtype, n_tokens: int) -> None:
    stream.seek(0)
    header = {"descr": kind.str, "fortran_order": False, "shape": (n_tokens,)}
    np.lib.format.write_array_header_1_0(stream, header)  # numpy leaves room for a longer axis
    assert stream.tell() == _HEADER_BYTES


def _sync(stream: IO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _read_journal(part: Path) -> Journal | None:
    path = part / _JOURNAL
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return Journal(Extent(**values.pop("extent")), place=Place(**values.pop("place")), **values)


def _write_journal(part: Path, journal: Journal) -> None:
    beside = part / f"{_JOURNAL}.new"
    with beside.open("w") as stream:
        json.dump(asdict(journal), stream)
        _sync(stream)
    beside.replace(part / _JOURNAL)


def show(line: str) -> None:
    """Show how far it is where a person looks on; a log gets nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
