"""A causal model of your own, whatever module it is: only its forward pass is written again, with `attend` in it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from data.errors import UserError
from model.observe import (
    HeadEdit,
    HeadWeights,
    LayerRecord,
    ObservableModel,
    apply_edits,
    check_edits,
    check_tokens,
)

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, stream, scores, values -> outputs of the heads


class OwnModel(ObservableModel):
    """The `ObservableModel` of a module in float32: write a subclass with `run`, and give it to `open_model`.

    Measures that need the weights by head (value_contrast, ov_auc) are left out.
    """

    def __init__(self, module: nn.Module, *, n_layer: int, n_head: int, context_length: int, vocab_size: int) -> None:
        self.module = module.eval()
        self.n_layer = n_layer
        self.n_head = n_head
        self.context_length = context_length  # tokens
        self.vocab_size = vocab_size

    def run(self, tokens: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Return the logits [B, T, V] of `tokens` [B, T], and the residual stream [B, T, D] after the last layer.

        Each layer calls `attend(layer, stream, scores, values)` in place of mask, softmax and weighted sum, with the
        stream [B, T, D] before the layer, the scores [B, H, T, T] and the values [B, H, T, K]. It returns the outputs
        of the heads, one after the other, [B, T, H * K].
        """
        raise NotImplementedError(f"{type(self).__name__} needs the method run")

    def untrained(self, seed: int) -> ObservableModel:
        """Return the same model with new random weights; only `probe_model` needs it."""
        raise UserError(f"{type(self).__name__}: the probe compares with untrained models; write untrained(seed)")

    def reference(self, tokens: Tensor) -> Tensor:
        """Return the module's own logits [B, T, V], with which those of `run` are compared when it is opened."""
        logits: Tensor = self.module(tokens)
        return logits

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        check_tokens(tokens, self.context_length, self.vocab_size, positions)
        check_edits(self, edits)
        logits, _, _ = self._pass(tokens, edits)
        if positions is None:
            return logits
        rows = torch.arange(len(tokens), device=tokens.device)
        return logits[rows if positions.ndim == 1 else rows[:, None], positions]

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        check_tokens(tokens, self.context_length, self.vocab_size)
        _, records, _ = self._pass(tokens)
        if query_positions is None:
            return records
        rows = query_positions[:, None, :, None]
        return [record._replace(scores=record.scores.take_along_dim(rows, dim=2)) for record in records]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        check_tokens(tokens, self.context_length, self.vocab_size)
        return self._pass(tokens)[2]

    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, None)

    def unembedding(self) -> Tensor:
        return torch.full((self.vocab_size, 1), torch.nan, device=self.device)  # not known

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        return None

    @torch.no_grad()
    def _pass(self, tokens: Tensor, edits: Sequence[HeadEdit] = ()) -> tuple[Tensor, list[LayerRecord], list[Tensor]]:
        """Return logits, what each layer's attention computed, and the L + 1 residual streams of one pass."""
        records = list[LayerRecord]()
        future = torch.ones(2 * tokens.shape[1:], dtype=torch.bool, device=tokens.device).triu(1)

        def attend(layer: int, stream: Tensor, scores: Tensor, values: Tensor) -> Tensor:
            scores = scores.float().masked_fill(future, float("-inf"))
            weights = scores.softmax(-1)
            apply_edits(weights, layer, [edits], "weights")
            output = weights @ values.float()  # [B, H, T, K]
            apply_edits(output, layer, [edits], "output")
            records.append(LayerRecord(scores, values, output, stream))
            return output.to(values.dtype).transpose(1, 2).flatten(2)

        logits, last = self.run(tokens, attend)
        return logits.float(), records, [*(record.inputs for record in records), last]


def check_passes(model: ObservableModel) -> None:
    """Raise UserError if an object lacks a pass of `ObservableModel`, or a pass is not what its docstring says."""
    kind = type(model).__name__
    for name in (*ObservableModel.__annotations__, *vars(ObservableModel)):
        if not name.startswith("_") and not hasattr(model, name):
            raise UserError(f"{kind} has no {name}; write a subclass of OwnModel, or all of ObservableModel")

    # Logits of all tokens, and of some of them, of edited passes and of the module itself
    length = min(model.context_length, 16)
    tokens = torch.linspace(0, model.vocab_size - 1, 2 * length, device=model.device).long().view(2, length)
    logits = model.logits(tokens)
    if logits.dtype != torch.float32 or logits.shape != (2, length, model.vocab_size):
        raise UserError(f"{kind}: logits must be float32 [texts, tokens, vocabulary]; found {list(logits.shape)}")
    places = torch.tensor([[length - 1, 0], [length // 2, 1]], device=model.device)
    expected = torch.stack([of_text[place] for of_text, place in zip(logits, places, strict=True)])
    for positions, at in ((places, expected), (places[:, 0], expected[:, 0])):
        if not torch.allclose(model.logits(tokens, positions), at, rtol=1e-4, atol=1e-4):
            raise UserError(f"{kind}: the logits at positions are not those rows of all logits")
    for change in ({"output": torch.zeros_like}, {"weights": _on_first}):
        edits = [HeadEdit(layer, head, **change) for layer in range(model.n_layer) for head in range(model.n_head)]
        if torch.equal(model.logits(tokens, edits=edits), logits):
            raise UserError(f"{kind}: edits of the heads' {min(change)} change nothing, so no effect can be measured")
    if isinstance(model, OwnModel):
        reference = model.reference(tokens).float()
        if not torch.allclose(reference, logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max())):
            raise UserError(f"{kind}: the logits of run are not those of the module")

    # The other passes
    heads = [record.scores.shape[1] for record in model.record(tokens)]
    if heads != model.n_layer * [model.n_head]:
        raise UserError(f"{kind}: record has {len(heads)} layers of {heads[:1]} heads, not what n_layer and n_head say")
    shapes = [tuple(stream.shape[:2]) for stream in model.residual_stream(tokens)]
    if shapes != (model.n_layer + 1) * [(2, length)]:
        raise UserError(f"{kind}: residual_stream must have the stream before each layer and after the last")


def _on_first(weights: Tensor) -> Tensor:
    moved = torch.zeros_like(weights)
    moved[..., 0] = 1
    return moved
