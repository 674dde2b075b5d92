"""How often does the study of the next pronoun err?

On the shipped validation text it is applied to

- untrained: initial weights of the shape of the first run.
- permuted classes: the trained models of the runs, but a coin for each document decides whether its entities exchange
  their classes, so that no edge moves the pronoun consistently.
- planted: a model of one layer of which one head, at a random place, writes the gender that it sees.

Writes research/results/next_pronoun_controls.{json,md}.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from omegaconf import MISSING

from antecedent_lab.english_text import EnglishText, english_text
from antecedent_lab.opened import open_run
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.text import SHIPPED_TEXT
from data.tokenizer import end_id, word_tokenizer
from data.words import ENGLISH_WORD
from probe.config import ProbeConfig
from probe.next_pronoun import NextPronounResult, QuestionItems, question_items, study_next_pronoun, study_passage_items
from probe.passage_items import PassageItem
from probe.results import Head
from probe.verdict import SUPPORTED
from research.measure import listed, row_table, share_range, start_benchmark, write_page
from tests.copying_model import CopyingModel

PLANTED = "planted"


@dataclass
class _ControlOptions:
    """python -m research.next_pronoun_controls runs=DIR,DIR [n_untrained=200] [n_permuted=200] [n_planted=60]."""

    runs: str = MISSING
    n_untrained: int = 200
    n_permuted: int = 200
    n_planted: int = 60


@dataclass
class _ControlCount:
    """The verdicts over the models of one control."""

    control: str
    n: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    p_below_01: int = 0
    found: int = 0  # the planted head was chosen

    @property
    def supported(self) -> str:
        count = self.verdicts.get(SUPPORTED, 0)
        return f"{count} {share_range(count, self.n)}"

    @property
    def all_verdicts(self) -> str:
        return "; ".join(f"{count} {verdict}" for verdict, count in Counter(self.verdicts).most_common())

    @property
    def found_planted(self) -> str:
        return str(self.found) if self.control == PLANTED else ""


@dataclass(frozen=True)
class ControlResults:
    """The table of the page."""

    controls: list[_ControlCount]
    n_words: int  # of the text

    def lines(self) -> list[str]:
        controls = row_table(
            "control | models | supported [95 %] | corrected p < .01 | verdicts | planted head chosen",
            "{control} | {n} | {supported} | {p_below_01} | {all_verdicts} | {found_planted}",
            self.controls,
        )
        return [*controls, "", f"{self.n_words:,} words."]


def _permute_classes(items: QuestionItems, seed: int) -> QuestionItems:
    """Return the items with the classes of all mentions exchanged in the documents that a coin chooses."""
    rng = Random(seed)
    # One coin for each document
    documents = sorted({item.passage.doc for item in (*items.choosing, *items.tested)})
    is_exchanged = {document: rng.random() < 0.5 for document in documents}

    def permuted(item: PassageItem) -> PassageItem:
        if not is_exchanged[item.passage.doc]:
            return item
        return replace(item, mentions=tuple((second, first) for first, second in item.mentions))

    choosing = [permuted(item) for item in items.choosing]
    tested = [permuted(item) for item in items.tested]
    return QuestionItems(choosing, tested, items.earlier, items.left_out, items.problem)


def _studies(
    options: _ControlOptions, config: ProbeConfig, text: EnglishText
) -> Iterator[tuple[str, NextPronounResult | str, Head | None]]:
    """Yield (control, result, known head) of every model."""
    runs = [open_run(Path(run), torch.device("cpu")) for run in listed(options.runs)]
    passages = text.passages["gender"]
    items_of = [question_items(run.model, run.tokenizer, run.bos_id, "gender", passages, config) for run in runs]

    # Initial weights
    first = runs[0]
    for seed in range(options.n_untrained):
        untrained = (first.untrained(1000 + 2 * seed + i) for i in (0, 1))
        model = first.untrained(10_000 + seed)
        yield "untrained", study_passage_items(model, untrained, items_of[0], "gender", text.documents, config), None

    # Classes exchanged in half of the documents
    for seed in range(options.n_permuted):
        run = runs[seed % len(runs)]
        permuted = _permute_classes(items_of[seed % len(runs)], seed)
        untrained = (run.untrained(i) for i in (0, 1))
        result = study_passage_items(run.model, untrained, permuted, "gender", text.documents, config)
        yield "permuted classes", result, None

    # One head that copies the gender; these models compute the logits of all positions, so batches are small
    small = replace(config, tokens_per_batch=1024)
    words = word_tokenizer([*(document for _, document in text.documents), *FEMININE_NAMES, *MASCULINE_NAMES])
    rng = Random(0)
    for seed in range(options.n_planted):
        n_heads = rng.randint(2, 8)
        place = rng.randrange(n_heads)
        gains = [0.0] * n_heads
        gains[place] = rng.choice((1.0, 2.0, 4.0))
        copying = CopyingModel(gains, words, seed=seed)
        blind = [CopyingModel([1.0] * n_heads, words, seed=1000 + i, knows_gender=False) for i in (0, 1)]
        planted = study_next_pronoun(copying, blind, words, end_id(words), "gender", passages, text.documents, small)
        yield PLANTED, planted, Head(0, place)


def main(options: _ControlOptions) -> None:
    """Study every model, count and write the page."""
    torch.set_num_threads(1)
    config = ProbeConfig(n_untrained=2)
    text = english_text(str(SHIPPED_TEXT), None)
    # Verdicts of all models, by control
    counts: dict[str, _ControlCount] = {}
    for control, result, head in _studies(options, config, text):
        assert isinstance(result, NextPronounResult), result
        count = counts.setdefault(control, _ControlCount(control))
        count.n += 1
        count.verdicts[result.verdict] = count.verdicts.get(result.verdict, 0) + 1
        count.p_below_01 += result.p_corrected < 0.01
        count.found += head == result.place
    n_words = len(ENGLISH_WORD.findall(" ".join(document for _, document in text.documents)))
    title = "Controls of the study of the next pronoun"
    results = ControlResults(list(counts.values()), n_words)
    write_page("next_pronoun_controls", title, results, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _ControlOptions)
