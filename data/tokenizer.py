"""Text to token ids and back, by `tokenizers`: whole words, single characters, or byte-level BPE.

Every tokenizer knows `END` ("<|endoftext|>", as GPT-2 does). It stands before each document or story, and so it is
the first token a model reads and the last it has to predict. Inside a text the same characters stay plain text.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
UNKNOWN = "<|unknown|>"


def word_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make a token of every word and punctuation mark of `texts`; case counts, other words become `UNKNOWN`."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # closes up the space before . and ,
    trainer = trainers.WordLevelTrainer(special_tokens=[END, UNKNOWN], show_progress=False)
    return _trained(tokenizer, trainer, texts)


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Make a token of every character of `texts`; other characters become `UNKNOWN`."""
    characters = sorted(set().union(*texts))
    vocabulary = {piece: i for i, piece in enumerate([END, UNKNOWN, *characters])}
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


def end_id(tokenizer: Tokenizer) -> int:
    """Return the id of `END`, which every tokenizer here has."""
    token = tokenizer.token_to_id(END)
    if token is None:
        raise ValueError(f"the tokenizer has no {END} token")
    return token


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> Tokenizer:
    tokenizer.train_from_iterator(texts, trainer)
    return _plain_text(tokenizer)


def _plain_text(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True  # not kept in tokenizer.json
    return tokenizer
