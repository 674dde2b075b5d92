"""Checks that the recorded attention is the attention the model uses; a model that fails is not reported.

Fused attention kernels have hidden or corrupted attention in several public libraries, for example by losing a causal
mask. So the recorded pass is compared with the model's usual pass on every checkpoint that is probed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import HeadEdit, ObservableModel

# Largest violations allowed in float32. Sums of a few hundred terms in another order differ by about 1e-6 relative.
LIMITS = {
    "head_output": 1e-4,  # each head's output against softmax(scores) @ values, relative to the largest value
    "logits": 1e-4,  # logits of the explicit pass against those of the usual pass, relative
    "query_rows": 1e-5,  # weights recorded at single queries against the same rows of the whole map
    "row_sum": 1e-5,  # distance of a row's sum from 1
    "future_weight": 0.0,  # weight on any later token
    "future_logits": 1e-6,  # change of earlier logits if every later token changes, relative
}
_PROBLEMS = {
    "head_output": "the recorded attention is not the attention the model uses",
    "logits": "the recorded pass does not end in the model's logits",
    "query_rows": "a single recorded row differs from the same row of the whole map",
    "row_sum": "attention weights do not sum to one",
    "future_weight": "attention rests on later tokens",
    "future_logits": "later tokens change earlier logits",
}
_MAX_LOGITS = 2**27  # numbers, half a gigabyte in float32


def check_contract(model: ObservableModel, items: Sequence[LinkItem], n_items: int = 64) -> dict[str, float]:
    """Return the largest violation of each of LIMITS over up to `n_items` evenly spaced items.

    Fewer items are checked if their logits would take more than half a gigabyte.

    Raises:
        ValueError: a limit is exceeded, or a value is not a number.

    """
    longest = 1 + max(len(item.tokens) for item in items)  # with one later token
    n_items = max(1, min(n_items, _MAX_LOGITS // (model.vocab_size * longest)))
    sample = items[:: max(1, len(items) // n_items)][:n_items]
    tokens = torch.zeros(len(sample), longest, dtype=torch.int64)
    for row, item in zip(tokens, sample, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    return check_observed(model, tokens, torch.tensor([[item.query] for item in sample]))


@torch.no_grad()
def check_observed(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each of LIMITS on `tokens` [B, T] with the queries `query` [B, 1].

    Raises:
        ValueError: a limit is exceeded, or a value is not a number.

    """
    tokens, query = tokens.to(model.device), query.to(model.device)
    later = torch.arange(tokens.shape[1], device=model.device) > query  # [B, T]
    logits = model.logits(tokens)
    identity = [HeadEdit(layer, 0, weights=lambda weights: weights) for layer in range(model.n_layer)]
    changed = model.logits(torch.where(later, (tokens + 1) % model.vocab_size, tokens))
    violations = _attention_violations(model, tokens, query) | {
        "logits": _relative_error(model.logits(tokens, edits=identity), logits),
        "future_logits": _relative_error(
            changed.masked_fill(later[..., None], 0), logits.masked_fill(later[..., None], 0)
        ),
    }
    for name, limit in LIMITS.items():
        if not violations[name] <= limit:  # nan exceeds every limit
            raise ValueError(f"no report for this model: {_PROBLEMS[name]} (error {violations[name]:.1e})")
    return violations


def _attention_violations(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each limit on attention maps over all layers."""
    future = torch.ones(2 * tokens.shape[-1:], dtype=torch.bool, device=tokens.device).triu(1)
    violations = []
    for record, single in zip(model.record(tokens), model.record(tokens, query), strict=True):
        weights, row = record.scores.softmax(-1), single.scores.softmax(-1)  # [B, H, T, T], [B, H, 1, T]
        same_row = weights.gather(2, query[:, None, :, None].expand_as(row))
        violations.append(
            {
                "head_output": _relative_error(weights @ record.values.float(), record.head_output.float()),
                "query_rows": (row - same_row).abs().max().item(),
                "row_sum": (weights.sum(-1) - 1).abs().max().item(),
                "future_weight": weights.masked_fill(~future, 0).abs().max().item(),
            }
        )
    return {name: float(torch.tensor([layer[name] for layer in violations]).max()) for name in violations[0]}


def _relative_error(value: Tensor, reference: Tensor) -> float:
    """Return the largest difference over the largest reference value; 0 if both are all zero."""
    scale = reference.abs().max().clamp(min=torch.finfo(reference.dtype).tiny)
    return ((value - reference).abs().max() / scale).item()
