"""Documents from local files, read through `datasets` a piece at a time so that memory stays flat."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from data.tokenizer import END

BUILDERS = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}
_PIECE_CHARACTERS = 1 << 16  # a longer document reaches the tokenizer in pieces of about this size, cut at a line's end


def expand(path: str) -> list[Path]:
    """Return the files meant by a file, a folder, a glob, or several of them parted by commas.

    Raise FileNotFoundError where nothing is there and ValueError for a kind of file we do not read.
    """
    files: list[Path] = []
    for part in path.split(","):
        here = Path(part.strip()).expanduser()
        if here.is_dir():
            found = sorted(file for file in here.iterdir() if file.suffix in BUILDERS)
        else:
            found = [here] if here.is_file() else sorted(Path(name) for name in glob.glob(str(here)))
        if not found:
            raise FileNotFoundError(f"data.path: no text found at {part.strip()}")
        files += found
    for file in files:
        if file.suffix not in BUILDERS:
            raise ValueError(f"data.path: {file} is not one of {', '.join(BUILDERS)}")
        if not os.access(file, os.R_OK):
            raise PermissionError(f"data.path: {file} cannot be read")
    return files


def read_pieces(files: list[Path], column: str) -> Iterator[tuple[str, bool]]:
    r"""Yield (text, whether it begins a document) in order.

    A .txt file is one document, or several parted by lines that hold `END` alone; a row of .jsonl or .parquet is one
    document. The pieces of one document joined together are the document, its line ends made "\\n".
    """
    for file in files:
        if file.suffix == ".txt":
            yield from _pieces_of_lines(_lines(file))
        else:
            for text in _rows(file, column):
                yield from _pieces_of_lines(iter(text.splitlines(keepends=True)), separated=False)


def _lines(file: Path) -> Iterator[str]:
    for batch in _stream(file, keep_linebreaks=True):
        yield from batch["text"]


def _rows(file: Path, column: str) -> Iterator[str]:
    for batch in _stream(file):
        if column not in batch:
            raise ValueError(f"data.column={column} is not in {file}, which has {', '.join(batch)}")
        for text in batch[column]:
            if text:
                yield str(text)


def _stream(file: Path, **options: object) -> Iterator[dict[str, list]]:
    import datasets  # not at import: it takes most of a second

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it would log is in the error we raise
    try:
        builder = BUILDERS[file.suffix]
        rows = datasets.load_dataset(builder, data_files=str(file), split="train", streaming=True, **options)
        yield from rows.iter(batch_size=1000)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error}") from None
    except Exception as error:  # the builders raise errors of their own and of pyarrow's
        raise ValueError(f"{file} cannot be read as {file.suffix}: {' '.join(str(error).split())[:200]}") from None


def _pieces_of_lines(lines: Iterator[str], *, separated: bool = True) -> Iterator[tuple[str, bool]]:
    held: list[str] = []
    size, begins = 0, True
    for line in lines:
        if separated and line.strip() == END:
            if held:
                yield "".join(held), begins
            held, size, begins = [], 0, True
            continue
        held.append(line)
        size += len(line)
        if size >= _PIECE_CHARACTERS:
            yield "".join(held), begins
            held, size, begins = [], 0, False
    if held:
        yield "".join(held), begins
