"""Settings of the data; the values are in configs/data/."""

from dataclasses import dataclass
from enum import Enum
from functools import partial

from settings.errors import UserError
from settings.fields import check_limits, setting

# Runs on other data read other batches.
_setting = partial(setting, orders_batches=True)
_source = partial(_setting, "which of the four kinds of data: stories, repeats, text or hub")


class TokenizerKind(Enum):
    """How text becomes tokens."""

    characters = "characters"
    bpe = "bpe"  # byte-level: decodes to exactly the text
    words = "words"  # the most frequent words; spaces and rare words are lost


class RowsKind(Enum):
    """The documents in the rows of a dataset."""

    documents = "documents"  # each row is a document
    concatenated = "concatenated"  # all rows together are one document


@dataclass(frozen=True, kw_only=True)
class StoriesConfig:
    """Generated stories with gold links."""

    source: str = _source()
    seed: int = _setting("of the generator; training has its own seed", low=0)
    n_train_stories: int = _setting("stories to train on", low=4)
    n_validation_stories: int = _setting("stories of the same mix, for the validation loss", low=4)
    n_test_frames: int = _setting("at most so many frames per plot and hold-out; half for choosing heads", low=1)
    n_test_pairs: int = _setting("pairs of nouns per frame, more if there are fewer frames", low=1)
    # The shares of the story families add up to 1 (docs/data.md).
    share_agreement: float = _setting("share: number or gender of the pronoun decides the verb")
    share_verb: float = _setting("share: the verb before the pronoun decides")
    share_no_pronoun: float = _setting("share: no pronoun")

    def __post_init__(self) -> None:
        check_limits(self, "data.")
        shares = self.shares().values()
        if not (min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-9):
            raise UserError("data.share_* must be 0 or more and add up to 1")

    def shares(self) -> dict[str, float]:
        """Return the share of each kind of story, by the part of its name after "share_"."""
        return {"agreement": self.share_agreement, "verb": self.share_verb, "no_pronoun": self.share_no_pronoun}


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig:
    """Generated words at random that come again."""

    source: str = _source()
    seed: int = _setting("of the words; training has its own seed", low=0)
    n_documents: int = _setting("documents of 62 words, one in fifty for validation", low=100)
    fewest_words: int = _setting("different words of a document, at least", low=2)
    most_words: int = _setting("at most; with 62 or more, in the same order, no word comes again", low=2, high=128)
    same_order: bool = _setting("whether they come again in the order of the first time; false: in any order")

    def __post_init__(self) -> None:
        check_limits(self, "data.")
        if self.fewest_words > self.most_words:
            raise UserError(f"data.fewest_words={self.fewest_words}: more than data.most_words={self.most_words}")


# The embedding of a larger vocabulary would fill the memory before an error; the largest in use has 262,144 tokens.
_MAX_VOCAB_SIZE = 2**24
_MIN_VOCAB_SIZE = {TokenizerKind.bpe: 257, TokenizerKind.words: 3}  # 256 bytes and END; END, unknown and a word


@dataclass(frozen=True, kw_only=True)
class _TokenizedConfig:
    """Text that needs a tokenizer."""

    source: str = _source()
    validation_fraction: float = _setting(
        "share of the text for validation, if there is no validation text", above=0, below=1
    )
    column: str = _setting("field of the text in .jsonl, .csv and .parquet")
    max_bytes: int | None = _setting("use only the first bytes, as in 20_000_000; null: all", low=1)
    tokenizer: TokenizerKind = _setting("how text becomes tokens")
    vocab_size: int = _setting("number of tokens, for bpe (257 or more) and words (3 or more)")

    def __post_init__(self) -> None:
        check_limits(self, "data.")
        kind = self.tokenizer
        if kind in _MIN_VOCAB_SIZE and not _MIN_VOCAB_SIZE[kind] <= self.vocab_size <= _MAX_VOCAB_SIZE:
            limits = f"between {_MIN_VOCAB_SIZE[kind]} and {_MAX_VOCAB_SIZE:,}"
            raise UserError(f"data.vocab_size={self.vocab_size}: must be {limits} with tokenizer={kind.value}")


@dataclass(frozen=True, kw_only=True)
class TextConfig(_TokenizedConfig):
    """Text from local files; without validation_path, the last part of the text is the validation text."""

    path: str = _setting("a file, a folder or a glob; several with commas; .txt .jsonl .csv (.gz .zst) .parquet")
    validation_path: str | None = _setting("the same for validation; null: the last part of the text")


@dataclass(frozen=True, kw_only=True)
class HubConfig(_TokenizedConfig):
    """Text from a dataset of the Hugging Face hub; without validation_split, its last part is the validation text."""

    name: str = _setting("OWNER/NAME, or a local folder with the files of a dataset")
    subset: str | None = _setting("`datasets` calls it config; null: the only subset, or default")
    revision: str | None = _setting("commit, branch or tag; null: the newest commit; the run records its commit")
    split: str = _setting("for training; several joined by +")
    validation_split: str | None = _setting("for validation; null: the last part of the text")
    rows: RowsKind = _setting("concatenated: all rows together are one document")


DataConfig = StoriesConfig | RepeatsConfig | TextConfig | HubConfig
SCHEMAS: dict[str, type[DataConfig]] = {
    "stories": StoriesConfig,
    "repeats": RepeatsConfig,
    "text": TextConfig,
    "hub": HubConfig,
}
