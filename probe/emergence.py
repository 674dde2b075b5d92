"""A small probe to be run while training, and what its curves say afterwards: has a head begun to link, and when?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.links import LinkItem
from model.observe import TransformerView
from model.transformer import Transformer
from probe.behaviour import oracle_losses, read_losses, rho, surprisals
from probe.items import QUESTIONS, questions_with_items
from probe.scores import best_head, check_blocks, read_heads, score_heads
from probe.statistics import clusters_of, luck_line
from probe.weights import head_types

PHASE_CHANGE = 0.1  # share of training within which a curve goes from 10 to 90 % of its rise


@dataclass(frozen=True, slots=True)
class Glimpse:
    """One question, at one step."""

    name: str  # as in "number"
    layer: int
    head: int
    accuracy: np.ndarray  # [L, H]
    pronoun_contrast: np.ndarray  # [L, H]
    block_accuracy: np.ndarray  # [L, H]
    luck: float  # Sel@1 that the best of as many know-nothing heads reaches in 1 of 20 cases
    nll: float  # of the payoff, nats; nan where there is none
    rho: float | None  # None where the oracles are not known
    oracles: dict[str, float]  # nats, of the same items

    def record(self) -> dict[str, Any]:
        """Return what is written down: the best head's scores, and every head's so that any curve can be drawn."""
        at = (self.layer, self.head)
        scores = {
            "accuracy": float(self.accuracy[at]),
            "block_accuracy": float(self.block_accuracy[at]),
            "pronoun_contrast": float(self.pronoun_contrast[at]),
        }
        own: dict[str, Any] = {"layer": self.layer, "head": self.head, **scores, "chance_level": self.luck}
        own |= {} if self.rho is None else {"resolved_share": self.rho}
        own |= {"accuracy_heads": _written(self.accuracy), "pronoun_contrast_heads": _written(self.pronoun_contrast)}
        payoff = {} if np.isnan(self.nll) else {f"{self.name}_answer": {"model": self.nll, **self.oracles}}
        return {self.name: own, **payoff}


def _written(values: np.ndarray) -> list[list[float]]:
    return values.astype(float).round(4).tolist()


def choose_items(items: Sequence[LinkItem], n_sequences: int) -> dict[str, list[LinkItem]]:
    """Return whole blocks of iid items for every watched question, by its curve's name, `n_sequences` in all.

    The questions share alike, spread over the frames of each.
    """
    by_name: dict[str, list[LinkItem]] = {}
    for question in questions_with_items([one for one in QUESTIONS if one.watched], items):
        by_name[question.name] = [item for item in items if item.holdout == "iid" and question.matches(item)]
    n_blocks = n_sequences // 4 // max(1, len(by_name))
    chosen = {}
    for name, some in by_name.items():
        check_blocks(some)
        blocks = [some[i : i + 4] for i in range(0, len(some), 4)]
        chosen[name] = [
            item for block in blocks[:: max(1, len(blocks) // max(1, n_blocks))][:n_blocks] for item in block
        ]
    return {name: some for name, some in chosen.items() if some}


def glimpse(model: Transformer, items: dict[str, list[LinkItem]], tokens_per_batch: int) -> list[Glimpse]:
    """Probe `model` (in eval mode) on the items of `choose_items`; the global random state is left alone."""
    found = []
    for name, some in items.items():
        rows = read_heads(TransformerView(model), some, tokens_per_batch)
        scores = score_heads(rows)
        nll, surprisal = read_losses(model, some, tokens_per_batch), surprisals(some)
        accuracy, pronoun_contrast, block_accuracy = (
            values.mean(axis=0) for values in (scores.accuracy, scores.pronoun_contrast, scores.block_accuracy)
        )
        luck = luck_line(scores.accuracy, list(clusters_of(some[::4]).values()), centre=0.5, n_flips=400, seed=0)
        found.append(
            Glimpse(
                name,
                *best_head(scores),
                accuracy=accuracy,
                pronoun_contrast=pronoun_contrast,
                block_accuracy=block_accuracy,
                luck=luck,
                nll=float(nll.mean()),
                rho=rho(nll, surprisal),
                oracles=oracle_losses(surprisal),
            )
        )
    return found


def type_maxima(model: Transformer, first_token: int) -> dict[str, float]:
    """Return, for each type of head, how much of it that head is which is most of it (`head_types`)."""
    return {name: float(values.max()) for name, values in head_types(model, first_token, seed=0).items()}


def crossing(
    steps: Sequence[float],
    values: Sequence[float],
    share: float,
    floor: float | None = None,
    ceiling: float | None = None,
) -> float | None:
    """Return the step at which a curve, rising or falling, has first gone `share` of its way.

    Between two probes it is taken for straight. The first time counts, so that a curve that wavers is read as slow
    rather than sudden.

    Args:
        steps: in ascending order.
        values: of the same length.
        share: of the way from `floor` to `ceiling`, 0 to 1.
        floor: where the way begins, as the value of knowing nothing; None: the first value.
        ceiling: where it ends; None: the last value.

    Returns:
        None for a curve that never gets there, or whose way has no length.

    """
    if not values:
        return None
    start, end = values[0] if floor is None else floor, values[-1] if ceiling is None else ceiling
    if start == end:
        return None
    gone = [(value - start) / (end - start) for value in values]
    reached = next((i for i, one in enumerate(gone) if one >= share), None)
    if reached is None:
        return None
    if reached == 0:
        return float(steps[0])
    before, after = gone[reached - 1], gone[reached]
    return float(steps[reached - 1] + (share - before) / (after - before) * (steps[reached] - steps[reached - 1]))


def timing(
    steps: Sequence[float], values: Sequence[float], floor: float | None = None, ceiling: float | None = None
) -> dict[str, float | None]:
    """Return the steps t10, t50 and t90 of `crossing`, and t10→t90 as `width`, a share of the last step."""
    found = {f"t{share}": crossing(steps, values, share / 100, floor, ceiling) for share in (10, 50, 90)}
    t10, t90 = found["t10"], found["t90"]
    return {**found, "width": None if t10 is None or t90 is None else (t90 - t10) / max(1, steps[-1])}


def is_phase_change(widths: Sequence[float | None]) -> bool:
    """Whether the curve went from 10 to 90 % of its way within a tenth of training in every seed, two or more."""
    return len(widths) > 1 and all(width is not None and width < PHASE_CHANGE for width in widths)


def training_probe(corpus, settings, draw=None):  # type: ignore[no-untyped-def]
    """Returns the probe to run while training; None if the text has no gold links."""
    import numpy as np

    from data.corpus import load_rows
    from data.links import link_items
    from data.loader import StorySplit
    from data.stories.lint import word_spans as words
    from data.tokenizer import end_id, unknown_id, with_end
    from probe.sentences import TokenizedText
    from probe.snapshots import choose_film, frame, shoot
    from training.evaluate import validation_loss
    from training.trainer import ProbeReading

    split, tokenizer = corpus.validation, corpus.tokenizer
    if not isinstance(corpus.train, StorySplit) or not settings.model.is_causal:
        return None
    items = choose_items(
        link_items(load_rows(corpus, "dev"), tokenizer, end_id(tokenizer)), settings.run.probe_sequences
    )
    if not items:
        return None

    def tokenize(text: str) -> TokenizedText:
        return TokenizedText(text, *with_end(tokenizer, text), [span for _, span in words(text)])

    film = choose_film(tokenize, unknown_id(tokenizer), settings.model.context_length)
    n_tokens = int(split.starts[: settings.run.probe_sequences // 2 + 1][-1])

    def probe(model, step):  # type: ignore[no-untyped-def]
        loss = validation_loss(model, split, 4 * settings.run.tokens_per_batch, n_tokens)
        readings = glimpse(model, items, settings.run.tokens_per_batch) if np.isfinite(loss["loss"]) else []
        if not readings or any(np.isnan(reading.pronoun_contrast).any() for reading in readings):
            return None
        values = {f"probe_{name}": loss[f"{name}_by_class"] for name in ("loss", "gap") if f"{name}_by_class" in loss}
        values["head_types"] = type_maxima(model, end_id(tokenizer))
        for reading in readings:
            values |= reading.record()
        snapshot, images = None, {}
        if film.texts:
            weights = shoot(model, film)
            snapshot = {"header": film.header(settings.model.n_layer, settings.model.n_head), **frame(weights)}
            words_of = [text.words for text in film.texts]
            images = draw(readings, list(zip(film.examples, words_of, weights, strict=True))) if draw else {}
        summary = [
            f"{r.name} L{r.layer}H{r.head} {r.accuracy[r.layer, r.head]:.2f} (chance level {r.luck:.2f})"
            for r in readings
        ]
        return ProbeReading(values, images, snapshot, summary)

    return probe
