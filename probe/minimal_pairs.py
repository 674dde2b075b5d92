"""Minimal pairs (BLiMP, Zorro): does the model give the grammatical sentence the higher probability?

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

from model.observe import HeadEdit, ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.external import (
    EvaluatedModel,
    Report,
    coverage,
    coverage_line,
    find_files,
    is_covered,
    markdown_table,
    percent,
    percent_interval,
    read_lines,
    read_objects,
    words_of,
)
from probe.statistics import cluster_interval, wilson_interval

TIE = 1e-4  # nats; batching moves a float32 sum of log-probabilities by up to 7e-6 (1,200 BLiMP pairs, 1.9M parameters)


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
        objects = read_objects(file, {"sentence_good": str, "sentence_bad": str})
        sides = {where: (value["sentence_good"], value["sentence_bad"]) for where, value in objects.items()}
    else:
        lines = list(read_lines(file).items())
        if len(lines) % 2:
            raise ValueError(f"{lines[-1][0]}: a bad sentence without its good sentence on the next line")
        sides = {where: (good, bad) for (_, bad), (where, good) in zip(lines[::2], lines[1::2], strict=True)}
        words = [(set(words_of(good)), set(words_of(bad))) for good, bad in sides.values()]
        if 2 * sum(len(good & bad) >= min(len(good), len(bad)) / 2 for good, bad in words) < len(words):
            raise ValueError(
                f"{file}: not minimal pairs; most lines share less than half their words with the next line"
            )
    for where, (good, bad) in sides.items():
        if not good.strip() or not bad.strip() or good.strip() == bad.strip():
            raise ValueError(f"{where}: the two sentences are equal or one is empty")
    return [Pair(good.strip(), bad.strip()) for good, bad in sides.values()]


def log_probabilities(
    model: ObservableModel, texts: Sequence[tuple[int, ...]], tokens_per_batch: int, edits: Sequence[HeadEdit] = ()
) -> np.ndarray:
    """Return the log-probability [N] in nats of each text's tokens after its first, with some heads edited."""
    totals = np.empty(len(texts))
    for members, rows, tokens, last in text_batches(texts, tokens_per_batch):
        targets = tokens[:, 1:].masked_fill(torch.arange(1, tokens.shape[1]) > last[:, None], -100)
        logits = model.logits(tokens.to(model.device), edits=edits)[:, :-1]
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
    return sum(max(counter.values()) for counter in counts.values()) / len(pairs) if pairs else None


def score_file(evaluated: EvaluatedModel, name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the accuracy on all pairs that fit into the context, and on the covered ones."""
    model, config = evaluated.model, evaluated.config
    start = evaluated.start_token
    tokens = {pair: [(start, *evaluated.encode(text)[0]) for text in (pair.good, pair.bad)] for pair in pairs}
    fitting = [pair for pair in pairs if max(map(len, tokens[pair])) <= model.context_length]
    good, bad = ([tokens[pair][side] for pair in fitting] for side in (0, 1))
    right = outcomes(*(log_probabilities(model, texts, config.tokens_per_batch) for texts in (good, bad)))
    covered = [i for i, pair in enumerate(fitting) if all(is_covered(evaluated, words) for words in pair.difference)]
    is_known = evaluated.training_words is not None
    ceiling, accuracy = context_free_ceiling(fitting), _accuracy(right, fitting, config)
    return {
        "file": name,
        "n_pairs": len(fitting),
        "n_too_long": len(pairs) - len(fitting),
        "coverage": coverage(evaluated, [text for pair in fitting for text in (pair.good, pair.bad)]),
        "accuracy": accuracy,
        "n_ties": int((right == 0.5).sum()),
        "n_covered": len(covered) if is_known else None,
        "accuracy_covered": _accuracy(right[covered], [fitting[i] for i in covered], config) if is_known else None,
        "context_free_ceiling": ceiling,
        "above_ceiling": None if ceiling is None or accuracy is None else accuracy["interval"][0] > ceiling,
    }


def _accuracy(right: np.ndarray, pairs: Sequence[Pair], config: ProbeConfig) -> dict[str, Any] | None:
    """Return the accuracy with the widest of three intervals: over pairs, differing words and first words."""
    if not len(right):
        return None
    accuracy = float(right.mean())
    intervals = [wilson_interval(accuracy, len(right))]
    words = [" / ".join(sorted(pair.difference)) for pair in pairs], [words_of(pair.good)[0] for pair in pairs]
    for clusters in words:
        interval = cluster_interval(right, np.array(clusters), config.n_bootstrap, config.seed)
        intervals += [interval] if interval else []
    return {"value": accuracy, "interval": max(intervals, key=np.ptp)}


def minimal_pairs(evaluated: EvaluatedModel, path: str) -> Report:
    """Score every .jsonl and .txt file of `path`."""
    pairs_of = {str(file): read_pairs(file) for file in find_files(path, (".jsonl", ".txt"))}
    files = [score_file(evaluated, name, pairs) for name, pairs in pairs_of.items()]
    texts = [text for pairs in pairs_of.values() for pair in pairs for text in (pair.good, pair.bad)]
    header = "file", "pairs", "right %", "95 %", "ties", "covered", "right %", "ceiling", "above it"
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
    ]
