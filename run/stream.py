"""A file that a run adds to as it goes: its errors name it, and what was said can be brought to the disk."""

import os
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

    def write(self, content: bytes) -> None:
        """Add `content`; who reads the file sees it after `flush`."""
        with self._named():
            self._file.write(content)

    def flush(self) -> None:
        """Hand everything to the operating system: it outlives this process."""
        with self._named():
            self._file.flush()

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
            error.filename = str(self._path)
            raise
