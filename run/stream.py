"""A file that a run adds to as it goes: its errors name it, and what was said can be brought to the disk."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
