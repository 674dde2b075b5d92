"""A run, opened for reading: its settings, its tokenizer and its best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs import TrainSettings, typed_saved

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from data.corpus import Corpus
    from model.transformer import Transformer
    from probe.sentence import Sentence
    from run.config import EvalConfig

SCHEMA_VERSION = 5  # of probe.json


@dataclass(frozen=True)
class Opened:
    """A run, ready to be read."""

    run: Path
    settings: TrainSettings  # it was trained with
    data_fingerprint: str  # of the text it was trained on
    tokenizer: Tokenizer
    model: Transformer  # the best checkpoint's, in eval mode and float32
    step: int
    place: str  # device and why

    @property
    def is_testable(self) -> bool:
        """Whether its heads can be probed: its text has gold links, and it does not see what it must predict."""
        return self.settings.data.source == "stories" and self.settings.model.is_causal

    def cut(self, text: str) -> Sentence:
        """Return the tokens and words of `text`, the END in front."""
        from data.stories.lint import words
        from data.tokenizer import with_end
        from probe.sentence import Sentence

        return Sentence(*with_end(self.tokenizer, text), words(text))

    def untrained(self, seed: int) -> Transformer:
        """Return a model of the same shape that was never trained."""
        from model.transformer import Transformer

        device = self.model.token_embedding.weight.device
        return Transformer(self.model.config, self.model.vocab_size, seed=10_000 + seed).to(device).eval()


def open_run(settings: EvalConfig) -> Opened:
    """Load a run's best checkpoint; ValueError or OSError where it cannot be."""
    import sys

    import torch

    from data.tokenizer import load_tokenizer
    from model.transformer import Transformer, load_weights
    from run.checkpoint import load_checkpoint
    from run.config import Precision
    from run.device import choose_place
    from run.directory import find_run, read_json

    if settings.threads:
        torch.set_num_threads(settings.threads)
    place = choose_place(settings.device, Precision.float32)
    run = find_run(settings.run)
    config = read_json(run / "config.json")
    trained = typed_saved(config)
    tokenizer = load_tokenizer(run / "tokenizer.json")
    state, damaged = load_checkpoint(run / "checkpoints", best=True)
    for line in damaged:
        print(f"warning: {line}", file=sys.stderr)
    model = Transformer(trained.model, tokenizer.get_vocab_size(), seed=0)
    load_weights(model, state["model"])
    return Opened(
        run,
        trained,
        str(config.get("data_fingerprint")),
        tokenizer,
        model.to(place.device).eval(),
        state["step"],
        place.where,
    )


def load_data(opened: Opened, settings: EvalConfig) -> Corpus:
    """Return the corpus the run was trained on; ValueError if it is not the same any more."""
    from data.corpus import load_corpus

    corpus = load_corpus(opened.settings.data, Path(settings.cache_dir))
    if corpus.fingerprint != opened.data_fingerprint:
        raise ValueError("the data is no longer what this run was trained on: its text or the generator has changed")
    return corpus
