"""What can be set about the texts; the values are in configs/data/."""

from dataclasses import dataclass
from enum import Enum


class TokenizerKind(Enum):
    """How text becomes tokens."""

    characters = "characters"
    bpe = "bpe"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoriesConfig:
    """The generated stories."""

    source: str  # "stories"
    seed: int  # of the stories themselves, apart from the seed of training
    n_train_stories: int  # 4 or more
    n_dev_stories: int  # 4 or more
    n_test_templates: int  # frames per family and hold-out, 1 or more
    n_test_pairs: int  # pairs of mentions per frame, 1 or more
    share_v: float  # of stories, 0 to 1; the four shares add up to 1
    share_r: float
    share_n: float
    share_x: float

    def __post_init__(self) -> None:
        """Refuse shares that do not add up and counts that hold no block."""
        if min(self.shares().values()) < 0 or abs(sum(self.shares().values()) - 1) > 1e-9:
            raise ValueError("data.share_v, share_r, share_n and share_x must be 0 or more and add up to 1")
        if min(self.n_train_stories, self.n_dev_stories) < 4 or min(self.n_test_templates, self.n_test_pairs) < 1:
            raise ValueError("data.n_train_stories and n_dev_stories must be 4 or more, n_test_* 1 or more")

    def shares(self) -> dict[str, float]:
        """Return each family's share of the stories."""
        return {"V": self.share_v, "R": self.share_r, "N": self.share_n, "X": self.share_x}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """Text from files."""

    source: str  # "text"
    path: str  # a file, a folder or a glob; several parted by commas; .txt .jsonl .parquet
    validation_path: str | None  # the same; None: hold out the last part of each source
    validation_fraction: float  # of the text, above 0 and below 1; unused with validation_path
    column: str  # where .jsonl and .parquet keep the text
    tokenizer: TokenizerKind
    vocab_size: int  # of byte-level BPE, 257 or more; unused with characters

    def __post_init__(self) -> None:
        """Refuse an impossible split or vocabulary."""
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"data.validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        if self.tokenizer is TokenizerKind.bpe and self.vocab_size < 257:
            raise ValueError(f"data.vocab_size must be at least 257 (256 bytes and the end), got {self.vocab_size}")


DataConfig = StoriesConfig | TextConfig
SCHEMAS: dict[str, type[DataConfig]] = {"stories": StoriesConfig, "text": TextConfig}
