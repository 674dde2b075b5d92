"""Documents out of files of text, a piece at a time, so that memory stays flat whatever their size.

Read by ourselves rather than through `datasets`: its reader of .csv takes "NA" for nothing, none of its readers knows
UTF-16 or says where a file breaks, and they take 1.8 to 8 times as long and 5 to 8 times the memory (docs/data.md).
"""

import codecs
import csv
import glob
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from data.tokenizer import END

_KINDS = {".txt": "text", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}  # by pyarrow's names
READABLE = ".txt .jsonl .csv (also .gz and .zst of these) .parquet"
_BLOCK_BYTES = 1 << 20  # read at a time
# A longer document reaches the tokenizer in pieces of about this size, cut at a line's end. In pieces of 64 K BPE wrote
# 2.4 MB of English a CPU second, in pieces of 8 K 2.8.
_PIECE_CHARACTERS = 1 << 13
ROW_CHARACTERS = 1 << 28  # a row of .jsonl or a field of .csv is held whole: a longer one is a file that is damaged
_ROWS = 64  # of .parquet, decoded at a time


@dataclass(frozen=True, slots=True)
class Source:
    """One file of text: where it is and what it is."""

    place: str  # a path on this machine, or what whoever opens it calls it
    kind: str  # "text", "json", "parquet" or "csv"
    compression: str | None  # "gz", "zst" or None


def source_of(place: str) -> Source | None:
    """Return what a file is, by its name; None for a kind of file we do not read."""
    stem, suffix = os.path.splitext(place.lower())
    compression = suffix[1:] if suffix[1:] in _COMPRESSIONS else None
    kind = _KINDS.get(os.path.splitext(stem)[1] if compression else suffix)
    return None if kind is None or (kind == "parquet" and compression) else Source(place, kind, compression)


def local_sources(path: str, setting: str = "data.path") -> list[Source]:
    """Return the files meant by a file, a folder, a glob (** too), or several of them parted by commas.

    Each is there once, by whatever names and links it was reached.

    A folder means every file of text in it and in the folders under it, by path; what begins with a dot is left out.
    `setting` is what the user set, for the errors.

    Raises:
        FileNotFoundError: nothing is there.
        PermissionError: a file cannot be read.
        ValueError: a file is of a kind we do not read, or one in name only, as a pipe is.

    """
    sources: dict[str, Source] = {}
    for part in [path] if os.path.exists(os.path.expanduser(path)) else path.split(","):
        here = Path(os.path.expanduser(part.strip()))  # not Path.expanduser, which raises where there is no such user
        if os.path.isdir(here):  # not Path.is_dir, which raises where a name is too long
            below = sorted(file for file in here.rglob("*") if file.exists() and not file.is_dir())
            shown = [file for file in below if not any(name[0] == "." for name in file.relative_to(here).parts)]
            files = [file for file in shown if source_of(str(file))]
        else:
            found = [here] if os.path.isfile(here) else map(Path, sorted(glob.glob(str(here), recursive=True)))
            files = [file for file in found if not file.is_dir()]
        if not files:
            raise FileNotFoundError(f"{setting}: no text found at {part.strip()} ({READABLE})")
        for file in files:
            source = source_of(str(file))
            if source is None:
                raise ValueError(f"{setting}: {file} is not one of {READABLE}")
            if not os.access(file, os.R_OK):
                raise PermissionError(f"{setting}: {file} cannot be read")
            if not file.is_file():  # to open a pipe is to wait for whoever writes to it, who may never come
                raise ValueError(f"{setting}: {file} is no regular file: write the text to one and give that")
            sources.setdefault(os.path.realpath(file), source)
    return list(sources.values())


def read_pieces(
    sources: Iterable[Source], column: str, opened: Callable[[Source], BinaryIO] | None = None
) -> Iterator[tuple[str, bool]]:
    r"""Yield (text, whether it begins a document) in order; the pieces of one file never depend on the others.

    A .txt file is one document, or several parted by lines that hold `END` alone; a row of .jsonl, .csv or .parquet is
    one document, and a row without text is none. The pieces of one document joined together are the document, its line
    ends made "\n". A piece ends at a line's end; a line longer than a piece is cut before a space.

    Args:
        sources: the files.
        column: where rows keep their text.
        opened: opens a source that is no file of this machine, decompressed.

    Raises:
        ValueError: in one line, which file cannot be read, where and why.
        OSError: a file is not at fault, but the disk or the network does not give it.

    """
    import pyarrow

    for source in sources:
        try:
            with (opened or _opened)(source) as stream:
                if source.kind == "text":
                    yield from _pieces(_characters(stream), separated=True)
                else:
                    for text in _ROWS_OF[source.kind](stream, column):
                        blocks = (text[i : i + _PIECE_CHARACTERS] for i in range(0, len(text), _PIECE_CHARACTERS))
                        yield from _pieces(blocks, separated=False)
        except (ValueError, OSError, RecursionError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's: it says nothing about the file
                raise OSError(error.errno, error.strerror, source.place) from None
            if isinstance(error, OSError) and type(error) is not OSError:  # the network's; pyarrow's own are bare
                raise
            why = " ".join(str(error).split())[:300]
            raise ValueError(f"{source.place} cannot be read as {source.kind}: {why}") from None


def _opened(source: Source) -> BinaryIO:
    """Open a file for reading its bytes, decompressed."""
    return decompressed(open(source.place, "rb"), source.compression)  # noqa: SIM115  (closed by whoever reads)


def decompressed(stream: BinaryIO, compression: str | None) -> BinaryIO:
    """Return a stream of what is compressed in `stream`."""
    import pyarrow

    return pyarrow.CompressedInputStream(stream, _COMPRESSIONS[compression]) if compression else stream


def _characters(stream: BinaryIO) -> Iterator[str]:
    r"""Yield the text of a stream, UTF-8 or what a UTF-16 mark says it is, every line end made "\n"."""
    block = stream.read(_BLOCK_BYTES)
    if block.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise ValueError("it is marked as UTF-32: convert it first, as in iconv -f UTF-32 -t UTF-8 OLD > NEW")
    marked = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not marked and len(block) >= 4 and not (any(block[:64:2]) and any(block[1:64:2])):  # every other byte is NUL
        order = "LE" if any(block[:64:2]) else "BE"
        raise ValueError(
            f"it looks like UTF-16 without its mark: convert it first, as in iconv -f UTF-16{order} -t UTF-8 OLD > NEW"
        )
    name = "UTF-16" if marked else "UTF-8"
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-16" if marked else "utf-8-sig")(), translate=True
    )
    n_before = 0
    while True:
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            at = n_before + len(block) - len(error.object) + error.start  # the decoder may have held bytes back
            raise ValueError(
                f"byte {at} (from 0) is not {name}: convert it first, as in iconv -f ITS-ENCODING -t UTF-8 OLD > NEW"
            ) from None
        if text:
            yield text
        if not block:
            return
        n_before += len(block)
        block = stream.read(_BLOCK_BYTES)


def _pieces(blocks: Iterable[str], *, separated: bool) -> Iterator[tuple[str, bool]]:
    """Join lines to pieces; where `separated`, a line of `END` alone parts documents."""
    held: list[str] = []
    size, begins, fresh = 0, True, True  # fresh: a line begins here, not the rest of one
    for line in _short_lines(blocks):
        if separated and fresh and line.strip() == END:
            if held:
                yield "".join(held), begins
            held, size, begins = [], 0, True
            continue
        fresh = line[-1] == "\n"
        held.append(line)
        size += len(line)
        if size >= _PIECE_CHARACTERS:
            yield "".join(held), begins
            held, size, begins = [], 0, False
    if held:
        yield "".join(held), begins


def _short_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends, those longer than a piece in parts that begin with a space where there is one."""
    held = ""
    for block in blocks:
        lines = (held + block).split("\n")
        held = lines.pop()
        for line in lines:
            if len(line) < _PIECE_CHARACTERS:
                yield line + "\n"
            else:
                *parts, rest = _parts(line)
                yield from parts
                yield rest + "\n"
        *parts, held = _parts(held)
        yield from parts
    if held:
        yield held


def _parts(line: str) -> list[str]:
    parts, start = [], 0
    while len(line) - start >= _PIECE_CHARACTERS:
        at = line.rfind(" ", start + 1, start + _PIECE_CHARACTERS)
        at = at if at > 0 else start + _PIECE_CHARACTERS
        parts.append(line[start:at])
        start = at
    return [*parts, line[start:]]


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for block in blocks:
        first, *others = block.split("\n")
        held.append(first)
        size += len(first)
        if size > ROW_CHARACTERS:
            raise ValueError(f"a line is longer than {ROW_CHARACTERS} characters")
        if others:
            yield "".join(held) + "\n"
            for line in others[:-1]:
                yield line + "\n"
            held, size = [others[-1]], len(others[-1])
    if size:
        yield "".join(held)


def _rows_of_json(stream: BinaryIO, column: str) -> Iterator[str]:
    names: list[str] = []  # of the first row
    found = False
    for number, line in enumerate(_whole_lines(_characters(stream)), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f'line {number} is not an object with names, as {{"{column}": ...}}')
        names, found = names or list(row), found or column in row
        if text := _text(row.get(column), column, f"line {number}"):
            yield text
    if names and not found:
        raise ValueError(f"data.column={column} is not in it, only {', '.join(names)[:200]}")


def _rows_of_csv(stream: BinaryIO, column: str) -> Iterator[str]:
    csv.field_size_limit(ROW_CHARACTERS)  # a quote that is never closed ends here
    rows = csv.reader(_whole_lines(_characters(stream)), strict=True)
    begins = 1  # the line in which a row does
    try:
        names = next(rows, None)
        if names is None:
            return
        if column not in names:
            raise ValueError(f"data.column={column} is not in it, only {', '.join(names)[:200]}")
        place = names.index(column)
        begins = rows.line_num + 1
        for row in rows:
            if len(row) > place and row[place]:
                yield row[place]
            begins = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"the row that begins in line {begins}: {error}") from None


def _rows_of_parquet(stream: BinaryIO, column: str) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(stream, buffer_size=_BLOCK_BYTES, pre_buffer=False)  # otherwise a whole row group is held
    if column not in file.schema_arrow.names:
        raise ValueError(f"data.column={column} is not in it, only {', '.join(file.schema_arrow.names)[:200]}")
    number = 0
    for batch in file.iter_batches(_ROWS, columns=[column], use_threads=False):
        for value in batch.column(0).to_pylist():
            number += 1
            if text := _text(value, column, f"row {number}"):
                yield text


_ROWS_OF = {"json": _rows_of_json, "csv": _rows_of_csv, "parquet": _rows_of_parquet}


def _text(value: object, column: str, where: str) -> str:
    r"""Return a row's text with its line ends made "\n", "" for a row that has none."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: data.column={column} holds {type(value).__name__}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {value[error.start]!r} is half of a character") from None
    return value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value
