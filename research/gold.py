"""Does what a head copies predict the annotated antecedent? GAP, passages of Wikipedia (Webster et al. 2018).

A row is a pronoun with its antecedent and one other person, both named before it. The antecedent gets a drawn name of
the pronoun's gender, the other person one of the other gender; all else is as in `probe.whose`, but the place rule is
fitted on four fifths of the rows and the others are tested, in turn. So it differs from the passages of the shipped
text: a row may mention more people, keep a part of a replaced name elsewhere, and have earlier pronouns, which may give
the answer away; the part "no pronoun before" has none. Writes research/results/gold.{json,md}.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import MISSING

from antecedent_lab.api import open_model
from data.pairs import Items, Span
from data.tokenizer import encode_text
from data.words import ENGLISH_WORD
from extras.english.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from extras.english.parsing import PRONOUNS, pronoun_forms
from extras.english.passages import Passage, Reader, passage_items
from extras.english.place import fit_place_rule, redrawn
from extras.english.questions import NEXT_PRONOUN, WHOSE
from extras.english.source import MANY_HEADS
from extras.english.whose import whose_values
from probe.config import ProbeConfig
from probe.edits import EditedPairs
from probe.opened_model import OpenedModel
from probe.outcome import Measured
from probe.results import Estimate
from probe.rules import preferred
from probe.saved import read_results
from probe.text_tables import markdown_table
from probe.verdict import judged
from research.measure import listed, start_benchmark, value_cell, write_page
from settings.errors import UserError

LIMITS = (1500, 700)  # passages; the second for a model with many heads
N_FOLDS = 5
COLUMNS = {"author": ".2f", "author_auc": ".2f", "beyond_place": ".2f", "p_beyond_place": ".4f", "choice_share": ".2f"}
_EARLIER = PRONOUNS | {"herself", "himself", "hers"}


@dataclass
class _Options:
    """python -m research.gold models=RUN,FOLDER gap=gap_dev.tsv; eval.py has tested each model."""

    models: str = MISSING
    gap: str = MISSING
    threads: int = 2


@dataclass(frozen=True)
class _Row:
    """One model on all passages, or on those without an earlier pronoun."""

    model: str
    heads: str
    part: str
    n: int
    nearest: float
    place_rule: float
    values: dict[str, Estimate]
    verdict: str

    def cells(self) -> list[str]:
        measured = [value_cell(self.values[name], form) for name, form in COLUMNS.items()]
        rules = [f"{self.nearest:.2f}", f"{self.place_rule:.2f}"]
        return [self.model, self.heads, self.part, str(self.n), *rules, *measured, self.verdict]


@dataclass(frozen=True)
class GoldResults:
    """The table of the page."""

    rows: list[_Row]

    def lines(self) -> list[str]:
        header = ["model", "head", "passages", "n", "nearest", "place rule", "picks the antecedent", "AUC"]
        header += ["beyond place", "p", "share of the choice", "verdict"]
        return markdown_table(header, [row.cells() for row in self.rows])


# Rows as passages with two people


def _passage(
    doc: str, text: str, pronoun: str, following: str, gold: Sequence[Span], other: Sequence[Span]
) -> Passage | None:
    """Return the text up to a pronoun; None if its form is unclear, or one of the two is not named before it."""
    forms = pronoun_forms(pronoun, following)
    if forms is None or not gold or not other:
        return None
    meant = forms.index(pronoun)
    last_start = max(*gold, *other)[0]
    sentence = max((match.end() for match in re.finditer(r"[.!?]", text[:last_start])), default=0)
    subject = min(span for span in (*gold, *other) if span[0] >= sentence)
    sides = (tuple(gold), tuple(other))
    mentions = sides[::-1] if meant else sides
    names = ("she", "he")  # replaced by drawn names
    return Passage(doc, text, forms, meant, mentions, names, subject)


def _of_gap(path: Path) -> Iterator[Passage]:
    """Yield the rows of GAP in which exactly one of two names, both before the pronoun, is its antecedent."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    for name, whole, pronoun, start, *people, _ in rows:
        text = whole[: int(start)]
        following = next(iter(ENGLISH_WORD.findall(whole[len(text) + len(pronoun) :])), "")
        first, _, first_is_gold, second, _, second_is_gold = people
        if first_is_gold == second_is_gold or first in second or second in first:
            continue
        is_first = first_is_gold == "TRUE"
        names = (first, second) if is_first else (second, first)
        gold, other = ([m.span() for m in re.finditer(rf"(?<!\w){re.escape(each)}(?!\w)", text)] for each in names)
        passage = _passage(name, text, pronoun, following, gold, other)
        if passage is not None:
            yield passage


def _named(passages: Sequence[Passage], seed: int = 0) -> list[Passage]:
    """Return the passages with a known name for each person, so that `redrawn` can draw names of equal length."""
    rng = np.random.default_rng(seed)
    pools = [sorted(FEMININE_NAMES), sorted(MASCULINE_NAMES)]
    found = []
    for passage in passages:
        drawn = [pool[int(rng.integers(len(pool)))] for pool in pools]
        changes = {span: drawn[side] for side in (0, 1) for span in passage.mentions[side]}
        spans = sorted(span for side in passage.mentions for span in side)
        overlap = any(first[1] > second[0] for first, second in zip(spans, spans[1:], strict=False))
        if not overlap:
            names = (drawn[0].lower(), drawn[1].lower())
            found.append(replace(passage.with_words(changes), entities=names))
    return found


# Results of a model for them


def _items(passages: Sequence[Passage], opened: OpenedModel, seed: int) -> Items:
    """Return passages as items; the place rule of each fold of the rows is fitted on the others."""

    def n_tokens(word: str) -> int:
        return len(encode_text(opened.tokenizer, f" {word}").ids)

    folds = np.random.default_rng(seed).permutation(len(passages)) % N_FOLDS
    drawn = []
    for fold in range(N_FOLDS):
        tested, fitted = (
            [each for each, own in zip(passages, folds, strict=True) if (own == fold) == is_tested]
            for is_tested in (True, False)
        )
        drawn += redrawn(tested, fit_place_rule(fitted), n_tokens, seed)
    reader = Reader(opened.tokenizer, opened.bos_id, opened.model.context_length)
    limit = LIMITS[opened.model.n_layer * opened.model.n_head > MANY_HEADS]
    items = passage_items(drawn, WHOSE.name, reader, seed, limit, has_two=True, max_share=1.0)
    return items


def _tested(opened: OpenedModel, passages: Sequence[Passage], config: ProbeConfig) -> Iterator[_Row]:
    """Yield what the heads of the model's own finding do with all passages, and with those without a pronoun."""
    results, notes = read_results(opened)
    finding = results.finding(NEXT_PRONOUN.name) if results else None
    if finding is None:
        raise UserError(f"models={opened.source}: has no finding {NEXT_PRONOUN.name}; {' '.join(notes)}")
    items = _items(passages, opened, config.seed)
    has_none = [not _EARLIER & set(map(str.lower, ENGLISH_WORD.findall(pair.texts[0]))) for pair in items.pairs]
    parts = {"all": items, "no pronoun before": items.take(np.flatnonzero(has_none).tolist())}
    for name, part in parts.items():
        values = whose_values(
            EditedPairs(opened.model, part, config.tokens_per_batch), finding.judged.heads, config, Items([])
        )
        place = np.array([pair.place for pair in part.pairs]) > 0
        is_nearest = preferred("nearest", part) > 0
        yield _Row(
            model=opened.name,
            heads=" + ".join(map(str, finding.judged.heads)),
            part=name,
            n=len(part),
            nearest=float(is_nearest.mean()),
            place_rule=float((place == is_nearest).mean()),
            values={name: values[name] for name in COLUMNS},
            verdict=judged(finding.judged.heads, Measured(values), WHOSE).verdict,
        )


def main(options: _Options) -> None:
    """Test every model, and write the page."""
    passages = _named(list(_of_gap(Path(options.gap))))
    rows: list[_Row] = []
    for source in listed(options.models):
        rows += _tested(open_model(source, threads=options.threads), passages, ProbeConfig())
    write_page("gold", "Whose gender, on annotated antecedents", GoldResults(rows), options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
