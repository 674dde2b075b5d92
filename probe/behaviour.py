"""How the model answers at the payoff, between two oracles: with and without knowledge of the antecedent."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from data.pairs import Cell, Items, Pair
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.edits import answer_ids, answer_margins
from probe.results import Estimate, Values
from probe.statistics import sample_of


def answer_values(model: ObservableModel, items: Items, config: ProbeConfig) -> Values:
    """Return the accuracy of the answers, and the resolved share if it is known; empty without payoffs."""
    pairs = items.where(lambda pair: None not in (pair.cells[0].payoff, pair.cells[1].payoff))
    if not pairs.pairs:
        return {}
    margins, losses = measure_payoffs(model, pairs.cells, config.tokens_per_batch)
    # A tie counts half; both texts of a pair are in the same clusters.
    right = np.heaviside(margins, 0.5).reshape(-1, 2).mean(axis=1)
    values = {"answer_accuracy": sample_of(pairs, right).mean(config)}
    share = resolved_share(losses, pairs.cells)
    return values if share is None else values | {"resolved_share": Estimate(share)}


def answer_with_words_shuffled(model: ObservableModel, items: Items, config: ProbeConfig) -> Values:
    """Return the accuracy of the answers to texts of `with_words_shuffled`.

    What a table of words knows stays; what needs the order of the words is lost. Empty without payoffs, if a token is
    no word, or if the texts of a pair have the query at different places.
    """
    rng = np.random.default_rng(config.seed)
    shuffled = []
    for pair in items.pairs:
        first, second = pair.cells
        if first.query != second.query or not (first.has_word_tokens and second.has_word_tokens):
            return {}
        shuffled.append(with_words_shuffled(pair, rng))
    values = answer_values(model, Items(shuffled), config)
    return {"answer_shuffled": values["answer_accuracy"]} if values else {}


def with_words_shuffled(pair: Pair, rng: np.random.Generator) -> Pair:
    """Return a pair with all tokens between the first and the query in one random order; a token must be a word.

    The positions of mentions are those before the shuffle.
    """
    first, second = pair.cells
    order = 1 + rng.permutation(first.query - 1)

    def moved(cell: Cell) -> Cell:
        words = np.take(cell.tokens, order).tolist()
        return replace(cell, tokens=(cell.tokens[0], *words, *cell.tokens[cell.query :]))

    return replace(pair, cells=(moved(first), moved(second)))


def measure_payoffs(
    model: ObservableModel, cells: Sequence[Cell], tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the margin log p(answers) - log p(foils) and the loss -log p(target), [N] each, in nats at the payoff.

    The foils are those of all other mentions. Every text must have a payoff.
    """
    texts = [cell.tokens[: (cell.payoff or 0) + 1] for cell in cells]
    margins, losses = np.empty((2, len(cells)))
    for members, rows, tokens, payoffs in text_batches(texts, tokens_per_batch):
        batch = [cells[i] for i in members]
        logits = model.logits(tokens.to(model.device), payoffs.to(model.device))[rows]  # [N, V]
        answers, foils = answer_ids([replace(cell, foils=cell.foils + cell.more_foils) for cell in batch])
        targets = torch.tensor([cell.target for cell in batch], device=logits.device)
        of_batch = answer_margins(logits, answers.to(logits.device), foils.to(logits.device))
        margins[members] = of_batch.cpu().numpy()
        losses[members] = F.cross_entropy(logits, targets, reduction="none").cpu().numpy()
    return margins, losses


def resolved_share(losses: np.ndarray, cells: Sequence[Cell]) -> float | None:
    """Return (blind loss - loss) / (blind loss - Bayes loss) of texts with losses [N] in nats; None if it is not known.

    The Bayes-optimal predictor chooses among the words that fit the antecedent; a blind one, which does not know the
    antecedent, among those of both mentions. 1: as good as the optimal predictor; 0: as good as if the model ignored
    the antecedent; below 0: worse.
    """
    n_fitting = np.array([cell.n_fitting for cell in cells])
    if not n_fitting.all():
        return None
    blind = np.log(2 * n_fitting).mean()
    return float((blind - losses.mean()) / math.log(2))
