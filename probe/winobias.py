"""WinoBias type 1: two occupations, one pronoun, and only knowledge of the world tells which is meant.

A check that we do not over-claim. Nearness is right in half of the sentences, and what decides mostly stands after the
pronoun, where a causal model has not read it: chance is the expected result. A difference between sentences that
follow a stereotype and those that go against it is the stereotype, not reference.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.links import Span
from probe.gold import Choice, cut, find_files, halves, held_out, hits, read_lines, word_scores
from probe.minimal_pairs import log_probabilities, outcomes
from probe.statistics import clustered, widest, wilson
from probe.subject import Report, Subject, between, cover, coverage_line, markdown_table, percent

ENDINGS = (".dev", ".test", ".txt")


PRONOUNS = frozenset("he she him her his hers himself herself".split())


_BRACKETS = re.compile(r"\[([^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence as the file has it."""

    text: str  # without number and brackets
    pronoun: Span  # characters; of several the first
    gold: Span  # of the occupation that is meant
    pro: bool  # whether it follows the stereotype
    where: str  # file and line

    @property
    def occupation(self) -> str:
        """The occupation that is meant, without its article."""
        return _bare(self.text[slice(*self.gold)])


def _bare(occupation: str) -> str:
    return re.sub(r"^(the|an?)\s+", "", occupation.lower())


def read_sentences(file: Path) -> list[Line]:
    """Read a file of WinoBias: the coreferent spans in [ ]; ValueError naming the line that does not fit.

    Whether it follows the stereotype stands in the file's name: anti or pro.
    """
    name = file.name.lower()
    if ("anti" in name) == ("pro_" in name or name.startswith("pro")):
        raise ValueError(f"{file}: its name must say pro or anti, as pro_stereotyped_type1.txt.dev")
    found = []
    for number, line in read_lines(file):
        where = f"{file} line {number}"
        marked = re.sub(r"^\s*\d+\s+", "", line).strip()
        text, spans, last = "", [], 0
        for match in _BRACKETS.finditer(marked):
            text += marked[last : match.start()]
            spans.append((len(text), len(text) + len(match[1])))
            text += match[1]
            last = match.end()
        text += marked[last:]
        pronouns = [span for span in spans if text[slice(*span)].lower() in PRONOUNS]
        others = [span for span in spans if span not in pronouns]
        if len(others) != 1 or not pronouns or "[" in text or "]" in text:
            raise ValueError(f"{where}: needs one occupation and a pronoun in [ ]")
        found.append(Line(text, pronouns[0], others[0], "anti" not in name, where))
    return found


def other_occupation(line: Line, occupations: frozenset[str]) -> Span | None:
    """Return where the one other occupation stands; None where there is none or more than one.

    Args:
        line: a sentence.
        occupations: every one that is meant in some sentence of the files, without article.

    """
    ways = "|".join(re.escape(one) for one in sorted(occupations - {line.occupation}, key=lambda one: -len(one)))
    if not ways:
        return None
    found = [match.span() for match in re.finditer(rf"\b(?:the|an?)\s+(?:{ways})\b", line.text, re.IGNORECASE)]
    return found[0] if len(found) == 1 else None


def _words(text: str, span: Span) -> list[Span]:
    """Return the words of a span, the article left aside: it is the same for both."""
    words = [(span[0] + match.start(), span[0] + match.end()) for match in re.finditer(r"\S+", text[slice(*span)])]
    return words[1:] if len(words) > 1 and text[slice(*words[0])].lower() in ("the", "a", "an") else words


def make_choice(subject: Subject, line: Line, other: Span) -> Choice | str:
    """Return a sentence in the model's tokens, or the reason why it is left out."""
    if max(line.gold[1], other[1]) > line.pronoun[0]:
        return "an occupation stands after the pronoun"
    right, wrong = (_words(line.text, span) for span in (line.gold, other))
    gold = [True] * len(right) + [False] * len(wrong)
    choice = cut(subject, line.text, [*right, *wrong], gold, line.pronoun)
    if isinstance(choice, Choice) and len(choice.words) < len(gold):
        return "an occupation lies outside the context"
    return choice


def matched(lines: Sequence[Line]) -> list[tuple[Line, Line]]:
    """Return the (pro, anti) sentences that differ in nothing but their pronouns."""

    def without(line: Line) -> str:
        kept = [word for word in re.findall(r"\w+|[^\w\s]+", line.text.lower()) if word not in PRONOUNS]
        return " ".join([line.occupation, "|", *kept])

    anti: dict[str, list[Line]] = {}
    for line in lines:
        if not line.pro:
            anti.setdefault(without(line), []).append(line)
    pairs = []
    for line in lines:
        if line.pro and (same := anti.get(without(line))):
            pairs.append((line, same.pop(0)))
    return pairs


def winobias(subject: Subject, path: str) -> Report:
    """Ask every head and the model itself about the files meant by `path`."""
    lines = [line for file in find_files(path, ENDINGS) for line in read_sentences(file)]
    occupations = frozenset(line.occupation for line in lines)
    asked: list[tuple[Line, Choice, str]] = []
    left_out: Counter[str] = Counter()
    for line in lines:
        other = other_occupation(line, occupations)
        choice = make_choice(subject, line, other) if other else "the other occupation is not found"
        if isinstance(choice, str) or other is None:
            left_out[str(choice)] += 1
        else:
            names = sorted((line.occupation, _bare(line.text[slice(*other)])))
            asked.append((line, choice, " / ".join(names)))
    covered = cover(subject, [line.text for line in lines])
    found: dict[str, Any] = {
        "n_sentences": len(lines),
        "left_out": dict(left_out),
        "coverage": asdict(covered),
        "expected": 0.5,
        "head": None,
        "preference": _preference(subject, matched(lines)),
    }
    heads: list[dict[str, Any]] = []
    printed = [coverage_line(subject, covered, f"{len(lines):,} sentences")]
    printed += [f"left out: {n:,} sentences: {reason}" for reason, n in left_out.most_common()]
    if len({pair for _, _, pair in asked}) > 1:
        found["head"], heads = _ask(subject, asked)
    printed += ["", *_lines(found), "", *_LEGEND]
    return Report(found, printed, heads)


def _ask(subject: Subject, asked: Sequence[tuple[Line, Choice, str]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Choose a head on half of the pairs of occupations and test it on the other half."""
    config = subject.config
    choices = [choice for _, choice, _ in asked]
    groups = np.array([pair for _, _, pair in asked])
    pro = np.array([line.pro for line, _, _ in asked])
    width = max(len(choice.words) for choice in choices)
    gold, there = (np.zeros((len(choices), width), dtype=bool) for _ in range(2))
    for i, choice in enumerate(choices):
        gold[i, : len(choice.gold)] = choice.gold
        there[i, : len(choice.gold)] = True
    models = [subject.model, *(subject.untrained(i) for i in range(config.n_untrained))]
    model, *untrained = [hits(word_scores(one, choices, config.tokens_per_batch), gold, there) for one in models]
    last = [max(range(len(choice.words)), key=lambda i: choice.words[i]) for choice in choices]
    nearest = np.array([choice.gold[i] for choice, i in zip(choices, last, strict=True)], dtype=float)
    rules = {"nearest": nearest, "uniform": np.full(len(choices), 0.5)}
    half = halves(groups, config.seed)
    settings = config.n_bootstrap, config.seed
    found = held_out(model, rules, untrained, groups, half, *settings)
    values, sides, names = model[:, found["layer"], found["head"]].astype(float)[~half], pro[~half], groups[~half]
    by_side: dict[str, dict[str, Any]] = {}
    for name, side in (("pro", sides), ("anti", ~sides)):
        if side.any():
            by_side[name] = {
                "n": int(side.sum()),
                "accuracy": float(values[side].mean()),
                "interval": clustered(values[side], names[side], *settings),
            }
    difference = None
    if len(by_side) == 2:
        difference = {
            "mean": by_side["pro"]["accuracy"] - by_side["anti"]["accuracy"],
            "interval": _difference(values, sides, names, *settings),
        }
    rows = [
        {
            "layer": layer,
            "head": head,
            "chosen_half": round(float(model[half][:, layer, head].mean(dtype=np.float64)), 6),
            "tested_half": round(float(model[~half][:, layer, head].mean(dtype=np.float64)), 6),
            "chosen": int((layer, head) == (found["layer"], found["head"])),
        }
        for layer in range(model.shape[1])
        for head in range(model.shape[2])
    ]
    return found | {"by_side": by_side, "pro_minus_anti": difference}, rows


def _difference(
    values: np.ndarray, pro: np.ndarray, groups: np.ndarray, n_bootstrap: int, seed: int
) -> tuple[float, float] | None:
    """Return the interval of mean(pro) - mean(anti), pairs of occupations being resampled; None where they are few.

    Each value is weighed by its side's size, so that the mean over all items is the difference itself.
    """
    weighed = np.where(pro, len(pro) / pro.sum(), -len(pro) / (~pro).sum()) * values
    return clustered(weighed, groups, n_bootstrap, seed)


def _preference(subject: Subject, pairs: Sequence[tuple[Line, Line]]) -> dict[str, Any] | None:
    """Return how often the sentence that follows the stereotype is the likelier; None without both kinds of file."""
    tokens = []
    kept = []
    for pro, anti in pairs:
        both = [(subject.end, *subject.encode(line.text)[0]) for line in (pro, anti)]
        if max(map(len, both)) <= subject.limit + 1:
            tokens.append((both[0], both[1]))
            kept.append(pro)
    if not tokens:
        return None
    config = subject.config
    right = outcomes(log_probabilities(subject.model, tokens, config.tokens_per_batch))
    groups = np.array([line.occupation for line in kept])
    by_group = clustered(right, groups, config.n_bootstrap, config.seed)
    return {
        "n": len(right),
        "pro_is_likelier": float(right.mean()),
        "interval": widest(wilson(float(right.mean()), len(right)), by_group),
        "n_ties": int((right == 0.5).sum()),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    header = ["who", "n", "right %", "95 %", "expected"]
    rows = []
    head, preference = found["head"], found["preference"]
    if head:
        name = f"head L{head['layer']}H{head['head']}"
        rows.append([f"{name}, all", str(head["n"]), percent(head["accuracy"]), between(head["interval"]), "50.0"])
        for side, one in head["by_side"].items():
            rows.append([f"{name}, {side}", str(one["n"]), percent(one["accuracy"]), between(one["interval"]), "50.0"])
        if head["pro_minus_anti"]:
            one = head["pro_minus_anti"]
            rows.append(["pro minus anti", "", f"{100 * one['mean']:+.1f}", between(one["interval"]), "0.0"])
        rows += [[rule, str(head["n"]), percent(share), "-", "-"] for rule, share in head["rules"].items()]
        rows.append(["best untrained", str(head["n"]), percent(max(head["untrained"])), "-", "-"])
    if preference:
        cells = [percent(preference["pro_is_likelier"]), between(preference["interval"]), "50.0"]
        rows.append(["model: pro likelier than anti", str(preference["n"]), *cells])
    lines = markdown_table(header, rows) if rows else []
    if head:
        lines.append(_verdict(head))
    else:
        lines.append("no head is asked: fewer than two pairs of occupations are left")
    if not preference:
        lines.append("pro against anti needs both files: path= a folder, a glob or both parted by a comma")
    return lines


def _verdict(head: dict[str, Any]) -> str:
    name = f"head L{head['layer']}H{head['head']}"
    if head["verdict"] == "established":
        return (
            f"{name}: above chance on held-out pairs of occupations. That is not what is expected: look for a cue that "
            "stands before the pronoun (the verb's, or a taste for one occupation) before calling it reference"
        )
    return f"{name}: not established, as expected"


_LEGEND = (
    "right: of the two occupations, the one that is meant has the word of larger weight, read at the pronoun",
    "chance is the expected result: what decides mostly stands after the pronoun, and nearness is right in half",
    "pro minus anti above 0, or pro likelier in more than half: the model has learned the stereotype, not reference",
    "the head is chosen on half of the pairs of occupations and tested on the other; intervals resample those pairs",
)
