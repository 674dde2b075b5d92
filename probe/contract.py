"""Checks that the recorded attention is the attention the model uses; a model that fails is not reported.

Fused attention kernels have hidden or corrupted attention in several public libraries, for example by losing a causal
mask. So the recorded pass is compared with the model's usual pass on every checkpoint that is probed.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from data.pairs import Cell
from model.observe import HeadEdit, ObservableModel
from probe.batches import pad_rows
from settings.errors import UserError

# Largest violation allowed in float32, and the problem if it is larger. Sums of a few hundred terms in another order
# differ by about 1e-6 relative.
LIMITS = {
    "head_output": (1e-4, "the recorded attention is not the attention the model uses"),  # relative
    "query_rows": (1e-5, "a single recorded row differs from the same row of the whole map"),
    "row_sum": (1e-5, "attention weights do not sum to one"),  # with sinks: sum to more
    "future_weight": (0.0, "attention rests on later tokens"),
    "future_logits": (1e-6, "later tokens change earlier logits"),  # relative
    "logits": (1e-4, "the recorded pass does not end in the model's logits"),  # relative
}
_MAX_LOGITS = 2**25  # numbers, 0.1 GB in float32; four such arrays are in memory


def check_contract(model: ObservableModel, cells: Sequence[Cell], n_cells: int = 64) -> dict[str, float]:
    """Return the violations of `check_observed` over up to `n_cells` evenly spaced cells.

    Fewer cells are checked if their logits would take more than 0.1 GB.
    """
    longest = 1 + max(len(cell.tokens) for cell in cells)  # with one later token
    n_cells = max(1, min(n_cells, _MAX_LOGITS // (model.vocab_size * longest)))
    sample = cells[:: max(1, len(cells) // n_cells)][:n_cells]

    tokens = F.pad(pad_rows([cell.tokens for cell in sample]), (0, 1))  # later tokens, which must change nothing
    return check_observed(model, tokens, torch.tensor([[cell.query] for cell in sample]))


@torch.no_grad()
def check_observed(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each of LIMITS on `tokens` [B, T] with the queries `query` [B, 1].

    UserError if a limit is exceeded, or a value is not a number.
    """
    tokens = tokens.to(model.device)
    query = query.to(model.device)
    violations = _map_violations(model, tokens, query)

    # The recorded outputs in place of those of a pass change nothing, if it uses them.
    logits = model.logits(tokens)  # [B, T, V]
    edits = []
    for layer, record in zip(model.attention_layers, model.record(tokens), strict=True):
        for head, output in enumerate(record.head_output.unbind(1)):
            edits.append(HeadEdit(layer, head, output=output.type_as))
    violations["logits"] = _relative_error(model.logits(tokens, edits=edits), logits)

    # Other tokens after the query; the logits up to the query must stay.
    later = torch.arange(tokens.shape[1], device=model.device) > query  # [B, T]
    changed = model.logits(torch.where(later, (tokens + 1) % model.vocab_size, tokens))
    is_later = later[..., None]
    violations["future_logits"] = _relative_error(changed.masked_fill(is_later, 0), logits.masked_fill(is_later, 0))
    for name, (limit, problem) in LIMITS.items():
        if not violations[name] <= limit:  # nan exceeds every limit
            raise UserError(f"no report for this model: {problem} (error {violations[name]:.1e})")
    return violations


def _map_violations(model: ObservableModel, tokens: Tensor, query: Tensor) -> dict[str, float]:
    """Return the largest violation of each limit on attention maps over all layers."""
    future = torch.ones(2 * tokens.shape[-1:], dtype=torch.bool, device=tokens.device).triu(1)
    violations: dict[str, list[float]] = defaultdict(list)
    for record, single in zip(model.record(tokens), model.record(tokens, query), strict=True):
        weights = record.weights()  # [B, H, T, T]
        output = weights @ record.values.float()
        violations["head_output"].append(_relative_error(output, record.head_output.float()))

        # The row of the query, from the whole map and recorded alone.
        row = single.weights()  # [B, H, 1, T]
        same_row = weights.gather(2, query[:, None, :, None].expand_as(row))
        violations["query_rows"].append((row - same_row).abs().max().item())

        beyond_one = weights.sum(-1) - 1
        violations["row_sum"].append((beyond_one.abs() if record.sinks is None else beyond_one).max().item())
        violations["future_weight"].append(weights.masked_fill(~future, 0).abs().max().item())

    # max() of Python could lose a nan; that of torch keeps it.
    return {name: float(torch.tensor(values).max()) for name, values in violations.items()}


def _relative_error(value: Tensor, reference: Tensor) -> float:
    """Return the largest difference over the largest reference value; 0 if both are all zero."""
    scale = reference.abs().max().clamp(min=torch.finfo(reference.dtype).tiny)
    return ((value - reference).abs().max() / scale).item()
