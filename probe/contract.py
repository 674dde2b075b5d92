"""Checks that the recorded attention is the attention the model uses; a model that fails is not reported.

Fused attention kernels have hidden or corrupted attention in several public libraries, for example by losing a causal
mask. So the recorded pass is compared with the model's usual pass on every checkpoint that is probed.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from data.tested.pairs import Cell
from model.observe import HeadEdit, ObservableModel
from model.own_model import OwnModel
from probe.batches import pad_rows
from probe.edits import all_heads
from settings.errors import UserError, one_line

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


def check_passes(model: ObservableModel) -> None:
    """Raise UserError if an object lacks a pass of `ObservableModel`, or a pass is not what its docstring says."""
    kind = type(model).__name__
    for name in (*ObservableModel.__annotations__, *vars(ObservableModel), "untrained"):
        if not name.startswith("_") and not hasattr(model, name):
            raise UserError(f"{kind} has no {name}; write a subclass of OwnModel, or all of ObservableModel")

    length = min(model.context_length, 16)
    tokens = torch.linspace(0, model.vocab_size - 1, 2 * length, device=model.device).long().view(2, length)
    try:
        logits = model.logits(tokens)
    except (IndexError, RuntimeError) as error:
        raise UserError(f"{kind}: cannot read the tokens 0 to {model.vocab_size - 1}: {one_line(error)}") from None
    if logits.dtype != torch.float32 or logits.shape != (2, length, model.vocab_size):
        raise UserError(f"{kind}: logits must be float32 [texts, tokens, vocabulary]; found {list(logits.shape)}")
    if not torch.allclose(model.logits(tokens[:1]), logits[:1], rtol=1e-4, atol=1e-4):
        raise UserError(f"{kind}: a text has other logits alone than beside another text")
    places = torch.tensor([[length - 1, 0], [length // 2, 1]], device=model.device)
    expected = torch.stack([of_text[place] for of_text, place in zip(logits, places, strict=True)])
    for positions, at in ((places, expected), (places[:, 0], expected[:, 0])):
        found = model.logits(tokens, positions)
        if found.shape != at.shape or not torch.allclose(found, at, rtol=1e-4, atol=1e-4):
            raise UserError(f"{kind}: the logits at positions are not those rows of all logits")

    heads = [record.scores.shape[1] for record in model.record(tokens)]
    if heads != len(model.attention_layers) * [model.n_head]:
        recorded = f"record has {len(heads)} layers of {heads[:1]} heads"
        raise UserError(f"{kind}: {recorded}, not what attention_layers and n_head say")
    edits = {f"the output of {head}": [HeadEdit(*head, output=torch.ones_like)] for head in all_heads(model)}
    edits["the heads' weights"] = [HeadEdit(*head, weights=_on_first) for head in all_heads(model)]
    for what, each in edits.items():
        if torch.equal(model.logits(tokens, edits=each), logits):
            raise UserError(f"{kind}: edits of {what} change nothing, so no effect can be measured")
    if isinstance(model, OwnModel):
        reference = model.reference(tokens).float()
        if not torch.allclose(reference, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max())):
            raise UserError(f"{kind}: the logits of run are not those of the module")

    shapes = [tuple(stream.shape[:2]) for stream in model.residual_stream(tokens)]
    if shapes != (model.n_layer + 1) * [(2, length)]:
        raise UserError(f"{kind}: residual_stream must have the stream before each layer and after the last")


def _on_first(weights: Tensor) -> Tensor:
    moved = torch.zeros_like(weights)
    moved[..., 0] = 1
    return moved
