"""Settings of the data; the values are in configs/data/."""

from dataclasses import dataclass, fields
from enum import Enum


class TokenizerKind(Enum):
    """How text becomes tokens."""

    characters = "characters"
    bpe = "bpe"  # byte-level: decodes to exactly the text
    words = "words"  # the most frequent words; spaces and rare words are lost
    file = "file"  # an existing tokenizer.json


class RowsKind(Enum):
    """The documents in the rows of a dataset."""

    documents = "documents"  # each row is a document
    concatenated = "concatenated"  # all rows together are one document


@dataclass(frozen=True, kw_only=True, slots=True)
class StoriesConfig:
    """Generated stories with gold links."""

    source: str  # "stories"
    seed: int  # the generator's seed, independent of the seed of training
    n_train_stories: int  # 4 or more
    n_validation_stories: int  # 4 or more
    n_test_frames: int  # frames per plot and hold-out, 1 or more
    n_test_pairs: int  # pairs of mentions per frame, 1 or more
    n_bystanders: int  # 0 to 2: the largest number of extra mentions that no pronoun can refer to (agreement)
    skew: float  # probability that a training pronoun refers to the first mention; 0.5: position is no clue
    share_agreement: float  # share of all stories; the shares add up to 1
    share_told_gender: float  # the story states the gender of a name
    share_state: float  # the verb fits the state of one mention only
    share_attribute_before: float  # the attribute comes before its owner
    share_attribute_after: float
    share_ownership_before: float
    share_ownership_after: float
    share_ownership_object: float  # "Tom washed him": not the subject
    share_several_pronouns: float
    share_later_cue: float
    share_ambiguous: float
    share_no_antecedent: float
    share_pronoun_first: float  # the pronoun comes before the noun
    share_plural: float
    share_no_pronoun: float

    def __post_init__(self) -> None:
        """Raises ValueError for values out of range."""
        shares = self.shares().values()
        if not (min(shares) >= 0 and abs(sum(shares) - 1) <= 1e-9):
            raise ValueError("data.share_* must be 0 or more and add up to 1")
        minima = {"n_train_stories": 4, "n_validation_stories": 4, "n_test_frames": 1, "n_test_pairs": 1}
        for name, minimum in minima.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"data.{name}={getattr(self, name)}: must be {minimum} or more")
        if not 0 < self.skew < 1:
            raise ValueError(f"data.skew={self.skew}: must be between 0 and 1, both excluded")
        if not 0 <= self.n_bystanders <= 2:
            raise ValueError(f"data.n_bystanders={self.n_bystanders}: must be 0, 1 or 2")

    def shares(self) -> dict[str, float]:
        """Returns the share of each kind of story, by the part of its name after "share_"."""
        return {field.name[6:]: getattr(self, field.name) for field in fields(self) if field.name.startswith("share_")}


# The embedding of a larger vocabulary would fill the memory before an error; the largest in use has 262,144 tokens.
_MAX_VOCAB_SIZE = 2**24
_MIN_VOCAB_SIZE = {TokenizerKind.bpe: 257, TokenizerKind.words: 3}  # 256 bytes and END; END, unknown and a word


@dataclass(frozen=True, kw_only=True)
class _TokenizedConfig:
    """Text that needs a tokenizer."""

    source: str  # "text" or "hub"
    validation_fraction: float  # a share of the text between 0 and 1
    column: str  # the field of the text in rows
    max_bytes: int | None  # use only the first bytes of text, 1 or more; None: all
    tokenizer: TokenizerKind
    vocab_size: int  # for bpe 257 or more, for words 3 or more
    tokenizer_path: str | None  # a tokenizer.json, with tokenizer=file only

    def __post_init__(self) -> None:
        """Raises ValueError for values out of range."""
        kind, vocab_size, path = self.tokenizer, self.vocab_size, self.tokenizer_path
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"data.validation_fraction={self.validation_fraction}: must be between 0 and 1")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"data.max_bytes={self.max_bytes}: must be 1 or more, or null for all of the text")
        if kind in _MIN_VOCAB_SIZE and not _MIN_VOCAB_SIZE[kind] <= vocab_size <= _MAX_VOCAB_SIZE:
            limits = f"between {_MIN_VOCAB_SIZE[kind]} and {_MAX_VOCAB_SIZE:,}"
            raise ValueError(f"data.vocab_size={vocab_size}: must be {limits} with tokenizer={kind.value}")
        if (kind is TokenizerKind.file) != bool(path):
            raise ValueError(f"data.tokenizer_path={path}: set it with data.tokenizer=file, and only then")


@dataclass(frozen=True, kw_only=True)
class TextConfig(_TokenizedConfig):
    """Text from local files; without validation_path, the last part of the text is the validation text."""

    path: str  # a file, a folder or a glob, or several separated by commas
    validation_path: str | None  # like path


@dataclass(frozen=True, kw_only=True)
class HubConfig(_TokenizedConfig):
    """Text from a dataset of the Hugging Face hub; without validation_split, its last part is the validation text."""

    name: str  # OWNER/NAME, or a local folder with the files of a dataset
    subset: str | None  # `datasets` calls it config; None: the only subset, or "default"
    revision: str | None  # a commit, branch or tag; None: the newest commit, which the run records
    split: str  # for training; several joined by +
    validation_split: str | None
    files: str | None  # a glob of the repository's files instead of a split
    rows: RowsKind

    def __post_init__(self) -> None:
        """Raises ValueError for values out of range."""
        if self.files is not None and (self.validation_split, self.subset) != (None, None):
            raise ValueError(f"data.files={self.files}: set data.validation_split=null data.subset=null")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class TokensConfig:
    """A tokenized text, to train on a machine that lacks the text: a folder of the cache (data/corpus.py)."""

    source: str  # "tokens"
    path: str  # the folder


DataConfig = StoriesConfig | TextConfig | HubConfig | TokensConfig
SCHEMAS: dict[str, type[DataConfig]] = {
    "stories": StoriesConfig,
    "text": TextConfig,
    "hub": HubConfig,
    "tokens": TokensConfig,
}
