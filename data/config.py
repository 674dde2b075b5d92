"""What can be set about the texts; the values are in configs/data/."""

from dataclasses import dataclass, fields
from enum import Enum


class TokenizerKind(Enum):
    """How text becomes tokens."""

    characters = "characters"
    bpe = "bpe"  # byte-level: any text at all comes back exactly
    words = "words"  # the most frequent ones; spaces and rare words do not come back
    file = "file"  # a tokenizer.json trained elsewhere


class RowsKind(Enum):
    """What a row of a dataset is."""

    documents = "documents"  # each a document of its own
    joined = "joined"  # a piece of one long text, nothing between it and the next


@dataclass(frozen=True, kw_only=True, slots=True)
class StoriesConfig:
    """The generated stories."""

    source: str  # "stories"
    seed: int  # of the stories themselves, apart from the seed of training
    n_train_stories: int  # 4 or more
    n_validation_stories: int  # 4 or more
    n_test_templates: int  # frames per family and hold-out, 1 or more
    n_test_pairs: int  # pairs of mentions per frame, 1 or more
    n_bystanders: int  # at most, of mentions in V that no pronoun can mean, 0 to 2
    skew: float  # how often the first mention is meant in training; 0.5: position says nothing
    share_agreement: float  # of stories, 0 to 1; all shares add up to 1
    share_told_gender: float  # the story tells who is a girl and who is a boy
    share_state: float  # the verb is that of a state said before the noun
    share_attribute_before: float  # what is owned stands before its owner
    share_attribute_after: float  # and after
    share_ownership_before: float
    share_ownership_after: float
    share_ownership_object: float  # "Tom washed him"
    share_several_pronouns: float
    share_later_cue: float
    share_ambiguous: float
    share_no_antecedent: float
    share_pronoun_first: float  # the pronoun stands before what it means
    share_plural: float
    share_no_pronoun: float

    def __post_init__(self) -> None:
        """Refuse shares that do not add up and counts that hold no block."""
        if not (min(self.shares().values()) >= 0 and abs(sum(self.shares().values()) - 1) <= 1e-9):
            raise ValueError("data.share_* must be 0 or more and add up to 1")
        if (
            min(self.n_train_stories, self.n_validation_stories) < 4
            or min(self.n_test_templates, self.n_test_pairs) < 1
        ):
            raise ValueError("data.n_train_stories and n_validation_stories must be 4 or more, n_test_* 1 or more")
        if not 0 < self.skew < 1 or not 0 <= self.n_bystanders <= 2:
            raise ValueError("data.skew must lie between 0 and 1 (neither of them), and data.n_bystanders be 0, 1 or 2")

    def shares(self) -> dict[str, float]:
        """Return each kind of plot's share of the stories, by the name after share_."""
        return {field.name[6:]: getattr(self, field.name) for field in fields(self) if field.name.startswith("share_")}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """Text from files."""

    source: str  # "text"
    path: str  # a file, a folder or a glob; several parted by commas; .txt .jsonl .csv .parquet, .gz and .zst of them
    validation_path: str | None  # the same; None: hold out the last part of the text
    validation_fraction: float  # of the text, above 0 and below 1; unused with validation_path
    column: str  # where .jsonl, .csv and .parquet keep the text
    max_bytes: int | None  # of UTF-8 read from path, what is held out included: a taste; None: all of it
    tokenizer: TokenizerKind
    vocab_size: int  # of byte-level BPE, 257 or more, and of words, 3 or more; unused otherwise
    tokenizer_path: str | None  # with tokenizer=file, the tokenizer.json

    def __post_init__(self) -> None:
        """Refuse an impossible split or vocabulary."""
        _check_text(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class HubConfig:
    """Text from a dataset on the Hugging Face hub."""

    source: str  # "hub"
    name: str  # OWNER/NAME
    subset: str | None  # what `datasets` calls a config; None: the only one, or that called default
    revision: str | None  # a commit (40 hex digits), branch or tag; None: the newest, resolved to a commit that is kept
    split: str  # what to train on; several joined by +
    validation_split: str | None  # None: hold out the last part
    validation_fraction: float  # of the text, above 0 and below 1; with validation_split only of a taste
    files: str | None  # a glob of the repository's files in place of a split
    column: str  # of the text; a .txt file has none
    rows: RowsKind
    max_bytes: int | None  # of UTF-8 read from split, what is held out included: a taste; None: all of it
    tokenizer: TokenizerKind
    vocab_size: int  # of byte-level BPE, 257 or more, and of words, 3 or more; unused otherwise
    tokenizer_path: str | None  # with tokenizer=file, the tokenizer.json

    def __post_init__(self) -> None:
        """Refuse an impossible split, taste or vocabulary."""
        if self.files is not None and (self.validation_split, self.subset) != (None, None):
            raise ValueError("data.files takes the place of splits: set data.validation_split=null data.subset=null")
        _check_text(self)


# The trainer makes room for all of them, 72 bytes each, before it has seen a word, and ends the process where there is
# none. The largest vocabularies in use have 262,144 tokens (Gemma 3).
_MOST_TOKENS = 2**24


def _check_text(config: TextConfig | HubConfig) -> None:
    """Raise ValueError for what no text can have."""
    if not 0 < config.validation_fraction < 1:
        raise ValueError(f"data.validation_fraction must lie between 0 and 1, got {config.validation_fraction}")
    check_tokenizer(config.tokenizer, config.vocab_size, config.tokenizer_path)
    if config.max_bytes is not None and config.max_bytes < 1:
        raise ValueError(f"data.max_bytes must be 1 or more, or null for all of the text, got {config.max_bytes}")


def check_tokenizer(kind: TokenizerKind, vocab_size: int, path: str | None) -> None:
    """Raise ValueError where a kind of tokenizer is asked for with settings that it cannot have."""
    if kind is TokenizerKind.bpe and vocab_size < 257:
        raise ValueError(f"data.vocab_size must be at least 257 (256 bytes and the end), got {vocab_size}")
    if kind is TokenizerKind.words and vocab_size < 3:
        raise ValueError(f"data.vocab_size must be at least 3 (the end, the unknown and a word), got {vocab_size}")
    if kind in (TokenizerKind.bpe, TokenizerKind.words) and vocab_size > _MOST_TOKENS:
        raise ValueError(f"data.vocab_size must be {_MOST_TOKENS:,} or less, got {vocab_size}")
    if (kind is TokenizerKind.file) != bool(path):
        raise ValueError("data.tokenizer=file and data.tokenizer_path=tokenizer.json go together: give both or neither")


DataConfig = StoriesConfig | TextConfig | HubConfig
SCHEMAS: dict[str, type[DataConfig]] = {"stories": StoriesConfig, "text": TextConfig, "hub": HubConfig}
