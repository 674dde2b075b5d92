"""How often is the probe wrong? It is applied to models in which there is nothing to find, or one known head.

Questions by attention (outcome=attention), on a part of the stories:

- untrained: initial weights, and weights drawn at random as large as those of a trained model.
- permuted labels: trained models, but a coin for each word pair and sentence frame decides whether antecedent and
  distractor are exchanged in the items.
- planted link heads: weights built by hand so that one head links pronouns (tests/planted.py).
- planted other habits: heads built to follow position, single words, number or nothing.

Questions by edges (outcome=edge runs=DIR,DIR), on the text that comes with the program:

- untrained: initial weights of the shape of the first run.
- permuted classes: the runs, but a coin for each document decides whether its entities exchange their classes, so that
  no edge moves the next word consistently. Nor does the answer follow a single entity then.
- planted: a model of one layer of which one head, at a random place, writes the gender that it sees.

Each model is probed like any other. Writes research/results/NAME.{json,md}.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from antecedent_lab.opened import load_data, open_run
from data.corpus import Corpus, load_stories
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.errors import UserError
from data.pairs import Items, Pair, link_pairs
from data.passages import find_passages, sections
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import end_id, word_tokenizer
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.opened_model import OpenedRun
from probe.questions import DEV, EARLIER, EMPTY, HEADLINE, PASSAGE_QUESTIONS, SAME_WORDS, STORY_QUESTIONS, names_of
from probe.results import Finding, Head
from probe.study import passages_of, study
from probe.verdict import SUPPORTED
from research.measure import listed, row_table, run_script, share_range, start_benchmark, write_page
from tests.copying_model import CopyingModel
from tests.planted import KINDS, plant

N_PAIRS = 3  # word pairs per sentence frame
MAX_STEPS = 500  # steps of each trained model
STRENGTHS = (1.0, 2.0, 4.0)  # score scales: the antecedent's weight is e^2, e^4, e^8 times the distractor's
WATCHED = [question for question in STORY_QUESTIONS if question.is_watched]
GENDER = PASSAGE_QUESTIONS["gender"]
OTHER_HABITS = "planted other habits"
CONFIG = ProbeConfig(n_untrained=2, n_controls=20)


@dataclass
class _CalibrationOptions:
    """python -m research.calibration [outcome=attention] [n_untrained=200] [n_permuted=200] [n_planted=60].

    - outcome=edge runs=DIR,DIR: finished runs of experiment=english
    - cache_dir: folder of the tokenized stories
    - name=calibration: name of the page

    There are a third as many heads with other habits as planted link heads.
    """

    outcome: str = "attention"
    runs: str = ""
    n_untrained: int = 200
    n_permuted: int = 200
    n_planted: int = 60
    cache_dir: str = ""
    name: str = "calibration"


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

    def add(self, finding: Finding, planted: Head | None) -> None:
        """Count the answer of one model; `planted` is its known head."""
        # Verdicts
        self.n += 1
        if finding.verdict == SUPPORTED:
            self.supported += 1
            self.supported_planted_head += planted in (None, finding.place)
        # Single criteria, which models without a link head may pass by chance
        for criterion in finding.judged.criteria:
            if criterion.passed:
                self.passed[criterion.name] = self.passed.get(criterion.name, 0) + 1
        self.smallest_p_corrected = min(self.smallest_p_corrected, finding.head.value("p"))

    @property
    def interval(self) -> str:
        return share_range(self.supported, self.n)

    @property
    def planted(self) -> str:
        is_known = self.group.startswith("planted") and self.group != OTHER_HABITS
        return str(self.supported_planted_head) if is_known else "-"

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
    """A model, untrained ones of its shape by seed, the items that it is probed with, and its planted head."""

    group: str
    model: ObservableModel
    untrained: Callable[[int], ObservableModel]
    items: Items
    planted: Head | None = None


# Questions by attention


def _models_of_stories(options: _CalibrationOptions, folder: Path) -> Iterator[_ModelToProbe]:
    """Yield the models of all groups, with items of the stories."""
    # Two models that are trained briefly, and items of their stories
    opened = [_train(seed, folder) for seed in (1, 2)]
    corpus = load_data(opened[0], options.cache_dir or str(folder / "cache"))
    dev = _select_items(corpus, "dev", SAME_WORDS, [question.name for question in WATCHED]).named(DEV)
    test = _select_items(corpus, "test", HEADLINE, [*(question.name for question in WATCHED), EMPTY.name])
    trained = opened[0].transformer
    config = trained.config
    probed = partial(_ModelToProbe, untrained=opened[0].untrained, items=dev + test)

    # Untrained
    n_initial = options.n_untrained // 2
    for seed in range(n_initial):
        initial = Transformer(config, trained.vocab_size, seed).eval()
        yield probed("untrained, initial weights", TransformerView(initial))
    for seed in range(options.n_untrained - n_initial):
        yield probed("untrained, random weights", TransformerView(_drawn_model(trained, seed)))

    # Dev and test have their own coins: blocks of both may have the same number
    for seed in range(options.n_permuted):
        run = opened[seed % len(opened)]
        items = _permute_labels(dev, 2 * seed) + _permute_labels(test, 2 * seed + 1)
        yield _ModelToProbe("permuted labels", run.model, run.untrained, items)

    # Planted heads
    places = list(product(STRENGTHS, range(config.n_layer), range(config.n_head)))
    habits = [kind for kind in KINDS if kind != "coreference"]
    groups = [
        ("planted link heads", ["coreference"], options.n_planted),
        (OTHER_HABITS, habits, options.n_planted // 3),
    ]
    for group, kinds, n_models in groups:
        for seed in range(n_models):
            strength, layer, head = places[seed % len(places)]
            kind = kinds[seed % len(kinds)]
            vocabulary = corpus.tokenizer.get_vocab()
            model = plant(config, vocabulary, kind, layer=layer, head=head, strength=strength, seed=seed)
            yield probed(group, TransformerView(model), planted=Head(layer, head))


def _train(seed: int, folder: Path) -> OpenedRun:
    """Train the default run briefly."""
    run = folder / f"seed_{seed}"
    settings = [f"seed={seed}", f"out={run}", f"max_steps={MAX_STEPS}", "probe_sequences=0"]
    run_script("train", *settings, f"cache_dir={folder / 'cache'}")
    return open_run(run, torch.device("cpu"))


def _select_items(corpus: Corpus, split: str, part: str, questions: Sequence[str]) -> Items:
    """Return the items of some questions with N_PAIRS blocks of each frame, different pairs from frame to frame."""
    # Items of the questions
    rows = [row for row in load_stories(corpus, split) if row.holdout == part]
    items = link_pairs(rows, corpus.tokenizer, end_id(corpus.tokenizer), names_of)
    items = items.take(i for i, pair in enumerate(items.pairs) if pair.question in questions)
    # The blocks of every frame, in their order
    blocks: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
    for pair in items.pairs:
        blocks[pair.question, pair.clusters[0]][pair.block] = None
    # Frame 0 takes the first pairs, frame 1 the next ones, and so on
    wanted: set[int] = set()
    for number, of_frame in enumerate(blocks.values()):
        wanted |= {*islice(cycle(of_frame), number * N_PAIRS, (number + 1) * N_PAIRS)}
    return items.take(i for i, pair in enumerate(items.pairs) if pair.block in wanted)


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


def _permute_labels(items: Items, seed: int) -> Items:
    """Return the items with antecedent and distractor exchanged in all four cells of the blocks that a coin chooses.

    One coin for each word pair and frame. Within a block each pronoun still means one word, so that every criterion can
    be tested. Items without an antecedent stay as they are.
    """
    names = sorted({pair.clusters for pair in items.pairs})
    coins = dict(zip(names, np.random.default_rng(seed).integers(0, 2, len(names)), strict=True))

    def exchanged(pair: Pair) -> Pair:
        # The texts change places, because the other pronoun now means what this one meant
        cells = []
        for cell in reversed(pair.cells):
            cell = replace(cell, meant=cell.other, other=cell.meant)
            cells.append(replace(cell, answers=cell.foils, foils=cell.answers, surprisal=()))
        return replace(pair, cells=(cells[0], cells[1]), texts=pair.texts[::-1])

    return Items([exchanged(p) if coins[p.clusters] and p.cells[0].meant else p for p in items.pairs])


# Questions by edges


def _models_of_passages(options: _CalibrationOptions, documents: Sequence[tuple[str, str]]) -> Iterator[_ModelToProbe]:
    """Yield the models of all groups, with passages of English text."""
    passages = [passage for name, text in documents for passage in find_passages(name, text, "gender")]
    runs = [open_run(Path(run), torch.device("cpu")) for run in listed(options.runs)]
    items = [passages_of(run.model, (run.tokenizer, run.bos_id), GENDER, passages, CONFIG) for run in runs]

    # Initial weights
    for seed in range(options.n_untrained):
        others = partial(_later_seed, runs[0].untrained, 1000 + 2 * seed)
        yield _ModelToProbe("untrained", runs[0].untrained(10_000 + seed), others, items[0])

    # Classes exchanged in half of the documents
    for seed in range(options.n_permuted):
        number = seed % len(runs)
        permuted = _permute_classes(items[number], seed)
        yield _ModelToProbe("permuted classes", runs[number].model, runs[number].untrained, permuted)

    # One head that copies the gender
    words = word_tokenizer([*(document for _, document in documents), *FEMININE_NAMES, *MASCULINE_NAMES])
    rng = Random(0)
    for seed in range(options.n_planted):
        n_heads = rng.randint(2, 8)
        place = rng.randrange(n_heads)
        gains = [0.0] * n_heads
        gains[place] = rng.choice((1.0, 2.0, 4.0))
        model = CopyingModel(gains, words, seed=seed)
        of_model = passages_of(model, (words, end_id(words)), GENDER, passages, CONFIG)
        blind = partial(_blind_model, [1.0] * n_heads, words)
        yield _ModelToProbe("planted", model, blind, of_model, Head(0, place))


def _later_seed(untrained: Callable[[int], ObservableModel], first: int, seed: int) -> ObservableModel:
    return untrained(first + seed)


def _blind_model(gains: list[float], words: Tokenizer, seed: int) -> ObservableModel:
    return CopyingModel(gains, words, seed=1000 + seed, knows_gender=False)


def _permute_classes(items: Items, seed: int) -> Items:
    """Return the items with the classes of all entities exchanged in the documents that a coin chooses.

    In passages with one entity, whose effects count towards its class, the answers are exchanged instead.
    """
    rng = Random(seed)
    # One coin for each document
    documents = sorted({pair.clusters[0] for pair in items.pairs if pair.part != EARLIER})
    is_exchanged = {document: rng.random() < 0.5 for document in documents}

    def exchanged(pair: Pair) -> Pair:
        first, second = (
            replace(cell, meant=cell.other, other=cell.meant)
            if pair.has_two
            else replace(cell, answers=cell.foils, foils=cell.answers)
            for cell in pair.cells
        )
        return replace(pair, cells=(first, second))

    chosen = [pair.part != EARLIER and is_exchanged[pair.clusters[0]] for pair in items.pairs]
    pairs = [exchanged(pair) if coin else pair for pair, coin in zip(items.pairs, chosen, strict=True)]
    return Items(pairs, items.left_out)


def main(options: _CalibrationOptions) -> None:
    """Probe all models, count and write the page."""
    if (options.outcome == "edge") != bool(options.runs) or options.outcome not in ("attention", "edge"):
        raise UserError(f"outcome={options.outcome}: either attention, or edge with runs=DIR,DIR")
    torch.set_num_threads(1)
    start = time.monotonic()
    # Every model is probed like any other; its answers are counted by group and question
    counts: dict[tuple[str, str], _GroupCount] = {}
    n_dev = n_test = 0
    questions = [GENDER] if options.runs else WATCHED
    with tempfile.TemporaryDirectory() as folder:
        documents = sections(read_documents([SHIPPED_TEXT])) if options.runs else []
        models = _models_of_passages(options, documents) if options.runs else _models_of_stories(options, Path(folder))
        for each in models:
            # A model without weights computes the logits of all positions, so its batches are small
            config = replace(CONFIG, tokens_per_batch=1024) if isinstance(each.model, CopyingModel) else CONFIG
            found = study(each.model, each.untrained, each.items, questions, config, documents)
            if found.missing:
                raise UserError(f"{each.group}: {'; '.join(found.missing)}")
            for finding in found.findings:
                count = counts.setdefault((each.group, finding.question), _GroupCount(each.group, finding.question))
                count.add(finding, each.planted)
            n_dev = sum(2 for pair in each.items.pairs if pair.part == DEV)
            n_test = len(each.items.cells) - n_dev
    minutes = (time.monotonic() - start) / 60
    results = CalibrationResults(list(counts.values()), n_dev, n_test, minutes)
    write_page("calibration", "How often the probe is wrong", results, threads=1, page=options.name)


if __name__ == "__main__":
    start_benchmark(main, _CalibrationOptions)
