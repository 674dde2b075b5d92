"""How often is the probe wrong? It is applied to models in which there is nothing to find, or one known head.

Questions by attention, on a part of the stories:

- untrained: initial weights, and weights drawn at random as large as those of a trained model.
- permuted labels: trained models, but a coin for each word pair and sentence frame decides whether antecedent and
  distractor are exchanged in the items.
- planted link heads: weights built by hand so that one head links pronouns by a table of words (tests/planted.py). Such
  a head answers number and gender; it must not be supported for verb.
- planted other habits: heads built to follow position, single words, number or nothing.

Questions by edges (runs=DIR,DIR), on the text that comes with the program:

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

from data.corpus import load_stories
from data.loader import Corpus
from data.pairs import Cell, Items, link_pairs
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import end_id, word_tokenizer
from extras.english.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from extras.english.passages import Passage, Reader, find_passages, sections
from extras.english.questions import NEXT_PRONOUN
from extras.english.source import passages_of
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.config import ProbeConfig
from probe.edits import all_heads
from probe.opened_model import OpenedModel
from probe.opened_run import load_data, open_run
from probe.questions import DEV, HEADLINE, SAME_WORDS, STORY_QUESTIONS
from probe.results import SUPPORTED, Finding, Head
from probe.study import study
from probe.text_tables import markdown_table
from research.measure import listed, run_script, share_range, start_benchmark, write_page
from settings.errors import UserError
from tests.copying_model import CopyingModel
from tests.planted import KINDS, plant

N_PAIRS = 3  # word pairs per sentence frame
MAX_STEPS = 500  # steps of each trained model
STRENGTHS = (1.0, 2.0, 4.0)  # score scales: the antecedent's weight is e^2, e^4, e^8 times the distractor's
OTHER_HABITS = "planted other habits"
CONFIG = ProbeConfig(n_untrained=2, n_controls=20)


@dataclass
class _CalibrationOptions:
    """python -m research.calibration [runs=DIR,DIR] [n_untrained=200] [n_permuted=200] [n_planted=60].

    - runs: finished runs of experiment=english, for the questions by edges
    - name=calibration: name of the page

    There are a third as many heads with other habits as planted link heads.
    """

    runs: str = ""
    n_untrained: int = 200
    n_permuted: int = 200
    n_planted: int = 60
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

    def cells(self) -> list[str]:
        """Return the row of the table."""
        is_known = self.group.startswith("planted") and self.group != OTHER_HABITS
        criteria = [f"{name} {n}" for name, n in self.passed.items()]
        return [
            self.group,
            self.question,
            f"{self.supported} of {self.n} {share_range(self.supported, self.n)}",
            str(self.supported_planted_head) if is_known else "-",
            ", ".join(criteria) or "none",
            f"{self.smallest_p_corrected:.4f}",
        ]


@dataclass(frozen=True)
class CalibrationResults:
    """The table of the page."""

    counts: list[_GroupCount]
    n_dev_items: int
    n_test_items: int
    minutes: float

    def lines(self) -> list[str]:
        header = ["models", "question", "supported [95 %]", "in the planted head", "criteria passed"]
        table = markdown_table([*header, "smallest corrected p"], [count.cells() for count in self.counts])
        items = f"{self.n_dev_items:,} dev items and {self.n_test_items:,} test items per model"
        planted = (
            "In untrained and planted models the heads are equal in `verb` (p 1), so that their 0 could not be "
            "otherwise. A planted head is a table of words and cannot make this link: the power there is not measured."
        )
        return [*table, "", planted, f"{items}; {self.minutes:.0f} minutes on one thread."]


_Untrained = Callable[[int], ObservableModel]  # models of one shape by seed


class _ModelToProbe(NamedTuple):
    """A model, untrained ones of its shape, the items that it is probed with, and its planted head."""

    group: str
    model: ObservableModel
    untrained: _Untrained
    items: Items
    planted: Head | None = None


# Questions by attention


def _models_of_stories(options: _CalibrationOptions, folder: Path) -> Iterator[_ModelToProbe]:
    """Yield the models of all groups, with items of the stories."""
    # Two models that are trained briefly, and items of their stories
    opened = [_train(seed, folder) for seed in (1, 2)]
    corpus = load_data(opened[0], str(folder / "cache"))
    dev = _select_items(corpus, "dev", SAME_WORDS).named(part=DEV)
    test = _select_items(corpus, "test", HEADLINE)
    trained = opened[0].transformer
    assert trained is not None
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
    vocabulary = corpus.tokenizer.get_vocab()
    for group, kinds, n_models in groups:
        for seed in range(n_models):
            strength, layer, head = places[seed % len(places)]
            kind = kinds[seed % len(kinds)]
            place = {"layer": layer, "head": head}
            model = plant(config, vocabulary, kind, **place, strength=strength, seed=seed)
            yield probed(group, TransformerView(model), planted=Head(layer, head))


def _train(seed: int, folder: Path) -> OpenedModel:
    """Train the default run briefly."""
    run = folder / f"seed_{seed}"
    settings = [f"seed={seed}", f"out={run}", f"max_steps={MAX_STEPS}", "probe_sequences=0"]
    run_script("train", *settings, f"cache_dir={folder / 'cache'}")
    return open_run(run, torch.device("cpu"))


def _select_items(corpus: Corpus, split: str, holdout: str) -> Items:
    """Return N_PAIRS blocks of each frame of every question, different pairs from frame to frame."""
    rows = [row for row in load_stories(corpus, split) if row.holdout == holdout]
    items = link_pairs(rows, corpus.tokenizer, end_id(corpus.tokenizer))
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
    be tested.
    """
    names = sorted({pair.clusters for pair in items.pairs})
    coins = dict(zip(names, np.random.default_rng(seed).integers(0, 2, len(names)), strict=True))

    pairs = []
    for pair in items.pairs:
        if coins[pair.clusters]:
            # The texts change places, because the other pronoun now means what this one meant
            first, second = (replace(_other_answers(_other_meant(cell)), n_fitting=0) for cell in pair.cells)
            pair = replace(pair, cells=(second, first), texts=pair.texts[::-1])
        pairs.append(pair)
    return Items(pairs)


def _other_meant(cell: Cell) -> Cell:
    return replace(cell, meant=cell.other, other=cell.meant)


def _other_answers(cell: Cell) -> Cell:
    return replace(cell, answers=cell.foils, foils=cell.answers)


# Questions by edges


def _models_of_passages(options: _CalibrationOptions, documents: Sequence[tuple[str, str]]) -> Iterator[_ModelToProbe]:
    """Yield the models of all groups, with passages of English text."""
    passages: list[Passage] = []
    for name, text in documents:
        passages += find_passages(name, text)
    runs = [open_run(Path(run), torch.device("cpu")) for run in listed(options.runs)]
    items = []
    for run in runs:
        reader = Reader(run.tokenizer, run.bos_id, run.model.context_length)
        items.append(passages_of(reader, len(all_heads(run.model)), passages, CONFIG))

    # Initial weights
    for seed in range(options.n_untrained):
        untrained = partial(_later_seed, runs[0].untrained, 1000 + 2 * seed)
        yield _ModelToProbe("untrained", runs[0].untrained(10_000 + seed), untrained, items[0])

    # Classes exchanged in half of the documents
    for seed in range(options.n_permuted):
        number = seed % len(runs)
        run = runs[number]
        yield _ModelToProbe("permuted classes", run.model, run.untrained, _permute_classes(items[number], seed))

    # One head that copies the gender
    texts = [text for _, text in documents]
    words = word_tokenizer([*texts, *FEMININE_NAMES, *MASCULINE_NAMES])
    rng = Random(0)
    for seed in range(options.n_planted):
        n_heads = rng.randint(2, 8)
        place = rng.randrange(n_heads)
        gains = [0.0] * n_heads
        gains[place] = rng.choice((1.0, 2.0, 4.0))
        model = CopyingModel(gains, words, seed=seed)
        reader = Reader(words, end_id(words), model.context_length)
        of_model = passages_of(reader, n_heads, passages, CONFIG)
        blind = partial(_blind_model, [1.0] * n_heads, words)
        yield _ModelToProbe("planted", model, blind, of_model, Head(0, place))


def _later_seed(untrained: _Untrained, first: int, seed: int) -> ObservableModel:
    return untrained(first + seed)


def _blind_model(gains: list[float], words: Tokenizer, seed: int) -> ObservableModel:
    return CopyingModel(gains, words, seed=1000 + seed, knows_gender=False)


def _permute_classes(items: Items, seed: int) -> Items:
    """Return the items with the classes of all entities exchanged in the documents that a coin chooses.

    In passages with one entity, whose effects count towards its class, the answers are exchanged instead.
    """
    rng = Random(seed)
    # One coin for each document
    documents = sorted({pair.clusters[0] for pair in items.pairs})
    is_exchanged = {document: rng.random() < 0.5 for document in documents}

    pairs = []
    for pair in items.pairs:
        if is_exchanged[pair.clusters[0]]:
            exchange = _other_meant if pair.has_two else _other_answers
            first, second = map(exchange, pair.cells)
            pair = replace(pair, cells=(first, second))
        pairs.append(pair)
    return Items(pairs, items.left_out)


def main(options: _CalibrationOptions) -> None:
    """Probe all models, count and write the page."""
    torch.set_num_threads(1)
    start = time.monotonic()
    # Every model is probed like any other; its answers are counted by group and question
    counts: dict[tuple[str, str], _GroupCount] = {}
    n_dev = n_test = 0
    questions = list(STORY_QUESTIONS)
    documents: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = _models_of_stories(options, Path(folder))
        if options.runs:
            questions = [NEXT_PRONOUN]
            documents = sections(read_documents([SHIPPED_TEXT]))
            models = _models_of_passages(options, documents)
        for group, model, untrained, items, planted in models:
            # A model without weights computes the logits of all positions, so its batches are small
            config = replace(CONFIG, tokens_per_batch=1024) if isinstance(model, CopyingModel) else CONFIG
            studied = study(model, untrained, items, questions, config, documents)
            if studied.missing:
                raise UserError(f"{group}: {'; '.join(studied.missing)}")
            for finding in studied.findings:
                key = (group, finding.question)
                counts.setdefault(key, _GroupCount(*key)).add(finding, planted)
            n_dev = sum(2 for pair in items.pairs if pair.part == DEV)
            n_test = len(items.cells) - n_dev
    minutes = (time.monotonic() - start) / 60
    results = CalibrationResults(list(counts.values()), n_dev, n_test, minutes)
    write_page(options.name, "How often the probe is wrong", results)


if __name__ == "__main__":
    start_benchmark(main, _CalibrationOptions)
