"""Text from the Hugging Face hub: which files make up a split, and how much of them is wanted.

A commit's files are asked for once and kept as a listing, `datasets` says which of them are a split, and
data/download.py brings them here: whole, or as much of their beginning as a taste needs.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from data.config import HubConfig, RowsKind, TokenizerKind
from data.documents import READABLE, ROW_CHARACTERS, Source, decompressed, read_pieces, source_of
from data.download import (
    DEADLINE,
    FIRST_ANSWER,
    SILENCE,
    File,
    Remote,
    Repository,
    Unreachable,
    fetch,
    once,
    patiently,
    size_text,
    within,
)
from data.writing import Texts

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

_KINDS = ("text", "json", "parquet", "csv")  # what we read of what `datasets` tells apart
_AHEAD = 1 << 18  # bytes of one range request at least: a taste of 20 MB is some 50 of them
_CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")  # where a dataset says which files are which split


def pinned(config: HubConfig) -> HubConfig:
    """Return `config` with a commit for its revision; nothing is asked of the network where it is one already."""
    if re.fullmatch("[0-9a-f]{40}", config.revision or ""):
        return config
    try:
        sha = _first_answer(config).sha
        if sha is None:
            raise ValueError(f"the hub names no commit of {config.name}: is HF_ENDPOINT that of a hub?")
        return replace(config, revision=sha)
    except Unreachable:
        if (snapshot := _library_snapshot(config)) is None:
            raise
        return replace(config, revision=snapshot.name)


def hub_texts(config: HubConfig, cache_dir: Path) -> Texts:
    """Fetch what is not here yet of the text of `config`, whose revision is a commit, and return where it is.

    Raises:
        ValueError: the dataset, split, subset, column or file is not there, cannot be had, or does not fit the disk.
        Unreachable: the hub does not answer and the cache does not hold what is needed.

    """
    repository = _repository(config, cache_dir)
    splits = _splits(config, repository)
    parts = {"train": _chosen(config, repository, splits, "split", config.split)}
    if config.validation_split is not None:
        parts["validation"] = _chosen(config, repository, splits, "validation_split", config.validation_split)
        if twice := sorted(file.name for file in set(parts["train"]) & set(parts["validation"])):
            raise ValueError(
                f"{twice[0]} of {config.name} is in data.split={config.split} and in "
                f"data.validation_split={config.validation_split}: it would be learned and measured on"
            )
    most = {"train": config.max_bytes, "validation": config.max_bytes}
    if config.max_bytes is not None:  # a taste of validation too, and no more of it than would have been held out
        most["validation"] = max(1, int(config.max_bytes * config.validation_fraction))
    tasted = [
        name
        for name, part in parts.items()
        if (n_bytes := most[name]) is not None and _taste_path(config, repository, part, n_bytes).is_file()
    ]
    wanted = [file for name, part in parts.items() if name not in tasted for file in part]
    _say_and_check(config, repository, wanted, cache_dir)
    sources = {name: _sources(config, repository, part, most[name]) for name, part in parts.items()}
    return Texts(sources["train"], sources.get("validation"), joined=config.rows is RowsKind.joined)


def _sources(config: HubConfig, repository: Repository, files: list[File], most: int | None) -> list[Source]:
    """Return the files' text, or a taste of it."""
    if most is not None:
        return [_taste(config, repository, files, most)]
    return [replace(_source(file), place=str(fetch(repository, file))) for file in files]


# --- which files -----------------------------------------------------------------------------------------------------


def _repository(config: HubConfig, cache_dir: Path) -> Repository:
    """Return the commit's listing: kept from an earlier run, or the hub's, or that of the library's own cache."""
    assert config.revision is not None
    folder = cache_dir / "hub" / config.name.replace("/", "--") / config.revision
    kept = folder / "listing.json"
    if kept.is_file():
        files = {name: File(**values) for name, values in json.loads(kept.read_text()).items()}
        return Repository(config.name, config.revision, folder, files)
    try:
        _first_answer(config)
        files = _listed(config)
    except Unreachable:
        if (snapshot := _library_snapshot(config)) is None:
            raise
        there = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
        names = {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in there}
        files = {name: File(name, size, None) for name, size in names.items()}
        return Repository(config.name, config.revision, folder, files, is_whole=False)
    with once(kept) as stream:
        if stream is not None:
            stream.truncate(0)
            stream.write(json.dumps({name: asdict(file) for name, file in files.items()}, indent=0).encode())
    return Repository(config.name, config.revision, folder, files)


def _first_answer(config: HubConfig) -> DatasetInfo:
    """Ask whether dataset and revision are there; answer within `DEADLINE`, whatever the network does."""
    from huggingface_hub import HfApi

    def ask() -> DatasetInfo:
        info = HfApi().dataset_info
        return info(config.name, revision=config.revision, timeout=FIRST_ANSWER, expand=["sha"])

    return patiently(config.name, config.revision, lambda: within(DEADLINE, ask))


def _listed(config: HubConfig) -> dict[str, File]:
    from huggingface_hub import HfApi

    def ask() -> DatasetInfo:
        return HfApi().dataset_info(config.name, revision=config.revision, timeout=SILENCE, files_metadata=True)

    files = {}
    for one in patiently(config.name, config.revision, ask).siblings or []:
        if ".." in PurePosixPath(one.rfilename).parts or one.rfilename.startswith("/") or "\\" in one.rfilename:
            raise ValueError(f"data.name={config.name} names a file outside itself: {one.rfilename}")
        if one.size is None:
            raise ValueError(f"data.name={config.name} lists {one.rfilename} without its size")
        files[one.rfilename] = File(one.rfilename, one.size, one.lfs.sha256 if one.lfs else None)
    return files


def _library_snapshot(config: HubConfig) -> Path | None:
    """Return the folder in which the hub's own library keeps this revision, if `hf download` has filled it."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                config.name,
                repo_type="dataset",
                revision=config.revision,
                local_files_only=True,
                allow_patterns=[],  # whatever of it is there
            )
        )
    except OSError:
        return None


def _splits(config: HubConfig, repository: Repository) -> dict[str, list[File]]:
    """Return the files of each split, as `datasets` finds them.

    `datasets` is shown the repository as empty files beside its real card, so it resolves splits without asking the
    network, which it would do for 23 seconds when there is none.
    """
    if config.files is not None:
        found = [file for file in repository.files.values() if fnmatch(file.name, config.files)]
        if not found:
            some = ", ".join(sorted(repository.files)[:8])
            raise ValueError(f"data.files={config.files} matches no file of {config.name}, which has {some}")
        return {config.split: sorted(found, key=lambda file: file.name)}
    if not repository.is_whole and "README.md" not in repository.files:
        raise ValueError(f"the cache of the hub's library lacks README.md, which says what is a split of {config.name}")
    import datasets
    import huggingface_hub

    for library in (datasets, huggingface_hub):
        library.logging.set_verbosity(logging.CRITICAL)  # what they would log is in the error we raise
    with tempfile.TemporaryDirectory() as temporary:
        outline = Path(temporary) / "dataset"
        for file in repository.files.values():
            path = outline / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if file.name in _CARDS:
                shutil.copyfile(fetch(repository, file), path)
        try:
            subsets = datasets.get_dataset_config_names(str(outline))
            if config.subset is not None and config.subset not in subsets:
                known = f"it has {', '.join(subsets)}" if len(subsets) > 1 else "it has none: leave data.subset out"
                raise ValueError(f"data.subset={config.subset} is not a subset of {config.name}: {known}")
            if config.subset is None and len(subsets) > 1 and "default" not in subsets:
                raise ValueError(f"{config.name} has several subsets: choose data.subset from {', '.join(subsets)}")
            builder = datasets.load_dataset_builder(str(outline), config.subset, cache_dir=str(Path(temporary) / "no"))
        except Exception as error:
            if isinstance(error, ValueError) and config.name in str(error):
                raise
            raise ValueError(_no_split_message(config, repository, error)) from None
        if builder.name not in _KINDS:
            raise ValueError(f"{config.name} is made of {builder.name}, not of {', '.join(_KINDS)}")
        names = {
            str(split): [Path(file).resolve().relative_to(outline.resolve()).as_posix() for file in files]
            for split, files in (builder.config.data_files or {}).items()
        }
    return {split: [repository.files[name] for name in files] for split, files in names.items()}


def _no_split_message(config: HubConfig, repository: Repository, error: Exception) -> str:
    scripts = [name for name in repository.files if name.endswith(".py")]
    if scripts and not any(_readable(name) for name in repository.files):
        return f"{config.name} is a script ({scripts[0]}) without files of data, and scripts of datasets are not run"
    reason = " ".join(str(error).split())[:160].replace(tempfile.gettempdir(), "")
    return f"{config.name} holds no split that can be read: {type(error).__name__}: {reason}"


def _chosen(
    config: HubConfig, repository: Repository, splits: dict[str, list[File]], setting: str, value: str
) -> list[File]:
    """Return the files of a split, or of several joined by +, refusing what cannot be read before it is fetched."""
    chosen = []
    for split in value.split("+"):
        if split not in splits:
            raise ValueError(f"data.{setting}={value} is not a split of {config.name}: it has {', '.join(splits)}")
        chosen += splits[split]
    chosen = list(dict.fromkeys(chosen))  # train+train is train
    for file in chosen:
        _source(file)
    if not (repository.is_whole or config.files in repository.files or is_known_whole([file.name for file in chosen])):
        raise ValueError(
            f"the cache of the hub's library may hold only a part of data.{setting}={value} of {config.name}: "
            "go online, or name one file with data.files"
        )
    return chosen


def is_known_whole(names: list[str]) -> bool:
    """Say whether every file is numbered, as in train-00000-of-00002.parquet, and all of each series are there."""
    numbered = [re.match(r"(.*)-(\d+)-of-(\d+)", name) for name in names]
    series = Counter((one[1], int(one[3])) for one in numbered if one)
    return all(numbered) and all(count == of for (_, of), count in series.items())


def _source(file: File) -> Source:
    source = _readable(file.name)
    if source is None:
        raise ValueError(f"{file.name} is not one of {READABLE}")
    return source


def _readable(name: str) -> Source | None:
    return source_of(re.sub(r"\.json(?=$|\.)", ".jsonl", name))  # on the hub either name means a row to a line


def _say_and_check(config: HubConfig, repository: Repository, files: list[File], cache_dir: Path) -> None:
    """Say what will be fetched of `files`; raise ValueError where the disk cannot hold it and its tokens."""
    missing = [file for file in files if repository.local(file) is None]
    to_fetch = sum(file.size for file in missing)
    if not to_fetch:
        return
    text = sum(_text_bytes(file) for file in files)
    if config.max_bytes is not None:
        text = min(text, int(config.max_bytes * (1 + config.validation_fraction)))
        to_fetch = min(to_fetch, text)
    # Two bytes a token, of one character or of at least three bytes of text (byte-level BPE of 4,096: about 3.9).
    tokens = text * 2 if config.tokenizer is TokenizerKind.characters else text * 2 // 3
    cache_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache_dir).free
    what = f"{len(files)} file{'s' * (len(files) > 1)}, {size_text(to_fetch)} to fetch"
    if config.max_bytes is not None:
        what = f"a taste, at most about {size_text(to_fetch)} of {size_text(sum(file.size for file in files))}"
    name = f"{config.name}@{repository.revision[:7]}"
    if to_fetch + tokens > free:
        raise ValueError(
            f"{name}: {what} and about {size_text(tokens)} of tokens do not fit the {size_text(free)} free in "
            f"cache_dir={cache_dir}: set another, or take a taste with data.max_bytes=20_000_000"
        )
    print(
        f"fetch   {name}: {what}, about {size_text(tokens)} of tokens, {size_text(free)} free",
        file=sys.stderr,
        flush=True,
    )


def _text_bytes(file: File) -> int:
    """Return about how much text a file holds: parquet and gzip halve English at least."""
    source = _source(file)
    return file.size * (3 if source.compression else 2 if source.kind == "parquet" else 1)


# --- a taste ---------------------------------------------------------------------------------------------------------


def _taste(config: HubConfig, repository: Repository, files: list[File], most: int) -> Source:
    """Return the first documents of `files`, in order, until they hold `most` bytes of text.

    They are fetched by range requests into a small file of our own, because a text is read several times. A document
    that alone is more than that ends at the line's end where it is enough.

    Raises:
        ValueError: a document is longer than a row may be.

    """
    path = _taste_path(config, repository, files, most)
    source = Source(str(path), "json", None)
    if path.is_file():
        return source

    def opened(one: Source) -> BinaryIO:
        file = remotes[one.place]
        here = repository.local(file)
        stream: BinaryIO = here.open("rb") if here else io.BufferedReader(Remote(repository, file), _AHEAD)
        return decompressed(stream, one.compression)

    remotes = {f"hf://datasets/{repository.name}@{repository.revision[:7]}/{file.name}": file for file in files}
    sources = [replace(_source(file), place=place) for place, file in remotes.items()]
    first, last = f'{{{json.dumps(config.column)}: "', '"}'  # of a row
    n_bytes = length = 0  # length: of the row, in characters
    with once(path) as part:
        if part is None:
            return source
        part.truncate(0)
        for text, begins in read_pieces(sources, config.column, opened):
            if begins and length:
                part.write(f"{last}\n".encode())
                length = 0
            if n_bytes >= most:
                break
            written = json.dumps(text, ensure_ascii=False)[1:-1]
            length += len(written) + len(first + last) * begins
            if length > ROW_CHARACTERS:
                raise ValueError(
                    f"a document of {config.name} is longer than {ROW_CHARACTERS} characters and cannot be a row of a "
                    "taste: set data.max_bytes lower, or leave it out"
                )
            part.write((first * begins + written).encode())
            n_bytes += len(text.encode())
        if length:
            part.write(f"{last}\n".encode())
    return source


def _taste_path(config: HubConfig, repository: Repository, files: list[File], most: int) -> Path:
    key = hashlib.sha256(json.dumps([[file.name for file in files], config.column, most]).encode()).hexdigest()[:12]
    return repository.folder / f"taste-{key}.jsonl"
