"""Tokenizers: byte-level BPE, characters, words, or an existing tokenizer.json.

Every tokenizer has the token `END` before each document or story: the first input and the last target of the model.
The same characters inside a text are plain text.
"""

import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from data.config import HubConfig, TextConfig, TokenizerKind
from data.errors import one_line

END = "<|endoftext|>"  # as in GPT-2
UNKNOWN = "<|unknown|>"
_WORD = re.compile(r"\w+|[^\w\s]+")  # the words of pre_tokenizers.Whitespace
_MAX_TOKENS = 20_000_000  # searched for words, which takes about a minute
_CHUNK_TOKENS = 2**18
_PRETRAINED_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")  # that transformers reads


def make_tokenizer(
    config: TextConfig | HubConfig, texts: Iterable[str], sample: Iterable[str]
) -> tuple[Tokenizer, list[str]]:
    """Returns the tokenizer of `config`, with the characters of `texts` or trained on `sample`, and notes on it."""
    if config.tokenizer is TokenizerKind.file:
        return file_tokenizer(Path(str(config.tokenizer_path)))
    if config.tokenizer is TokenizerKind.characters:
        return character_tokenizer(texts), []
    make = word_tokenizer if config.tokenizer is TokenizerKind.words else bpe_tokenizer
    return make(sample, config.vocab_size), []


def word_tokenizer(texts: Iterable[str], vocab_size: int = 30_000) -> Tokenizer:
    """Returns a tokenizer of the most frequent words and punctuation marks; other words become `UNKNOWN`."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # no space before . and ,
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=[END, UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Returns a tokenizer of all characters of `texts`; other characters become `UNKNOWN`."""
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    vocabulary = {token: i for i, token in enumerate([END, UNKNOWN, *sorted(characters)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END])
    return _plain(tokenizer)


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Returns a byte-level BPE tokenizer of at most `vocab_size` tokens (Sennrich et al. 2016, as in GPT-2)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # any text can be encoded
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


def load_tokenizer(path: Path) -> Tokenizer:
    """Returns the tokenizer of a run or a corpus; raises ValueError if it is damaged or lacks `END`."""
    tokenizer = _plain(_read(path, ""))
    end_id(tokenizer)
    return tokenizer


def file_tokenizer(path: Path) -> tuple[Tokenizer, list[str]]:
    """Returns an existing tokenizer.json, with `END` added if it is missing, and notes for the user.

    Special tokens around a text, truncation, padding and BPE dropout are turned off. Raises ValueError if it cannot be
    read or its ids are not 0 to vocab_size - 1.
    """
    setting = f"data.tokenizer_path={path}: "
    tokenizer = _read(path, setting)
    notes = []
    if tokenizer.token_to_id(END) is None:
        notes.append(f"{path.name} has no {END}: it was added as token {tokenizer.get_vocab_size()}")
    tokenizer.add_special_tokens([END])
    if max(tokenizer.get_vocab().values()) >= tokenizer.get_vocab_size():
        raise ValueError(f"{setting}its token ids have gaps")
    return _plain(tokenizer), notes


def imported_tokenizer(folder: Path, setting: str) -> tuple[Tokenizer, int]:
    """Returns the tokenizer of a folder of `save_pretrained` and the token before a text: BOS, or else EOS.

    Raises ValueError, which begins with the `setting`, if it cannot be used.
    """
    from transformers import AutoTokenizer

    if not any((folder / file).is_file() for file in _PRETRAINED_FILES):  # transformers would return an empty one
        raise ValueError(f"{setting}: no tokenizer, none of {', '.join(_PRETRAINED_FILES)}")
    try:
        pretrained = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises exceptions of many types
        raise ValueError(f"{setting}: transformers cannot load the tokenizer: {one_line(error)}") from None
    backend = getattr(pretrained, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"{setting}: no fast tokenizer (tokenizer.json), so the tokens of a word are unknown")
    first = pretrained.bos_token_id if pretrained.bos_token_id is not None else pretrained.eos_token_id
    if first is None:
        raise ValueError(f"{setting}: its tokenizer has neither bos_token nor eos_token to begin a text")
    return _plain(Tokenizer.from_str(backend.to_str())), int(first)


def nanogpt_characters(text: str) -> Tokenizer:
    """Returns nanoGPT's tokenizer of characters: token i is the i-th of the sorted characters of the training text."""
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(sorted(set(text)))}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _plain(tokenizer)


def llama2c_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer in a `tokenizer.bin` of llama2.c: byte-level fallback, and pieces merged by their score.

    The file: int32 longest piece, then for each token float32 score, int32 number of bytes, bytes. ValueError if it is
    damaged.
    """
    content, position, pieces, scores = path.read_bytes(), 4, list[str](), list[float]()
    for _ in range(vocab_size):
        if position + 8 > len(content):
            raise ValueError(f"{path}: has {len(pieces):,} tokens, but the model has {vocab_size:,}")
        score, n_bytes = struct.unpack_from("<fi", content, position)
        piece = content[position + 8 : position + 8 + n_bytes]
        if not 0 <= n_bytes == len(piece):
            raise ValueError(f"{path}: damaged at byte {position:,}")
        position += 8 + n_bytes
        pieces.append(piece.decode(errors="replace"))
        scores.append(score)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if position < len(content) or len(vocabulary) < vocab_size:
        raise ValueError(f"{path}: is not the tokenizer of a model with {vocab_size:,} tokens")
    merges = [
        (-scores[i], piece[:cut], piece[cut:])
        for piece, i in vocabulary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    merges.sort(key=lambda merge: merge[0])
    model = models.BPE(
        vocab=vocabulary, merges=[merge[1:] for merge in merges], byte_fallback=True, unk_token=pieces[0], fuse_unk=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return _plain(tokenizer)


def _read(path: Path, setting: str) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself
        raise ValueError(f"{setting}{path} is not a readable tokenizer: {error}") from None


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Makes the tokenizer encode exactly the text: nothing around it, all of it, and `END` in it as plain text."""
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = True  # not saved in tokenizer.json
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> Encoding:
    """Returns the encoding of one text with offsets; raises ValueError if the tokenizer cannot encode it."""
    try:
        return tokenizer.encode(text)
    except Exception as error:  # a tokenizer without a token for unknown text
        raise ValueError(f"the tokenizer cannot encode {text!r}: {error}") from None


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Returns the ids of each text; raises ValueError if it cannot be encoded or contains the id of `END`."""
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except Exception as error:  # a tokenizer without a token for unknown text
        raise ValueError(f"the tokenizer cannot encode the text: {error}") from None
    end = end_id(tokenizer)
    if any(end in encoding.ids for encoding in encodings):
        raise ValueError(f"the tokenizer encodes the plain text {END} as its end token; use another tokenizer")
    return [encoding.ids for encoding in encodings]


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Returns the id of the token for unknown text, None if the tokenizer has none."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:  # unigram models
        return int(model["unk_id"])
    return tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def end_id(tokenizer: Tokenizer) -> int:
    """Returns the id of `END`; raises ValueError if there is none."""
    token = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer has no {END} token")
    return token


def with_end(tokenizer: Tokenizer, text: str, end: int | None = None) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns the token `end` (None: `END`) and those of the text, and the characters [start, end) of the latter."""
    encoding = encode_text(tokenizer, text)
    return [end_id(tokenizer) if end is None else end, *encoding.ids], encoding.offsets


def training_words(tokenizer: Tokenizer, folder: Path) -> tuple[frozenset[str], str] | None:
    """Returns the words of the training text in a corpus's cache folder and a phrase that says where they were read.

    Returns None if the tokenizer has no whole words and the cache has no training text.
    """
    if isinstance(tokenizer.model, models.WordLevel):
        vocabulary = frozenset(tokenizer.get_vocab()) - {END, UNKNOWN}
        if any(len(word) > 1 for word in vocabulary):  # not a character tokenizer
            return vocabulary, "the tokenizer's words"
    if not (folder / "train.bin").is_file():
        return None
    tokens = np.memmap(folder / "train.bin", dtype=json.loads((folder / "meta.json").read_text())["dtype"], mode="r")
    words: set[str] = set()
    rest = ""
    for first in range(0, min(len(tokens), _MAX_TOKENS), _CHUNK_TOKENS):
        chunk = tokens[first : min(first + _CHUNK_TOKENS, _MAX_TOKENS)].tolist()
        text = rest + tokenizer.decode(chunk, skip_special_tokens=False).replace(END, "\n")
        cut = max(text.rfind(" "), text.rfind("\n")) + 1  # a word after it may continue in the next chunk
        words.update(_WORD.findall(text[:cut]))
        rest = text[cut:]
    words.update(_WORD.findall(rest))
    is_complete = len(tokens) <= _MAX_TOKENS
    return frozenset(words), "the training text" if is_complete else f"the first {_MAX_TOKENS:,} training tokens"
