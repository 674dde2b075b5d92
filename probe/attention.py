"""Measure every attention head at the query of every text, and score how well it finds the antecedent.

- A head is compared at antecedent and distractor alone; other tokens may get more weight than both.
- The log of the ratio of two weights is a difference of scores: the softmax's denominator and the sink cancel.
- The weight of a word is the sum of the weights of its tokens.
- Scores are of whole blocks: a head that follows position or one word is right in half of the texts, and in no block.
- Equal texts are read once, so that their numbers are bit-identical.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data.pairs import Cell, Items, two_of_each
from model.observe import LayerRecord, ObservableModel, with_sinks
from probe.batches import text_batches
from probe.results import Head

SET = Head(0, -1)  # the place of a set of heads, see `HeadScores.with_set`


class Scores(NamedTuple):
    """Scores of every head on every block; the mean over blocks is the score. Shapes [N_b, ...]: N_b blocks, heads.

    A block has four cells: the order of the two mentions x the mention that is meant. A head that follows position
    or one word is right in half of the cells: accuracy 1/2, block accuracy 0, contrast 0.
    """

    accuracy: np.ndarray  # share of cells with more attention to the antecedent than to each distractor; ties: 1/2
    pair_accuracy: np.ndarray  # share of the two pairs where the head is right in both texts
    block_accuracy: np.ndarray  # 1 where the head is right in all four cells
    contrast: np.ndarray  # half the change of the log ratio within a pair, mean over both pairs

    @property
    def keys(self) -> list[np.ndarray]:
        """The scores by which heads are ranked, the most important last; a layer without attention has nan."""
        return [self.contrast, self.accuracy, self.block_accuracy, ~np.isnan(self.accuracy)]


class HeadRows(NamedTuple):
    """Measures of each head at the query of each text; nan in a layer without attention.

    Shapes [N, L, H]: N texts, L layers, H heads.
    """

    log_ratio: np.ndarray  # log of the weight on the antecedents over the weight on the distractors
    value_log_ratio: np.ndarray  # the same with weight x ||W_O W_V x||; nan if not known or asked for
    attention_margin: np.ndarray  # score of the best antecedent minus score of the best distractor
    mass: np.ndarray  # weight on all mentions together

    def weight_difference(self) -> np.ndarray:
        """Return how far the weights on antecedents and distractors are apart, the mean over the items, [L, H].

        Exchanging equal weights changes nothing, so heads with a small difference have a small attention swap.
        """
        return np.asarray((self.mass * np.abs(np.tanh(self.log_ratio / 2))).mean(axis=0))

    def joint_log_ratio(self, heads: Sequence[Head]) -> np.ndarray:
        """Return the log ratio [N] of the summed attention weights of several heads."""
        antecedents, distractors = np.zeros((2, len(self.mass)))
        for head in heads:
            share = 1 / (1 + np.exp(-self.log_ratio[:, *head].astype(np.float64)))
            antecedents += self.mass[:, *head] * share
            distractors += self.mass[:, *head] * (1 - share)
        tiny = np.finfo(np.float64).tiny
        return np.log(antecedents + tiny) - np.log(distractors + tiny)


def score(log_ratio: np.ndarray, attention_margin: np.ndarray) -> Scores:
    """Score the texts of whole blocks; arguments [4 N_b, ...] as in `HeadRows`."""

    def cells(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, 2, 2, *values.shape[1:])  # [N_b, order, meant, ...]

    # A tie counts half in the accuracy, and as wrong in pairs and blocks.
    right = cells(np.heaviside(attention_margin, 0.5))
    right_pair = np.floor(right).min(axis=2)  # [N_b, order, ...]

    # The distractor of one pronoun is the antecedent of the other, so half the change is the mean of the two.
    half_change = cells(log_ratio.astype(np.float64)).mean(axis=2)  # [N_b, order, ...]
    return Scores(
        accuracy=right.mean(axis=(1, 2)),
        pair_accuracy=right_pair.mean(axis=1),
        block_accuracy=right_pair.min(axis=1),
        contrast=half_change.mean(axis=1),
    )


def best_head(scores: Scores) -> Head:
    """Return the head of highest mean block accuracy; accuracy, then contrast break ties."""
    order = np.lexsort([key.mean(axis=0).ravel() for key in scores.keys])
    layer, head = np.unravel_index(order[-1], scores.block_accuracy.shape[1:])
    return Head(int(layer), int(head))


class Candidates(NamedTuple):
    """Token positions of the mentions of N items: W mentions per item, P tokens per mention."""

    positions: Tensor  # [N, W, P], 0 where there is no token
    present: Tensor  # [N, W, P] True where there is a token
    gold: Tensor  # [N, W] True for antecedents
    bystander: Tensor  # [N, W] True for mentions that neither text of the pair means


def candidates(cells: Sequence[Cell], device: torch.device) -> Candidates:
    """Return the mentions of texts, antecedents first."""
    # As many words, and tokens of a word, as the largest item has; -1 where there is none
    mentions = [cell.meant + cell.other + cell.bystanders for cell in cells]
    n_words = max(map(len, mentions))
    n_tokens = max(map(len, chain(*mentions)))
    positions = np.full((len(cells), n_words, n_tokens), -1)
    gold, bystander = np.zeros((2, len(cells), n_words), dtype=bool)
    for i, words in enumerate(mentions):
        gold[i, : len(cells[i].meant)] = True
        bystander[i, len(words) - len(cells[i].bystanders) : len(words)] = True
        for j, word in enumerate(words):
            positions[i, j, : len(word)] = word
    places, *masks = [torch.from_numpy(values).to(device) for values in (positions, gold, bystander)]
    return Candidates(places.clamp(min=0), places >= 0, *masks)


def output_norms(output_weight: Tensor, record: LayerRecord, rows: Tensor, query: Tensor, positions: Tensor) -> Tensor:
    """Return ||W_O W_V x_j|| [N, H, W, P] of the tokens at `positions` [N, W, P] (Kobayashi et al. 2020, eq. 5).

    `rows` [N] is the text of each item, `query` the query of each text, whose gate multiplies the values;
    `output_weight` is [H, D, K].
    """
    values = record.values[rows[:, None], :, positions.flatten(1)].float()  # [N, W P, H, K]
    if record.gate is not None:
        values = values * record.gate[rows, :, query[rows]][:, None]
    # The squared norm of W_O v is v' (W_O' W_O) v; rounding may make it a little less than 0.
    weight = output_weight.float()
    gram = torch.einsum("hdk,hdl->hkl", weight, weight)
    squares = torch.einsum("nphk,hkl,nphl->nph", values, gram, values)
    by_head: Tensor = squares.clamp(min=0).sqrt().transpose(1, 2).unflatten(-1, positions.shape[1:])
    return by_head


def reduce_scores(scores: Tensor, mentions: Candidates, value_norms: Tensor | None) -> Tensor:
    """Reduce the attention scores of a query to the fields of `HeadRows`, [fields, N, H].

    A word's score is the log-sum-exp of its tokens' scores, so the softmax's denominator, and with it the attention
    sink, cancels from the log ratio. Without antecedents or distractors the log ratio is infinite or nan. `scores`
    [N, H, T] are before the softmax, -inf after the query, the sinks last; `value_norms` [N, H, W, P] are those of
    `output_norms`, with None the value-weighted log ratio is nan.
    """
    # The scores of the mentions' tokens, -inf where a mention has fewer tokens than others.
    positions = mentions.positions.flatten(1)[:, None].expand(-1, scores.shape[1], -1)  # [N, H, W P]
    token_scores = scores.gather(-1, positions).unflatten(-1, mentions.positions.shape[1:])
    token_scores = token_scores.masked_fill(~mentions.present[:, None], -torch.inf)  # [N, H, W, P]
    word_scores = token_scores.logsumexp(-1)  # [N, H, W]

    # Weights are exp(score - total), with the softmax's denominator exp(total).
    # A bystander is a distractor of the accuracy; the contrast is that of the two mentions that the texts mean.
    margin = _only(word_scores, mentions.gold).amax(-1) - _only(word_scores, ~mentions.gold).amax(-1)
    log_ratio = _log_ratio(word_scores, mentions)
    mass = (word_scores.logsumexp(-1) - scores.logsumexp(-1)).exp()

    value_log_ratio = torch.full_like(log_ratio, torch.nan)
    if value_norms is not None:
        # nan where all norms are 0
        value_log_ratio = _log_ratio((token_scores + value_norms.log()).logsumexp(-1), mentions)
    return torch.stack([log_ratio, value_log_ratio, margin, mass])


def _log_ratio(word_scores: Tensor, mentions: Candidates) -> Tensor:
    """Return the log of the weight on antecedents over that on distractors that a text means, [N, H]."""
    distractors = ~(mentions.gold | mentions.bystander)
    return _only(word_scores, mentions.gold).logsumexp(-1) - _only(word_scores, distractors).logsumexp(-1)


def _only(word_scores: Tensor, words: Tensor) -> Tensor:
    """Return the scores [N, H, W] with those of all but the `words` [N, W] set to -inf."""
    return word_scores.masked_fill(~words[:, None], -torch.inf)


@dataclass(frozen=True)
class HeadScores:
    """Measures of every head of a model at the pairs of several questions."""

    items: Items
    rows: HeadRows

    def of(self, question: str, part: str) -> "HeadScores":
        return self.take(self.items.index(question, part))

    def take(self, index: np.ndarray) -> "HeadScores":
        texts = two_of_each(index)
        return HeadScores(self.items.take(index), HeadRows(*(values[texts] for values in self.rows)))

    def take_blocks(self, numbers: np.ndarray) -> "HeadScores":
        return self.take(two_of_each(numbers))

    def with_set(self, heads: Sequence[Head]) -> "HeadScores":
        """Return all heads as one layer with the summed weights of `heads` as one more: at SET, [N, 1, L H + 1].

        The set has a log ratio, by which its mentions are compared too; its other values are nan.
        """
        joint = self.rows.joint_log_ratio(heads)[:, None, None]
        unknown = np.full_like(joint, np.nan)
        of_set = HeadRows(joint, unknown, joint, unknown)
        columns = []
        for of_heads, column in zip(self.rows, of_set, strict=True):
            columns.append(np.concatenate([of_heads.reshape(len(joint), 1, -1), column], axis=2))
        return HeadScores(self.items, HeadRows(*columns))

    def joined(self, heads: Sequence[Head]) -> tuple["HeadScores", Head]:
        """Return the scores with several heads as a set, and the place of the head or the set."""
        return (self, heads[0]) if len(heads) == 1 else (self.with_set(heads), SET)

    def scores(self) -> Scores:
        """Return the scores of every head, each [N_b, L, H]; the pairs are whole blocks: order 0, then order 1."""
        return score(self.rows.log_ratio, self.rows.attention_margin)


@torch.no_grad()
def measure_heads(
    model: ObservableModel, items: Items, tokens_per_batch: int, weighs_values: bool = False
) -> HeadScores:
    """Measure every head at the query of every text of the pairs; the texts end at the query.

    Only with `weighs_values` the value-weighted log ratio is known: it takes a tenth of the time.
    """
    cells = items.cells
    device = model.device
    columns = np.full((len(HeadRows._fields), len(cells), model.n_layer, model.n_head), np.nan, dtype=np.float32)
    texts = [cell.tokens[: cell.query + 1] for cell in cells]
    for members, rows, tokens, query in text_batches(texts, tokens_per_batch):
        index = torch.tensor(rows, device=device)  # [N] the text of each item
        mentions = candidates([cells[i] for i in members], device)
        query = query.to(device)
        for layer, record in zip(model.attention_layers, model.record(tokens.to(device), query[:, None]), strict=True):
            weight = model.output_weights(layer) if weighs_values else None
            norms = None if weight is None else output_norms(weight, record, index, query, mentions.positions)
            scores = with_sinks(record.scores, record.sinks)[index, :, 0]  # [N, H, T] of the query
            columns[:, members, layer] = reduce_scores(scores, mentions, norms).cpu().numpy()
    return HeadScores(items, HeadRows(*columns))
