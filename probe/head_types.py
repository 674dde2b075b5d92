"""What else a head does: its habits on random tokens, where there is nothing to refer to."""

import numpy as np
import torch
from torch import Tensor

from model.transformer import Transformer, attention_maps

TYPES = ("previous", "first", "duplicate", "induction")


@torch.no_grad()
def head_types(
    model: Transformer, first_token: int, seed: int, n_sequences: int = 16, n_distinct: int = 24
) -> dict[str, np.ndarray]:
    """Measure every head's habits on a random text that is said twice (Olsson et al. 2022, induction heads).

    Args:
        model: in eval mode.
        first_token: what stands before every text; it is in no text.
        seed: of the texts.
        n_sequences: how many texts.
        n_distinct: tokens before the text repeats itself, no two alike; fewer if the context or vocabulary is short.

    Returns:
        `type_scores` by name, each [L, H].

    """
    n_distinct = min(n_distinct, (model.config.context_length - 1) // 2, model.vocab_size - 1)
    rng = np.random.default_rng(seed)
    others = np.delete(np.arange(model.vocab_size), first_token)
    once = np.stack([rng.choice(others, n_distinct, replace=False) for _ in range(n_sequences)])
    texts = np.concatenate([np.full((n_sequences, 1), first_token), once, once], axis=1)
    maps = attention_maps(model, torch.from_numpy(texts).to(model.token_embedding.weight.device))
    return type_scores(maps.cpu(), n_distinct)


def type_scores(maps: Tensor, n_distinct: int) -> dict[str, np.ndarray]:
    """Return the mean weight on the key that makes the type, for each of TYPES [L, H], from 0 to 1.

    Args:
        maps: [L, B, H, T, T] on texts of a first token and twice the same `n_distinct` tokens, T = 1 + 2 n_distinct.
        n_distinct: 2 or more.

    """
    again = torch.arange(n_distinct + 1, maps.shape[-1])  # the queries that have read this token before
    keys = {
        "previous": (torch.arange(2, maps.shape[-1]), -1),  # from 2 on: that before 1 is the first token
        "duplicate": (again, -n_distinct),  # the same token, said before
        "induction": (again, 1 - n_distinct),  # the token that came after it then
    }
    found = {name: maps[..., query, query + offset] for name, (query, offset) in keys.items()}
    found["first"] = maps[..., 1:, 0]
    return {name: found[name].mean(dim=(1, 3)).numpy() for name in TYPES}
