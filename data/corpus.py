"""Corpora: tokenized once into a cache folder named by a hash of their content, then memory-mapped.

A folder holds train.bin and validation.bin (flat token ids), tokenizer.json, meta.json and, for stories, the start of
each story, the class and the floor of each validation token, and the stories with their gold links.
"""

import hashlib
import json
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tokenizers import Encoding, Tokenizer
from tqdm import tqdm

from data.config import DataConfig, HubConfig, StoriesConfig, TextConfig, TokensConfig
from data.loader import Split, StorySplit
from data.stories import GENERATOR_VERSION, as_dataset, floors, generate_split
from data.stories.blocks import Story
from data.stories.floor import words
from data.stories.lexicon import word_classes
from data.text import Piece, Texts, config_files, file_texts, hub_texts, pin_revision
from data.tokenizer import UNKNOWN, encode, end_id, load_tokenizer, make_tokenizer, unknown_id, word_tokenizer

CLASSES = ("function", "content", "pronoun", "payoff", "end")  # payoff: the word that depends on the antecedent
SPLITS = ("train", "validation")
_FORMAT = 2  # a new number makes every corpus be written again
_SETTINGS_WITHOUT_CONTENT = ("path", "validation_path", "tokenizer_path")  # the files are hashed instead
_SAMPLE_CHARACTERS = 2**25  # BPE and words are trained on a sample of this size
_COUNTED_TOKENS, _CHUNK_TOKENS = 2_000_000, 2**16  # words are counted in the first of these, in chunks
_WORD = re.compile(r"[^\W\d_]+")
_BATCH_PIECES = 128  # tokenized at a time


@dataclass(frozen=True, slots=True)
class Corpus:
    """A tokenized text, memory-mapped."""

    tokenizer: Tokenizer
    train: Split
    validation: Split
    folder: Path  # in the cache
    fingerprint: str  # a hash of the content
    config: DataConfig  # with a commit as its revision
    notes: tuple[str, ...]  # limits of the tokenizer that the user must know


def load_corpus(config: DataConfig, cache_dir: Path) -> Corpus:
    """Returns the corpus of `config`; tokenizes it first if it is not in the cache.

    Raises ValueError if the text or the tokenizer cannot be used, OSError if a file or the hub cannot be read.
    """
    if isinstance(config, HubConfig):
        config = pin_revision(config)
    fingerprint = corpus_fingerprint(config)
    folder = corpus_folder(config.source, fingerprint, cache_dir)
    if isinstance(config, TokensConfig):
        folder = Path(config.path)
    elif isinstance(config, StoriesConfig):
        _write_once(folder, lambda path: _write_stories(config, path))
    else:
        _write_once(folder, lambda path: _write_text(config, cache_dir, path))
    meta = json.loads((folder / "meta.json").read_text())
    train, validation = (_open_split(folder, split, meta) for split in SPLITS)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return Corpus(tokenizer, train, validation, folder, fingerprint, config, tuple(meta["notes"]))


def corpus_fingerprint(config: DataConfig) -> str:
    """Returns a hash of all that determines the tokens: the settings and the generator's version, commit or files."""
    settings = {name: value for name, value in asdict(config).items() if name not in _SETTINGS_WITHOUT_CONTENT}
    content: list[Any] = [_FORMAT, settings]
    if isinstance(config, TokensConfig):
        content += [_file_hash(path) for path in _token_files(config)]
    elif isinstance(config, StoriesConfig):
        content.append(GENERATOR_VERSION)
    elif config.tokenizer_path:
        if not Path(config.tokenizer_path).is_file():
            raise ValueError(f"data.tokenizer_path={config.tokenizer_path}: no such file")
        content.append(_file_hash(Path(config.tokenizer_path)))
    if isinstance(config, TextConfig):
        for files in config_files(config):
            content.append(files and [("".join(file.suffixes), _file_hash(file)) for file in files])
    return hashlib.sha256(json.dumps(content, default=str, sort_keys=True).encode()).hexdigest()


def _token_files(config: TokensConfig) -> list[Path]:
    """Returns the files of a tokenized text; ValueError names one that is missing or does not fit the others."""
    folder = Path(config.path)
    files = [folder / name for name in ("train.bin", "validation.bin", "tokenizer.json", "meta.json")]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ValueError(f"data.path={config.path}: no {missing[0]} in it; give a folder text-... of cache_dir")
    if (folder / "stories").exists():
        raise ValueError(f"data.path={config.path}: has stories; use data=stories")
    try:
        meta = json.loads(files[3].read_text())
        n_bytes, dtype = [int(meta["n_bytes"][split]) for split in SPLITS], np.dtype(meta["dtype"])
        if min(n_bytes) < 1 or dtype.name not in ("uint16", "uint32") or not isinstance(meta["notes"], list):
            raise ValueError("out of range")
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{files[3]}: damaged; make the folder again") from None
    vocab_size = load_tokenizer(files[2]).get_vocab_size()
    for path in files[:2]:
        size = path.stat().st_size
        if size < 2 * dtype.itemsize or size % dtype.itemsize or np.memmap(path, dtype, "r").max() >= vocab_size:
            raise ValueError(f"{path}: damaged or of another tokenizer; make the folder again")
    return files


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def corpus_folder(source: str, fingerprint: str, cache_dir: Path) -> Path:
    """Returns the cache folder of a corpus, whether or not it exists."""
    return cache_dir / f"{source}-{fingerprint[:16]}"


def load_rows(corpus: Corpus, split: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Returns the stories and gold links of a split, or `columns` of them; dev and test are generated at first use."""
    config, tokenizer, folder = corpus.config, corpus.tokenizer, corpus.folder / "stories" / split
    assert isinstance(config, StoriesConfig)  # other texts have no gold links
    _write_once(folder, lambda path: _save_stories(generate_split(config, split), split, config, tokenizer, path))
    rows = datasets.load_from_disk(str(folder))
    return (rows.select_columns(list(columns)) if columns else rows).to_list()


def validation_documents(corpus: Corpus) -> list[str]:
    """Returns the documents of the validation text."""
    tokens = np.asarray(corpus.validation.tokens)
    parts = np.split(tokens, np.flatnonzero(tokens == end_id(corpus.tokenizer)))
    texts = (corpus.tokenizer.decode(part.tolist(), skip_special_tokens=True) for part in parts)
    return [text for text in texts if text.strip()]


def training_counts(corpus: Corpus) -> Counter[str]:
    """Returns how often each word occurs in the first two million tokens of the training text."""
    counts = Counter[str]()
    for first in range(0, min(len(corpus.train.tokens), _COUNTED_TOKENS), _CHUNK_TOKENS):
        chunk = corpus.train.tokens[first : first + _CHUNK_TOKENS].tolist()
        counts.update(_WORD.findall(corpus.tokenizer.decode(chunk)))
    return counts


def _write_once(folder: Path, write: Callable[[Path], object]) -> None:
    """Writes a folder under a temporary name and renames it, so that an existing folder is always complete."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as temporary:
        path = Path(temporary) / folder.name
        path.mkdir()
        write(path)
        try:
            path.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process has written the same content
                raise


def _open_split(folder: Path, split: str, meta: dict[str, Any]) -> Split:
    tokens = np.memmap(folder / f"{split}.bin", dtype=meta["dtype"], mode="r")
    starts, *by_token = (folder / f"{split}_{name}.npy" for name in ("starts", "classes", "floor"))
    if not starts.exists():
        return Split(tokens, meta["n_bytes"][split])
    classes, floor = (np.load(path) if path.exists() else None for path in by_token)
    return StorySplit(tokens, meta["n_bytes"][split], np.load(starts), classes, floor)


def _write_stories(config: StoriesConfig, folder: Path) -> None:
    print(f"generating {config.n_train_stories:,} stories, once; later runs read them from the cache", flush=True)
    train = generate_split(config, "train")
    tokenizer = word_tokenizer(story.text for story in train)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = end_id(tokenizer)
    n_bytes = {}
    for split, stories in (("train", train), ("validation", generate_split(config, "validation", train))):
        encodings = _save_stories(stories, split, config, tokenizer, folder / "stories" / split)
        n_bytes[split] = sum(len(story.text.encode()) for story in stories)
        tokens = np.array([i for encoding in encodings for i in (end, *encoding.ids)] + [end], _dtype(tokenizer))
        starts = np.cumsum([0, *(len(encoding.ids) + 1 for encoding in encodings)])
        tokens.tofile(folder / f"{split}.bin")
        np.save(folder / f"{split}_starts.npy", starts)
        if split == "validation":
            np.save(folder / "validation_classes.npy", _classes(stories, tokenizer, tokens, starts))
            floor = np.concatenate([[np.nan], *floors(config, [story.text for story in stories])])
            assert len(floor) == len(tokens)  # one value per target; the first token is none
            np.save(folder / "validation_floor.npy", floor.astype(np.float32))
    _write_meta(folder, tokenizer, n_bytes, [])


def _save_stories(
    stories: list[Story], split: str, config: StoriesConfig, tokenizer: Tokenizer, folder: Path
) -> list[Encoding]:
    """Writes the stories as a dataset and returns their tokens, without offsets."""
    encodings = tokenizer.encode_batch_fast([story.text for story in stories])
    unknown = tokenizer.token_to_id(UNKNOWN)
    if any(unknown in encoding.ids for encoding in encodings):
        problem = f"the training stories lack words of the {split} stories; set it higher"
        raise ValueError(f"data.n_train_stories={config.n_train_stories}: {problem}")
    datasets.disable_progress_bars()
    as_dataset(stories).save_to_disk(str(folder))
    return encodings


def _classes(stories: list[Story], tokenizer: Tokenizer, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the class of each token [N]: that of its word, or "payoff" where a gold link says so."""
    class_of_token = np.zeros(tokenizer.get_vocab_size(), np.uint8)
    for word, name in word_classes().items():
        if (token := tokenizer.token_to_id(word)) is not None:
            class_of_token[token] = CLASSES.index(name)
    class_of_token[end_id(tokenizer)] = CLASSES.index("end")
    classes = class_of_token[tokens]
    for start, story in zip(starts, stories, strict=False):
        for link in story.links:
            if link.payoff:
                n_words_before = len(words(story.text[: link.payoff[0]]))
                classes[start + 1 + n_words_before] = CLASSES.index("payoff")
    return classes


def _write_text(config: TextConfig | HubConfig, cache_dir: Path, folder: Path) -> None:
    texts = hub_texts(config, cache_dir) if isinstance(config, HubConfig) else file_texts(config)
    n_characters, validation_start = _measure(texts, config.validation_fraction)
    all_texts = (piece.text for _, piece in _split_pieces(texts, validation_start))
    tokenizer, notes = make_tokenizer(config, all_texts, _sample(texts.train(), validation_start))
    tokenizer.save(str(folder / "tokenizer.json"))
    n_bytes, n_tokens, n_unknown = (dict.fromkeys(SPLITS, 0) for _ in range(3))
    end, unknown, is_exact = end_id(tokenizer), unknown_id(tokenizer), True
    streams = {split: (folder / f"{split}.bin").open("wb") for split in SPLITS}
    pieces = _split_pieces(texts, validation_start)
    with streams["train"], streams["validation"], _progress("tokenizing", n_characters) as progress:
        while batch := list(islice(pieces, _BATCH_PIECES)):
            encodings = encode(tokenizer, [piece.text for _, piece in batch])
            is_exact &= tokenizer.decode(encodings[0], skip_special_tokens=False) == batch[0][1].text  # a sample
            for (split, piece), ids in zip(batch, encodings, strict=True):
                has_end = piece.starts_document or not n_tokens[split]
                tokens = np.array([end, *ids] if has_end else ids, _dtype(tokenizer))
                tokens.tofile(streams[split])
                n_bytes[split] += len(piece.text.encode())
                n_tokens[split] += len(tokens)
                n_unknown[split] += int((tokens == unknown).sum()) if unknown is not None else 0
                progress.update(len(piece.text))
    for split in SPLITS:
        if n_tokens[split] < 2:
            raise ValueError(f"data.validation_fraction={config.validation_fraction}: no text is left for {split}")
    if any(n_unknown.values()) or not is_exact:
        shares = ", ".join(f"{n_unknown[split] / n_tokens[split]:.2%} of {split}" for split in SPLITS)
        notes = [*notes, f"the tokenizer loses text (unknown tokens: {shares}), so bits/byte is too low"]
    _write_meta(folder, tokenizer, n_bytes, notes)


def _measure(texts: Texts, validation_fraction: float) -> tuple[int, int]:
    """Returns the length of all texts and the start of the validation part in the training text, in characters.

    It starts with the first document after the given fraction. If no document starts there, as in a text that is one
    document, it starts with the character: nanoGPT's 90/10 split.
    """
    starts, n_train = array("q"), 0
    for text, starts_document in texts.train():
        if starts_document:
            starts.append(n_train)
        n_train += len(text)
    if n_train == 0:
        raise ValueError("data: the training text is empty")
    if texts.validation is not None:
        n_validation = sum(len(piece.text) for piece in texts.validation())
        if n_validation == 0:
            raise ValueError("data: the validation text is empty")
        return n_train + n_validation, n_train
    character = int(n_train * (1 - validation_fraction))
    later = int(np.searchsorted(np.asarray(starts), max(1, character)))
    return n_train, starts[later] if later < len(starts) else character


def _split_pieces(texts: Texts, validation_start: int) -> Iterator[tuple[str, Piece]]:
    """Yields (split, piece); the training text from character `validation_start` on is for validation."""
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
    """Yields pieces spread evenly over the first `n_train` characters, `_SAMPLE_CHARACTERS` in all."""
    position = n_sampled = 0
    with _progress("training the tokenizer", n_train) as progress:
        for piece in pieces:
            text = piece.text[: n_train - position]
            if not text:
                return
            if n_sampled * n_train <= position * _SAMPLE_CHARACTERS:
                n_sampled += len(text)
                yield text
            position += len(text)
            progress.update(len(text))


def _dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.get_vocab_size() <= 2**16 else "uint32"


def _progress(name: str, n_characters: int) -> tqdm:
    """Returns a progress bar, shown on a terminal only."""
    return tqdm(desc=name, total=n_characters, unit="char", unit_scale=True, leave=False, disable=None)


def _write_meta(folder: Path, tokenizer: Tokenizer, n_bytes: dict[str, int], notes: list[str]) -> None:
    values = {"dtype": _dtype(tokenizer), "n_bytes": n_bytes, "notes": notes}
    (folder / "meta.json").write_text(json.dumps(values))
