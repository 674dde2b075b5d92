"""From a data config to token arrays: written once to a cache folder named by the content, then read back.

The cache holds the flat token ids of both splits (.npy), tokenizer.json, meta.json and, for stories, where each story
starts and the `datasets.DatasetDict` itself. A folder is written beside its place and renamed, so a cache that is
there is whole; how a text of any size becomes one is in data/writing.py.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from data.config import DataConfig, HubConfig, StoriesConfig, TextConfig
from data.documents import local_sources
from data.hub import hub_texts, pinned
from data.loader import Split, StorySplit
from data.stories import GENERATOR_VERSION
from data.tokenizer import UNKNOWN, end_id, load_tokenizer, word_tokenizer
from data.writing import Texts, write_once, write_texts

if TYPE_CHECKING:
    from datasets import Dataset

    from data.stories.blocks import Story

CLASSES = ("function", "content", "pronoun", "payoff", "end")
# Raised whenever the same input would be written differently; texts and stories apart, as measured figures name theirs.
_STORIES_VERSION = 2
_TEXTS_VERSION = 4
_PLACES = ("path", "validation_path", "tokenizer_path")  # settings that say where something is, not what


@dataclass(frozen=True, slots=True)
class Corpus:
    """Everything a run needs to know of its data."""

    tokenizer: Tokenizer
    train: Split
    validation: Split
    folder: Path  # the cache folder
    fingerprint: str  # of the content
    config: DataConfig
    notes: tuple[str, ...]  # lines that belong beside its figures: what its tokenizer cannot write back


def load_corpus(config: DataConfig, cache_dir: Path) -> Corpus:
    """Return the corpus of `config`, tokenizing it only if the cache does not hold it yet.

    What a killed process has written of a text is gone on with.

    Raises:
        ValueError: in one line, why the text or the tokenizer cannot be used.
        OSError: in one line, what is missing, may not be read or has no room.

    """
    if isinstance(config, HubConfig):
        config = pinned(config)
    texts = _texts(config) if isinstance(config, TextConfig) else Texts([], None)
    fingerprint = _fingerprint(config, texts)
    folder = corpus_folder(config.source, fingerprint, cache_dir)
    if not folder.is_dir():
        cache_dir.mkdir(parents=True, exist_ok=True)
        if isinstance(config, StoriesConfig):
            _write_into_place(config, folder)
        else:
            texts = hub_texts(config, cache_dir) if isinstance(config, HubConfig) else texts
            write_once(folder, partial(write_texts, texts, config))
    meta = json.loads((folder / "meta.json").read_text())
    splits = {name: _read_split(folder, name, meta["n_bytes"][name]) for name in ("train", "validation")}
    return Corpus(
        load_tokenizer(folder / "tokenizer.json"),
        **splits,
        folder=folder,
        fingerprint=fingerprint,
        config=config,
        notes=() if isinstance(config, StoriesConfig) else tuple(_notes(meta)),
    )


def stories_fingerprint(config: StoriesConfig) -> str:
    """Return the fingerprint of stories, which are told by nothing but their settings and the generator."""
    return _fingerprint(config, Texts([], None))


def corpus_folder(source: str, fingerprint: str, cache_dir: Path) -> Path:
    """Return where the cache keeps a corpus, whether or not it is there."""
    return cache_dir / f"{source}-{fingerprint[:16]}"


def _notes(meta: dict[str, Any]) -> list[str]:
    """Say what is to be known of a text's tokenizer, and what its bits per byte leave out."""
    shares = [f"{meta['n_unknown'][name] / meta['n_tokens'][name]:.2%} of {name}" for name in meta["n_tokens"]]
    if any(meta["n_unknown"].values()):
        lost = f"the tokenizer has no token for {' and '.join(shares)}"
    elif not meta["round_trips"]:
        lost = "the tokenizer does not give every text back as it was"
    else:
        return list(meta["notes"])
    return [*meta["notes"], f"{lost}: bits/byte counts bytes that no token tells and is too low"]


def load_split(corpus: Corpus, split: str) -> Dataset:
    """Return the "train", "validation", "dev" or "test" stories of a stories corpus with their links.

    Dev and test are written when they are first asked for: learning never needs them.
    """
    from datasets import load_from_disk

    return load_from_disk(str(_split_folder(corpus, split)))


def load_rows(corpus: Corpus, split: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of `load_split`, read without `datasets`, which takes 0.7 s to import.

    `columns`: of these alone, which is quicker; None for all.
    """
    import pyarrow

    folder, rows = _split_folder(corpus, split), []
    for file in json.loads((folder / "state.json").read_text())["_data_files"]:
        with pyarrow.memory_map(str(folder / file["filename"])) as stored:
            table = pyarrow.ipc.open_stream(stored).read_all()
            rows += (table.select(columns) if columns else table).to_pylist()
    return rows


def _split_folder(corpus: Corpus, split: str) -> Path:
    folder = corpus.folder / "stories" / split
    if not folder.is_dir():
        _write_split(corpus, split, folder)
    return folder


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let Python's collector rest, which looks through millions of tuples for cycles that are not there.

    It took a third of the time in which the floor is worked out (measured).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_uncollected()
def _write_split(corpus: Corpus, split: str, folder: Path) -> None:
    import datasets

    from data.stories import as_dataset, generate_split

    assert isinstance(corpus.config, StoriesConfig)  # a text corpus has no links
    stories = generate_split(corpus.config, split)
    _check_words(corpus.tokenizer, split, [story.text for story in stories], corpus.config)
    datasets.disable_progress_bars()
    beside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        as_dataset(stories).save_to_disk(str(beside / split))
        _move_into_place(beside / split, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _texts(config: TextConfig) -> Texts:
    """Find the files of a text; ValueError where one is both learned from and held out."""
    train = local_sources(config.path)
    validation = local_sources(config.validation_path, "data.validation_path") if config.validation_path else None
    held_out = {os.path.realpath(source.place) for source in validation or []}
    if twice := [source.place for source in train if os.path.realpath(source.place) in held_out]:
        raise ValueError(f"{twice[0]} is in data.path and in data.validation_path: it would be learned and measured on")
    return Texts(train, validation)


def _fingerprint(config: DataConfig, texts: Texts) -> str:
    """Hash what decides the arrays: the settings and either the generator's version or the files and their bytes.

    Where a text or a tokenizer lies does not count: moved to another folder or machine it is the same. The settings
    of a text from the hub name its commit, which never changes: its files need not be here.
    """
    if isinstance(config, StoriesConfig):
        said: list[Any] = [_STORIES_VERSION, GENERATOR_VERSION, asdict(config)]
        files = []
    else:
        sources = [*texts.train, *(texts.validation or [])]
        read_as = [(one.kind, one.compression) for one in sources]
        settings = {name: value for name, value in asdict(config).items() if name not in _PLACES}
        said = [_TEXTS_VERSION, settings, len(texts.train), texts.validation is None, read_as]
        files = [Path(one.place) for one in sources]
        files += [Path(config.tokenizer_path)] if config.tokenizer_path else []
    digest = hashlib.sha256(json.dumps(said, default=str, sort_keys=True).encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _write_into_place(config: StoriesConfig, folder: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        _write_stories(config, beside)
        _move_into_place(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _move_into_place(beside: Path, folder: Path) -> None:
    try:
        beside.rename(folder)
    except OSError:  # another run has written the same content in the meantime
        if not folder.is_dir():
            raise


@_uncollected()
def _write_stories(config: StoriesConfig, folder: Path) -> None:
    import datasets

    from data.stories import as_dataset, floors, generate_split

    datasets.disable_progress_bars()
    train = generate_split(config, "train")
    stories = {"train": train, "validation": generate_split(config, "validation", train)}
    tokenizer = word_tokenizer([story.text for story in stories["train"]])
    _check_words(tokenizer, "validation", [story.text for story in stories["validation"]], config)
    tokenizer.save(str(folder / "tokenizer.json"))
    n_bytes = {}
    for name, some in stories.items():
        encodings = tokenizer.encode_batch([story.text for story in some])
        end = end_id(tokenizer)
        lengths = np.array([len(one.ids) + 1 for one in encodings])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.array([i for one in encodings for i in (end, *one.ids)] + [end]).astype(np.uint16)
        np.save(folder / f"{name}.npy", tokens)
        np.save(folder / f"{name}_starts.npy", starts)
        n_bytes[name] = sum(len(story.text.encode()) for story in some)
        if name == "validation":
            np.save(folder / "validation_classes.npy", _classes(some, encodings, tokenizer, tokens, starts))
            surprisal = floors(config, [story.text for story in some])
            floor = np.concatenate([[np.nan], *surprisal])  # nothing predicts the very first END
            if len(floor) != len(tokens):
                raise ValueError("the tokenizer does not cut the stories where their grammar does")
            np.save(folder / "validation_floor.npy", floor.astype(np.float32))
    for split, some in stories.items():
        as_dataset(some).save_to_disk(str(folder / "stories" / split))
    (folder / "meta.json").write_text(json.dumps({"n_bytes": n_bytes}))


def _check_words(tokenizer: Tokenizer, split: str, texts: list[str], config: StoriesConfig) -> None:
    """Raise ValueError where a split has a word that training has not."""
    unknown = tokenizer.token_to_id(UNKNOWN)
    if any(unknown in one.ids for one in tokenizer.encode_batch_fast(texts)):
        remedy = "raise it" if split == "validation" else "train on more of them"  # who asks for others has trained
        raise ValueError(f"data.n_train_stories={config.n_train_stories} leaves words of {split} unseen: {remedy}")


def _classes(
    stories: list[Story], encodings: list, tokenizer: Tokenizer, tokens: np.ndarray, starts: np.ndarray
) -> np.ndarray:
    """Return the class of every token, those of payoffs taken from the links."""
    from data.stories.lexicon import word_classes

    by_id = np.zeros(tokenizer.get_vocab_size(), dtype=np.uint8)
    for word, name in word_classes().items():
        if (token := tokenizer.token_to_id(word)) is not None:
            by_id[token] = CLASSES.index(name)
    by_id[end_id(tokenizer)] = CLASSES.index("end")
    classes = by_id[tokens]
    for start, story, one in zip(starts, stories, encodings, strict=False):
        for link in story.links:
            if link.payoff:
                classes[start + 1 + one.char_to_token(link.payoff[0])] = CLASSES.index("payoff")
    return classes


def _read_split(folder: Path, name: str, n_bytes: int) -> Split:
    tokens = np.load(folder / f"{name}.npy", mmap_mode="r")
    starts, *known = (folder / f"{name}_{part}.npy" for part in ("starts", "classes", "floor"))
    if not starts.exists():
        return Split(tokens, n_bytes)
    classes, floor = (np.load(path) if path.exists() else None for path in known)
    return StorySplit(tokens, n_bytes, np.load(starts), classes, floor)
