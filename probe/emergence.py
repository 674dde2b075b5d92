"""The probe that runs during training, and the timing of its curves: at which step does a head start to link?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.corpus import Corpus, load_rows, training_counts, validation_documents
from data.english_blocks import english_items
from data.links import LinkItem, link_items
from data.loader import StorySplit
from data.next_pronoun import KINDS, find_passages
from data.stories.lint import word_spans
from data.tokenizer import end_id, unknown_id, with_end
from model.observe import ObservableModel, TransformerView
from model.transformer import Transformer
from probe.behaviour import oracle_losses, read_payoffs, resolved_share
from probe.items import QUESTIONS, questions_with_items
from probe.margins import Sites, decision, exchange_terms
from probe.natural import MIN_PREFIXES, Items, make_items, prefixes_in, read, sections
from probe.next_pronoun import QUESTION_NAMES
from probe.passage_items import Item as PassageItem
from probe.passage_items import make_items as make_passage_items
from probe.scores import best_head, check_blocks, read_heads, score_heads
from probe.sentences import Example, TokenizedText, pack_weights, word_attention
from probe.snapshots import choose_examples, header
from probe.statistics import CLUSTERINGS, chance_level, largest, max_t_test, story_clusters
from probe.weights import head_types
from training.evaluate import Probe, ProbeRecord, validation_loss
from training.settings import RunSettings, TrainSettings

N_SIGN_FLIPS = 400  # behind the chance level
MAX_CHARACTERS = 1_000_000  # the part of a validation text that is searched for prefixes
MIN_PASSAGES = 20  # passages of each kind that the curve of the next pronoun needs
N_DEV_FRAMES, N_DEV_PAIRS = 9, 7  # dev blocks in English


@dataclass(frozen=True, slots=True)
class QuestionReading:
    """Scores of every head for one question at one step."""

    name: str  # the question
    layer: int  # the best head
    head: int
    accuracy: np.ndarray  # [L, H]
    block_accuracy: np.ndarray  # [L, H]
    pronoun_contrast: np.ndarray  # [L, H]
    chance_level: float  # 95th percentile of the best head's accuracy by chance
    loss: float  # nats at the payoff; nan for a question without payoff
    answer_accuracy: float  # share of payoffs at which the answers are more probable than the foils; nan without payoff
    oracles: dict[str, float]  # nats, the loss of each oracle

    def values(self) -> dict[str, Any]:
        """Return the reading as metrics.jsonl stores it."""
        names = ("accuracy", "block_accuracy", "pronoun_contrast")
        scores = {name: float(getattr(self, name)[self.layer, self.head]) for name in names}
        heads = {
            f"{name}_heads": getattr(self, name).astype(float).round(4).tolist()
            for name in ("accuracy", "pronoun_contrast")
        }
        share = resolved_share(self.loss, self.oracles)
        resolved = {} if share is None else {"resolved_share": share}
        entry = {"layer": self.layer, "head": self.head, **scores, "chance_level": self.chance_level}
        if np.isnan(self.loss):
            return {self.name: entry | heads}
        answer = {f"{self.name}_answer": {"model": self.loss, **self.oracles}}
        return {self.name: entry | {"answer_accuracy": self.answer_accuracy} | resolved | heads} | answer

    def summary(self) -> str:
        """Return the best head and its accuracy in one phrase."""
        accuracy = f"{self.accuracy[self.layer, self.head]:.2f} (chance level {self.chance_level:.2f})"
        return f"{self.name} L{self.layer}H{self.head} accuracy {accuracy}"


# Draws TensorBoard images by tag from the readings and, per example, its words and the attention [L, H, W, W].
Draw = Callable[[Sequence[QuestionReading], Sequence[tuple[Example, Sequence[str], np.ndarray]]], dict[str, np.ndarray]]


def training_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None = None) -> Probe | None:
    """Return the probe to run during training; None if the model is not causal or the text has nothing to ask about.

    It reads run.probe_sequences texts, and half as many for the loss by token class. `draw` is called at the steps with
    an evaluation.
    """
    run, tokenizer, split = settings.run, corpus.tokenizer, corpus.validation
    if not settings.model.is_causal or not run.probe_sequences:
        return None
    if not isinstance(split, StorySplit):
        return natural_probe(corpus, settings, draw)
    start_token = end_id(tokenizer)
    items = choose_items(link_items(load_rows(corpus, "dev"), tokenizer, start_token), run.probe_sequences)

    def tokenize(text: str) -> TokenizedText:
        return TokenizedText(text, *with_end(tokenizer, text), [span for _, span in word_spans(text)])

    examples = choose_examples(tokenize, unknown_id(tokenizer), settings.model.context_length)
    n_loss_tokens = int(split.starts[: run.probe_sequences // 2 + 1][-1])

    def probe(model: Transformer, step: int) -> ProbeRecord | None:
        loss = validation_loss(model, split, 4 * run.tokens_per_batch, n_loss_tokens)
        view = TransformerView(model)
        readings = read_questions(view, items, run.tokens_per_batch) if np.isfinite(loss["loss"]) else []
        if not readings or any(np.isnan(reading.pronoun_contrast).any() for reading in readings):
            return None  # training has diverged
        values = {f"probe_{name}": loss[f"{name}_by_class"] for name in ("loss", "gap") if f"{name}_by_class" in loss}
        types = head_types(view, start_token, seed=0)
        values["head_types"] = {name: float(scores.max()) for name, scores in types.items()}
        for reading in readings:
            values |= reading.values()
        attention = word_attention(view, [text for _, text in examples])
        images = {}
        if draw and is_evaluated(step, run):
            shown = [(example, text.words, w) for (example, text), w in zip(examples, attention, strict=True)]
            images = draw(readings, shown)
        data = [pack_weights(weights) for weights in attention]
        snapshot = {"header": header(examples, view), "data": data} if examples else None
        return ProbeRecord(values, images, snapshot, [reading.summary() for reading in readings])

    return probe


def is_evaluated(step: int, run: RunSettings) -> bool:
    """Return whether the validation loss is measured at this step too."""
    return step % run.eval_every_steps == 0 or step == run.max_steps


def natural_probe(corpus: Corpus, settings: TrainSettings, draw: Draw | None) -> Probe | None:
    """Return the probe of a run on text; None if the text has too few prefixes and too few words for blocks.

    Every reading has, for each question, the contrast of every head at the pronoun on the same prefixes, half as many
    as run.probe_sequences, and the head of the largest |t|; and the reading of the dev blocks in English.
    """
    documents, n_characters = list[str](), 0
    for document in validation_documents(corpus):
        documents.append(document[: MAX_CHARACTERS - n_characters])
        n_characters += len(documents[-1])
    run, tokenizer, context_length = settings.run, corpus.tokenizer, settings.model.context_length
    start_token, all_items = end_id(tokenizer), dict[str, Items]()
    for question, prefixes in prefixes_in([text for text in documents if text]).items():
        items = make_items(prefixes, tokenizer, start_token, context_length, 0, run.probe_sequences // 2)
        if len(items.prefixes) >= MIN_PREFIXES:
            all_items[question] = items
    passages = [
        passage
        for name, text in sections([text for text in documents if text], only_long=True)
        for passage in find_passages(name, text, "gender")
    ]
    n_passages = run.probe_sequences // 4
    of_both = {kind: make_passage_items(passages, kind, tokenizer, start_token, context_length, 0, n_passages).items
               for kind in KINDS}  # fmt: skip
    has_passages = min(map(len, of_both.values())) >= MIN_PASSAGES
    counts, sizes = training_counts(corpus), {"n_frames": 2 * N_DEV_FRAMES, "n_pairs": N_DEV_PAIRS, "seed": 0}
    try:
        english = english_items(counts, tokenizer, start_token, context_length, **sizes, splits=["dev"])
        blocks = choose_items(english["dev"], run.probe_sequences)
    except ValueError:  # for example, too few known words; eval.py prints the reason
        blocks = {}
    if not all_items and not blocks and not has_passages:
        return None

    def probe(model: Transformer, step: int) -> ProbeRecord | None:
        view, summaries = TransformerView(model), list[str]()
        types = head_types(view, start_token, seed=0)
        values: dict[str, Any] = {"head_types": {name: float(scores.max()) for name, scores in types.items()}}
        if has_passages:
            next_pronoun = read_next_pronoun(view, of_both, run.tokens_per_batch)
            if next_pronoun is None:
                return None  # training has diverged
            values[QUESTION_NAMES["gender"]] = next_pronoun
            place = f"L{next_pronoun['layer']}H{next_pronoun['head']}"
            summaries.append(f"next pronoun {place} share {next_pronoun['share']:.2f}")
        for question, items in all_items.items():
            try:
                contrast = read(view, items, 4 * run.tokens_per_batch).contrast[:, 0]  # [N, L, H]
            except ValueError:  # a head differs before the pronoun; eval.py reports it, training continues
                return None
            if not np.isfinite(contrast).all():
                return None  # training has diverged
            t = max_t_test(contrast, items.clusterings, 0.0, N_SIGN_FLIPS, 0, two_sided=True).t
            layer, head = largest(np.abs(t))
            mean = contrast.mean(axis=0)
            values[f"natural_{question}"] = {
                "layer": layer, "head": head, "pronoun_contrast": float(mean[layer, head]), "t": float(t[layer, head]),
                "pronoun_contrast_heads": mean.round(4).tolist(),
            }  # fmt: skip
            summaries.append(f"{question} L{layer}H{head} contrast {mean[layer, head]:.2f} (t {t[layer, head]:.1f})")
        readings = read_questions(view, blocks, run.tokens_per_batch)
        if any(np.isnan(reading.pronoun_contrast).any() for reading in readings):
            return None
        for reading in readings:
            values |= reading.values()
        images = draw(readings, []) if draw and readings and is_evaluated(step, run) else {}
        return ProbeRecord(values, images, None, [*summaries, *(reading.summary() for reading in readings)])

    return probe


def read_next_pronoun(
    model: ObservableModel, items: dict[str, list[PassageItem]], tokens_per_batch: int
) -> dict[str, Any] | None:
    """Return the share of the next pronoun's decision that each head exchanges, not held out; None if not finite.

    `items` are passages with one and with two entities. The head named is that of the largest share; `follows_twin` is
    the share of passages with one entity in which the model's margin follows it.
    """
    heads = [(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]
    two, one = (Sites(model, items[kind], tokens_per_batch) for kind in ("two", "one"))
    numerator, denominator = exchange_terms(two.measure([[head] for head in heads], ["exchanged"]))
    total = denominator.mean()
    if not np.isfinite(total) or not np.isfinite(numerator).all():
        return None
    shares = numerator.mean(axis=0) / total if total > 0 else np.zeros(len(heads))
    layer, head = heads[int(shares.argmax())]
    return {
        "layer": layer,
        "head": head,
        "share": float(shares.max()),
        "margin": float(total / 2),
        "follows_twin": float(np.heaviside(decision(items["one"], one.clean), 0.5).mean()),
        "share_heads": shares.reshape(model.n_layer, model.n_head).round(4).tolist(),
    }


def choose_items(items: Sequence[LinkItem], n_sequences: int) -> dict[str, list[LinkItem]]:
    """Return `n_sequences` iid items in whole blocks, evenly spread over each watched question, by its name."""
    iid = [item for item in items if item.holdout == "iid"]
    watched = questions_with_items([question for question in QUESTIONS if question.watched], iid)
    n_blocks = max(1, n_sequences // 4 // max(1, len(watched)))
    chosen = {}
    for question in watched:
        matching = [item for item in iid if question.matches(item)]
        check_blocks(matching)
        starts = range(0, len(matching), 4)[:: max(1, len(matching) // 4 // n_blocks)][:n_blocks]
        chosen[question.name] = [matching[start + cell] for start in starts for cell in range(4)]
    return chosen


def read_questions(
    model: ObservableModel, items: dict[str, list[LinkItem]], tokens_per_batch: int
) -> list[QuestionReading]:
    """Return the reading of every question of `choose_items`; the global random state does not change."""
    readings = []
    for name, question_items in items.items():
        scores = score_heads(read_heads(model, question_items, tokens_per_batch))
        clusters = story_clusters(question_items[::4])
        clusterings = [clusters[name] for name in CLUSTERINGS]
        margins, losses = read_payoffs(model, question_items, tokens_per_batch)
        readings.append(
            QuestionReading(
                name,
                *best_head(scores),
                accuracy=scores.accuracy.mean(axis=0),
                block_accuracy=scores.block_accuracy.mean(axis=0),
                pronoun_contrast=scores.pronoun_contrast.mean(axis=0),
                chance_level=chance_level(scores.accuracy, clusterings, centre=0.5, n_flips=N_SIGN_FLIPS, seed=0),
                loss=float(losses.mean()),
                answer_accuracy=float(np.heaviside(margins, 0.5).mean()),
                oracles=oracle_losses(question_items),
            )
        )
    return readings


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
