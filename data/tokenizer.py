"""Text to token ids and back, by `tokenizers`: whole words, characters, byte-level BPE, or as trained elsewhere.

Every tokenizer knows `END` ("<|endoftext|>", as GPT-2 does). It stands before each document or story, and so it is
the first token a model reads and the last it has to predict. Inside a text the same characters stay plain text.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.links import Span, encoded

END = "<|endoftext|>"


UNKNOWN = "<|unknown|>"


_KEPT = ("tokenizer.json", "vocab.json", "tokenizer.model")  # in which transformers keeps tokenizers of a decoder


def word_tokenizer(texts: Iterable[str], vocab_size: int = 30_000) -> Tokenizer:
    """Make a token of the most frequent words and punctuation marks of `texts`, `END` and `UNKNOWN` counted in.

    Case counts; other words become `UNKNOWN`, and how words were spaced is lost.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # closes up the space before . and ,
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=[END, UNKNOWN], show_progress=False)
    return _trained(tokenizer, trainer, texts)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make a token of every character of `texts`; other characters become `UNKNOWN`."""
    characters: set[str] = set()
    for text in texts:  # one at a time: there may be more of them than memory holds
        characters.update(text)
    vocabulary = {piece: i for i, piece in enumerate([END, UNKNOWN, *sorted(characters)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END])
    return _plain_text(tokenizer)


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train byte-level BPE (Sennrich et al. 2016, on bytes as in GPT-2) of at most `vocab_size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # any text at all can be written
        show_progress=False,
    )
    return _trained(tokenizer, trainer, texts)


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer.json; raise ValueError where it is damaged or lacks `END`."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path} is not a readable tokenizer: {error}") from None
    end_id(tokenizer)
    return _plain_text(tokenizer)


def file_tokenizer(path: Path) -> tuple[Tokenizer, list[str]]:
    """Read a tokenizer.json that was trained elsewhere and make it fit; return it and what is to be said of it.

    What it would put around a text, cut off or fill up is left out, and so is chance: here a text is its own tokens and
    nothing else. Where it has no `END`, that becomes one more token.

    Raises:
        ValueError: it is no tokenizer, or one whose ids leave gaps.

    """
    if not path.is_file():
        raise ValueError(f"data.tokenizer_path: there is no file {path}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"data.tokenizer_path: {path} is not a readable tokenizer: {error}") from None
    notes = []
    if tokenizer.token_to_id(END) is None:
        notes.append(f"{path.name} has no {END}: it was added as token {tokenizer.get_vocab_size()}")
    tokenizer.add_special_tokens([END])
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    if max(tokenizer.get_vocab().values()) >= tokenizer.get_vocab_size():
        raise ValueError(f"data.tokenizer_path: the ids of {path} leave gaps")
    return _plain_text(tokenizer), notes


def imported_tokenizer(folder: Path, name: str) -> tuple[Tokenizer, int]:
    """Read the tokenizer of a folder of transformers; return it and the token that stands before a text.

    That is what begins a text there or, where nothing does, what ends one. What it would put around a text, cut off or
    fill up is left out: here a text is its own tokens and nothing else.

    Args:
        folder: as `save_pretrained` writes it.
        name: what to call it in errors.

    Raises:
        ValueError: in one line, why it cannot be used.

    """
    from transformers import AutoTokenizer

    if not any((folder / one).is_file() for one in _KEPT):
        raise ValueError(f"{name} has no tokenizer: none of {', '.join(_KEPT)}")  # transformers makes up an empty one
    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of any kind: whoever wrote the folder decides
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"transformers cannot load the tokenizer of {name}: {said}") from None
    backend = getattr(theirs, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"{name} has no fast tokenizer (tokenizer.json): which pieces make up a word is not known")
    first = theirs.bos_token_id if theirs.bos_token_id is not None else theirs.eos_token_id
    if first is None:
        raise ValueError(f"the tokenizer of {name} has neither bos_token nor eos_token: nothing can begin a text")
    tokenizer: Tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return _plain_text(tokenizer), int(first)


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text and nothing around them; ValueError where they cannot be had or hold `END`."""
    try:
        every = [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    except Exception as error:  # of a tokenizer from elsewhere that has no token for something and none for unknown
        raise ValueError(f"the tokenizer cannot write the text: {error}") from None
    end = end_id(tokenizer)
    if any(end in ids for ids in every):
        raise ValueError(f"the tokenizer makes its end token of {END} in a text: no text could be told from an end")
    return every


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of what the tokenizer writes for anything it has no token for; None if it has no such token."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:  # unigram
        return int(model["unk_id"])
    return tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def end_id(tokenizer: Tokenizer) -> int:
    """Return the id of `END`, which every tokenizer here has."""
    token = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer has no {END} token")
    return token


def with_end(tokenizer: Tokenizer, text: str, end: int | None = None) -> tuple[list[int], list[Span]]:
    """Return the tokens of `text` as a model reads it, `END` in front, and the characters of each but that one.

    `end`: what stands there in place of `END`. ValueError where the tokenizer cannot write the text.
    """
    encoding = encoded(tokenizer, text)
    return [end_id(tokenizer) if end is None else end, *encoding.ids], encoding.offsets


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> Tokenizer:
    tokenizer.train_from_iterator(texts, trainer)
    return _plain_text(tokenizer)


def _plain_text(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True  # not kept in tokenizer.json
    return tokenizer


MAX_TOKENS = 20_000_000  # read back of a training text: a minute; a word rarer than once in them was hardly learned


_CHUNK = 1 << 18  # tokens decoded at a time


_WORD = re.compile(r"\w+|[^\w\s]+")  # as tokenizers' Whitespace cuts


def training_words(tokenizer: Tokenizer, folder: Path) -> tuple[frozenset[str], str] | None:
    """Return the words of the training text, case counting, and one phrase saying where they were read.

    Args:
        tokenizer: of the run.
        folder: of its corpus in the cache; may be gone.

    Returns:
        None where the words cannot be known: the tokenizer has pieces of words and the cache has no training text.

    """
    vocabulary = tokenizer.get_vocab()
    if json.loads(tokenizer.to_str())["model"]["type"] == "WordLevel":
        words = frozenset(vocabulary) - {END, UNKNOWN}
        if any(len(word) > 1 for word in words):
            return words, "the tokenizer's words"
    path = folder / "train.npy"
    if not path.is_file():
        return None
    tokens = np.load(path, mmap_mode="r")
    known = frozenset(_words(tokenizer, tokens[:MAX_TOKENS]))
    whole = len(tokens) <= MAX_TOKENS
    return known, "the training text" if whole else f"the first {MAX_TOKENS:,} tokens of the training text"


def _words(tokenizer: Tokenizer, tokens: np.ndarray) -> Iterator[str]:
    """Yield words, many of them again and again; one that a chunk's end cuts in two is put together."""
    end, rest = end_id(tokenizer), ""
    for first in range(0, len(tokens), _CHUNK):
        some = np.asarray(tokens[first : first + _CHUNK])
        texts = [part[part != end].tolist() for part in np.split(some, np.flatnonzero(some == end))]
        decoded = tokenizer.decode_batch(texts, skip_special_tokens=False)
        decoded[0] = rest + decoded[0]
        cut = re.search(r"\w*$|[^\w\s]*$", decoded[-1])
        rest = cut.group() if cut else ""
        decoded[-1] = decoded[-1][: len(decoded[-1]) - len(rest)]
        yield from {word for text in decoded for word in _WORD.findall(text)}
    yield from _WORD.findall(rest)
