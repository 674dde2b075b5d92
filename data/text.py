"""Documents from text files and from datasets of the Hugging Face hub, read piece by piece."""

import glob
import hashlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from data.tokenizer import END
from settings.data import DataConfig, HubConfig, RowsKind, TextConfig
from settings.errors import UserError, one_line
from settings.files import PROGRAM, found

SHIPPED_TEXT = PROGRAM / "data/tinystories/validation.txt.gz"
SHIPPED_TRAINING_TEXT = PROGRAM / "data/tinystories/train.txt.gz"
UNSEEN_TEXT = PROGRAM / "data/tinystories/unseen.txt.gz"  # for testing only
# The builders of `datasets` by file name.
_BUILDERS = {".txt": "text", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_COMPRESSED = (".gz", ".zst")
READABLE = ".txt .jsonl .csv .parquet, also .gz and .zst"
_PIECE_CHARACTERS = 8192  # a longer document is tokenized in pieces, which bounds the memory
# The longest part of a line that ends before a space, or else of the largest size.
_LINE_PART = re.compile(rf".{{1,{_PIECE_CHARACTERS}}}(?= |\Z)|.{{1,{_PIECE_CHARACTERS}}}", re.DOTALL)
_BATCH_ROWS = 256
_TIMEOUT = 3.0  # seconds until the hub answers


class Piece(NamedTuple):
    """A document or a part of it with LF line ends; the pieces of a document join to its text."""

    text: str
    starts_document: bool


@dataclass(frozen=True)
class Texts:
    """The texts of a corpus; each call reads from the start."""

    train: Callable[[], Iterable[Piece]]
    validation: Callable[[], Iterable[Piece]] | None  # None: the last part of `train` is held out


def file_texts(config: TextConfig) -> Texts:
    """Return the texts of the files of `config`; raise UserError if a file is in both splits."""
    train, validation = config_files(config)
    shared = set(map(Path.resolve, train)) & set(map(Path.resolve, validation or ()))
    if shared:
        raise UserError(f"data.validation_path={config.validation_path}: {min(shared)} is in data.path too; remove it")

    def read_train() -> Iterator[Piece]:
        return first_bytes(read_files(train, config.column), config.max_bytes)

    if validation is None:
        return Texts(read_train, None)
    return Texts(read_train, lambda: read_files(validation, config.column))


def config_files(config: TextConfig) -> tuple[list[Path], list[Path] | None]:
    """Return the training files and the validation files; None if a part of the training text is held out."""
    train = text_files(config.path)
    if not config.validation_path:
        return train, None
    return train, text_files(config.validation_path, "data.validation_path")


def print_files(config: DataConfig) -> None:
    """Print how many files a folder or a pattern stands for, and their size, before they are read."""
    if isinstance(config, TextConfig) and not Path(config.path).is_file():
        files = text_files(config.path)
        size = sum(file.stat().st_size for file in files) / 1e6
        print(f"data    {len(files):,} file(s), {size:,.1f} MB from {config.path}", flush=True)


def text_files(path: str, setting: str = "data.path") -> list[Path]:
    """Return the files of a path, a folder, a glob or several of them separated by commas; each file once.

    A folder stands for all readable files below it, sorted by path, without hidden ones. Raise FileNotFoundError or
    UserError with the name of the setting.
    """
    # By the file itself, so that a file that is named twice is read once.
    files: dict[Path, Path] = {}
    for pattern in [path] if path and Path(path).expanduser().exists() else path.split(","):
        if not pattern.strip():
            raise UserError(f"{setting}={path}: give a file, a folder or a pattern; one is empty")
        start = found(pattern.strip())  # experiment=english names the text of the project
        if start.exists():
            matches = _files_below(start) if start.is_dir() else [start]
        else:
            matches = list(filter(Path.is_file, map(Path, sorted(glob.glob(str(start), recursive=True)))))
        if not matches:
            raise FileNotFoundError(f"{setting}={path}: no text file at {pattern.strip()}; readable are {READABLE}")
        for file in matches:
            if not _builder(file):
                raise UserError(f"{setting}={path}: cannot read {file}; readable are {READABLE}")
            if file.suffix == ".zst" and "zstd" not in fsspec.available_compressions():
                raise UserError(f"{setting}={path}: {file} needs zstandard: {sys.executable} -m pip install zstandard")
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _files_below(folder: Path) -> list[Path]:
    files = []
    for file in sorted(folder.rglob("*")):
        is_hidden = any(name.startswith(".") for name in file.relative_to(folder).parts)
        if file.is_file() and _builder(file) and not is_hidden:
            files.append(file)
    return files


def _builder(path: Path) -> str | None:
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _BUILDERS.get(name.suffix.lower())


def read_files(files: Sequence[Path], column: str) -> Iterator[Piece]:
    """Yield the documents of local files in order.

    A .txt file is one document, or several separated by lines with `END` alone. Each row of the other
    files is one, in the field `column`. Raise UserError in one line: which file cannot be read and why.
    """
    for file in files:
        try:
            if _builder(file) == "text":
                yield from _read_text(file)
            elif file.stat().st_size:
                yield from _row_pieces(_open_rows(file, column), column)
        except PermissionError:
            raise
        except UnicodeError as error:
            raise UserError(f"{file}: not UTF-8 ({error}); convert it: iconv -f OLD -t UTF-8") from None
        except Exception as error:  # pandas, pyarrow and fsspec raise exceptions of many types
            raise UserError(f"{file}: {one_line(error)}") from None


def read_documents(files: Sequence[Path]) -> list[str]:
    """Return the documents of `read_files`, each as one text; a column has the name "text"."""
    documents = list[str]()
    for text, starts_document in read_files(files, "text"):
        if starts_document:
            documents.append(text)
        else:
            documents[-1] += text
    return documents


def _read_text(file: Path) -> Iterator[Piece]:
    # utf-8-sig drops a byte order mark, newline=None makes every line end LF.
    mode = {"mode": "rt", "compression": "infer", "encoding": "utf-8-sig", "newline": None}
    with fsspec.open(str(file.absolute()), **mode) as lines:
        for is_separator, document in groupby(lines, key=lambda line: line.strip() == END):
            if not is_separator:
                yield from _pieces(document)


def _open_rows(file: Path, column: str) -> Any:
    """Return the rows of a file, streamed: `datasets` then keeps no copy."""
    import datasets  # a second to import, and stories do not need it

    options: dict[str, dict[str, Any]] = {
        "csv": {"keep_default_na": False, "index_col": False, "converters": {column: str}},  # "NA" is a text
        "parquet": {"batch_size": _BATCH_ROWS},
        "json": {},
    }
    _silence()
    builder = str(_builder(file))
    files = [glob.escape(str(file.absolute()))]
    return datasets.load_dataset(builder, data_files=files, split="train", streaming=True, **options[builder])


def _row_pieces(rows: Any, column: str, kind: RowsKind = RowsKind.documents) -> Iterator[Piece]:
    """Yield the texts of a dataset without empty rows; each row is a document, or all of them are one."""
    is_first = True
    for batch in rows.iter(batch_size=_BATCH_ROWS):
        if column not in batch:
            columns = ", ".join(map(str, batch))
            raise UserError(f"data.column={column}: no such column; there are {columns}")
        for row in batch[column]:
            if row is not None and not isinstance(row, str):
                raise UserError(f"data.column={column}: {type(row).__name__} instead of text")
            lines = (row or "").replace("\r\n", "\n").replace("\r", "\n").splitlines(keepends=True)
            for text, is_start in _pieces(lines):
                yield Piece(text, is_start and (is_first or kind is RowsKind.documents))
                is_first = False


def _pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """Yield a document in pieces that end with a line; lines longer than a piece are cut before a space."""
    piece = ""
    starts_document = True
    for text in chain.from_iterable(map(_LINE_PART.findall, lines)):
        piece += text
        if len(piece) >= _PIECE_CHARACTERS:
            yield Piece(piece, starts_document)
            piece = ""
            starts_document = False
    if piece:
        yield Piece(piece, starts_document)


def first_bytes(pieces: Iterable[Piece], max_bytes: int | None) -> Iterator[Piece]:
    """Yield the first pieces with at most `max_bytes` of UTF-8 (None: all), or the beginning of a longer first one."""
    # A character is never cut.
    n_bytes = 0
    for piece in pieces:
        encoded = piece.text.encode()
        if max_bytes is not None and n_bytes + len(encoded) > max_bytes:
            if n_bytes == 0:
                yield Piece(encoded[:max_bytes].decode(errors="ignore"), True)
            return
        n_bytes += len(encoded)
        yield piece


def pin_revision(config: HubConfig) -> HubConfig:
    """Return `config` with a commit, or a hash of the files of a local folder, as its revision."""
    folder = Path(config.name)
    if folder.is_dir():
        files = sorted(filter(Path.is_file, folder.rglob("*")))
        state = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return replace(config, revision=hashlib.sha256(repr(state).encode()).hexdigest()[:40])
    if re.fullmatch("[0-9a-f]{40}", config.revision or ""):
        return config
    return replace(config, revision=_ask_hub(config))


def _ask_hub(config: HubConfig) -> str:
    """Return the commit of a dataset. It fails in seconds without network, where `datasets` retries for 23."""
    import huggingface_hub  # slow to import, and only texts of the hub need it
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    name = f"data.name={config.name}"
    try:
        info = huggingface_hub.HfApi().dataset_info(config.name, revision=config.revision, timeout=_TIMEOUT)
    except RepositoryNotFoundError:  # also of gated datasets
        raise UserError(f"{name}: no such dataset; if it is private or gated, run `hf auth login`") from None
    except RevisionNotFoundError:
        raise UserError(f"data.revision={config.revision}: {config.name} has no such revision") from None
    except Exception as error:  # no network: the type depends on the HTTP library
        raise ConnectionError(
            f"{name}: no answer from {huggingface_hub.constants.ENDPOINT} ({one_line(error)}); use the stories "
            "(data=stories), a local file (data=text data.path=FILE) or a mirror (HF_ENDPOINT=URL)"
        ) from None
    return str(info.sha)


def hub_texts(config: HubConfig, cache_dir: Path) -> Texts:
    """Return the texts of `config`, whose revision is pinned; UserError or ConnectionError if they cannot be read."""
    if not Path(config.name).is_dir():
        _ask_hub(config)
    train = _hub_split(config, config.split, config.max_bytes, cache_dir)
    if config.validation_split is None:
        return Texts(train, None)
    shared = {*config.split.split("+")} & {*config.validation_split.split("+")}
    if shared:
        raise UserError(f"data.validation_split={config.validation_split}: {min(shared)} is in data.split too")
    max_bytes = config.max_bytes and max(1, int(config.max_bytes * config.validation_fraction))
    return Texts(train, _hub_split(config, config.validation_split, max_bytes, cache_dir))


def _hub_split(config: HubConfig, split: str, max_bytes: int | None, cache_dir: Path) -> Callable[[], Iterable[Piece]]:
    import datasets  # a second to import, and stories do not need it

    # With a limit the beginning is streamed, otherwise `datasets` keeps the split in its cache.
    _silence()
    revision = None if Path(config.name).is_dir() else config.revision
    try:
        rows = datasets.load_dataset(
            config.name,
            config.subset,
            split=split,
            revision=revision,
            streaming=max_bytes is not None,
            cache_dir=str(cache_dir / "datasets"),
        )
        if max_bytes is None:
            return lambda: _row_pieces(rows, config.column, config.rows)
        beginning = list(first_bytes(_row_pieces(rows, config.column, config.rows), max_bytes))
    except ConnectionError:
        raise
    except Exception as error:  # of `datasets` and its readers
        raise UserError(f"data.name={config.name} data.split={split}: {one_line(error)}") from None
    return lambda: beginning


def _silence() -> None:
    """Turn off the log of `datasets`, whose exceptions become one line here, and its progress bars in a log file."""
    import datasets  # a second to import, and stories do not need it
    import huggingface_hub

    datasets.logging.set_verbosity(logging.CRITICAL)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        huggingface_hub.utils.disable_progress_bars()  # type: ignore[attr-defined]  # its documentation imports it so
