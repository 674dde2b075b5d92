"""What a head's weights say: does its OV circuit raise the right answers, and is it a head of another known type?"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data.pairs import Cell
from model.observe import ObservableModel
from probe.batches import pad_rows
from probe.results import NOT_KNOWN, Estimate, Head
from probe.rules import word_ids
from probe.statistics import ratio_interval

N_BOOTSTRAP = 1000
_N_ROWS = 16  # rows of random tokens, for the types of heads
_N_DISTINCT = 24  # tokens before the repetition


def ov_auc(model: ObservableModel, cells: Sequence[Cell], head: Head, *, seed: int) -> Estimate:
    """Return whether the head's OV circuit maps each mention to its own answers; the texts are those of one question.

    The mean over words of the area under the ROC curve: 1 if attending to a word raises each of its own answers above
    all others, .5 by chance. Words that have all answers or none are left out. Its 95 % bootstrap interval is over
    words. nan if the model's weights or the answers do not allow it.
    """
    # The answers of the texts in which a word is the antecedent
    answers: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for cell in cells:
        for word in cell.meant:
            answers[word_ids(cell, word)].update(cell.answers)
    targets = sorted(set().union(*answers.values()))
    words = [word for word in answers if 0 < len(answers[word]) < len(targets)]
    logits = ov_logits(model, words, targets, head, cells[0].tokens[0]) if words else None
    if logits is None:
        return NOT_KNOWN

    # The area is the share of pairs (own answer, other answer) in which the own one is raised more; a tie is half.
    areas = np.empty(len(words))
    for i, raised in enumerate(logits.double().cpu().numpy()):
        is_answer = np.isin(targets, list(answers[words[i]]))
        differences = np.subtract.outer(raised[is_answer], raised[~is_answer])
        areas[i] = np.heaviside(differences, 0.5).mean()
    interval = ratio_interval(areas[:, None], np.ones(len(areas)), [(np.arange(len(areas)),)], N_BOOTSTRAP, seed)
    return Estimate(float(areas.mean()), *interval[:, 0].tolist())


def ov_logits(
    model: ObservableModel, words: Sequence[tuple[int, ...]], targets: Sequence[int], place: Head, start_token: int
) -> Tensor | None:
    """Return what the head adds to the logits of `targets` if it attends to each word alone, [W, targets].

    Each word is read alone after the start token. Its normalised residual stream passes through W_V, W_O, the final
    norm and the unembedding (Elhage et al. 2021); the mean over the word's tokens is returned. The final norm's divisor
    is a positive factor common to all targets, and the biases do not depend on the word, so both are left out.
    """
    layer, head = place
    value, output = model.head_weights(layer)
    if value is None or output is None:
        return None
    # What the head reads at every word: the normalised residual stream.
    tokens = pad_rows([(start_token, *word) for word in words], padding=start_token).to(model.device)  # [W, T]
    inputs = model.record(tokens)[layer].inputs  # [W, T, D]

    # The directions of the residual stream that raise the targets. The stream at which the final norm is
    # taken only sets the common factor: here that of the first word.
    stream = model.residual_stream(tokens[:1])[-1][0, 1]  # [D]
    of_targets = model.unembedding()[torch.tensor(targets, device=model.device)]  # [targets, D]
    directions = model.final_norm_pullback(of_targets, stream)
    if directions is None:
        return None

    # Mean over the tokens of each word, without the start token and the padding.
    added = inputs @ value[head].T @ output[head].T @ directions.T  # [W, T, targets]
    means = [added[row, 1 : 1 + len(word)].mean(0) for row, word in enumerate(words)]
    return torch.stack(means)


def head_types(model: ObservableModel, start_token: int, seed: int) -> dict[str, np.ndarray]:
    """Return the `type_scores` of every head on random tokens that repeat once (Olsson et al. 2022)."""
    n_distinct = min(_N_DISTINCT, (model.context_length - 1) // 2, model.vocab_size - 1)

    # Rows of the start token and twice the same random tokens, [B, T].
    rng = np.random.default_rng(seed)
    vocabulary = np.delete(np.arange(model.vocab_size), start_token)
    half = np.stack([rng.choice(vocabulary, n_distinct, replace=False) for _ in range(_N_ROWS)])
    tokens = np.concatenate([np.full((_N_ROWS, 1), start_token), half, half], axis=1)
    return type_scores(model.attention_scores(torch.from_numpy(tokens).to(model.device)).softmax(-1).cpu())


def type_scores(maps: Tensor) -> dict[str, np.ndarray]:
    """Return the mean attention weight of each head on the key that defines each type, [L, H] each.

    `maps` [L, B, H, T, T] are on a start token and twice the same tokens.
    """
    length = maps.shape[-1]
    n_distinct = length // 2
    later = torch.arange(2, length)  # from 2: the key before 1 is the start token
    repeated = torch.arange(n_distinct + 1, length)  # queries in the second half
    weights = {
        "previous": maps[..., later, later - 1],
        "induction": maps[..., repeated, repeated + 1 - n_distinct],  # the token that followed it there
    }
    return {name: of_queries.mean(dim=(1, 3)).numpy() for name, of_queries in weights.items()}
