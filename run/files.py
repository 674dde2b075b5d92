"""Files that belong together: whoever reads them finds all the earlier ones, all the new ones, or none that count."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from run.checkpoint import sync_folder, write_atomically

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
