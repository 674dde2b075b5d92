"""Checks that the recorded attention is the attention the model uses; a model that fails is not reported.

Fused attention kernels have hidden or corrupted attention in several public libraries, for example by losing a causal
mask. So the recorded pass is compared with the model's usual pass on every checkpoint that is probed.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from data.errors import UserError
from data.pairs import Cell
from model.observe import HeadEdit, ObservableModel

# Largest violation allowed in float32, and the problem if it is larger. Sums of a few hundred terms in another order
# differ by about 1e-6 relative.
LIMITS = {
    # Each head's output against softmax(scores) @ values, relative to the largest value.
    "head_output": (1e-4, "the recorded attention is not the attention the model uses"),
    # Logits of the explicit pass against those of the usual pass, relative.
    "logits": (1e-4, "the recorded pass does not end in the model's logits"),
    # Weights recorded at single queries against the same rows of the whole map.
    "query_rows": (1e-5, "a single recorded row differs from the same row of the whole map"),
    # Distance of a row's sum from 1.
    "row_sum": (1e-5, "attention weights do not sum to one"),
    # Weight on any later token.
    "future_weight": (0.0, "attention rests on later tokens"),
    # Change of earlier logits if every later token changes, relative.
    "future_logits": (1e-6, "later tokens change earlier logits"),
}
_MAX_LOGITS = 2**27  # numbers, half a gigabyte in float32


def check_contract(model: ObservableModel, cells: Sequence[Cell], n_cells: int = 64) -> dict[str, float]:
    """Return the largest violation of each of LIMITS over up to `n_cells` evenly spaced cells.

    Fewer cells are checked if their logits would take more than half a gigabyte.

    Raises:
        UserError: a limit is exceeded, or a value is not a number.

    """
    longest = 1 + max(len(cell.tokens) for cell in cells)  # with one later token
    n_cells = max(1, min(n_cells, _MAX_LOGITS // (model.vocab_size * longest)))
    sample = cells[:: max(1, len(cells) // n_cells)][:n_cells]

    # Texts are padded with token 0: later tokens, which must not change anything.
    tokens = torch.zeros(len(sample), longest, dtype=torch.int64)
    for row, cell in zip(tokens, sample, strict=True):
        row[: len(cell.tokens)] = torch.tensor(cell.tokens)
    return check_observed(model, tokens, torch.tensor([[cell.query] for cell in sample]))


@torch.no_grad()
def check_observed(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each of LIMITS on `tokens` [B, T] with the queries `query` [B, 1].

    Raises:
        UserError: a limit is exceeded, or a value is not a number.

    """
    tokens = tokens.to(model.device)
    query = query.to(model.device)
    violations = _attention_violations(model, tokens, query)

    # An edit that changes nothing makes the model compute its attention explicitly.
    logits = model.logits(tokens)  # [B, T, V]
    identity = [HeadEdit(layer, 0, weights=lambda weights: weights) for layer in range(model.n_layer)]
    violations["logits"] = _relative_error(model.logits(tokens, edits=identity), logits)

    # Other tokens after the query; the logits up to the query must stay.
    later = torch.arange(tokens.shape[1], device=model.device) > query  # [B, T]
    changed = model.logits(torch.where(later, (tokens + 1) % model.vocab_size, tokens))
    is_later = later[..., None]
    violations["future_logits"] = _relative_error(changed.masked_fill(is_later, 0), logits.masked_fill(is_later, 0))
    for name, (limit, problem) in LIMITS.items():
        if not violations[name] <= limit:  # nan exceeds every limit
            raise UserError(f"no report for this model: {problem} (error {violations[name]:.1e})")
    return violations


def _attention_violations(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each limit on attention maps over all layers."""
    future = torch.ones(2 * tokens.shape[-1:], dtype=torch.bool, device=tokens.device).triu(1)
    violations: dict[str, list[float]] = defaultdict(list)
    for record, single in zip(model.record(tokens), model.record(tokens, query), strict=True):
        weights = record.scores.softmax(-1)  # [B, H, T, T]
        head_output = _relative_error(weights @ record.values.float(), record.head_output.float())
        violations["head_output"].append(head_output)

        # The row of the query, from the whole map and recorded alone.
        row = single.scores.softmax(-1)  # [B, H, 1, T]
        same_row = weights.gather(2, query[:, None, :, None].expand_as(row))
        violations["query_rows"].append((row - same_row).abs().max().item())

        violations["row_sum"].append((weights.sum(-1) - 1).abs().max().item())
        violations["future_weight"].append(weights.masked_fill(~future, 0).abs().max().item())

    # max() of Python could lose a nan; that of torch keeps it.
    return {name: float(torch.tensor(values).max()) for name, values in violations.items()}


def _relative_error(value: Tensor, reference: Tensor) -> float:
    """Return the largest difference over the largest reference value; 0 if both are all zero."""
    scale = reference.abs().max().clamp(min=torch.finfo(reference.dtype).tiny)
    return ((value - reference).abs().max() / scale).item()
