"""Is a head of another known type? Its weights on random tokens that repeat."""

import numpy as np
import torch
from torch import Tensor

from model.observe import ObservableModel

_N_ROWS = 16  # rows of random tokens, for the types of heads
_N_DISTINCT = 24  # tokens before the repetition


def head_types(model: ObservableModel, start_token: int, seed: int) -> dict[str, np.ndarray]:
    """Return the `type_scores` of every head on random tokens that repeat once (Olsson et al. 2022)."""
    n_distinct = min(_N_DISTINCT, (model.context_length - 1) // 2, model.vocab_size - 1)

    # Rows of the start token and twice the same random tokens, [B, T].
    rng = np.random.default_rng(seed)
    vocabulary = np.delete(np.arange(model.vocab_size), start_token)
    half = np.stack([rng.choice(vocabulary, n_distinct, replace=False) for _ in range(_N_ROWS)])
    tokens = np.concatenate([np.full((_N_ROWS, 1), start_token), half, half], axis=1)
    return type_scores(model.attention_weights(torch.from_numpy(tokens).to(model.device)).cpu())


def type_scores(maps: Tensor) -> dict[str, np.ndarray]:
    """Return the mean attention weight of each head on the key that defines each type, [L, H] each.

    `maps` [L, B, H, T, T] are on a start token and twice the same tokens.
    """
    length = maps.shape[-1]
    n_distinct = length // 2
    later = torch.arange(2, length)  # from 2: the key before 1 is the start token
    repeated = torch.arange(n_distinct + 1, length)  # queries in the second half
    followed = maps[..., repeated, repeated + 1 - n_distinct]  # the token that followed it there
    return {
        "previous": maps[..., later, later - 1].mean(dim=(1, 3)).numpy(),
        "induction": followed.mean(dim=(1, 3)).numpy(),
    }
