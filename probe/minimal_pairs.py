"""Minimal pairs: of two sentences that differ in a word or so, does the model find the good one likelier?

Scored as in BLiMP (Warstadt et al. 2020, section 3): by the probability of the whole sentence. An END stands in front,
so that the first word is predicted too; that a text ends after the sentence is not asked, since it is no part of it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.transformer import Transformer
from probe.gold import anchors_of, field, find_files, read_lines, read_objects
from probe.statistics import clustered, widest, wilson
from probe.subject import Report, Subject, between, cover, coverage_line, is_known, markdown_table, percent, words_of
from training.evaluate import token_losses

ENDINGS = (".jsonl", ".txt")


# nats. Sums of float32 logs that differ by less are a tie: which rows share a batch moves a sum by up to 7e-6
# (measured on 1,200 pairs of BLiMP, 1.9 M parameters), and what is only rounding must not decide.
TIE = 1e-4


_IGNORE = -100


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, of which people accept one."""

    good: str
    bad: str

    @property
    def difference(self) -> tuple[str, str]:
        """What differs, good and bad, once the words that both begin and end with are cut."""
        good, bad = words_of(self.good), words_of(self.bad)
        n = min(len(good), len(bad))
        start = next((i for i in range(n) if good[i] != bad[i]), n)
        stop = next((i for i in range(n - start) if good[-1 - i] != bad[-1 - i]), n - start)
        return " ".join(good[start : len(good) - stop]), " ".join(bad[start : len(bad) - stop])

    @property
    def first_word(self) -> str:
        """The sentence's first word: often a name, and the same in many pairs."""
        return words_of(self.good)[0]


def read_pairs(file: Path) -> list[Pair]:
    """Read BLiMP's .jsonl, or a .txt in which an odd line is bad and the even line after it good, as Zorro's.

    Raises:
        ValueError: a line does not fit, or both sentences of a pair are the same.

    """
    pairs: list[Pair] = []
    if file.suffix == ".jsonl":
        for number, value in read_objects(file):
            where = f"{file} line {number}"
            good, bad = (field(value, name, str, where).strip() for name in ("sentence_good", "sentence_bad"))
            pairs.append(_pair(good, bad, where))
        return pairs
    lines = read_lines(file)
    if len(lines) % 2:
        raise ValueError(f"{file} line {lines[-1][0]}: a bad sentence without its good one on the next line")
    for (_, bad), (number, good) in zip(lines[::2], lines[1::2], strict=True):
        pairs.append(_pair(good.strip(), bad.strip(), f"{file} line {number}"))
    alike = sum(len(shared) >= len(short) / 2 for shared, short in map(_words_shared, pairs))
    if alike < len(pairs) / 2:  # prose read as pairs would be given a score that means nothing
        raise ValueError(
            f"{file}: lines 1 and 2, 3 and 4, and so on are not pairs: most share less than half their words"
        )
    return pairs


def _words_shared(pair: Pair) -> tuple[set[str], set[str]]:
    """Return the words that both sentences have, and those of the one that has fewer."""
    both = [set(words_of(text)) for text in (pair.good, pair.bad)]
    return both[0] & both[1], min(both, key=len)


def _pair(good: str, bad: str, where: str) -> Pair:
    if not good or not bad or good == bad:
        raise ValueError(f"{where}: {'an empty sentence' if not good or not bad else 'both sentences are the same'}")
    return Pair(good, bad)


@torch.no_grad()
def log_probabilities(
    model: Transformer, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], tokens_per_batch: int
) -> np.ndarray:
    """Return log p of the good and the bad sentence of each pair, [N, 2] float64 in nats.

    Both sentences of a pair are read in one batch, padded behind to one width, and sentences of the same tokens in one
    row: what the model cannot tell apart ties to the last bit. Losses are float32, their sum over a sentence float64.

    Args:
        model: in eval mode, causal.
        pairs: the tokens of the good and the bad sentence, END first.
        tokens_per_batch: of one forward pass.

    """
    found = np.empty((len(pairs), 2))
    device = model.token_embedding.weight.device
    order = sorted(range(len(pairs)), key=lambda i: (max(map(len, pairs[i])), i))
    while order:
        width = max(map(len, pairs[order[-1]]))
        n = max(1, tokens_per_batch // (2 * width))
        some, order = order[-n:], order[:-n]
        rows = {ids: row for row, ids in enumerate(dict.fromkeys(ids for i in some for ids in pairs[i]))}
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        targets = np.full((len(rows), width), _IGNORE)
        for ids, row in rows.items():
            tokens[row, : len(ids)] = ids
            targets[row, : len(ids) - 1] = ids[1:]
        logits = model(torch.from_numpy(tokens).to(device))
        sums = -token_losses(logits, torch.from_numpy(targets).to(device)).double().sum(1).cpu().numpy()
        for i in some:
            found[i] = [sums[rows[ids]] for ids in pairs[i]]
    return found


def outcomes(scores: np.ndarray) -> np.ndarray:
    """Return 1 where the good sentence is likelier, 0 where the bad one is, 1/2 where neither is: [N] from [N, 2]."""
    difference = scores[:, 0] - scores[:, 1]
    return np.where(np.abs(difference) <= TIE, 0.5, (difference > 0).astype(float))


def blind_ceiling(pairs: Sequence[Pair]) -> float | None:
    """Return the most that a reader can get who sees what differs and nothing before it.

    Of two words it must prefer one, whoever stands before them: at best the one that is right more often in this very
    file. The labels of the file decide, so it is an upper bound. What follows the word is the same in both sentences
    and cannot tell such a reader more than which sentence of the file it reads. At or below the ceiling nothing is
    shown about reference.

    Returns:
        None where a pair differs in more than one word for one: what differs then holds the order of the words too,
        and there is nothing to be blind to.

    """
    rights: dict[frozenset[str], Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        good, bad = pair.difference
        if len(good.split()) != 1 or len(bad.split()) != 1:
            return None
        rights[frozenset((good, bad))][good] += 1
    return sum(max(some.values()) for some in rights.values()) / len(pairs)


def score_file(subject: Subject, name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Score one file's pairs; sentences longer than the context are left out and counted."""
    config, limit = subject.config, subject.limit
    ids = [tuple((subject.end, *subject.encode(text)[0]) for text in (pair.good, pair.bad)) for pair in pairs]
    fits = [max(map(len, both)) <= limit + 1 for both in ids]
    kept = [pair for pair, fit in zip(pairs, fits, strict=True) if fit]
    tokens = [(both[0], both[1]) for both, fit in zip(ids, fits, strict=True) if fit]
    critical = [[is_known(subject, word) for word in pair.difference] for pair in kept]
    covered = np.array([not any(known is False for known in both) for both in critical], dtype=bool)
    found: dict[str, Any] = {
        "file": name,
        "n_pairs": len(pairs),
        "n_too_long": len(pairs) - len(kept),
        "coverage": asdict(cover(subject, [text for pair in pairs for text in (pair.good, pair.bad)])),
        "covered_is_known": subject.known is not None,
        "n_covered": int(covered.sum()) if subject.known is not None else None,
        "blind_ceiling": blind_ceiling(kept) if kept else None,
        "anchors": [asdict(one) for one in anchors_of(Path(name).stem)],
    }
    right = outcomes(log_probabilities(subject.model, tokens, config.tokens_per_batch))
    shorter = np.array([np.sign(len(bad) - len(good)) for good, bad in tokens], dtype=float)
    found["same_probability_for_every_token"] = float((1 + shorter.mean()) / 2) if kept else None
    found["n_ties"] = int((right == 0.5).sum())
    for what, some in (("all", np.ones(len(kept), dtype=bool)), ("covered", covered)):
        found[what] = _accuracy(right[some], [one for one, take in zip(kept, some, strict=True) if take], subject)
    if subject.known is None:
        found["covered"] = None
    ceiling, accuracy = found["blind_ceiling"], found["all"]
    found["above_blind_ceiling"] = None if ceiling is None or accuracy is None else accuracy["interval"][0] > ceiling
    return found


def _accuracy(right: np.ndarray, pairs: Sequence[Pair], subject: Subject) -> dict[str, Any] | None:
    """Return the share right with its intervals; None where there is no pair."""
    if not len(right):
        return None
    settings = subject.config.n_bootstrap, subject.config.seed
    share = float(right.mean())
    clusters = {
        "critical words": np.array([" / ".join(sorted(pair.difference)) for pair in pairs]),
        "first words": np.array([pair.first_word for pair in pairs]),
    }
    over_pairs = wilson(share, len(right))
    over_clusters = {name: clustered(right, names, *settings) for name, names in clusters.items()}
    return {
        "accuracy": share,
        "interval": widest(over_pairs, *over_clusters.values()),
        "interval_over_pairs": over_pairs,
        "interval_over_clusters": over_clusters,
        "n_clusters": {name: len(np.unique(names)) for name, names in clusters.items()},
    }


def minimal_pairs(subject: Subject, path: str) -> Report:
    """Score every file meant by `path`."""
    files = find_files(path, ENDINGS)
    read = {str(file): read_pairs(file) for file in files}  # all of them before any is scored
    results = [score_file(subject, name, pairs) for name, pairs in read.items()]
    texts = [text for pairs in read.values() for pair in pairs for text in (pair.good, pair.bad)]
    lines = [coverage_line(subject, cover(subject, texts), "all files"), ""]
    lines += [*_table(results), "", *_notes(results)]
    return Report({"tie_nats": TIE, "files": results}, lines, [])


def _table(results: Sequence[dict[str, Any]]) -> list[str]:
    header = ["file", "pairs", "words seen %", "right %", "95 %", "covered pairs", "right %", "ties", "blind ceiling"]
    header += ["above it", "same p for every token", "published"]
    rows = []
    for one in results:
        accuracy, covered = one["all"] or {}, one["covered"] or {}
        above = {True: "yes", False: "no", None: "-"}[one["above_blind_ceiling"]]
        known = one["covered_is_known"]
        rows.append(
            [
                Path(one["file"]).stem,
                str(one["n_pairs"] - one["n_too_long"]),
                percent(one["coverage"]["seen_words"]) if known else "unknown",
                percent(accuracy.get("accuracy")),
                between(accuracy.get("interval")),
                str(one["n_covered"]) if known else "unknown",
                percent(covered.get("accuracy")) if known else "-",
                str(one["n_ties"]),
                percent(one["blind_ceiling"]),
                above,
                percent(one["same_probability_for_every_token"]),
                ", ".join(f"{anchor['name']} {percent(anchor['share'])}" for anchor in one["anchors"]) or "-",
            ]
        )
    return markdown_table(header, rows)


def _notes(results: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "right: the good sentence is likelier as a whole; a tie counts half, so a model that tells nothing gets 50.0",
        "95 %: the widest of three intervals, over pairs (Wilson), over pairs of critical words and over first words,",
        "  since pairs share their words and templates; words that come in fewer than five kinds are not resampled",
        "covered: every word in which the two differ was seen in training; of the others the model can know nothing",
        "blind ceiling: the most for a reader that never sees the antecedent and always prefers the word right more",
        "  often in this file; at or below it nothing is shown about reference; -: they differ in more than a word",
        "same p for every token: right by the number of tokens alone",
    ]
    too_long = sum(one["n_too_long"] for one in results)
    if too_long:
        lines.append(f"left out: {too_long} pairs longer than the model's context")
    for one in results:
        if one["blind_ceiling"] == 1.0:
            lines.append(f"{Path(one['file']).stem}: one word is right in every pair, so nothing about reference shows")
        if one["n_covered"] == 0:
            lines.append(f"{Path(one['file']).stem}: no pair is covered, so its score says nothing about this model")
    sources = dict.fromkeys(anchor["source"] for one in results for anchor in one["anchors"])
    return [*lines, *(f"published: {source}" for source in sources)]
