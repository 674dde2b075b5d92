"""What else a head does: its habits where there is nothing to refer to, how widely it looks, how one-sidedly."""

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


@torch.no_grad()
def entropies(model: Transformer, tokens: Tensor) -> np.ndarray:
    """Return how evenly each head spreads its weights, [L, H] from 0, all on one token, to 1, the same on all.

    The entropy of a query's weights over the entropy of equal weights on all that it may see, log of their number; the
    mean over queries that see two tokens or more.

    Args:
        model: in eval mode.
        tokens: [B, T] texts without padding, T at least 2.

    """
    maps = attention_maps(model, tokens.to(model.token_embedding.weight.device))[..., 1:, :]  # [L, B, H, T - 1, T]
    entropy = torch.special.entr(maps).sum(-1)
    most = torch.arange(2, tokens.shape[1] + 1, device=maps.device).log()  # the first query sees but itself
    return (entropy / most).mean(dim=(1, 3)).cpu().numpy()


@torch.no_grad()
def score_asymmetry(model: Transformer) -> np.ndarray:
    """Return how far each head's score of word a for word b differs from that of b for a, [L, H] from 0 to 1.

    ||A - A'|| / 2 ||A|| (Frobenius) of the bilinear form A = W_Q' W_K of contents, positions aside: 0 where both
    directions score alike, about .71 for random weights, 1 where one is minus the other.
    """
    found = []
    for block in model.layers():
        query, key, _, _ = block.attention.by_head()  # [H, K, D]
        form = query.transpose(-1, -2) @ key
        apart = torch.linalg.matrix_norm(form - form.transpose(-1, -2))
        found.append(apart / (2 * torch.linalg.matrix_norm(form)).clamp(min=torch.finfo(form.dtype).tiny))
    return torch.stack(found).cpu().numpy()
