"""Pronoun links of real prose: from a pronoun, does a head look at a mention of whom it means?

Rows are those of LitBank (Bamman et al. 2020) turned to JSON lines, or your own in the same form (docs/outside.md).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.links import Span
from probe.outside.anchors import LINKS
from probe.outside.files import field, find_files, read_objects
from probe.outside.heads import Choice, choose, cut, halves, held_out, hits, owners, word_scores
from probe.outside.subject import Report, Subject, between, cover, coverage_line, markdown_table, percent

ENDINGS = (".jsonl",)
# A mention of one of these words alone is a pronoun, every other is nominal. Of the same line: of one person.
_PERSONS = (
    "i me my mine myself",
    "you your yours yourself yourselves ye thou thee thy thine thyself",
    "he him his himself",
    "she her hers herself",
    "it its itself",
    "we us our ours ourselves",
    "they them their theirs themselves",
)
PERSON = {form: line for line in _PERSONS for form in line.split()}
QUESTIONS = {
    "any mention": "all mentions before the pronoun, pronouns among them",
    "nominal mentions": "names and nouns alone, where one of them is an antecedent",
}
AGREEING = "same person"  # a rule that knows agreement: shown beside, never counted as knowing nothing


@dataclass(frozen=True, slots=True)
class Row:
    """One pronoun of a document."""

    doc: str
    words: tuple[str, ...]  # up to and including the pronoun, which is the last
    mentions: tuple[Span, ...]  # words [start, end), all before the pronoun
    gold: tuple[bool, ...]  # of each mention, whether it is an antecedent


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a .jsonl file; ValueError naming the line and what is wrong with it."""
    rows = []
    for number, value in read_objects(file):
        where = f"{file} line {number}"
        doc, context = field(value, "doc", str, where), field(value, "context", list, where)
        at = field(value, "pron_pos", int, where)
        if not all(isinstance(word, str) and word.strip() == word != "" for word in context):
            raise ValueError(f"{where}: context is not a list of words")
        if not 0 <= at < len(context):
            raise ValueError(f"{where}: pron_pos is {at}, and context has {len(context)} words")
        right = [_span(one, at, "antecedents", where) for one in field(value, "antecedents", list, where)]
        wrong = [_span(one, at, "other_mentions", where) for one in field(value, "other_mentions", list, where)]
        if not right:
            raise ValueError(f"{where}: antecedents is empty")
        gold = (True,) * len(right) + (False,) * len(wrong)
        rows.append(Row(doc, tuple(context[: at + 1]), (*right, *wrong), gold))
    return rows


def _span(value: Any, pronoun: int, name: str, where: str) -> Span:
    """Return [start, end) of a mention; what follows in the list (its cluster) is not needed."""
    numbers = value[:2] if isinstance(value, list) else []
    if len(numbers) < 2 or not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise ValueError(f"{where}: {name} holds {value!r}, which is not [start, end)")
    start, end = numbers
    if not 0 <= start < end <= pronoun:
        raise ValueError(f"{where}: {name} holds [{start}, {end}), which is not a span before the pronoun {pronoun}")
    return start, end


def prose(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Write words as prose is written, and return where each stands.

    Treebank tokens stand apart ("Hall , in"); a model of prose has read "Hall, in". No space stands before closing
    marks and parts of words ('s, n't), none after opening ones. A straight quote closes where one is open; the first
    one closes where it follows a mark and the sentence goes on in small letters.
    """
    text, spans, glued, open_quote = "", [], True, False
    for i, word in enumerate(words):
        quote, closing = word == '"', word in _CLOSING or word.lower() in _PARTS
        if quote:
            if i == 0 or '"' not in words[:i]:
                after = words[i + 1] if i + 1 < len(words) else '"'
                open_quote = i > 0 and words[i - 1] in _BEFORE_CLOSING and (after[0].islower() or after == '"')
            closing, open_quote = open_quote, not open_quote
        text += "" if glued or closing else " "
        spans.append((len(text), len(text) + len(word)))
        text += word
        glued = word in _OPENING or (quote and open_quote)
    return text, spans


_CLOSING = frozenset(", . ; : ! ? ) ] \u201d \u2019 ... \u2026 %".split())
_OPENING = frozenset("( [ \u201c \u2018".split())
_PARTS = frozenset("'s 'm 'd 'll 've 're n't \u2019s \u2019m \u2019d \u2019ll \u2019ve \u2019re n\u2019t".split())
_BEFORE_CLOSING = frozenset(", . ! ? ; -- \u2014".split())


@dataclass(frozen=True, slots=True)
class Item:
    """A row that can be asked, with what the rules look at. W candidate words, in order."""

    doc: str
    choice: Choice
    mention: tuple[int, ...]  # [W] which mention each word belongs to
    nominal: tuple[bool, ...]  # [W] whether that mention is a name or a noun
    same: tuple[bool, ...]  # [W] whether the mention is the pronoun's own word
    agrees: tuple[bool, ...]  # [W] whether it is a pronoun of the same person
    named: tuple[bool, ...]  # [W] whether it begins with a capital letter, as names do


def make_item(subject: Subject, row: Row) -> Item | str:
    """Return the row in the model's tokens, or the reason why it is left out."""
    text, spans = prose(row.words)
    pronoun = row.words[-1].lower()
    owner = owners(row.mentions, len(row.words))
    candidates = [i for i, mention in enumerate(owner) if mention is not None]
    of = [mention for mention in owner if mention is not None]
    choice = cut(subject, text, [spans[i] for i in candidates], [row.gold[one] for one in of], spans[-1])
    if isinstance(choice, str):
        return choice
    n_lost = len(of) - len(choice.words)  # words cut off at the left
    of = of[n_lost:]
    if not any(choice.gold):
        return "every antecedent is made of other mentions"
    if all(choice.gold):
        return "no other mention to choose"
    alone = [row.words[row.mentions[one][0]].lower() for one in of]
    single = [row.mentions[one][1] - row.mentions[one][0] == 1 for one in of]
    person = [PERSON.get(word) if short else None for word, short in zip(alone, single, strict=True)]
    return Item(
        row.doc,
        choice,
        tuple(of),
        tuple(one is None for one in person),
        tuple(short and word == pronoun for word, short in zip(alone, single, strict=True)),
        tuple(one is not None and one == PERSON.get(pronoun) for one in person),
        tuple(row.words[row.mentions[one][0]][0].isupper() for one in of),
    )


def rule_hits(item: Item, asked: Sequence[bool]) -> dict[str, float]:
    """Return what each rule gets of one item: 1 where the mention it takes is an antecedent.

    Args:
        item: to be asked.
        asked: [W] the words that may be chosen.

    """
    every = [i for i in range(len(asked)) if asked[i]]
    gold = item.choice.gold

    def nearest(*preferences: Sequence[bool]) -> float:
        for preferred in preferences:
            if some := [i for i in every if preferred[i]]:
                return float(gold[some[-1]])
        return float(gold[every[-1]])

    mentions = {item.mention[i]: gold[i] for i in every}
    return {
        "nearest": nearest(),
        "nearest nominal": nearest(item.nominal),
        "nearest name": nearest(
            [one and other for one, other in zip(item.named, item.nominal, strict=True)], item.nominal
        ),
        "first": float(gold[every[0]]),
        "same word": nearest(item.same),
        "uniform": sum(mentions.values()) / len(mentions),
        AGREEING: nearest(item.agrees, item.nominal),
    }


def ask(subject: Subject, items: Sequence[Item]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ask every head both questions; return the results by question and a row per question and head."""
    config = subject.config
    docs = np.array([item.doc for item in items])
    width = max(len(item.choice.words) for item in items)
    gold = _array([item.choice.gold for item in items], width)
    there = _array([[True] * len(item.choice.words) for item in items], width)
    nominal = _array([item.nominal for item in items], width)
    some = {
        "any mention": (there, np.ones(len(items), dtype=bool)),
        "nominal mentions": (nominal, ((gold & nominal).any(1) & (nominal & ~gold).any(1))),
    }
    found: dict[str, list[np.ndarray]] = {name: [] for name in some}
    for model in (subject.model, *(subject.untrained(i) for i in range(config.n_untrained))):
        scores = word_scores(model, [item.choice for item in items], config.tokens_per_batch)
        for name, (asked, take) in some.items():
            found[name].append(hits(scores[take], gold[take], asked[take]))
    results: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for name, (asked, take) in some.items():
        if not take.any():
            continue
        kept = [(item, asked[i][: len(item.mention)]) for i, item in enumerate(items) if take[i]]
        every = [rule_hits(item, open_) for item, open_ in kept]
        rules = {rule: np.array([one[rule] for one in every]) for rule in every[0]}
        if name == "nominal mentions":  # of names and nouns alone the nearest is what the other rules take too
            rules = {rule: rules[rule] for rule in ("nearest nominal", "nearest name", "first", "uniform")}
        beside = {rule: rules.pop(rule) for rule in (AGREEING,) if rule in rules}
        results[name], of_heads = _question(found[name], rules, beside, docs[take], config.n_bootstrap, config.seed)
        rows += [{"question": name, **row} for row in of_heads]
    return results, rows


def _question(
    found: Sequence[np.ndarray],
    rules: dict[str, np.ndarray],
    beside: dict[str, np.ndarray],
    docs: np.ndarray,
    n_bootstrap: int,
    seed: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Choose on one half and test on the other, and the other way round as a check."""
    model, *untrained = found
    first = halves(docs, seed)
    if first.all() or not first.any():
        return {"n": len(docs), "n_documents": 1, "tested": None, "reversed": None}, []
    both = {
        name: held_out(model, rules, untrained, docs, half, n_bootstrap, seed, beside)
        for name, half in (("tested", first), ("reversed", ~first))
    }
    chosen = choose(model[first])
    halves_mean = [model[half].mean(0, dtype=np.float64) for half in (first, ~first)]
    rows = [
        {
            "layer": layer,
            "head": head,
            "chosen_half": round(float(halves_mean[0][layer, head]), 6),
            "tested_half": round(float(halves_mean[1][layer, head]), 6),
            "chosen": int((layer, head) == chosen),
        }
        for layer in range(model.shape[1])
        for head in range(model.shape[2])
    ]
    return {"n": len(docs), "n_documents": len(np.unique(docs)), **both}, rows


def _array(rows: Sequence[Sequence[bool]], width: int) -> np.ndarray:
    """Return [N, W] of rows of different lengths, False behind."""
    found = np.zeros((len(rows), width), dtype=bool)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found


def links(subject: Subject, path: str) -> Report:
    """Ask every head about the rows of all files meant by `path`."""
    rows = [row for file in find_files(path, ENDINGS) for row in read_rows(file)]
    made = [make_item(subject, row) for row in rows]
    items = [one for one in made if isinstance(one, Item)]
    left_out = Counter(one for one in made if isinstance(one, str))
    covered = cover(subject, _once(rows))
    results, heads = ask(subject, items) if items else ({}, [])
    lines = [coverage_line(subject, covered, f"{len(rows):,} pronouns in {len({row.doc for row in rows})} documents")]
    lines += [f"left out: {n:,} rows: {reason}" for reason, n in left_out.most_common()]
    for name, one in results.items():
        lines += ["", *_lines(name, one)]
    if not items:
        lines += ["", "no row is left to ask"]
    lines += ["", *_LEGEND]
    about = {
        "n_rows": len(rows),
        "left_out": dict(left_out),
        "coverage": asdict(covered),
        "questions": results,
        "anchors": [asdict(one) for one in LINKS],
    }
    return Report(about, lines, heads)


def _once(rows: Sequence[Row]) -> list[str]:
    """Return every fourth text of a document: contexts overlap, and all of them would count the same words over."""
    kept: Counter[str] = Counter()
    texts = []
    for row in rows:
        if kept[row.doc] % 4 == 0:
            texts.append(prose(row.words)[0])
        kept[row.doc] += 1
    return texts


def _lines(name: str, one: dict[str, Any]) -> list[str]:
    title = f"{name} ({QUESTIONS[name]}): {one['n']:,} pronouns, {one['n_documents']} documents"
    if one["tested"] is None:
        return [title, "one document cannot be parted into a half to choose on and a half to test on"]
    lines = [title]
    rows = []
    for what, label in (("tested", "tested on half 2"), ("reversed", "the other way round")):
        found = one[what]
        untrained = found["untrained"]
        rows += [
            [label, f"head L{found['layer']}H{found['head']}", percent(found["accuracy"]), between(found["interval"])]
            + ["-", "-"]
        ]
        for rule, share in {**found["rules"], "best untrained": max(untrained)}.items():
            difference = found["differences"][rule]
            mean = f"{100 * difference['mean']:+.1f}"
            rows.append([label, rule, percent(share), "-", mean, between(difference["interval"])])
        for rule, known in found["beside"].items():
            mean = f"{100 * known['mean']:+.1f}"
            cells = [percent(known["accuracy"]), "-", mean, between(known["interval"])]
            rows.append([label, f"{rule} (knows agreement)", *cells])
    header = ["", "who", "right %", "95 %", "head minus it", "95 %"]
    lines += markdown_table(header, rows)
    found = one["tested"]
    lines.append(f"head L{found['layer']}H{found['head']}: {found['verdict']}")
    lines += [f"  why not: {reason}" for reason in found["reasons"]]
    if found["verdict"] == "established":
        lines += [
            f"  {rule}, which knows agreement and no more, is not beaten: this may be all that the head knows"
            for rule, known in found["beside"].items()
            if known["interval"] is None or known["interval"][0] <= 0
        ]
    return lines


_LEGEND = (
    "right: the mention with the largest weight, by its largest word, is one of the antecedents",
    "the head is chosen on half of the documents and tested once on the other half; intervals resample documents",
    "established: the difference to every rule and to the best untrained model has an interval above 0, no less",
    "same word: the nearest mention that is the same pronoun, else the nearest; a head that matches words gets it",
    f"published: {LINKS[0].name} {percent(LINKS[0].share)} % of 8,896 ({LINKS[0].source})",
)
