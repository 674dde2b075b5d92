"""Files of a dataset on the hub: fetched whole, or read in parts over the network.

Requests go through the session of `huggingface_hub`, which knows about tokens, proxies, HF_ENDPOINT and
HF_HUB_OFFLINE. Its `hf_hub_download` (2.4.0, read in its source) begins a file anew when the process was killed, tries
a silent server for minutes and waits as long as a busy one asks, so bytes are fetched here: what came is kept and gone
on from, and every wait has an end.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from data.writing import show

FIRST_ANSWER = 3.0  # seconds: who is offline should read so at once
DEADLINE = 4.0  # seconds for the first answer whatever happens: looking a name up has no timeout of its own
SILENCE = 10.0  # seconds without a byte
_SHOWN_EVERY = 0.2  # seconds
_PATIENCE = 6.0  # seconds of waiting in all, where the hub is busy or has a fault: an answer comes within ten

T = TypeVar("T")


class Unreachable(OSError):
    """No answer came: refused, silent, no such name, offline."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a commit, as the hub lists it."""

    name: str
    size: int  # bytes
    sha256: str | None  # where the hub knows it: of files kept outside git


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a dataset, and where its files are kept."""

    name: str
    revision: str  # a commit
    folder: Path
    files: dict[str, File]
    is_whole: bool = True  # False: files are what the library's cache happens to hold

    def url(self, file: File) -> str:
        """Return where the hub serves a file."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.name, file.name, repo_type="dataset", revision=self.revision)

    def local(self, file: File) -> Path | None:
        """Return the file where it is whole on this machine, in our cache or in that of the hub's own library."""
        from huggingface_hub import try_to_load_from_cache

        ours = self.folder / "files" / file.name
        if ours.is_file():
            return ours
        theirs = try_to_load_from_cache(self.name, file.name, repo_type="dataset", revision=self.revision)
        return Path(theirs) if isinstance(theirs, str) else None


def fetch(repository: Repository, file: File) -> Path:
    """Return where a file lies whole on this machine, fetching what is missing of it.

    What has come of it is kept as FILE.part, also by a run that is killed, and gone on from. The lock makes a second
    run wait for the first and then find the file.
    """
    if (there := repository.local(file)) is not None:
        return there
    path = repository.folder / "files" / file.name
    with once(path) as stream:
        tries = 0
        while stream is not None and (at := stream.tell()) < file.size:
            try:
                _append(repository, file, stream)
            except Unreachable as error:
                if stream.tell() <= at:  # less where parts are not served and this one is shorter than the last
                    tries += 1
                if tries > 1:
                    came = f"came to {size_text(stream.tell())} of {size_text(file.size)}, then {error}"
                    raise Unreachable(
                        f"{file.name} of {repository.name} {came}. The same command goes on from there"
                    ) from None
        if stream is not None:
            _check(repository, file, stream)
    return path


@contextmanager
def once(path: Path) -> Iterator[BinaryIO | None]:
    """Let one process at a time append to FILE.part, which is FILE when that ends well; None where FILE is there.

    What a killed process has written is still in it. It is never removed, only emptied: another process may be waiting
    for it.
    """
    import fcntl  # not on Windows, where only the stories can be read

    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0, os.SEEK_END)  # who had the lock may have written
        if path.is_file():
            part.unlink(missing_ok=True)  # made when another process had just moved its own into place
            yield None
            return
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
        os.replace(part, path)


def _append(repository: Repository, file: File, stream: BinaryIO) -> None:
    """Write the rest of a file to the end of `stream`, as much of it as comes."""
    at = stream.tell()
    with _opened(repository, file, at, file.size) as response:
        if at and response.status_code == 200:  # parts are not served there: from the start
            stream.seek(0)
            stream.truncate()
        shown = time.monotonic()
        try:
            for chunk in _chunks(response):
                stream.write(chunk)
                if time.monotonic() - shown > _SHOWN_EVERY:
                    show(f"fetching {file.name} {100 * stream.tell() // file.size} %")
                    shown = time.monotonic()
        finally:
            stream.flush()
            show("")
    if stream.tell() > file.size:
        stream.truncate(0)
        raise ValueError(f"{file.name} of {repository.name} is larger than the hub's own listing says")
    if stream.tell() < file.size:
        raise Unreachable("the hub ended it")


def _check(repository: Repository, file: File, part: BinaryIO) -> None:
    if file.sha256 is None:
        return
    part.flush()
    with open(part.name, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        part.truncate(0)
        raise ValueError(
            f"{file.name} of {repository.name} is not what the hub's listing says (sha256 {found[:12]} instead of "
            f"{file.sha256[:12]}): it is deleted, and the same command fetches it again"
        )


@contextmanager
def _opened(repository: Repository, file: File, start: int, end: int) -> Iterator[Any]:
    """GET the bytes of a file from `start` up to `end`; the answer's body is read by `_chunks`."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    headers = build_hf_headers() | {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}

    def ask() -> Any:
        session = get_session()
        request = session.build_request("GET", repository.url(file), headers=headers, timeout=SILENCE)
        response = session.send(request, stream=True)
        try:
            hf_raise_for_status(response)
        except BaseException:
            response.close()
            raise
        return response

    response = patiently(repository.name, repository.revision, ask)
    try:
        yield response
    finally:
        response.close()


def _chunks(response: Any) -> Iterator[bytes]:
    parts = response.iter_bytes()  # as they come: what is gathered to larger ones is lost with the connection
    while True:
        try:
            chunk = next(parts)
        except StopIteration:
            return
        except Exception as error:  # of httpx, or of the library that has its place: the network's
            raise Unreachable(_reason(error)) from None
        yield chunk


class Remote(io.RawIOBase):
    """A file on the hub, of which only what is read is fetched."""

    def __init__(self, repository: Repository, file: File) -> None:
        """Ask for nothing yet."""
        self.repository, self.file, self.at = repository, file, 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place; nothing is fetched by that."""
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.file.size}[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        """Fetch as many bytes as `buffer` holds and the file still has; a broken answer is asked for once more."""
        end = min(self.at + len(buffer), self.file.size)
        done = 0
        for trial in (1, 2):
            try:
                while self.at + done < end:
                    before = done
                    with _opened(self.repository, self.file, self.at + done, end) as response:
                        if response.status_code == 200 and end - self.at - done < self.file.size:
                            raise ValueError(f"{self.file.name} is served only whole: leave data.max_bytes out")
                        for chunk in _chunks(response):
                            buffer[done : done + len(chunk)] = chunk
                            done += len(chunk)
                    if done == before:
                        raise Unreachable("the hub ended it")
                break
            except Unreachable as error:
                if trial == 2:
                    what = f"{self.file.name} of {self.repository.name}"
                    raise Unreachable(f"{what} could not be read on: {error}. Try the same command again") from None
        self.at += done
        return done


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked of the hub, in words of who reads an error."""

    place: str  # of its page on the hub, before its name
    missing: str  # why there is none of a name
    instead: str  # what there is without the hub


DATASET = Kind(
    "datasets/",
    "data.name={name} is not a dataset of {hub}, or a private one: then `hf auth login`",
    "the built-in stories (python train.py), a file of yours (data=text data.path=FILE), or a filled cache or a mirror "
    "(HF_HUB_OFFLINE=1, HF_ENDPOINT=URL; docs/data.md)",
)


def patiently(name: str, revision: str | None, ask: Callable[[], T], kind: Kind = DATASET) -> T:
    """Make one request; where the hub is busy, wait as it says and ask again, for `_PATIENCE` seconds in all.

    Every other answer that is not the thing itself becomes one line.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    log_in = f"accept its terms at {constants.ENDPOINT}/{kind.place}{name} and log in with `hf auth login`"
    waited, wait = 0.0, 1.0
    while True:
        try:
            return ask()
        except GatedRepoError:
            raise ValueError(f"{name} is gated: {log_in}") from None
        except RepositoryNotFoundError:
            raise ValueError(kind.missing.format(name=name, hub=constants.ENDPOINT)) from None
        except RevisionNotFoundError:
            raise ValueError(f"data.revision={revision} is not a revision of {name}") from None
        except RemoteEntryNotFoundError as error:
            raise ValueError(f"{name} has lost a file that it lists: {error.response.url}") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise ValueError(f"the hub refuses {name} to you ({status}): {log_in}") from None
            if status not in (429, 500, 502, 503, 504):
                raise ValueError(f"the hub answers {status} when asked for {name}") from None
            told = _retry_after(error.response.headers)
            wait = wait * 2 if told is None and waited else told or wait
            if waited + wait > _PATIENCE:
                when = "later" if told is None else f"in {told:.0f} seconds"
                why = "has been asked too often from here" if status == 429 else "has a fault"
                raise ValueError(f"the hub {why} ({status}): run the same command {when}") from None
            time.sleep(wait)
            waited += wait
        except json.JSONDecodeError:
            raise ValueError(
                f"{constants.ENDPOINT} does not answer as a hub does: HF_ENDPOINT, or a log-in page?"
            ) from None
        except (ValueError, Unreachable):
            raise
        except Exception as error:  # of httpx, or of the library that has its place: no answer came
            raise Unreachable(_ways_out(_reason(error), kind)) from None


def _retry_after(headers: Any) -> float | None:
    """Return the seconds that an answer asks to wait, from Retry-After or the hub's own RateLimit."""
    told = headers.get("Retry-After") or ""
    if not told.isdigit():
        in_seconds = re.search(r";\s*t=(\d+)", headers.get("RateLimit") or "")
        told = in_seconds[1] if in_seconds else ""
    return max(1.0, float(told)) if told else None


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what `ask` returns or raises, or raise TimeoutError; its thread does not keep the process alive."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:  # handed on to who waits
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:.0f} seconds") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _reason(error: Exception) -> str:
    if "timed out" in str(error) or "Timeout" in type(error).__name__:
        return "no answer came in time"
    return " ".join(str(error).split())[:120] or type(error).__name__


def _ways_out(reason: str, kind: Kind) -> str:
    from huggingface_hub import constants

    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else reason
    return f"{constants.ENDPOINT} cannot be asked ({offline}). Without it: {kind.instead}"


def size_text(n_bytes: float) -> str:
    """Write a size as a person reads it, in thousands of thousands as disks are sold."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}" if n_bytes < 1000 * size else f"{n_bytes / size:,.0f} {unit}"
    return f"{n_bytes / 1e3:.3g} kB"
