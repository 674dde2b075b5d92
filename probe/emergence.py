"""The probe that runs during training."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.corpus import Corpus, load_stories, split_documents
from data.loader import StorySplit
from data.tested.pairs import Items, link_pairs
from data.tested.passages import Reader, passage_items, passages_in, sections
from data.tokenizer import end_id
from model.observe import TransformerView
from model.transformer import Transformer
from probe.outcomes import OUTCOMES
from probe.questions import NEXT_PRONOUN, QUESTIONS, SAME_WORDS
from probe.results import Head
from settings.train import RunSettings, TrainSettings
from training.evaluate import ProbeRecord
from training.loop import is_due
from training.metrics import HeadPoint

MAX_CHARACTERS = 1_000_000  # the part of a validation text that is searched for passages
MIN_PASSAGES = 20  # with one entity, and with two, that a curve needs

Draw = Callable[[dict[str, HeadPoint]], dict[str, np.ndarray]]  # TensorBoard images by tag, from the points by question


@dataclass(frozen=True, kw_only=True)
class _TrainingProbe:
    """Measures a model at steps of its training, each time on the same items."""

    run: RunSettings
    draw: Draw | None  # called at the steps with an evaluation
    items: dict[str, Items]  # by question

    def __call__(self, model: Transformer, step: int) -> ProbeRecord | None:
        """Return the record of this step; None if training has diverged."""
        if not all(weight.isfinite().all() for weight in model.parameters()):
            return None
        # Every question
        view = TransformerView(model)
        points = {}
        try:
            for name, items in self.items.items():
                outcome = OUTCOMES[QUESTIONS[name].outcome]
                points[name] = outcome.point(view, items, self.run.tokens_per_batch)
        except FloatingPointError:
            return None
        values = {name: point.recorded() for name, point in points.items()}

        # For TensorBoard
        images = {}
        if self.draw and is_due(step, self.run.eval_every_steps, self.run.max_steps):
            images = self.draw(points)
        return ProbeRecord(values, images, [_phrase(name, point) for name, point in points.items()])


def training_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None = None) -> _TrainingProbe | None:
    """Return the probe to run during training; None if the text has nothing to test.

    It reads run.probe_sequences stories, or half as many passages. `draw` makes images at the steps with an evaluation.
    """
    n_sequences = settings.run.probe_sequences
    if not n_sequences:
        return None
    tokenizer = corpus.tokenizer
    if not isinstance(corpus.validation, StorySplit):
        items = _passages(corpus, settings.model.context_length, n_sequences // 4)
    else:
        pairs = link_pairs(load_stories(corpus, "dev"), tokenizer, end_id(tokenizer))
        items = choose_items(pairs, n_sequences)
    if not items:
        return None
    return _TrainingProbe(run=settings.run, draw=draw, items=items)


def _passages(corpus: Corpus, max_tokens: int, limit: int) -> dict[str, Items]:
    """Return up to `limit` passages with one person and with two; none if there are too few."""
    # The first MAX_CHARACTERS of the validation text; the last document may be cut.
    documents = []
    n_left = MAX_CHARACTERS
    for document in split_documents(corpus, corpus.validation):
        documents.append(document[:n_left])
        n_left -= len(documents[-1])

    reader = Reader(corpus.tokenizer, end_id(corpus.tokenizer), max_tokens)
    passages = passages_in(sections(documents))
    with_one = passage_items(passages, NEXT_PRONOUN.name, reader, 0, limit, has_two=False)
    with_two = passage_items(passages, NEXT_PRONOUN.name, reader, 0, limit, has_two=True)
    if min(len(with_one), len(with_two)) < MIN_PASSAGES:
        return {}
    return {NEXT_PRONOUN.name: with_one + with_two}


def choose_items(items: Items, n_sequences: int) -> dict[str, Items]:
    """Return `n_sequences` texts in whole blocks, evenly spread over each question, by its name."""
    # Every question gets as many blocks.
    names = [name for name in QUESTIONS if SAME_WORDS in items.parts(name)]
    n_blocks = max(1, n_sequences // 4 // max(1, len(names)))
    watched = {}
    for name in names:
        # Every n-th block, n chosen so that they spread over all.
        matching = items.of(name, SAME_WORDS)
        distance = max(1, len(matching) // 2 // n_blocks)  # in blocks
        starts = np.arange(0, len(matching), 2 * distance)[:n_blocks]
        watched[name] = matching.take((starts[:, None] + [0, 1]).ravel())
    return watched


def _phrase(name: str, point: HeadPoint) -> str:
    """Return the best head and its first measure in one phrase."""
    measure = next(iter(point.grids))
    bar = f" (bar {point.values['bar']:.2f})" if "bar" in point.values else ""
    return f"{name} {Head(point.layer, point.head)} {measure} {point.values[measure]:.2f}{bar}"
