"""What must hold on the very weights before their attention may be reported.

Fused kernels have hidden or corrupted attention in several public libraries: a causal mask lost in one port, a leak
in another. So the path that is observed is compared with the path that is used, on each checkpoint anew.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from data.links import LinkItem
from model.transformer import Attention, Transformer

# Largest allowed, in float32. Sums of a few hundred terms in another order differ by about 1e-6 of their size.
LIMITS = {
    "fused_output": 1e-4,  # of each layer's attention, against weights @ value, relative to the largest
    "logits": 1e-4,  # of the whole model, against the whole observed pass, relative to the largest
    "query_rows": 1e-5,  # weights at the asked queries alone, against the same rows of the whole map
    "row_sum": 1e-5,  # how far the weights of a query are from summing to one
    "future_weight": 0.0,  # on any key after its query
    "future_logits": 1e-6,  # change up to the query when every later token is another, relative to the largest
}
_BROKEN = {
    "fused_output": "the attention that is observed is not the attention the model uses",
    "logits": "the observed pass does not end in the model's logits",
    "query_rows": "a row read alone is not the row of the whole map",
    "row_sum": "attention weights do not sum to one",
    "future_weight": "attention rests on tokens that come later",
    "future_logits": "tokens that come later change the logits before them",
}


_MOST_LOGITS = 2**27  # numbers: half a gigabyte; a model from elsewhere may know a hundred thousand tokens


@torch.no_grad()
def check_contract(model: Transformer, items: Sequence[LinkItem], n_items: int = 64) -> dict[str, float]:
    """Return the largest violation found of each of LIMITS.

    Args:
        model: in eval mode, float32.
        items: one or more; `n_items` of them are looked at, spread evenly.
        n_items: at most; fewer where their logits would take more than half a gigabyte.

    Raises:
        ValueError: a limit is passed, or something is not a number.

    """
    room = _MOST_LOGITS // (model.vocab_size * (1 + max(len(item.tokens) for item in items)))
    n_items = max(1, min(n_items, room))
    some = items[:: max(1, len(items) // n_items)][:n_items]
    tokens = torch.zeros(len(some), 1 + max(len(item.tokens) for item in some), dtype=torch.int64)  # one to come, too
    for row, item in zip(tokens, some, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    return check_observed(model, tokens, torch.tensor([[item.query] for item in some]))


@torch.no_grad()
def check_observed(model: Transformer, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each of LIMITS in some texts; ValueError where a limit is passed.

    Args:
        model: in eval mode, float32.
        tokens: [B, T] int64.
        query: [B, 1] int64, the position of each text whose row is read alone; later tokens are changed.

    """
    device = model.token_embedding.weight.device
    tokens, query = tokens.to(device), query.to(device)
    found = {name: 0.0 for name in LIMITS} | _observe(model, tokens, query)
    later = torch.arange(tokens.shape[1], device=device) > query  # [B, T]
    before = model(tokens).masked_fill(later[..., None], 0)
    after = model(torch.where(later, (tokens + 1) % model.vocab_size, tokens)).masked_fill(later[..., None], 0)
    found["future_logits"] = _apart(after, before)
    for name, limit in LIMITS.items():
        if not found[name] <= limit:  # nan passes no limit
            raise ValueError(f"nothing is reported of this model: {_BROKEN[name]} (off by {found[name]:.1e})")
    return found


def _observe(model: Transformer, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Go through the model by its observed attention alone and compare with the fused one at every step."""
    future = torch.ones(2 * tokens.shape[-1:], dtype=torch.bool, device=tokens.device).triu(1)
    found: list[dict[str, float]] = []
    x = model.embed(tokens)
    for block in model.layers():
        normed = block.norm_1(x)
        weights = block.attention.scores(normed).softmax(-1)  # [B, H, Tq, Tk]
        observed = _output(block.attention, normed, weights)
        alone = block.attention.scores(normed, query).softmax(-1)
        whole = weights.gather(2, query[:, None, :, None].expand_as(alone))
        found.append(
            {
                "fused_output": _apart(observed, block.attention(normed)),
                "query_rows": (alone - whole).abs().max().item(),
                "row_sum": (weights.sum(-1) - 1).abs().max().item(),
                "future_weight": weights.masked_fill(~future, 0).abs().max().item(),
            }
        )
        x = x + observed
        x = x + block.mlp(block.norm_2(x))
    worst = {name: float(torch.tensor([one[name] for one in found]).max()) for name in found[0]}
    return worst | {"logits": _apart(model.unembed(x), model(tokens))}


def _output(attention: Attention, normed: Tensor, weights: Tensor) -> Tensor:
    """Return what these weights [B, H, T, T] would add to the stream: [B, T, D]."""
    value = attention.value(normed).unflatten(-1, (attention.n_head, -1)).transpose(1, 2)  # [B, H, T, K]
    return attention.output((weights @ value).transpose(1, 2).flatten(2))


def _apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference over the largest value of `other`; 0 where both are all zero."""
    size = other.abs().max().clamp(min=torch.finfo(other.dtype).tiny)
    return ((one - other).abs().max() / size).item()
