"""Minimal pairs (BLiMP, Zorro): does the model give the grammatical sentence the higher probability?

Scored as in BLiMP (Warstadt et al. 2020, section 3): log-probability of the whole sentence, the first word included
(a start token precedes it), the end of the text excluded.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from model.observe import ObservableModel
from probe.external import (
    EvaluatedModel,
    Report,
    coverage,
    coverage_line,
    field,
    find_files,
    is_covered,
    markdown_table,
    percent,
    percent_interval,
    read_lines,
    read_objects,
    words_of,
)
from probe.scores import text_batches
from probe.statistics import cluster_interval, widest, wilson_interval

TIE = 1e-4  # nats; batching moves a float32 sum of log-probabilities by up to 7e-6 (1,200 BLiMP pairs, 1.9M parameters)
_MODELS = ("5-gram", "LSTM", "Transformer-XL", "GPT-2", "human")
# Accuracy on full sentences. BLiMP: raw_results/summary of its repository (Warstadt et al. 2020); Zorro: Huebner et
# al. 2021.
PUBLISHED = {
    "anaphor_gender_agreement": dict(zip(_MODELS, (0.439, 0.882, 0.912, 0.994, 0.96), strict=True)),
    "anaphor_number_agreement": dict(zip(_MODELS, (0.519, 0.952, 0.970, 0.992, 0.99), strict=True)),
    "principle_A_c_command": dict(zip(_MODELS, (0.578, 0.588, 0.608, 0.737, 0.86), strict=True)),
    "principle_A_case_1": dict(zip(_MODELS, (1.0, 1.0, 1.0, 1.0, 0.98), strict=True)),
    "principle_A_case_2": dict(zip(_MODELS, (0.489, 0.873, 0.953, 0.948, 0.96), strict=True)),
    "principle_A_domain_1": dict(zip(_MODELS, (0.952, 0.983, 0.991, 0.984, 0.95), strict=True)),
    "principle_A_domain_2": dict(zip(_MODELS, (0.564, 0.683, 0.697, 0.775, 0.75), strict=True)),
    "principle_A_domain_3": dict(zip(_MODELS, (0.522, 0.552, 0.600, 0.754, 0.829), strict=True)),
    "principle_A_reconstruction": dict(zip(_MODELS, (0.404, 0.464, 0.379, 0.468, 0.78), strict=True)),
    "anaphor_agreement-pronoun_gender": {"RoBERTa-base": 0.910},
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A grammatical and an ungrammatical sentence."""

    good: str
    bad: str

    @property
    def difference(self) -> tuple[str, str]:
        """The differing words of the good and of the bad sentence, without the common beginning and end."""
        good, bad = words_of(self.good), words_of(self.bad)
        n = min(len(good), len(bad))
        start = next((i for i in range(n) if good[i] != bad[i]), n)
        stop = next((i for i in range(n - start) if good[-1 - i] != bad[-1 - i]), n - start)
        return " ".join(good[start : len(good) - stop]), " ".join(bad[start : len(bad) - stop])


def read_pairs(file: Path) -> list[Pair]:
    """Read BLiMP's .jsonl (sentence_good, sentence_bad) or Zorro's .txt (bad and good sentence on alternate lines).

    Raises:
        ValueError: a line does not have this form, or most neighbouring lines of a .txt share few words.

    """
    if file.suffix == ".jsonl":
        return [
            _pair(field(value, "sentence_good", str, where), field(value, "sentence_bad", str, where), where)
            for where, value in read_objects(file)
        ]
    lines = read_lines(file)
    if len(lines) % 2:
        raise ValueError(f"{file} line {lines[-1][0]}: a bad sentence without its good sentence on the next line")
    pairs = [
        _pair(good, bad, f"{file} line {number}")
        for (_, bad), (number, good) in zip(lines[::2], lines[1::2], strict=True)
    ]
    words = [(set(words_of(pair.good)), set(words_of(pair.bad))) for pair in pairs]
    if 2 * sum(len(good & bad) >= min(len(good), len(bad)) / 2 for good, bad in words) < len(pairs):
        raise ValueError(f"{file}: not minimal pairs; most lines share less than half their words with the next line")
    return pairs


def _pair(good: str, bad: str, where: str) -> Pair:
    pair = Pair(good.strip(), bad.strip())
    if not pair.good or not pair.bad or pair.good == pair.bad:
        raise ValueError(f"{where}: the two sentences are equal or one is empty")
    return pair


def log_probabilities(model: ObservableModel, texts: Sequence[tuple[int, ...]], tokens_per_batch: int) -> np.ndarray:
    """Return the log-probability [N] in nats of each text's tokens after its first."""
    totals = np.empty(len(texts))
    for members, rows, tokens in text_batches(texts, tokens_per_batch):
        lengths = torch.zeros(len(tokens), dtype=torch.int64)
        lengths[rows] = torch.tensor([len(texts[i]) for i in members])
        targets = tokens[:, 1:].masked_fill(torch.arange(1, tokens.shape[1]) >= lengths[:, None], -100)
        logits = model.logits(tokens.to(model.device))[:, :-1]
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
    counts: dict[frozenset[str], Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        good, bad = pair.difference
        if len(good.split()) != 1 or len(bad.split()) != 1:
            return None
        counts[frozenset((good, bad))][good] += 1
    return sum(max(counter.values()) for counter in counts.values()) / len(pairs)


def score_file(evaluated: EvaluatedModel, name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the accuracy on all pairs that fit into the context, and on the covered ones."""
    tokens = [[(evaluated.start_token, *evaluated.encode(text)[0]) for text in (pair.good, pair.bad)] for pair in pairs]
    fitting = [i for i, sentences in enumerate(tokens) if max(map(len, sentences)) <= evaluated.max_tokens + 1]
    n_too_long = len(pairs) - len(fitting)
    pairs, tokens = [pairs[i] for i in fitting], [tokens[i] for i in fitting]
    sides = [
        log_probabilities(evaluated.model, side, evaluated.config.tokens_per_batch)
        for side in zip(*tokens, strict=True)
    ]
    right = outcomes(*sides) if sides else np.empty(0)
    covered = [i for i, pair in enumerate(pairs) if all(is_covered(evaluated, words) for words in pair.difference)]
    is_known = evaluated.training_words is not None
    ceiling, accuracy = context_free_ceiling(pairs) if pairs else None, _accuracy(right, pairs, evaluated)
    return {
        "file": name,
        "n_pairs": len(pairs),
        "n_too_long": n_too_long,
        "coverage": coverage(evaluated, [text for pair in pairs for text in (pair.good, pair.bad)]),
        "accuracy": accuracy,
        "n_ties": int((right == 0.5).sum()),
        "n_covered": len(covered) if is_known else None,
        "accuracy_covered": _accuracy(right[covered], [pairs[i] for i in covered], evaluated) if is_known else None,
        "context_free_ceiling": ceiling,
        "above_ceiling": None if ceiling is None or accuracy is None else accuracy["interval"][0] > ceiling,
        "published": PUBLISHED.get(Path(name).stem, {}),
    }


def _accuracy(right: np.ndarray, pairs: Sequence[Pair], evaluated: EvaluatedModel) -> dict[str, Any] | None:
    """Return the accuracy with the widest of three intervals: over pairs, differing words and first words."""
    if not len(right):
        return None
    settings = evaluated.config.n_bootstrap, evaluated.config.seed
    words = np.array([" / ".join(sorted(pair.difference)) for pair in pairs])
    first_words = np.array([words_of(pair.good)[0] for pair in pairs])
    intervals = [cluster_interval(right, clusters, *settings) for clusters in (words, first_words)]
    accuracy = float(right.mean())
    return {"value": accuracy, "interval": widest(wilson_interval(accuracy, len(right)), *intervals)}


def minimal_pairs(evaluated: EvaluatedModel, path: str) -> Report:
    """Score every .jsonl and .txt file of `path`."""
    pairs_of = {str(file): read_pairs(file) for file in find_files(path, (".jsonl", ".txt"))}
    files = [score_file(evaluated, name, pairs) for name, pairs in pairs_of.items()]
    texts = [text for pairs in pairs_of.values() for pair in pairs for text in (pair.good, pair.bad)]
    header = "file", "pairs", "right %", "95 %", "ties", "covered", "right %", "ceiling", "above it", "published"
    lines = [coverage_line(evaluated, coverage(evaluated, texts), "all files"), ""]
    lines += [*markdown_table(header, [_row(result) for result in files]), ""]
    lines += [
        "right: share of pairs whose good sentence has the higher log-probability; a tie counts half",
        "covered: pairs whose differing words all occur in the training text",
        "ceiling: best accuracy of a predictor that does not see the context; at or below it, no evidence of reference",
    ]
    return Report({"tie_nats": TIE, "files": files}, lines)


def _row(result: dict[str, Any]) -> list[str]:
    accuracy, covered = result["accuracy"] or {}, result["accuracy_covered"] or {}
    published = ", ".join(f"{name} {percent(share)}" for name, share in result["published"].items())
    return [
        Path(result["file"]).stem,
        str(result["n_pairs"]),
        percent(accuracy.get("value")),
        percent_interval(accuracy.get("interval")),
        str(result["n_ties"]),
        "unknown" if result["n_covered"] is None else str(result["n_covered"]),
        percent(covered.get("value")),
        percent(result["context_free_ceiling"]),
        {True: "yes", False: "no", None: "-"}[result["above_ceiling"]],
        published or "-",
    ]
