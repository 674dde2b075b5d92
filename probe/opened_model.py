"""A model that is ready to be measured, with its tokenizer and what its results say about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from data.config import DataConfig
from data.tokenizer import encode_text, unknown_id
from model.observe import ObservableModel
from model.transformer import Transformer
from probe.results import Head, Shown
from probe.sentences import Example, TokenizedText, next_tokens, tokenize_text, word_attention
from training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class OpenedModel:
    """A run of train.py, or a model that another program trained."""

    folder: Path  # the run, or the results folder of an external model; with probe/ in it
    name: str
    source: str  # the run's directory; the folder or hub name of an external model
    model: ObservableModel
    untrained: Callable[[int], ObservableModel]  # seed -> an untrained model of the same shape
    tokenizer: Tokenizer
    bos_id: int  # the token before every text
    data: DataConfig | None  # corpus of a run; external model: the stories, or None: English text
    data_fingerprint: str
    shape: Mapping[str, Any]  # for probe.json: model settings, or the facts about an external model
    n_parameters: int
    departures: tuple[str, ...]  # from a Llama-style decoder
    environment: Mapping[str, Any]  # versions, for the page
    arguments: Sequence[str] | None = None  # of train.py; None: unknown
    step: int = 0
    max_steps: int | None = None  # None: an external model, of unknown training
    seed: int | None = None
    resumed: tuple[str, ...] = ()  # a sentence for each resume with other settings
    owner: str | None = None  # external model: its name, recorded in the results folder

    @property
    def is_external(self) -> bool:
        """Whether the model was trained by another program."""
        return self.max_steps is None

    @property
    def has_stories(self) -> bool:
        """Whether the heads are tested on the built-in stories, not on English text."""
        return self.data is not None and self.data.source == "stories"

    @cached_property
    def unknown(self) -> int | None:
        """The token that replaces what the tokenizer cannot write, if it has one."""
        return unknown_id(self.tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`, the start token first."""
        return (self.bos_id, *encode_text(self.tokenizer, text).ids)

    def tokenize(self, text: str) -> TokenizedText:
        """Return the tokens and words of `text`, the start token first."""
        return tokenize_text(self.tokenizer, text, self.bos_id)

    def measure_example(self, example: Example, head: Head) -> Shown:
        """Return a head's weights on both nouns at the query, and the most probable next words after a last query."""
        # Attention from the query.
        text = self.tokenize(example.text)
        attention = word_attention(self.model, text)  # [L, H, W, W]
        words = (example.query, example.antecedent, example.distractor)
        query, meant, other = map(text.words.index, words)
        row = attention[*head, query]
        weights = {text.words[noun]: float(row[noun]) for noun in sorted((meant, other), key=text.words.__getitem__)}

        # A sentence that continues after the query has its next words already.
        is_last = example.text.endswith(example.query)
        following = next_tokens(self.model, text.tokens, 3) if is_last else []
        return Shown(
            kind="worked",
            text=example.text,
            query=text.tokens_of(query)[-1],
            word=example.query,
            meant=[text.tokens_of(meant)],
            other=[text.tokens_of(other)],
            weights=weights,
            next=[(self.decode(token), probability) for token, probability in following],
        )

    def decode(self, token: int) -> str:
        """Return the text of a token, special tokens by their name."""
        text = self.tokenizer.decode([token], skip_special_tokens=False).strip()
        return text or repr(self.tokenizer.id_to_token(token))


@dataclass(frozen=True, kw_only=True)
class OpenedRun(OpenedModel):
    """The best checkpoint of a run of train.py."""

    settings: TrainSettings
    transformer: Transformer
