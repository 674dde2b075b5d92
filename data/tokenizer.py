"""Tokenizers: byte-level BPE, characters or words, and those of models of transformers.

Every one has the token `END` before each document or story: BOS, the model's first input, and the last target. The
same characters inside a text are plain text.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from settings.data import HubConfig, TextConfig, TokenizerKind
from settings.errors import UserError, one_line

END = "<|endoftext|>"  # as in GPT-2
UNKNOWN = "<|unknown|>"
# Parts of tokenizer.json: how the kinds that we make divide a text, and how BPE of a whole text writes its spaces
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "words": {"type": "Whitespace"},
    "characters": {
        "type": "Split",
        "pattern": {"Regex": r"[\s\S]"},
        "behavior": "Isolated",
        "invert": False,
    },
    "bpe": {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    },
}
_PREPENDED = {"type": "Prepend", "prepend": "▁"}
_REPLACED = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_NORMALIZERS: dict[str, dict[str, Any]] = {
    " ": {"type": "Prepend", "prepend": " "},
    "▁": {"type": "Sequence", "normalizers": [_PREPENDED, _REPLACED]},
}
_PRETRAINED_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")  # that transformers reads


def make_tokenizer(config: TextConfig | HubConfig, texts: Iterable[str], sample: Iterable[str]) -> Tokenizer:
    """Return the tokenizer of `config`, of the characters of `texts` or trained on `sample`."""
    if config.tokenizer is TokenizerKind.characters:
        return character_tokenizer(texts)
    make = word_tokenizer if config.tokenizer is TokenizerKind.words else bpe_tokenizer
    return make(sample, config.vocab_size)


def word_tokenizer(texts: Iterable[str], vocab_size: int = 30_000) -> Tokenizer:
    """Return a tokenizer of the most frequent words and marks; other words become `UNKNOWN`."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # no space before . and ,
    special = [END, UNKNOWN]
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _plain(tokenizer)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer of all characters of `texts`; other characters become `UNKNOWN`."""
    characters = set(chain.from_iterable(texts))
    vocabulary = {token: i for i, token in enumerate([END, UNKNOWN, *sorted(characters)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END])
    return _plain(tokenizer)


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of at most `vocab_size` tokens (Sennrich et al. 2016)."""
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
    """Return the tokenizer of a run or a corpus; raise UserError if it is damaged or lacks `END`."""
    try:
        tokenizer = _plain(Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises Exception itself
        raise UserError(f"{path} is not a readable tokenizer: {error}") from None
    end_id(tokenizer)
    return tokenizer


def imported_tokenizer(folder: Path, setting: str) -> tuple[Tokenizer, int]:
    """Return the tokenizer of a folder of `save_pretrained` and its start token; UserError begins with `setting`."""
    from transformers import AutoTokenizer

    # Without any of the files transformers would return an empty tokenizer.
    if not any((folder / file).is_file() for file in _PRETRAINED_FILES):
        raise UserError(f"{setting}: no tokenizer, none of {', '.join(_PRETRAINED_FILES)}")
    try:
        pretrained = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises exceptions of many types
        raise UserError(f"{setting}: transformers cannot load the tokenizer: {one_line(error)}") from None
    return fast_tokenizer(pretrained, setting)


def fast_tokenizer(pretrained: Any, setting: str) -> tuple[Tokenizer, int]:
    """Return a loaded tokenizer and the token that begins a text; UserError begins with `setting`."""
    if isinstance(pretrained, Tokenizer):
        plain = _plain(Tokenizer.from_str(pretrained.to_str()))
        return plain, end_id(plain)

    # Only a fast tokenizer says which characters a token stands for.
    backend = getattr(pretrained, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UserError(f"{setting}: no fast tokenizer (tokenizer.json), so the tokens of a word are unknown")
    # GPT-2 has one token for both.
    start = pretrained.bos_token_id
    if start is None:
        start = pretrained.eos_token_id
    if start is None:
        raise UserError(f"{setting}: its tokenizer has neither bos_token nor eos_token to begin a text")
    return _plain(Tokenizer.from_str(backend.to_str())), int(start)


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Make the tokenizer encode exactly the text: nothing around it, all of it, `END` as plain text."""
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    tokenizer.encode_special_tokens = True  # not saved in tokenizer.json
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> Encoding:
    """Return the encoding of one text with offsets; raise UserError if it cannot be encoded."""
    try:
        return tokenizer.encode(text)
    except Exception as error:  # a tokenizer without a token for unknown text
        raise UserError(f"the tokenizer cannot encode {text!r}: {error}") from None


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids of each text, of which none is that of `END`."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def tokenizer_kind(tokenizer: Tokenizer) -> tuple[str, str | None]:
    """Return "words", "characters" or "bpe", and None; UserError for other kinds.

    The BPE of sentencepiece reads a text whole, after a space, and unknown characters as bytes. For it, the second
    value is its character for a space.
    """
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    normalizer = content["normalizer"]
    before = content["pre_tokenizer"]
    options = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")
    is_plain = not any(map(model.get, options))
    if is_plain and all(token["special"] for token in content["added_tokens"]):
        if model.get("byte_fallback") and before is None:
            for space, known in _NORMALIZERS.items():
                if normalizer == known:
                    return "bpe", space
        elif normalizer is None:
            for kind, known in _PRE_TOKENIZERS.items():
                if before == known and model["type"] == ("BPE" if kind == "bpe" else "WordLevel"):
                    return kind, None
    raise UserError(f"its kind of tokenizer ({model['type']}) is not known")


@lru_cache(maxsize=4)  # a vocabulary of 50,000 takes 0.2 s, and each passage asks
def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token for unknown text, None if the tokenizer has none."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_id") is not None:  # unigram models
        return int(model["unk_id"])
    return tokenizer.token_to_id(model["unk_token"]) if model.get("unk_token") else None


def end_id(tokenizer: Tokenizer) -> int:
    """Return the id of `END`, the BOS of this project's tokenizers; raise UserError without one."""
    token = tokenizer.token_to_id(END)
    if token is None:
        raise UserError(f"the tokenizer has no {END} token")
    return token
