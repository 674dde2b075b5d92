"""The probe that runs during training."""

from functools import partial

import numpy as np

from data.corpus import load_stories
from data.loader import Corpus
from data.pairs import Items, link_pairs
from data.tokenizer import encode, end_id
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.outcomes import OUTCOMES
from probe.pictures import draw_snapshot
from probe.questions import SAME_WORDS, STORY_QUESTIONS, Question
from probe.results import NO_BAR, Head
from probe.sentences import next_tokens
from settings.train import TrainSettings
from training.evaluate import Probe, ProbeRecord
from training.metrics import HeadPoint

N_GREEDY = 16  # tokens of an opening from a text, and of a continuation

Watched = dict[Question, Items]  # the items of each question that training is watched with


def _measure(
    model: Transformer, is_evaluation: bool, *, tokens_per_batch: int, corpus: Corpus, items: Watched
) -> ProbeRecord | None:
    """Measure a model on `items`, at evaluations with images and lines; None if training has diverged."""
    if not all(weight.isfinite().all() for weight in model.parameters()):
        return None
    view = TransformerView(model)
    points = {}
    values = {}
    phrases = []
    try:
        for question, of_question in items.items():
            point = OUTCOMES[question.outcome].point(view, of_question, tokens_per_batch)
            points[question.name] = point
            values[question.name] = point.recorded()
            phrases.append(_phrase(question.name, point))
    except FloatingPointError:
        return None

    images = draw_snapshot(points) if is_evaluation else {}
    lines = _greedy_lines(view, corpus, items) if is_evaluation else []
    return ProbeRecord(values, images, lines, phrases)


def _greedy_lines(model: ObservableModel, corpus: Corpus, items: Watched) -> list[str]:
    """Return two openings, examples of questions or else from the text, with an arrow and the most probable tokens.

    They end where the model ends the text.
    """
    tokenizer = corpus.tokenizer
    examples = [example.text for question in items for example in question.examples]
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


def training_probe(corpus: Corpus, settings: TrainSettings, items: Watched) -> Probe:
    """Return the probe to run during training on `items`; it draws images at the steps with an evaluation."""
    return partial(_measure, tokens_per_batch=settings.run.tokens_per_batch, corpus=corpus, items=items)


def watched_stories(corpus: Corpus, n_sequences: int) -> Watched:
    """Return `n_sequences` stories in whole blocks, evenly spread over each question."""
    pairs = link_pairs(load_stories(corpus, "dev"), corpus.tokenizer, end_id(corpus.tokenizer))
    return choose_items(pairs, n_sequences)


def choose_items(items: Items, n_sequences: int) -> Watched:
    """Return `n_sequences` texts in whole blocks, evenly spread over each question."""
    questions = [question for question in STORY_QUESTIONS if SAME_WORDS in items.parts(question.name)]
    n_blocks = n_sequences // 4 // max(1, len(questions))
    return {question: spread(items.of(question.name, SAME_WORDS), n_blocks) for question in questions}


def spread(items: Items, n_blocks: int) -> Items:
    """Return at most `n_blocks` whole blocks, at least one, at equal distances."""
    n_available = len(items) // 2
    distance = max(1, n_available // max(1, n_blocks))
    return items.take_blocks(np.arange(0, n_available, distance)[: max(1, n_blocks)])


def _phrase(name: str, point: HeadPoint) -> str:
    measure = next(iter(point.grids))
    phrase = f"{name} {Head(point.layer, point.head)} {measure} {point.values[measure]:.2f}"
    bar = point.values.get("bar")
    if bar is None:
        return phrase
    return f"{phrase} (bar {bar:.2f})" if bar < 1 else f"{phrase} (bar {NO_BAR})"
