"""Does what a head copies predict the annotated antecedent? GAP (Wikipedia, Webster et al. 2018), LitBank (novels).

A row is a pronoun with its antecedent and one other person before it. The antecedent gets a drawn name of the pronoun's
gender, the other person one of the other gender. All else is as in `probe.whose`, but the place rule is fitted on one
half of the documents and the other half is tested, and then the reverse. A row may mention more people and may have
earlier pronouns, so it is harder than a passage of the shipped text. Writes research/results/gold.{json,md}.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import MISSING

from antecedent_lab.api import open_model
from antecedent_lab.saved import read_results
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.errors import UserError
from data.pairs import Items, Span
from data.parsing import PRONOUNS, pronoun_forms
from data.passages import Passage, Reader, make_twin, passage_items
from data.place import fit_place_rule, nearest, redrawn
from data.text_tables import markdown_table
from data.tokenizer import encode_text
from data.words import ENGLISH_WORD
from probe.config import ProbeConfig
from probe.edits import Sites
from probe.opened_model import OpenedModel
from probe.questions import WHOSE, WHOSE_QUESTIONS
from probe.results import Estimate, Tested
from probe.rules import preferred
from probe.study import MANY_HEADS
from probe.verdict import judged
from probe.whose import whose_values
from research.measure import listed, start_benchmark, value_cell, write_page

LIMITS = (1000, 300)  # passages of a corpus; of a model with many heads
COLUMNS = {"author": ".2f", "author_auc": ".2f", "beyond_place": ".2f", "p_beyond_place": ".4f", "choice_share": ".2f"}
_NO_NAMES = PRONOUNS["gender"] | {"herself", "himself", "hers", "i", "you", "it", "they", "we"}


@dataclass
class _Options:
    """python -m research.gold models=RUN,FOLDER gap=gap_dev.tsv litbank=litbank_dev.jsonl; eval.py has tested each."""

    models: str = MISSING
    gap: str = MISSING
    litbank: str = MISSING
    threads: int = 2


@dataclass(frozen=True)
class _Row:
    """One model on one corpus."""

    model: str
    heads: str
    corpus: str
    n: int
    nearest: float
    place_rule: float
    values: dict[str, Estimate]
    verdict: str

    def cells(self) -> list[str]:
        measured = [value_cell(self.values[name], form) for name, form in COLUMNS.items()]
        rules = [f"{self.nearest:.2f}", f"{self.place_rule:.2f}"]
        return [self.model, self.heads, self.corpus, str(self.n), *rules, *measured, self.verdict]


@dataclass(frozen=True)
class GoldResults:
    """The table of the page."""

    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["model", "head", "corpus", "n", "nearest", "place rule", "picks the antecedent", "AUC"]
        header += ["beyond place", "p", "share of the choice", "verdict"]
        return markdown_table(header, [row.cells() for row in self.rows])


# Rows as passages with two people


def _passage(doc: str, text: str, pronoun: str, following: str, gold: Sequence[Span], other: Sequence[Span]) -> Passage:
    """Return the text up to a pronoun; UserError if its form is unclear or a person is not mentioned by name."""
    forms = pronoun_forms(pronoun, following, "gender")
    if forms is None or not gold or not other:
        raise UserError("unclear")
    meant = forms.index(pronoun)
    last_start = max(*gold, *other)[0]
    sentence = max((match.end() for match in re.finditer(r"[.!?]", text[:last_start])), default=0)
    subject = min(span for span in (*gold, *other) if span[0] >= sentence)
    sides = (tuple(gold), tuple(other))
    mentions = sides[::-1] if meant else sides
    names = ("she", "he")  # replaced by drawn names
    return Passage(doc, "gender", text, forms, meant, mentions, names, subject)


def _of_gap(path: Path) -> Iterator[Passage]:
    """Yield the rows of GAP in which exactly one of two names, both before the pronoun, is its antecedent."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            start = int(row["Pronoun-offset"])
            text, pronoun = row["Text"][:start], row["Pronoun"]
            following = next(iter(ENGLISH_WORD.findall(row["Text"][start + len(pronoun) :])), "")
            is_gold = [row[f"{name}-coref"] == "TRUE" for name in "AB"]
            spans = [[m.span() for m in re.finditer(rf"(?<!\w){re.escape(row[name])}(?!\w)", text)] for name in "AB"]
            if sum(is_gold) == 1 and row["A"] not in row["B"] and row["B"] not in row["A"]:
                gold, other = spans if is_gold[0] else spans[::-1]
                try:
                    yield _passage(row["ID"], text, pronoun, following, gold, other)
                except UserError:
                    continue


def _of_litbank(path: Path) -> Iterator[Passage]:
    """Yield the rows of LitBank with the named antecedent and the other named cluster that was mentioned last."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        words, text, starts = row["context"][: row["pron_pos"]], "", []
        for word in words:
            is_joined = not text or re.match(r"[.,;:!?)’”]|'", word) or text[-1] in "(“"
            text += "" if is_joined else " "
            starts.append(len(text))
            text += word

        def is_name(first: int, last: int, words: list[str] = words) -> bool:
            return words[first].istitle() and not {word.lower() for word in words[first:last]} & _NO_NAMES

        clusters: dict[str, list[tuple[int, int]]] = {}
        gold = [(first, last) for first, last in row["antecedents"] if is_name(first, last)]
        for first, last, cluster in row["other_mentions"]:
            if is_name(first, last) and all(last <= start or end <= first for start, end in gold):
                clusters.setdefault(cluster, []).append((first, last))
        other = max(clusters.values(), key=max, default=[])
        spans = [
            [(starts[first], starts[last - 1] + len(words[last - 1])) for first, last in sorted(group)]
            for group in (gold, other)
        ]
        try:
            yield _passage(row["doc"], text + " ", row["context"][row["pron_pos"]], "", *spans)
        except UserError:
            continue


def _named(passages: Sequence[Passage], seed: int = 0) -> list[Passage]:
    """Return the passages with a known name for each person, so that `redrawn` can draw names of equal length."""
    rng = np.random.default_rng(seed)
    pools = [sorted(FEMININE_NAMES), sorted(MASCULINE_NAMES)]
    found = []
    for passage in passages:
        drawn = [pool[int(rng.integers(len(pool)))] for pool in pools]
        replacements = {name: drawn[side] for side in (0, 1) for name in passage.surfaces(side)}
        spans = sorted(span for side in passage.mentions for span in side)
        overlap = any(first[1] > second[0] for first, second in zip(spans, spans[1:], strict=False))
        twin = None if overlap else make_twin(passage, replacements)
        if twin is not None:
            moved = tuple(tuple(map(twin.moved, side)) for side in passage.mentions)
            names = (drawn[0].lower(), drawn[1].lower())
            new = replace(passage, text=twin.text, mentions=moved, entities=names)  # type: ignore[arg-type]
            found.append(replace(new, subject=twin.moved(passage.subject)))
    return found


# What a model does with them


def _items(passages: Sequence[Passage], opened: OpenedModel, question: str, limit: int, seed: int) -> Items:
    """Return passages as items; the rule of each half of the documents is fitted on the other half."""
    documents = sorted({passage.doc for passage in passages})
    first = set(np.random.default_rng(seed).permutation(documents)[: len(documents) // 2].tolist())
    halves = [[passage for passage in passages if (passage.doc in first) == side] for side in (True, False)]
    reader = Reader(opened.tokenizer, opened.bos_id, opened.model.context_length)

    def n_tokens(word: str) -> int:
        return len(encode_text(opened.tokenizer, f" {word}").ids)

    drawn = []
    for tested, fitted in (halves, halves[::-1]):
        drawn += redrawn(tested, fit_place_rule(fitted), n_tokens, seed)
    items = passage_items(drawn, question, reader, seed, limit, has_two=True, max_share=1.0)
    return Items(items.pairs).named(WHOSE)


def _tested(opened: OpenedModel, corpus: str, passages: Sequence[Passage], config: ProbeConfig) -> _Row:
    """Return what the heads of the model's own finding do with the passages of a corpus."""
    copied, question = next(iter(WHOSE_QUESTIONS.items()))
    results, notes = read_results(opened)
    finding = results.finding(copied) if results else None
    if finding is None:
        raise UserError(f"models={opened.source}: has no finding {copied}; {' '.join(notes)}")
    is_large = opened.model.n_layer * opened.model.n_head > MANY_HEADS
    items = _items(passages, opened, copied, LIMITS[is_large], config.seed)
    sites = Sites(opened.model, items, config.tokens_per_batch)
    values = whose_values(sites, finding.judged.heads, config)
    place = np.array([pair.place for pair in items.pairs]) > 0
    is_nearest = preferred("nearest", items) > 0
    return _Row(
        model=opened.name,
        heads=" + ".join(map(str, finding.judged.heads)),
        corpus=corpus,
        n=len(items),
        nearest=float(is_nearest.mean()),
        place_rule=float((place == is_nearest).mean()),
        values={name: values[name] for name in COLUMNS},
        verdict=judged(Tested(finding.judged.heads, values), question).verdict,
    )


def main(options: _Options) -> None:
    """Test every model on both corpora, and write the page."""
    rows_of = {"GAP": _of_gap(Path(options.gap)), "LitBank": _of_litbank(Path(options.litbank))}
    corpora = {name: _named(list(passages)) for name, passages in rows_of.items()}
    for name, passages in corpora.items():
        share = np.mean([passage.meant == nearest(passage) for passage in passages])
        print(f"{name}: {len(passages)} passages, the nearest is meant in {share:.2f}")
    rows = []
    for source in listed(options.models):
        opened = open_model(source, threads=options.threads)
        rows += [_tested(opened, name, passages, ProbeConfig()) for name, passages in corpora.items()]
    write_page("gold", "Whose gender, on annotated antecedents", GoldResults(rows), options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
