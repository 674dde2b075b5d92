"""Files that a crash cannot damage and other processes cannot mix up: atomic writes, JSON, locks, sets of files."""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from settings.errors import UserError

PROGRAM = Path(__file__).resolve().parent.parent  # the checkout, or the installed package
SHIPPED = ("data/tinystories", "docs/questions")  # folders of texts and questions that come with it
LOCK = ".lock"
# Temporary files of `write_atomically`, left by a killed process.
UNFINISHED = re.compile(r"\..+\.\d+")
STAGING = ".unfinished"


def now() -> str:
    """Return the time in UTC as records have it: 2026-11-28T16:02:03.250000+00:00."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def found(path: str | Path) -> Path:
    """Return a file of the user, or the one of SHIPPED that has this name, which any folder finds."""
    own = Path(path).expanduser()
    is_shipped = own.parent.as_posix() in SHIPPED and (PROGRAM / own).is_file()
    return PROGRAM / own if is_shipped and not own.exists() else own


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of a file, so that a crash or OSError leaves the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, temporary):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Raise an OSError of the body that names no file, as of a full disk, or `temporary`, with `path`.

    Errors that this program raises itself are of its subclasses, and say all in their message.
    """
    try:
        yield
    except OSError as error:
        is_unnamed = type(error) is OSError and error.filename is None
        if is_unnamed or error.filename == str(temporary):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def remove_unfinished_files(folder: Path) -> None:
    """Delete the temporary files that a killed process left in `folder`."""
    for path in folder.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink()


def _sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk, where a folder can be opened (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raises UserError if it is damaged."""
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged JSON: {error}") from None


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


class FolderLock(FileLock):
    """A lock that ends when it is closed."""

    close = FileLock.release


def lock(folder: Path) -> FolderLock:
    """Lock `folder` for this process until the lock is closed; BlockingIOError if another process has it."""
    path = folder / LOCK
    folder_lock = FolderLock(path)  # follows no link
    try:
        folder_lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(f"{folder}: another process is writing to it; wait until it ends, or stop it") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
            raise
    return folder_lock


def write_files(folder: Path, files: Mapping[str, str], marker: str | None = None) -> None:
    """Write `files`, content by name in `folder`, so that `marker` exists only if all of them are from the same call.

    An error while they are written to a temporary folder changes nothing. Only one process may write at a time.
    """
    for path in map(folder.joinpath, files):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder is in the place of this file", str(path))
    staging = folder / STAGING
    try:
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
        staging.mkdir(parents=True)
        for name, content in files.items():
            (staging / name).parent.mkdir(exist_ok=True)
            write_atomically(staging / name, content.encode())

        # From here on readers find no marker, the path that they look for, until every file is in its place.
        if marker is not None:
            (folder / marker).unlink(missing_ok=True)
            _sync_folder(folder)
        for name in sorted(files, key=lambda name: name == marker):
            (folder / name).parent.mkdir(exist_ok=True)
            (staging / name).replace(folder / name)
            _sync_folder((folder / name).parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
