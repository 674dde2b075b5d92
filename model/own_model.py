"""A causal model of your own, whatever module it is: only its forward pass is written again, with `attend` in it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.observe import ObservableModel, ObservedModel, Pass, SitePass, at_positions
from settings.errors import UserError

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

    def output_weights(self, layer: int) -> Tensor | None:
        return None

    def unembedding(self) -> Tensor:
        return torch.full((self.vocab_size, 1), torch.nan, device=self.device)  # not known

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        return None
