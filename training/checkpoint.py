"""A file that a run adds to as it goes: its errors name it, and what was said can be brought to the disk."""

import errno
import hashlib
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Stream:
    """Bytes, one after the other; every OSError names the file, which the operating system's own does not."""

    def __init__(self, path: Path) -> None:
        """Open `path` to add to it; it is made if need be."""
        self._path = path
        self._file = path.open("ab")
        self.is_empty = self._file.tell() == 0
        self._waiting = 0  # bytes that the operating system may not have yet

    def write(self, content: bytes) -> None:
        """Add `content`; who reads the file sees it after `flush`."""
        self._waiting += len(content)
        with self._named():
            self._file.write(content)

    def flush(self) -> None:
        """Hand everything to the operating system: it outlives this process."""
        with self._named():
            self._file.flush()
        self._waiting = 0

    def sync(self) -> None:
        """Bring everything to the disk: it outlives a power cut."""
        self.flush()
        with self._named():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close; closed it is even if the last of it cannot be written."""
        with self._named():
            self._file.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise named(error, self._path, self._waiting) from None


def named(error: OSError, path: Path, n_bytes: int) -> OSError:
    """Return `error` with the file's name and, where there was no room, the bytes that were to be written."""
    said = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        said += f" for {n_bytes:,} bytes ({shutil.disk_usage(path.parent).free:,} are free)"
    elif error.errno == errno.EFBIG:
        said += f" by {n_bytes:,} bytes"
    return type(error)(error.errno, said, str(path))


_MANIFESTS = ("manifest.json", "manifest_copy.json")


_FILE = re.compile(r"step_\d+(_again)?\.pt")


UNFINISHED = re.compile(r"\..+\.\d+")  # of what a killed process was just writing


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash at any moment, sees the old file or the new one.

    Raises OSError that names the path and, where there is no room, the bytes; then the old file is as it was.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise named(error, path, len(content)) from None
        raise


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_checkpoint(folder: Path, state: dict[str, Any], step: int, *, best: bool, keep: int = 2) -> None:
    """Add the state of `step` to `folder`; `best` marks it the one that evaluation should use.

    Args:
        folder: the run's checkpoints/, made if need be.
        state: tensors and plain Python only, as torch.load's weights_only takes them.
        step: optimizer steps taken.
        best: whether its validation loss is the lowest so far.
        keep: newest checkpoints that stay besides the best, 1 or more.

    Raises:
        OSError: it cannot be written; what was saved before is as it was.

    """
    folder.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    try:
        before = read_manifest(folder)
    except ValueError:  # damaged in both copies: this checkpoint at least shall be found
        before = []
    # Never over a file that counts: until the manifest says otherwise the old one is the run's.
    used = {one["file"] for one in before}
    file = next(name for name in (f"step_{step:08d}.pt", f"step_{step:08d}_again.pt") if name not in used)
    entry = {"file": file, "step": step, "sha256": hashlib.sha256(content).hexdigest(), "best": best}
    write_atomically(folder / file, content)
    for one in before:
        if one["step"] == step:
            entry["best"] |= one["best"]
    others = [one | {"best": one["best"] and not best} for one in before if one["step"] != step]
    entries = sorted([*others, entry], key=lambda one: one["step"])
    kept = [one for one in entries if one["best"] or one in entries[-keep:]]
    _write_manifest(folder, kept)
    for name in used - {one["file"] for one in kept}:
        (folder / name).unlink(missing_ok=True)


def go_back(folder: Path, step: int) -> None:
    """Forget what was saved after `step`, and remove what a killed process has left unfinished.

    What was saved later is damaged, or training would go on from there; it is written again. Whoever calls this must
    be the only one that writes to `folder`.
    """
    if not folder.is_dir():
        return
    kept = [one for one in read_manifest(folder) if one["step"] <= step]
    _write_manifest(folder, kept)
    known = {*_MANIFESTS, *(one["file"] for one in kept)}
    for path in folder.iterdir():
        if path.name not in known and (_FILE.fullmatch(path.name) or UNFINISHED.fullmatch(path.name)):
            path.unlink()


def read_manifest(folder: Path) -> list[dict[str, Any]]:
    """Return the manifest's entries, oldest first; none where there is no manifest, ValueError where it is damaged."""
    return _read_manifest(folder)[0]


def _read_manifest(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the entries of the first copy that is whole, and a line for each damaged one passed over."""
    damaged: list[str] = []
    for path in (folder / name for name in _MANIFESTS):
        if not path.exists():
            continue
        try:
            said = json.loads(path.read_text())
            if said["sha256"] == _hash_of(said["checkpoints"]) and all(map(_is_entry, said["checkpoints"])):
                return said["checkpoints"], damaged
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        damaged.append(f"{path} is damaged: passed over")
    if damaged:
        raise ValueError(f"{folder / _MANIFESTS[0]} is damaged, and so is its copy")
    if any(int(one.name[5:13]) for one in folder.glob("step_????????.pt") if _FILE.fullmatch(one.name)):
        # Killed over the very first, of step 0, a run begins again; it does not begin again over any other.
        raise ValueError(
            f"{folder / _MANIFESTS[0]} is gone and checkpoints are there: copy it from where the run was made, or "
            "delete the folder to begin again"
        )
    return [], damaged


def _is_entry(one: Any) -> bool:
    """Whether this is what `save_checkpoint` enters: its file is deleted in time, so it must be one of the folder's."""
    kinds = {"file": str, "step": int, "sha256": str, "best": bool}
    return {name: type(value) for name, value in one.items()} == kinds and bool(_FILE.fullmatch(one["file"]))


def _write_manifest(folder: Path, entries: list[dict[str, Any]]) -> None:
    content = json.dumps({"sha256": _hash_of(entries), "checkpoints": entries}, indent=1).encode()
    for name in _MANIFESTS:
        write_atomically(folder / name, content)


def _hash_of(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def load_checkpoint(folder: Path, *, best: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the newest whole state in `folder`, or the best one, and a line for each damaged file passed over.

    A run that is still training may replace its files meanwhile: then it is looked for once more.

    Raises:
        FileNotFoundError: nothing has been saved yet.
        ValueError: everything that was saved is damaged.

    """
    while True:
        entries, damaged = _read_manifest(folder)
        if not entries:
            raise FileNotFoundError(f"{folder} holds no checkpoint yet")
        found = None
        for entry in sorted(entries[::-1], key=lambda one: best and not one["best"]):  # stable: the newest first
            path = folder / entry["file"]
            content = _read(path)
            if hashlib.sha256(content).hexdigest() == entry["sha256"]:
                found = path, content
                break
            damaged.append(f"{path} is damaged (its sha256 is not the one recorded): passed over")
        if not damaged or read_manifest(folder) == entries:  # else it was not damaged: the run has gone on meanwhile
            break
    if found is None:
        raise ValueError(f"every checkpoint in {folder} is damaged: {', '.join(one['file'] for one in entries[::-1])}")
    return _unpacked(*found), damaged


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _unpacked(path: Path, content: bytes) -> dict[str, Any]:
    """Return the state in `content`; ValueError where it is none, or holds code, which is not run."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is refused anyway, in lines of torch's own
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds, none of them documented
        state = None
    if not isinstance(state, dict):
        raise ValueError(
            f"{path} is no checkpoint: it holds more than tensors and plain Python, or is no file of torch"
        )
    return state


_STAGING = ".unfinished"


def write_set(
    folder: Path, files: Mapping[str, str | bytes], mark: str | None = None, gone: Iterable[str] = ()
) -> None:
    """Write files into `folder`, made if need be, so that those of two writings never stand under one `mark`.

    All are brought to the disk beside their places first: where that fails, nothing has changed. Then `mark` is taken
    away, the others are moved into place, and `mark` comes last. After a kill in between there is no `mark`, and what
    else is there does not count. What a killed process has left beside is removed. Whoever calls this must be the only
    one that writes there.

    Args:
        folder: of the files.
        files: by their paths from `folder`; the folders between are made if need be.
        mark: the one of them that says what the others are of; None where each is whole by itself.
        gone: paths of earlier files that the new ones have no like of.

    Raises:
        OSError: it cannot be written.

    """
    staging = folder / _STAGING
    staged: dict[str, Path] = {}
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for number, (name, content) in enumerate(files.items()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (folder / name).is_dir():
                raise IsADirectoryError(f"{folder / name} is a folder: a file of that name is to be written")
            staged[name] = staging / f"{number}_{Path(name).name}"
            write_atomically(staged[name], content.encode() if isinstance(content, str) else content)
        _move(staged, folder, mark, gone)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(staged: Mapping[str, Path], folder: Path, mark: str | None, gone: Iterable[str]) -> None:
    if mark is not None:
        (folder / mark).unlink(missing_ok=True)
        sync_folder((folder / mark).parent)  # or the disk might keep it, and the others' new contents with it
    for name in gone:
        (folder / name).unlink(missing_ok=True)
    others = [name for name in staged if name != mark]
    for name in others:
        staged[name].replace(folder / name)
    for parent in {(folder / name).parent for name in others}:
        sync_folder(parent)
    if mark is not None:
        staged[mark].replace(folder / mark)
        sync_folder((folder / mark).parent)
