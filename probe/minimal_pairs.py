"""Minimal pairs (BLiMP, MultiBLiMP, Zorro): does the model give the grammatical sentence the higher probability?

Scored as in BLiMP (Warstadt et al. 2020, section 3): log-probability of the whole sentence, the first word included
(a start token precedes it), the end of the text excluded. Published scores: docs/english.md.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from data.errors import UserError
from data.test_set_files import load_lines, load_objects, load_table
from data.text import text_files
from data.typed_json import to_json
from data.words import words_of
from model.observe import HeadEdit, ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel
from probe.statistics import cluster_interval, wilson_interval

# In nats. Batching moves a float32 sum of log-probabilities by up to 7e-6 (1,200 BLiMP pairs, 1.9M parameters).
TIE = 1e-4


@dataclass(frozen=True, slots=True)
class Pair:
    """A grammatical and an ungrammatical sentence."""

    good: str
    bad: str

    @property
    def difference(self) -> tuple[str, str]:
        """The differing words of the good and of the bad sentence, without the common beginning and end."""
        # Lengths of the common beginning and of the common end, which do not overlap.
        good = words_of(self.good)
        bad = words_of(self.bad)
        n = min(len(good), len(bad))
        start = next((i for i in range(n) if good[i] != bad[i]), n)
        stop = next((i for i in range(n - start) if good[-1 - i] != bad[-1 - i]), n - start)
        return " ".join(good[start : len(good) - stop]), " ".join(bad[start : len(bad) - stop])


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a test set a model can know from training; a share is None if the training text is not known."""

    n_words: int
    seen_words: float | None  # share of the words that are in the training text
    seen_types: float | None  # the same of the distinct words
    unknown_tokens: float  # share of the tokens


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right pairs; the interval is the widest of those over pairs, differing words and first words."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScores:
    """Scores on one file. The fields are the keys of minimal_pairs_....json."""

    file: str
    n_pairs: int  # that fit into the context
    n_too_long: int
    coverage: Coverage
    accuracy: Accuracy | None  # None without pairs
    n_ties: int
    n_covered: int | None  # pairs whose differing words are in the training text; None: not known
    accuracy_covered: Accuracy | None
    context_free_ceiling: float | None
    above_ceiling: bool | None


@dataclass(frozen=True, slots=True)
class MinimalPairs:
    """Scores on all files of a test set."""

    files: list[FileScores]
    coverage: Coverage  # over all sentences, also of those that do not fit into the context

    def to_json(self) -> dict[str, Any]:
        """Return what minimal_pairs_....json has besides the model and the settings."""
        return {"tie_nats": TIE, "files": to_json(self.files)}


@dataclass(frozen=True, slots=True)
class _BlimpLine:
    sentence_good: str
    sentence_bad: str


# Files


def load_pairs(file: Path) -> list[Pair]:
    """Return the pairs of a file: BLiMP's .jsonl, MultiBLiMP's .tsv, or Zorro's .txt (bad and good on alternate lines).

    Raises UserError if a line does not have this form, or most neighbouring lines of a .txt share few words.
    """
    sides = {}
    if file.suffix == ".jsonl":
        for where, line in load_objects(file, _BlimpLine).items():
            sides[where] = Pair(line.sentence_good.strip(), line.sentence_bad.strip())
    elif file.suffix == ".tsv":
        for where, (good, bad) in load_table(file, ("sen", "wrong_sen")).items():
            sides[where] = Pair(good.strip(), bad.strip())
    else:
        # Lines 1, 3, ... are bad, and the good sentence names the place of the pair.
        lines = list(load_lines(file).items())
        if len(lines) % 2:
            raise UserError(f"{lines[-1][0]}: a bad sentence without its good sentence on the next line")
        for (_, bad), (where, good) in zip(lines[::2], lines[1::2], strict=True):
            sides[where] = Pair(good.strip(), bad.strip())
        if 2 * sum(map(_shares_words, sides.values())) < len(sides):
            problem = "not minimal pairs; most lines share less than half their words with the next line"
            raise UserError(f"{file}: {problem}")
    for where, pair in sides.items():
        if not pair.good or not pair.bad or pair.good == pair.bad:
            raise UserError(f"{where}: the two sentences are equal or one is empty")
    return list(sides.values())


def _shares_words(pair: Pair) -> bool:
    """Return whether half of the distinct words of the shorter sentence are in the other."""
    good = set(words_of(pair.good))
    bad = set(words_of(pair.bad))
    return len(good & bad) >= min(len(good), len(bad)) / 2


# Scores


def measure_minimal_pairs(
    opened: OpenedModel, training_words: frozenset[str] | None, path: str, config: ProbeConfig
) -> MinimalPairs:
    """Score every .jsonl, .tsv and .txt file of `path`; UserError if one has no pairs, FileNotFoundError without files.

    `training_words` are the words of the training text, None if it is not known.
    """
    # An error in the last file is reported before minutes of scoring.
    pairs_of = {str(file): load_pairs(file) for file in text_files(path, "path", (".jsonl", ".tsv", ".txt"))}
    all_pairs: list[Pair] = []
    files = []
    for name, pairs in pairs_of.items():
        all_pairs += pairs
        files.append(score_file(opened, training_words, name, pairs, config))
    return MinimalPairs(files, coverage(opened, training_words, all_pairs))


def score_file(
    opened: OpenedModel,
    training_words: frozenset[str] | None,
    name: str,
    pairs: Sequence[Pair],
    config: ProbeConfig,
) -> FileScores:
    """Return the accuracy on all pairs that fit into the context, and on the covered ones."""
    # Pairs that the model can read, and the log-probability of both sentences. [N] each
    fitting = []
    good = []
    bad = []
    for pair in pairs:
        good_tokens = opened.encode(pair.good)
        bad_tokens = opened.encode(pair.bad)
        if max(len(good_tokens), len(bad_tokens)) <= opened.model.context_length:
            fitting.append(pair)
            good.append(good_tokens)
            bad.append(bad_tokens)
    right = outcomes(
        log_probabilities(opened.model, good, config.tokens_per_batch),
        log_probabilities(opened.model, bad, config.tokens_per_batch),
    )
    accuracy = _accuracy(right, fitting, config)

    # Pairs that the model can know from its training text.
    n_covered = None
    accuracy_covered = None
    if training_words is not None:
        covered = [i for i, pair in enumerate(fitting) if _is_covered(opened, training_words, pair)]
        n_covered = len(covered)
        accuracy_covered = _accuracy(right[covered], [fitting[i] for i in covered], config)

    # Evidence of reference only above what a predictor without context reaches.
    ceiling = context_free_ceiling(fitting)
    return FileScores(
        file=name,
        n_pairs=len(fitting),
        n_too_long=len(pairs) - len(fitting),
        coverage=coverage(opened, training_words, fitting),
        accuracy=accuracy,
        n_ties=int((right == 0.5).sum()),
        n_covered=n_covered,
        accuracy_covered=accuracy_covered,
        context_free_ceiling=ceiling,
        above_ceiling=None if ceiling is None or accuracy is None else accuracy.interval[0] > ceiling,
    )


def log_probabilities(
    model: ObservableModel, texts: Sequence[tuple[int, ...]], tokens_per_batch: int, edits: Sequence[HeadEdit] = ()
) -> np.ndarray:
    """Return the log-probability [N] in nats of each text's tokens after its first, with some heads edited."""
    totals = np.empty(len(texts))
    for members, rows, tokens, last in text_batches(texts, tokens_per_batch):
        # Each position predicts the next token; padding has no target. [B, T - 1]
        targets = tokens[:, 1:].masked_fill(torch.arange(1, tokens.shape[1]) > last[:, None], -100)
        logits = model.logits(tokens.to(model.device), edits=edits)[:, :-1]
        # Losses of the tokens after the first, 0 for padding. [B, T - 1]
        losses = F.cross_entropy(logits.mT, targets.to(model.device), ignore_index=-100, reduction="none")
        totals[members] = -losses.double().sum(1).cpu().numpy()[rows]
    return totals


def outcomes(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return [N] 1 if the good sentence has the higher log-probability, 0 if the bad one has, 1/2 for a tie."""
    return np.where(np.abs(good - bad) <= TIE, 0.5, (good > bad).astype(float))


def context_free_ceiling(pairs: Sequence[Pair]) -> float | None:
    """Return the best accuracy of a predictor that sees the differing word but nothing before it.

    For each pair of words it prefers the word that is right more often in this file, so this is an upper bound, and
    an accuracy at or below it shows nothing about reference. None if a pair differs in more than one word.
    """
    # How often each word of a pair of words is right.
    counts: dict[frozenset[str], Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        good, bad = pair.difference
        if len(good.split()) != 1 or len(bad.split()) != 1:
            return None
        counts[frozenset((good, bad))][good] += 1
    return sum(max(counter.values()) for counter in counts.values()) / len(pairs) if pairs else None


def _accuracy(right: np.ndarray, pairs: Sequence[Pair], config: ProbeConfig) -> Accuracy | None:
    """Return the accuracy of `right` [N] with the widest of its intervals; None without pairs."""
    if not len(right):
        return None
    accuracy = float(right.mean())
    # Pairs with the same words are not independent.
    intervals = [wilson_interval(accuracy, len(right))]
    by_words = [" / ".join(sorted(pair.difference)) for pair in pairs]
    by_first_word = [words_of(pair.good)[0] for pair in pairs]
    for clusters in (by_words, by_first_word):
        interval = cluster_interval(right, np.array(clusters), config.n_bootstrap, config.seed)
        if interval is not None:
            intervals.append(interval)
    return Accuracy(accuracy, max(intervals, key=np.ptp))


# Vocabulary


def coverage(opened: OpenedModel, training_words: frozenset[str] | None, pairs: Sequence[Pair]) -> Coverage:
    """Return how many words of the sentences are in the training text."""
    words: list[str] = []
    tokens: list[int] = []
    for pair in pairs:
        for text in (pair.good, pair.bad):
            words += words_of(text)
            tokens += opened.encode(text)[1:]  # without the start token
    n_unknown = sum(token == opened.unknown for token in tokens)
    seen_words = None
    seen_types = None
    if training_words is not None:
        types = set(words)
        seen_words = sum(word in training_words for word in words) / max(1, len(words))
        seen_types = len(types & training_words) / max(1, len(types))
    return Coverage(len(words), seen_words, seen_types, n_unknown / max(1, len(tokens)))


def _is_covered(opened: OpenedModel, words: frozenset[str], pair: Pair) -> bool:
    """Return whether all differing words are in the training text and can be tokenized."""
    for text in pair.difference:
        if opened.unknown is not None and opened.unknown in opened.encode(text)[1:]:
            return False
        if not words.issuperset(words_of(text)):
            return False
    return True
