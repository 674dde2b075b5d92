"""Corpora: tokenized once into a cache folder named by a hash of their content, then memory-mapped.

A folder holds train.bin and validation.bin (flat token ids), tokenizer.json, meta.json and, for stories, the start of
each, and the floor of each validation token.
"""

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tokenizers import Tokenizer
from tqdm import tqdm

from data.loader import Corpus, Split, StorySplit
from data.pairs import Link, LinkedText
from data.repeats import WORDS, repeated
from data.stories import GENERATOR_VERSION, floors, generate_split
from data.text import Piece, Texts, config_files, file_texts, hub_texts, pin_revision
from data.tokenizer import encode, end_id, load_tokenizer, make_tokenizer, unknown_id, word_tokenizer
from data.words import words_of
from settings.data import DataConfig, HubConfig, RepeatsConfig, StoriesConfig, TextConfig
from settings.errors import UserError
from settings.files import naming, write_atomically

SPLITS = ("train", "validation")
_FORMAT = 2  # a new number makes every corpus be written again
_SAMPLE_CHARACTERS = 2**25  # BPE and words are trained on a sample of this size
_BATCH_PIECES = 128  # tokenized at a time
_LONG_TEXT = 2**24  # characters: a longer text is announced


def load_corpus(config: DataConfig, cache_dir: Path, tokenizer: Tokenizer | None = None) -> Corpus:
    """Return the corpus of `config`, tokenized if it is not in the cache; UserError or OSError if it cannot be read.

    `tokenizer` is that of another model; None: one is made from the text.
    """
    if cache_dir.is_file():
        raise FileExistsError(f"cache_dir={cache_dir}: is a file; choose a folder")
    if isinstance(config, HubConfig):
        config = pin_revision(config)
    fingerprint = corpus_fingerprint(config, tokenizer)

    folder = cache_dir / f"{config.source}-{fingerprint[:16]}"
    if isinstance(config, TextConfig | HubConfig):
        _write_once(folder, lambda path: _write_text(config, cache_dir, path, tokenizer))
    else:
        _write_once(folder, lambda path: _write_generated(config, path, tokenizer))

    meta = json.loads((folder / "meta.json").read_text())
    train = _open_split(folder, "train", meta)
    validation = _open_split(folder, "validation", meta)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return Corpus(tokenizer, train, validation, folder, fingerprint, config, tuple(meta["notes"]))


def corpus_fingerprint(config: DataConfig, tokenizer: Tokenizer | None = None) -> str:
    """Return a hash of all that determines the tokens: settings, generator's version, commit or files, tokenizer."""
    settings = asdict(config)
    for name in ("path", "validation_path"):  # the files are hashed instead
        settings.pop(name, None)
    content: list[Any] = [_FORMAT, settings]

    if isinstance(config, StoriesConfig):
        content.append(GENERATOR_VERSION)
    if isinstance(config, RepeatsConfig):
        content.append(WORDS)
    if isinstance(config, TextConfig):
        for files in config_files(config):
            hashes = None
            if files:
                hashes = [("".join(file.suffixes), _file_hash(file)) for file in files]
            content.append(hashes)
    if tokenizer is not None:
        content.append(tokenizer.to_str())
    return hashlib.sha256(json.dumps(content, default=str, sort_keys=True).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_stories(corpus: Corpus, split: str) -> list[LinkedText]:
    """Return the stories of a split with their gold links; UserError if the tokenizer lacks one of their words."""
    config = corpus.config
    assert isinstance(config, StoriesConfig)  # other texts have no gold links
    # They are kept in the folder of the corpus: to generate them takes a fifth of the time of eval.py.
    # What is there has been checked. (Files of earlier versions, SPLIT.json, had not.)
    path = corpus.folder / f"{split}_stories.json"
    if path.exists():
        rows = json.loads(path.read_text())  # fields in the order of the dataclasses; other ones need a new _FORMAT
        return [LinkedText(text, Link(*_tuples(link)), *cell) for text, link, *cell in rows]
    stories = generate_split(config, split)
    _encode_documents([story.text for story in stories], split, config, corpus.tokenizer)
    with suppress(PermissionError):  # another user's cache
        _keep_stories(path, stories)
    return stories


def _keep_stories(path: Path, stories: list[LinkedText]) -> None:
    # As `dataclasses.astuple`, which takes ten times as long
    rows = json.dumps(stories, default=lambda item: [getattr(item, field.name) for field in fields(item)])
    write_atomically(path, rows.encode())


def _tuples(value: Any) -> Any:
    """Return a value with tuples in place of the lists that JSON has."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def split_documents(corpus: Corpus, split: Split) -> list[str]:
    """Return the documents of a split of the corpus, as far as its tokenizer decodes them."""
    tokens = np.asarray(split.tokens)
    by_document = np.split(tokens, np.flatnonzero(tokens == end_id(corpus.tokenizer)))
    texts = corpus.tokenizer.decode_batch(list(map(np.ndarray.tolist, by_document)), skip_special_tokens=True)
    return list(filter(str.strip, texts))


def _write_once(target: Path, write: Callable[[Path], object]) -> None:
    """Fill a folder that is missing under a temporary name and rename it, so that it is always complete.

    One process writes, the others wait. What an interrupted process has written is not used.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".unfinished-{target.name}")
    lock = FileLock(f"{unfinished}.lock")
    with lock:
        if target.exists():
            return
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
        try:
            with naming(target):
                unfinished.mkdir()
                write(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            Path(lock.lock_file).unlink(missing_ok=True)


def _open_split(folder: Path, split: str, meta: dict[str, Any]) -> Split:
    tokens = np.memmap(folder / f"{split}.bin", dtype=meta["dtype"], mode="r")
    n_bytes = meta["n_bytes"][split]
    starts = folder / f"{split}_starts.npy"
    if not starts.exists():
        return Split(tokens, n_bytes)

    # Generated documents; only the stories of validation have a floor.
    floor = folder / f"{split}_floor.npy"
    return StorySplit(tokens, n_bytes, np.load(starts), np.load(floor) if floor.exists() else None)


def _write_meta(folder: Path, tokenizer: Tokenizer, n_bytes: dict[str, int], notes: list[str]) -> None:
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    meta = {"dtype": _dtype(tokenizer), "n_bytes": n_bytes, "notes": notes}
    (folder / "meta.json").write_text(json.dumps(meta))


def _dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.get_vocab_size() <= 2**16 else "uint32"


def _write_generated(config: StoriesConfig | RepeatsConfig, folder: Path, tokenizer: Tokenizer | None) -> None:
    if isinstance(config, StoriesConfig):
        print(f"generating {config.n_train_stories:,} stories, once; later runs read them from the cache", flush=True)
        train = generate_split(config, "train")
        validation = generate_split(config, "validation", train)
        of_split = [[story.text for story in stories] for stories in (train, validation)]
        vocabulary = of_split[0]
        _keep_stories(folder / "validation_stories.json", validation)  # they need those of training, which take seconds
    else:
        of_split = repeated(config)
        vocabulary = [" ".join(WORDS)]
    if tokenizer is None:
        tokenizer = word_tokenizer(vocabulary)

    # A flat stream with END before each document and after the last.
    n_bytes = {}
    for split, texts in zip(SPLITS, of_split, strict=True):
        tokens, starts = _encode_documents(texts, split, config, tokenizer)
        (folder / f"{split}.bin").write_bytes(tokens.tobytes())
        np.save(folder / f"{split}_starts.npy", starts)
        n_bytes[split] = len("".join(texts).encode())

    # Only the validation loss, of the last split, is compared with the floor.
    if isinstance(config, StoriesConfig):
        floor = np.concatenate([[np.nan], *floors(config, texts)])
        assert len(floor) == len(tokens)  # one value per target; the first token is none
        np.save(folder / "validation_floor.npy", floor.astype(np.float32))
    _write_meta(folder, tokenizer, n_bytes, [])


def _encode_documents(
    texts: list[str], split: str, config: StoriesConfig | RepeatsConfig, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens, with END around each document, and the places of END; UserError if a word has no token."""
    # A dictionary gives the same ids as the word tokenizer in a third of the time.
    ids_of_words = tokenizer.get_vocab()
    end = end_id(tokenizer)
    ids: list[int] = []
    starts = [0]
    try:
        for text in texts:
            ids.append(end)
            ids.extend([ids_of_words[word] for word in words_of(text)])
            starts.append(len(ids))
    except KeyError:
        missing = set(words_of(" ".join(texts))) - ids_of_words.keys()
        problem = f"the tokenizer lacks {len(missing)} words of the {split} texts, for example {min(missing)!r}"
        size = "n_train_stories" if isinstance(config, StoriesConfig) else "n_documents"
        advice = "train it, or the model of init=, on more of them"
        raise UserError(f"data.{size}={getattr(config, size)}: {problem}; {advice}") from None
    return np.array([*ids, end], _dtype(tokenizer)), np.array(starts)


@dataclass
class _Counts:
    """The sizes of a split on disk."""

    tokens: int = 0
    bytes: int = 0  # length of the text in UTF-8
    unknown: int = 0  # tokens
    is_exact: bool = True  # whether the sampled pieces survive


def _write_text(config: TextConfig | HubConfig, cache_dir: Path, folder: Path, tokenizer: Tokenizer | None) -> None:
    texts = hub_texts(config, cache_dir) if isinstance(config, HubConfig) else file_texts(config)
    # Measure the text first: the validation part may start inside the training text.
    n_characters, start = _measure(texts, config.validation_fraction)
    if tokenizer is None:
        all_texts = (piece.text for _, piece in _split_pieces(texts, start))
        tokenizer = make_tokenizer(config, all_texts, _sample(texts.train(), start))
    if n_characters >= _LONG_TEXT:
        print(f"tokenizing {n_characters / 1e6:,.0f} million characters", flush=True)
    counts = _tokenize(_split_pieces(texts, start), tokenizer, folder, n_characters)

    # A split needs an input and a target; the user must know of text that was lost.
    shares = []
    n_bytes = {}
    is_lossy = False
    for split, count in counts.items():
        if count.tokens < 2:
            setting = f"data.validation_fraction={config.validation_fraction}"
            raise UserError(f"{setting}: no text is left for {split}")
        shares.append(f"{count.unknown / count.tokens:.2%} of {split}")
        n_bytes[split] = count.bytes
        is_lossy |= not count.is_exact or count.unknown > 0
    notes = []
    if is_lossy:
        lost = f"the tokenizer loses text (unknown tokens: {', '.join(shares)})"
        notes.append(f"{lost}, so bits/byte is too low")
    _write_meta(folder, tokenizer, n_bytes, notes)


def _tokenize(
    pieces: Iterator[tuple[str, Piece]], tokenizer: Tokenizer, folder: Path, n_characters: int
) -> dict[str, _Counts]:
    """Write the tokens of `pieces`, `n_characters` in all, to the file of their split."""
    end = end_id(tokenizer)
    unknown = unknown_id(tokenizer)
    dtype = np.dtype(_dtype(tokenizer))
    counts = {}
    with ExitStack() as stack:
        streams = {}
        for split in SPLITS:
            counts[split] = _Counts()
            streams[split] = stack.enter_context((folder / f"{split}.bin").open("wb"))
        # The bar is shown on a terminal only.
        bar = tqdm(desc="tokenizing", total=n_characters, unit="char", unit_scale=True, leave=False, disable=None)
        stack.enter_context(bar)
        while batch := list(islice(pieces, _BATCH_PIECES)):
            encodings = encode(tokenizer, [piece.text for _, piece in batch])
            # The first piece of each batch is a sample of whether text survives.
            split, sample = batch[0]
            counts[split].is_exact &= tokenizer.decode(encodings[0], skip_special_tokens=False) == sample.text
            for (split, piece), ids in zip(batch, encodings, strict=True):
                count = counts[split]
                if unknown is not None:
                    count.unknown += ids.count(unknown)
                if piece.starts_document or not count.tokens:
                    ids = [end, *ids]
                tokens = np.array(ids, dtype)
                streams[split].write(tokens.tobytes())
                count.tokens += len(tokens)
                count.bytes += len(piece.text.encode())
                bar.update(len(piece.text))
    return counts


def _measure(texts: Texts, validation_fraction: float) -> tuple[int, int]:
    """Return the length of all texts and the start of the validation part in the training text, in characters.

    It starts with the first document after the given fraction, or with the character if no document starts there.
    """
    starts = array("q")
    n_train = 0
    for text, starts_document in texts.train():
        if starts_document:
            starts.append(n_train)
        n_train += len(text)
    n_validation = None if texts.validation is None else sum(len(piece.text) for piece in texts.validation())
    if n_train == 0 or n_validation == 0:
        raise UserError(f"data: the {'validation' if n_train else 'training'} text is empty")
    if n_validation is not None:
        return n_train + n_validation, n_train

    character = int(n_train * (1 - validation_fraction))
    for start in starts:
        if start >= max(1, character):
            return n_train, start
    return n_train, character


def _split_pieces(texts: Texts, validation_start: int) -> Iterator[tuple[str, Piece]]:
    """Yield (split, piece); the training text from character `validation_start` on is for validation."""
    position = 0
    for text, starts_document in texts.train():
        n_train = min(len(text), max(0, validation_start - position))
        if n_train:
            yield "train", Piece(text[:n_train], starts_document)
        if n_train < len(text):
            yield "validation", Piece(text[n_train:], starts_document and not n_train)
        position += len(text)
    for piece in texts.validation() if texts.validation else ():
        yield "validation", piece


def _sample(pieces: Iterable[Piece], n_train: int) -> Iterator[str]:
    """Yield pieces spread evenly over the first `n_train` characters, `_SAMPLE_CHARACTERS` in all."""
    position = n_sampled = 0
    for piece in pieces:
        text = piece.text[: n_train - position]
        if not text:
            return
        if n_sampled * n_train <= position * _SAMPLE_CHARACTERS:
            n_sampled += len(text)
            yield text
        position += len(text)
