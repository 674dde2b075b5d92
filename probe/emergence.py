"""The probe that runs during training, and the timing of its curves: at which step does a head start to link?"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from data.corpus import Corpus, load_stories, validation_documents
from data.links import LinkItem, link_items
from data.loader import StorySplit
from data.next_pronoun import KINDS, Passage, find_passages, sections
from data.tokenizer import end_id, unknown_id
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.behaviour import measure_payoffs, oracle_losses, resolved_share
from probe.items import QUESTIONS, questions_with_items
from probe.margins import Sites, decision, exchange_terms
from probe.next_pronoun import QUESTION_NAMES
from probe.passage_items import PassageItem, make_passage_items
from probe.results import Head
from probe.scores import best_head, check_blocks, measure_heads, score_heads
from probe.sentences import EXAMPLE_BLOCK, TIRED_OR_SOFT, Example, TokenizedText, tokenize_text, word_attention
from probe.statistics import CLUSTERINGS, chance_level, story_clusters
from probe.weights import head_types
from training.evaluate import ProbeRecord, validation_loss
from training.loop import is_due
from training.metrics import AnswerLoss, DecisionPoint, QuestionPoint
from training.settings import RunSettings, TrainSettings

N_SIGN_FLIPS = 400  # behind the chance level
MAX_CHARACTERS = 1_000_000  # the part of a validation text that is searched for passages
MIN_PASSAGES = 20  # passages of each kind that the curve of the next pronoun needs


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Scores of every head for one question at one step."""

    name: str  # the question
    accuracy: np.ndarray  # [L, H]
    pronoun_contrast: np.ndarray  # [L, H]
    point: QuestionPoint  # for metrics.jsonl; its layer and head are those of the best head
    answer: AnswerLoss | None  # None for a question without payoff

    @property
    def layer(self) -> int:
        return self.point.layer

    @property
    def head(self) -> int:
        return self.point.head

    def values(self) -> dict[str, Any]:
        """Return the scores as metrics.jsonl stores them."""
        values = {self.name: _recorded(self.point)}
        if self.answer is not None:
            values[f"{self.name}_answer"] = _recorded(self.answer)
        return values

    def summary(self) -> str:
        """Return the best head and its accuracy in one phrase."""
        accuracy = f"{self.point.accuracy:.2f} (chance level {self.point.chance_level:.2f})"
        return f"{self.name} {Head(self.layer, self.head)} accuracy {accuracy}"


Examples = Sequence[tuple[Example, TokenizedText]]
# Draws TensorBoard images by tag from the scores and, per example, its words and the attention [L, H, W, W].
Draw = Callable[[Sequence[QuestionScores], Sequence[tuple[Example, Sequence[str], np.ndarray]]], dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class _TrainingProbe:
    """Measures a model at steps of its training, each time on the same items."""

    run: RunSettings
    bos_id: int
    draw: Draw | None  # called at the steps with an evaluation
    blocks: dict[str, list[LinkItem]] = field(default_factory=dict)  # items of the stories, by question
    stories: StorySplit | None = None  # the loss by token class is measured on their first ones
    examples: Examples = ()  # whose attention is drawn
    passages: dict[str, list[PassageItem]] = field(default_factory=dict)  # with one and two entities

    def __call__(self, model: Transformer, step: int) -> ProbeRecord | None:
        """Return the record of this step; None if training has diverged."""
        view = TransformerView(model)
        try:
            values = self._losses(model)
            types = head_types(view, self.bos_id, seed=0)
            decision_point = self._decision(view)
            questions = measure_questions(view, self.blocks, self.run.tokens_per_batch)
        except FloatingPointError:
            return None

        values["head_types"] = {name: float(scores.max()) for name, scores in types.items()}
        summary = []
        if decision_point is not None:
            values[QUESTION_NAMES["gender"]] = _recorded(decision_point)
            place = Head(decision_point.layer, decision_point.head)
            summary.append(f"next pronoun {place} share {decision_point.share:.2f}")
        for question in questions:
            values |= question.values()
            summary.append(question.summary())

        # Attention between the words of the examples, for TensorBoard.
        images = {}
        if self.draw and questions and is_due(step, self.run.eval_every_steps, self.run.max_steps):
            attention = word_attention(view, [text for _, text in self.examples])
            shown = [(example, text.words, w) for (example, text), w in zip(self.examples, attention, strict=True)]
            images = self.draw(questions, shown)
        return ProbeRecord(values, images, summary)

    def _losses(self, model: Transformer) -> dict[str, Any]:
        """Return the loss on stories and its gap to the lower bound by token class, as metrics.jsonl stores them."""
        if self.stories is None:
            return {}
        # Half as many stories as the questions read are enough.
        n_tokens = int(self.stories.starts[: self.run.probe_sequences // 2 + 1][-1])
        loss = validation_loss(model, self.stories, 4 * self.run.tokens_per_batch, n_tokens)
        if not np.isfinite(loss.loss):
            raise FloatingPointError("the validation loss is not finite")
        by_class = {"probe_loss": loss.loss_by_class, "probe_gap": loss.gap_by_class}
        return {name: values for name, values in by_class.items() if values is not None}

    def _decision(self, model: ObservableModel) -> DecisionPoint | None:
        """Return the measure of the next pronoun; None without passages."""
        if not self.passages:
            return None
        return _measure_next_pronoun(model, self.passages, self.run.tokens_per_batch)


def choose_examples(
    tokenize: Callable[[str], TokenizedText], unknown_token: int | None, context_length: int
) -> Examples:
    """Return the worked examples, one per text, that fit the context and have no unknown token."""
    by_text = {example.text: example for example in (*EXAMPLE_BLOCK, *TIRED_OR_SOFT)}
    chosen = []
    for text, example in by_text.items():
        tokenized = tokenize(text)
        if len(tokenized.tokens) <= context_length and unknown_token not in tokenized.tokens:
            chosen.append((example, tokenized))
    return chosen


def training_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None = None) -> _TrainingProbe | None:
    """Return the probe to run during training; None if the model is not causal or the text has nothing to test.

    It reads run.probe_sequences stories, or half as many passages. `draw` makes images at the steps with an evaluation.
    """
    if not settings.model.is_causal or not settings.run.probe_sequences:
        return None
    if isinstance(corpus.validation, StorySplit):
        probe = _story_probe(corpus, corpus.validation, settings, draw)
    else:
        probe = _text_probe(corpus, settings, draw)
    return probe if probe.blocks or probe.passages else None


def _story_probe(corpus: Corpus, stories: StorySplit, settings: TrainSettings, draw: Draw | None) -> _TrainingProbe:
    tokenizer = corpus.tokenizer
    bos_id = end_id(tokenizer)
    items = link_items(load_stories(corpus, "dev"), tokenizer, bos_id)
    tokenize = partial(tokenize_text, tokenizer, bos_id=bos_id)
    return _TrainingProbe(
        run=settings.run,
        bos_id=bos_id,
        draw=draw,
        blocks=choose_items(items, settings.run.probe_sequences),
        stories=stories,
        examples=choose_examples(tokenize, unknown_id(tokenizer), settings.model.context_length),
    )


def _text_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None) -> _TrainingProbe:
    n_sequences = settings.run.probe_sequences
    documents = _searched_documents(corpus)
    bos_id = end_id(corpus.tokenizer)
    reader = (corpus.tokenizer, bos_id, settings.model.context_length)

    # Passages, if there are enough with one and with two entities.
    candidates: list[Passage] = []
    for name, text in sections(documents):
        candidates += find_passages(name, text, "gender")
    passages = {}
    for kind in KINDS:
        passages[kind] = make_passage_items(candidates, kind, *reader, 0, n_sequences // 4).items
    if min(map(len, passages.values())) < MIN_PASSAGES:
        passages = {}

    return _TrainingProbe(run=settings.run, bos_id=bos_id, draw=draw, passages=passages)


def _searched_documents(corpus: Corpus) -> list[str]:
    """Return the first MAX_CHARACTERS of the validation text, by document."""
    # The last document may be cut.
    documents = []
    n_left = MAX_CHARACTERS
    for document in validation_documents(corpus):
        searched = document[:n_left]
        n_left -= len(searched)
        if searched:
            documents.append(searched)
    return documents


def _recorded(point: QuestionPoint | AnswerLoss | DecisionPoint) -> dict[str, Any]:
    """Return a point as metrics.jsonl stores it, without unmeasured values."""
    return {name: value for name, value in asdict(point).items() if value is not None}


def _table(values: np.ndarray) -> list[list[float]]:
    """Return values [L, H] as metrics.jsonl stores them."""
    table: list[list[float]] = values.astype(float).round(4).tolist()
    return table


def _measure_next_pronoun(
    model: ObservableModel, items: dict[str, list[PassageItem]], tokens_per_batch: int
) -> DecisionPoint:
    """Return the share of the next pronoun's decision that each head exchanges, not held out.

    `items` are passages with one and with two entities. The head named is that of the largest share; `follows_twin` is
    the share of passages with one entity in which the model's margin follows it. Raises FloatingPointError if a margin
    is not finite.
    """
    # One unedited pass over the passages of each kind.
    two = Sites(model, items["two"], tokens_per_batch)
    one = Sites(model, items["one"], tokens_per_batch)

    heads = [Head(*place) for place in np.ndindex(model.n_layer, model.n_head)]
    # Shares of the margin's change that the exchange of one head makes. [N, heads] and [N]
    numerator, denominator = exchange_terms(two.measure([[head] for head in heads], ["exchanged"]))
    total = denominator.mean()  # twice the mean margin
    if not np.isfinite(total) or not np.isfinite(numerator).all():
        raise FloatingPointError("a margin is not finite")

    # Without a decision to exchange there are no shares.
    shares = numerator.mean(axis=0) / total if total > 0 else np.zeros(len(heads))
    best = heads[int(shares.argmax())]
    return DecisionPoint(
        layer=best.layer,
        head=best.head,
        share=float(shares.max()),
        margin=float(total / 2),
        follows_twin=float(np.heaviside(decision(items["one"], one.clean), 0.5).mean()),
        share_heads=_table(shares.reshape(model.n_layer, model.n_head)),
    )


def choose_items(items: Sequence[LinkItem], n_sequences: int) -> dict[str, list[LinkItem]]:
    """Return `n_sequences` iid items in whole blocks, evenly spread over each watched question, by its name."""
    # Every question gets as many blocks.
    iid = [item for item in items if item.holdout == "iid"]
    watched = questions_with_items([question for question in QUESTIONS if question.watched], iid)
    n_blocks = max(1, n_sequences // 4 // max(1, len(watched)))
    chosen: dict[str, list[LinkItem]] = {}
    for question in watched:
        # Every n-th block, n chosen so that they spread over all.
        matching = [item for item in iid if question.matches(item)]
        check_blocks(matching)
        distance = max(1, len(matching) // 4 // n_blocks)  # in blocks
        chosen[question.name] = []
        for start in range(0, len(matching), 4 * distance)[:n_blocks]:
            chosen[question.name] += matching[start : start + 4]
    return chosen


def measure_questions(
    model: ObservableModel, items: dict[str, list[LinkItem]], tokens_per_batch: int
) -> list[QuestionScores]:
    """Return the scores of every question of `choose_items`; the global random state does not change.

    Raises FloatingPointError if a contrast is not finite.
    """
    return [_measure_question(model, name, chosen, tokens_per_batch) for name, chosen in items.items()]


def _measure_question(
    model: ObservableModel, name: str, items: Sequence[LinkItem], tokens_per_batch: int
) -> QuestionScores:
    # The heads. Means over the blocks, [L, H].
    scores = score_heads(measure_heads(model, items, tokens_per_batch))
    clusters = story_clusters(items[::4])
    clusterings = [clusters[clustering] for clustering in CLUSTERINGS]
    best = best_head(scores)
    accuracy = scores.accuracy.mean(axis=0)
    contrast = scores.pronoun_contrast.mean(axis=0)
    if np.isnan(contrast).any():
        raise FloatingPointError("a contrast is not finite")

    # The model's answers; without a payoff the means are nan.
    margins, losses = measure_payoffs(model, items, tokens_per_batch)
    loss = float(losses.mean())
    oracles = oracle_losses(items)
    has_payoff = not np.isnan(loss)
    point = QuestionPoint(
        layer=best[0],
        head=best[1],
        accuracy=float(accuracy[best]),
        block_accuracy=float(scores.block_accuracy.mean(axis=0)[best]),
        pronoun_contrast=float(contrast[best]),
        chance_level=chance_level(scores.accuracy, clusterings, centre=0.5, n_flips=N_SIGN_FLIPS, seed=0),
        answer_accuracy=float(np.heaviside(margins, 0.5).mean()) if has_payoff else None,
        resolved_share=resolved_share(loss, oracles),
        accuracy_heads=_table(accuracy),
        pronoun_contrast_heads=_table(contrast),
    )
    return QuestionScores(name, accuracy, contrast, point, AnswerLoss(loss, **oracles) if has_payoff else None)


def half_rise(steps: Sequence[float], values: Sequence[float], start: float | None = None) -> float | None:
    """Return t50, the first step at which a curve has made half of its change from `start` to its last value.

    The curve has `values` at ascending `steps`, linear between them; `start` is the value before the change, such as
    chance (None: the first value). None if the curve is empty or does not change.
    """
    start = values[0] if start is None and len(values) else start
    if start is None or not len(values) or values[-1] == start:
        return None
    progress = (np.array(values, dtype=float) - start) / (values[-1] - start)
    i = int(np.argmax(progress >= 0.5))  # the last value has made the whole change
    return float(steps[0] if i == 0 else np.interp(0.5, progress[i - 1 : i + 1], steps[i - 1 : i + 1]))
