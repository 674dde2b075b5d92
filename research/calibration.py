"""How often is the probe wrong? It is applied to models in which there is nothing to find, or one known head.

- untrained: initial weights, and weights drawn at random as large as those of a trained model.
- permuted labels: trained models, but a coin for each word pair and sentence frame decides whether antecedent and
  distractor are exchanged in the items.
- planted link heads: weights built by hand so that one head links pronouns (tests/planted.py).
- planted other habits: heads built to follow position, single words, number or nothing.

Each model is probed like any other: a head chosen on dev, tested once on the headline hold-out, all criteria, verdict.
Writes research/results/calibration.{json,md}.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from antecedent_lab.opened import load_data, open_run
from data.corpus import Corpus, load_stories
from data.links import LinkItem, link_items
from data.tokenizer import end_id
from model.observe import TransformerView
from model.transformer import Transformer
from probe.config import Holdouts, ProbeConfig
from probe.items import EMPTY, HEADLINE, QUESTIONS, Question, questions_with_items
from probe.links import make_context, study_link
from probe.opened_model import OpenedRun
from probe.results import Head, QuestionResult
from probe.verdict import SUPPORTED
from research.measure import row_table, run_script, share_range, start_benchmark, write_page
from tests.planted import KINDS, plant

N_PAIRS = 3  # word pairs per sentence frame
MAX_STEPS = 500  # of the trained models
STRENGTHS = (1.0, 2.0, 4.0)  # score scales: the antecedent's weight is e^2, e^4, e^8 times the distractor's
WATCHED = [question for question in QUESTIONS if question.watched]
LINK_HEADS = "planted link heads"
OTHER_HABITS = "planted other habits"
CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=4096, n_bootstrap=2000, n_untrained=2, n_controls=20, holdouts=Holdouts.verdict
)


@dataclass
class _CalibrationOptions:
    """python -m research.calibration [n_untrained=200] [n_permuted=200] [n_planted=60] [cache_dir=DIR].

    There are a third as many heads with other habits as planted link heads.
    """

    n_untrained: int = 200
    n_permuted: int = 200
    n_planted: int = 60
    cache_dir: str = ""


@dataclass
class _GroupCount:
    """The verdicts on one question over the models of one group."""

    group: str
    question: str
    n: int = 0
    supported: int = 0
    supported_planted_head: int = 0
    passed: dict[str, int] = field(default_factory=dict)  # models by criterion
    smallest_p_corrected: float = 1.0

    def add(self, entry: QuestionResult, planted: Head | None) -> None:
        """Count the answer of one model; `planted` is its known head."""
        # Verdicts
        self.n += 1
        if entry.verdict == SUPPORTED:
            self.supported += 1
            self.supported_planted_head += planted in (None, entry.place)
        # Single criteria, which models without a link head may pass by chance
        for criterion in entry.criteria:
            if criterion.passed:
                self.passed[criterion.name] = self.passed.get(criterion.name, 0) + 1
        self.smallest_p_corrected = min(self.smallest_p_corrected, entry.headline.p_corrected)

    @property
    def interval(self) -> str:
        return share_range(self.supported, self.n)

    @property
    def planted(self) -> str:
        return str(self.supported_planted_head) if self.group == LINK_HEADS else "-"

    @property
    def criteria(self) -> str:
        return ", ".join(f"{name} {n}" for name, n in self.passed.items()) or "none"


@dataclass(frozen=True)
class CalibrationResults:
    """The table of the page."""

    counts: list[_GroupCount]
    n_dev_items: int
    n_test_items: int
    minutes: float

    def lines(self) -> list[str]:
        counts = row_table(
            "models | question | supported [95 %] | in the planted head | criteria passed | smallest corrected p",
            "{group} | {question} | {supported} of {n} {interval} | {planted} | {criteria}"
            " | {smallest_p_corrected:.4f}",
            self.counts,
        )
        items = f"{self.n_dev_items:,} dev items and {self.n_test_items:,} test items per model"
        return [*counts, "", f"{items}; {self.minutes:.0f} minutes on one thread."]


class _ModelToProbe(NamedTuple):
    """A model, the items that it is probed with, and its planted head."""

    group: str
    model: Transformer
    dev: list[LinkItem]
    test: list[LinkItem]
    planted: Head | None = None


def _models(
    options: _CalibrationOptions, trained: list[Transformer], corpus: Corpus, dev: list[LinkItem], test: list[LinkItem]
) -> Iterator[_ModelToProbe]:
    """Yield the models of all groups."""
    config = trained[0].config
    n_initial = options.n_untrained // 2

    # Untrained
    for seed in range(n_initial):
        initial = Transformer(config, trained[0].vocab_size, seed).eval()
        yield _ModelToProbe("untrained, initial weights", initial, dev, test)
    for seed in range(options.n_untrained - n_initial):
        yield _ModelToProbe("untrained, random weights", _drawn_model(trained[0], seed), dev, test)

    # Dev and test have their own coins: blocks of both may have the same number
    for seed in range(options.n_permuted):
        model = trained[seed % len(trained)]
        permuted = (_permute_labels(dev, 2 * seed), _permute_labels(test, 2 * seed + 1))
        yield _ModelToProbe("permuted labels", model, *permuted)

    # Planted heads
    vocabulary = corpus.tokenizer.get_vocab()
    places = list(product(STRENGTHS, range(config.n_layer), range(config.n_head)))
    habits = [kind for kind in KINDS if kind != "coreference"]
    groups = [(LINK_HEADS, ["coreference"], options.n_planted), (OTHER_HABITS, habits, options.n_planted // 3)]
    for group, kinds, n_models in groups:
        for seed in range(n_models):
            strength, layer, head = places[seed % len(places)]
            kind = kinds[seed % len(kinds)]
            model = plant(config, vocabulary, kind, layer=layer, head=head, strength=strength, seed=seed)
            yield _ModelToProbe(group, model, dev, test, planted=Head(layer, head))


def _drawn_model(trained: Transformer, seed: int) -> Transformer:
    """Return a model with normal random matrices of the same root mean square as the trained ones, and its gains."""
    model = Transformer(trained.config, trained.vocab_size, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, reference in zip(model.parameters(), trained.parameters(), strict=True):
            if parameter.ndim == 2:
                parameter.normal_(0, reference.square().mean().sqrt().item(), generator=generator)
            else:
                parameter.copy_(reference)
    return model.eval()


def _permute_labels(items: Sequence[LinkItem], seed: int) -> list[LinkItem]:
    """Return the items with antecedent and distractor exchanged in all four cells of the blocks that a coin chooses.

    One coin for each word pair and frame. Within a block each pronoun still means one word, so that partners exist
    and every criterion can be tested. Items without an antecedent stay as they are.
    """
    # A coin for each pair and frame
    names = sorted({(item.pair, item.frame) for item in items})
    coins = dict(zip(names, np.random.default_rng(seed).integers(0, 2, len(names)), strict=True))
    permuted = []
    for index, item in enumerate(items):
        if item.antecedents and coins[item.pair, item.frame]:
            # The cell of the same order with the other pronoun, which now means what this one meant
            other = items[index ^ 1]
            other = replace(other, antecedents=other.distractors, distractors=other.antecedents, meant=item.meant)
            item = replace(other, answers=other.foils, foils=other.answers, surprisal=())
        permuted.append(item)
    return permuted


def _select_items(corpus: Corpus, split: str, holdout: str, questions: Sequence[Question]) -> list[LinkItem]:
    """Return the items of some questions with N_PAIRS blocks of each frame, different pairs from frame to frame."""
    # Items of the questions
    rows = [row for row in load_stories(corpus, split) if row.holdout == holdout]
    items = link_items(rows, corpus.tokenizer, end_id(corpus.tokenizer))
    asked = []
    # The blocks of every frame, in their order
    blocks: dict[tuple[str, str, str], dict[int, None]] = defaultdict(dict)
    for item in items:
        if any(question.matches(item) for question in questions):
            asked.append(item)
            blocks[item.family, item.level, item.frame][item.block] = None
    # Frame 0 takes the first pairs, frame 1 the next ones, and so on
    wanted: set[int] = set()
    for number, of_frame in enumerate(blocks.values()):
        wanted |= {*islice(cycle(of_frame), number * N_PAIRS, (number + 1) * N_PAIRS)}
    return [item for item in asked if item.block in wanted]


def _train(seed: int, folder: Path) -> OpenedRun:
    """Train the default run briefly."""
    run = folder / f"seed_{seed}"
    settings = [f"seed={seed}", f"out={run}", f"max_steps={MAX_STEPS}", "probe_sequences=0"]
    run_script("train", *settings, f"cache_dir={folder / 'cache'}")
    return open_run(run, torch.device("cpu"))


def main(options: _CalibrationOptions) -> None:
    """Probe all models, count and write the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened = [_train(seed, folder) for seed in (1, 2)]
        corpus = load_data(opened[0], options.cache_dir or str(folder / "cache"))
        dev = _select_items(corpus, "dev", "iid", WATCHED)
        test = _select_items(corpus, "test", HEADLINE, [*WATCHED, EMPTY])
    # Every model is probed like any other; its answers are counted by group and question
    start = time.monotonic()
    counts: dict[tuple[str, str], _GroupCount] = {}
    for probed in _models(options, [run.transformer for run in opened], corpus, dev, test):
        questions = questions_with_items(WATCHED, probed.test)
        context = make_context(TransformerView(probed.model), [], questions, probed.dev, probed.test, CONFIG)
        for question in questions:
            count = counts.setdefault((probed.group, question.name), _GroupCount(probed.group, question.name))
            count.add(study_link(question, context), probed.planted)
    minutes = (time.monotonic() - start) / 60
    results = CalibrationResults(list(counts.values()), len(dev), len(test), minutes)
    write_page("calibration", "How often the probe is wrong", results, threads=1)


if __name__ == "__main__":
    start_benchmark(main, _CalibrationOptions)
