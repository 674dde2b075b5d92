"""The probe that runs during training."""

from collections.abc import Callable
from functools import partial

import numpy as np

from data.corpus import load_stories, split_documents
from data.loader import Corpus, StorySplit
from data.tested.pairs import Items, link_pairs
from data.tested.passages import Reader, passage_items, passages_in, sections
from data.tokenizer import encode, end_id
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.outcomes import OUTCOMES
from probe.questions import NEXT_PRONOUN, QUESTIONS, SAME_WORDS
from probe.results import NO_BAR, Head
from probe.sentences import next_tokens
from settings.train import RunSettings, TrainSettings
from training.evaluate import Probe, ProbeRecord
from training.loop import is_due
from training.metrics import HeadPoint

MAX_CHARACTERS = 1_000_000  # the part of a validation text that is searched for passages
MIN_PASSAGES = 20  # with one entity, and with two, that a curve needs
N_GREEDY = 16  # tokens of an opening from a text, and of a continuation

Draw = Callable[[dict[str, HeadPoint]], dict[str, np.ndarray]]  # TensorBoard images by tag, from the points by question


def _measure(
    model: Transformer, step: int, *, run: RunSettings, corpus: Corpus, items: dict[str, Items], draw: Draw | None
) -> ProbeRecord | None:
    """Measure a model on `items`, by question, at a step of its training; None if training has diverged."""
    if not all(weight.isfinite().all() for weight in model.parameters()):
        return None
    view = TransformerView(model)
    points = {}
    try:
        for name, of_question in items.items():
            points[name] = OUTCOMES[QUESTIONS[name].outcome].point(view, of_question, run.tokens_per_batch)
    except FloatingPointError:
        return None
    values = {name: point.recorded() for name, point in points.items()}

    is_evaluation = is_due(step, run.eval_every_steps, run.max_steps)
    images = draw(points) if draw and is_evaluation else {}
    lines = _greedy_lines(view, corpus, list(items)) if is_evaluation else []
    return ProbeRecord(values, images, lines, [_phrase(name, point) for name, point in points.items()])


def _greedy_lines(model: ObservableModel, corpus: Corpus, names: list[str]) -> list[str]:
    """Return two openings, examples of questions or else from the text, with an arrow and the most probable tokens.

    They end where the model ends the text.
    """
    tokenizer = corpus.tokenizer
    examples = [example.text for name in names for example in QUESTIONS[name].examples]
    end = end_id(tokenizer)
    openings = [[end, *tokens] for tokens in encode(tokenizer, examples[:2])]
    lines = []
    for opening in openings or [half[:N_GREEDY].tolist() for half in np.array_split(corpus.validation.tokens, 2)]:
        tokens = list(opening)
        while len(tokens) < min(len(opening) + N_GREEDY, model.context_length):
            token = next_tokens(model, tokens, 1)[0][0]
            if token == end:
                break
            tokens.append(token)
        following = tokenizer.decode(tokens[len(opening) :], skip_special_tokens=False)
        lines.append(f"{tokenizer.decode(opening)} → {following}".replace("\n", " "))
    return lines


def training_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None = None) -> Probe | None:
    """Return the probe to run during training; None if run.probe_sequences is 0.

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
    return partial(_measure, run=settings.run, corpus=corpus, items=items, draw=draw)


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
    names = [name for name in QUESTIONS if SAME_WORDS in items.parts(name)]
    n_blocks = max(1, n_sequences // 4 // max(1, len(names)))
    watched = {}
    for name in names:
        matching = items.of(name, SAME_WORDS)
        distance = max(1, len(matching) // 2 // n_blocks)  # in blocks
        starts = np.arange(0, len(matching), 2 * distance)[:n_blocks]
        watched[name] = matching.take((starts[:, None] + [0, 1]).ravel())
    return watched


def _phrase(name: str, point: HeadPoint) -> str:
    measure = next(iter(point.grids))
    phrase = f"{name} {Head(point.layer, point.head)} {measure} {point.values[measure]:.2f}"
    bar = point.values.get("bar")
    if bar is None:
        return phrase
    return f"{phrase} (bar {bar:.2f})" if bar < 1 else f"{phrase} ({NO_BAR})"
