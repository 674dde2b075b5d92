"""Where a token stands, and what that does: turned queries, slopes, sines, and several texts in one row."""

from functools import lru_cache

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """Return [..., K/2] float32, by how much each pair of a head of `width` K is turned at positions [...].

    Written as Llama's code has it, for its last bits: what is exported then computes the same logits (model/export.py).
    """
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, device=positions.device).float() / width)
    return positions[..., None].float() * frequencies


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair (i, i + K/2) of `x` by an angle that grows with its position (RoPE, Su et al. 2021, eq. 34).

    Args:
        x: [..., T, K] queries or keys, K even.
        positions: [T] or broadcastable to x.shape[:-1]; any origin, since only differences reach the scores.
        theta: base of the angles.

    Returns:
        [..., T, K], each vector as long as before; computed in float32, returned in x's type.

    """
    angles = rotary_angles(positions, x.shape[-1], theta)  # [..., T, K/2]
    cos, sin = angles.cos(), angles.sin()
    # Whole vectors and not their halves, whose rows are short: 2.5 times as fast (measured), and the same bits.
    whole = x.float()
    turned = whole * torch.cat([cos, cos], dim=-1) + whole.roll(x.shape[-1] // 2, dims=-1) * torch.cat(
        [-sin, sin], dim=-1
    )
    return turned.to(x.dtype)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return [..., width] the sines (first half) and cosines of positions [...] (Vaswani et al. 2017, section 3.5).

    Divided by sqrt(width), so that each is 0.71 long. There tokens are multiplied by it instead (section 3.4) and begin
    about 1.4 times as long as the sines; here tokens begin at .16 (width 64) and grow to .76 (the median
    of a trained default run), about as long as these.
    """
    half = width // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[..., None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / width**0.5


def head_slopes(n_head: int) -> Tensor:
    """Return [H] float32, by how much a score falls from each key to the one before it (ALiBi, Press et al. 2022).

    A geometric sequence from 2^(-8/H) down to 2^-8 (section 3).
    """
    return 2.0 ** (-8 * torch.arange(1, n_head + 1, dtype=torch.float32) / n_head)


def falling(length: int, slopes: Tensor | None, *, causal: bool = True) -> Tensor:
    """Return what is added to the scores of a row of one text: [H or 1, T, T], -inf where a key may not be seen.

    Args:
        length: T.
        slopes: [H] what a step of distance costs; None: nothing.
        causal: whether the future is hidden.

    """
    places = torch.arange(length, device=None if slopes is None else slopes.device)
    distances = places[:, None] - places[None, :]
    added = -slopes[:, None, None] * distances.abs() if slopes is not None else torch.zeros(1, length, length)
    return added.masked_fill(distances < 0, float("-inf")) if causal else added


@lru_cache(maxsize=4)
def hidden_once(length: int, n_head: int) -> Tensor:
    """Return `falling` of a causal row, in bfloat16 on a CPU: made once, 2 ms with 8 heads of 256 tokens.

    Whoever asks gets the same tensor, so nobody may write into it.

    Args:
        length: T.
        n_head: H of ALiBi's heads; 0: scores do not fall.

    """
    return falling(length, head_slopes(n_head) if n_head else None).bfloat16()


def within_texts(texts: Tensor, *, causal: bool = True) -> Tensor:
    """Return which key each query may see where a row holds several texts: [B, 1, T, T], those of its own text.

    Args:
        texts: [B, T] the number of the text that each token belongs to.
        causal: of them only those up to the query.

    """
    own = texts[:, :, None] == texts[:, None, :]
    if causal:
        places = torch.arange(texts.shape[1], device=texts.device)
        own = own & (places[None, :] <= places[:, None])
    return own[:, None]


def positions_within(texts: Tensor) -> Tensor:
    """Return [B, T] how many tokens of its own text stand before each token; texts [B, T] lie end to end."""
    places = torch.arange(texts.shape[1], device=texts.device).expand_as(texts)
    begins = torch.ones_like(texts, dtype=torch.bool)
    begins[:, 1:] = texts[:, 1:] != texts[:, :-1]
    return places - torch.where(begins, places, 0).cummax(dim=1).values
