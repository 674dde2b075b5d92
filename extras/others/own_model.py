"""A causal model of your own, whatever module it is: only its forward pass is written again, with `attend` in it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.observe import HeadEdit, ObservableModel, ObservedModel, Pass, SitePass, at_positions
from probe.edits import all_heads
from settings.errors import UserError, one_line

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, stream, scores, values -> outputs of the heads


class OwnModel(ObservedModel):
    """The `ObservableModel` of a module in float32: write a subclass with `run`, and give it to `open_model`.

    Measures that need the weights by head (value_contrast) are left out.
    """

    starts_late = False

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

    def forward(self, tokens: Tensor, current: Pass) -> Tensor:
        self.module.eval()  # its owner may have trained it
        future = torch.ones(2 * tokens.shape[1:], dtype=torch.bool, device=tokens.device).triu(1)

        def attend(layer: int, stream: Tensor, scores: Tensor, values: Tensor) -> Tensor:
            current.keep(stream)
            output = current.from_scores(layer, scores.float().masked_fill(future, float("-inf")), values)
            return output.to(values.dtype).transpose(1, 2).flatten(2)

        logits, last = self.run(tokens, attend)
        current.keep(last)
        return at_positions(logits.float(), current.positions)

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        return SitePass(self, tokens, site)  # its queries and keys are not known

    def unembedding(self) -> Tensor:
        return torch.full((self.vocab_size, 1), torch.nan, device=self.device)  # not known


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
    expected = at_positions(logits, places)
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
        if not are_near(reference, logits):
            raise UserError(f"{kind}: the logits of run are not those of the module")

    shapes = [tuple(stream.shape[:2]) for stream in model.residual_stream(tokens)]
    if shapes != (model.n_layer + 1) * [(2, length)]:
        raise UserError(f"{kind}: residual_stream must have the stream before each layer and after the last")


def are_near(logits: Tensor, expected: Tensor) -> bool:
    """Return whether logits differ by no more than rounding and another order of sums."""
    return torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def _on_first(weights: Tensor) -> Tensor:
    moved = torch.zeros_like(weights)
    moved[..., 0] = 1
    return moved
