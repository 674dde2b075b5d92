"""it -> cat: which head links "tired" to the cat, and does the answer depend on it? docs/questions/it_cat.jsonl.

Every head is read at three sites: at "it", at the cue ("tired" or "soft") and at the last word before the answer. At
each the head of largest contrast on dev is tested on other nouns, verbs and cues, with "it" and with "Anna" in its
place, where the cue is the same and nothing links it to a noun. Effects: the weights on both nouns change places in
this head, or in all heads, at that site. Writes research/results/it_cat.{json,md}.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import MISSING

from antecedent_lab.api import open_model
from data.pairs import CONTROL, Items, Link, LinkedText, Span, link_pairs
from extras.own.file import OwnQuestion, load_question
from probe.attention import measure_heads
from probe.config import ProbeConfig
from probe.edits import EditedPairs, all_heads
from probe.opened_model import OpenedModel
from probe.results import Estimate, Head
from probe.statistics import estimate_ratios, sample_of
from probe.text_tables import markdown_table
from research.measure import listed, start_benchmark, value_cell, write_page

FILE = Path("docs/questions/it_cat.jsonl")
SITES = {"it": "it", "cue": "tired", "last": "the last word"}
WORDS = {"headline": "it", CONTROL: "Anna"}


@dataclass
class _Options:
    """python -m research.it_cat models=FOLDER,FOLDER [threads=2]: runs, or folders of transformers."""

    models: str = MISSING
    threads: int = 2


@dataclass(frozen=True)
class _Row:
    """One site of one model, with "it" or with "Anna"."""

    model: str
    site: str
    word: str
    head: str
    contrast: Estimate  # half the change of the log attention ratio with the cue
    t: float
    p: float  # corrected for all heads
    pairs_right: Estimate
    effect_of_head: Estimate  # share of the answer's change that changes sides
    effect_of_all: Estimate

    def cells(self) -> list[str]:
        tested = [
            value_cell(self.contrast, ".2f"),
            f"{self.t:.1f}",
            f"{self.p:.4f}",
            value_cell(self.pairs_right, ".2f"),
        ]
        effects = [value_cell(self.effect_of_head, ".2f"), value_cell(self.effect_of_all, ".2f")]
        return [self.model, self.site, self.word, self.head, *tested, *effects]


@dataclass(frozen=True)
class _Answer:
    """How far the answer of one model follows the cue."""

    model: str
    word: str
    right: Estimate
    change: Estimate  # half the change of the margin with the cue, in nats
    n: int  # texts

    def cells(self) -> list[str]:
        return [self.model, self.word, value_cell(self.right, ".2f"), value_cell(self.change, ".2f"), str(self.n)]


@dataclass(frozen=True)
class ItCatResults:
    """The tables of the page."""

    answers: list[_Answer]
    sites: list[_Row]

    def lines(self) -> list[str]:
        site_header = ["model", "read at", "because ...", "head", "contrast", "t", "p", "pairs right",
                       "effect of the head", "effect of all heads"]  # fmt: skip
        return [
            'The answer: the noun that the cue fits is more probable after "The".',
            "",
            *markdown_table(
                ["model", "because ...", "right", "half its change, nats", "texts"],
                [row.cells() for row in self.answers],
            ),
            "",
            'Heads, chosen on dev at each site with "it", tested on other words:',
            "",
            *markdown_table(site_header, [row.cells() for row in self.sites]),
        ]


def _at_site(texts: Sequence[LinkedText], site: str) -> list[LinkedText]:
    """Return the texts with the query at a site; the cue is where the file has it."""
    moved = []
    for linked in texts:
        link = linked.link
        assert link.payoff is not None
        places: dict[str, Span] = {"cue": link.query}
        was = linked.text.rindex(" was ", 0, link.query[0])
        places["it"] = (linked.text.rindex(" ", 0, was) + 1, was)
        places["last"] = (link.payoff[0] - len("The "), link.payoff[0] - 1)
        at: Link = replace(link, query=places[site])
        moved.append(replace(linked, link=at))
    return moved


def _pairs(opened: OpenedModel, texts: Sequence[LinkedText], site: str) -> Items:
    return link_pairs(_at_site(texts, site), opened.tokenizer, opened.bos_id)


def _site_rows(opened: OpenedModel, name: str, own: OwnQuestion, site: str, config: ProbeConfig) -> list[_Row]:
    """Choose the head on dev, and test it on the other texts and on their controls."""
    dev = measure_heads(opened.model, _pairs(opened, own.dev, site), config.tokens_per_batch)
    contrasts = dev.scores().contrast.mean(axis=0)
    head = Head(*map(int, np.unravel_index(contrasts.argmax(), contrasts.shape)))
    rows = []
    for texts in (own.test, own.control):
        items = _pairs(opened, texts, site)
        scores = measure_heads(opened.model, items, config.tokens_per_batch).scores()
        test = sample_of(items, scores.contrast).test(config)
        columns = np.stack([scores.contrast[:, *head], scores.pair_accuracy[:, *head]], axis=1)
        contrast, right = sample_of(items, columns).means(config)

        # The weights on both nouns change places, in the head and in all heads.
        sets = [[head], all_heads(opened.model)]
        margins = EditedPairs(opened.model, items, config.tokens_per_batch).margins(sets, ["swap"])
        lost = dict(zip(("head", "all"), margins.lost("swap").T, strict=True))
        effects = estimate_ratios(lost, margins.total, items, config)
        word = WORDS[texts[0].holdout]
        rows.append(
            _Row(name, SITES[site], word, str(head), contrast, float(test.t[head]), float(test.p[head]), right,
                 effects["head"], effects["all"])
        )  # fmt: skip
    return rows


def _answers(opened: OpenedModel, name: str, own: OwnQuestion, config: ProbeConfig) -> list[_Answer]:
    found = []
    for texts in (own.test, own.control):
        items = _pairs(opened, texts, "cue")
        margins = EditedPairs(opened.model, items, config.tokens_per_batch).margins([], [])
        right = sample_of(items, np.heaviside(margins.clean, 0.5).mean(axis=1)).mean(config)
        change = sample_of(items, margins.total / 2).mean(config)
        found.append(_Answer(name, WORDS[texts[0].holdout], right, change, len(items.cells)))
    return found


def main(options: _Options) -> None:
    """Measure every model at every site, and write the page."""
    own = load_question(FILE)
    config = ProbeConfig()
    answers = list[_Answer]()
    rows = list[_Row]()
    for path in listed(options.models):
        opened = open_model(path, threads=options.threads)
        name = Path(path).name
        answers += _answers(opened, name, own, config)
        for site in SITES:
            rows += _site_rows(opened, name, own, site, config)
    write_page("it_cat", "it → cat: the head, and what depends on it", ItCatResults(answers, rows), options.threads)


if __name__ == "__main__":
    start_benchmark(main, _Options)
