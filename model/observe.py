"""Read a model's attention and run it with single heads edited, the same way for every architecture.

`ObservableModel` is all that the probe needs of a model. `TransformerView` implements it for our Transformer,
`model.hf.TransformersView` for the causal language models of transformers. Texts are padded on the right only: the
causal mask hides the padding from every real token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model.transformer import Block, Transformer


@dataclass(frozen=True)
class HeadEdit:
    """A change of one attention head during a forward pass; edits of the same head apply in their order."""

    layer: int
    head: int
    weights: Callable[[Tensor], Tensor] | None = None  # [B, T, T] attention weights of the head -> same shape
    output: Callable[[Tensor], Tensor] | None = None  # [B, T, K] weighted sum of values of the head -> same shape


@dataclass(frozen=True)
class SiteEdit:
    """A change of one attention head at one position of each text, the site."""

    layer: int
    head: int
    weights: Callable[[Tensor], Tensor] | None = None  # [B, T] attention weights of the site's row -> same shape
    output: Callable[[Tensor], Tensor] | None = None  # [B, K] weighted sum of values at the site -> same shape

    def at(self, site: Tensor) -> HeadEdit:
        """Returns the edit of a whole pass that changes the positions `site` [B] only."""
        rows = torch.arange(len(site), device=site.device)

        def changed(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            def apply(values: Tensor) -> Tensor:
                edited = values.clone()
                edited[rows, site] = change(values[rows, site])
                return edited

            return apply

        parts = {"weights": self.weights, "output": self.output}
        return HeadEdit(self.layer, self.head, **{name: changed(part) for name, part in parts.items() if part})


class LayerRecord(NamedTuple):
    """What one attention layer computed in a recorded pass."""

    scores: Tensor  # [B, H, Tq, T] float32 before the softmax, -inf where masked; Tq is T if all rows are recorded
    values: Tensor  # [B, H, T, K], grouped heads repeated
    head_output: Tensor  # [B, H, T, K] weights @ values, before the output projection
    inputs: Tensor  # [B, T, D] normalised residual stream that attention reads


class HeadWeights(NamedTuple):
    """The projections of each head in one layer, grouped heads repeated; None where a name is not known."""

    query: Tensor | None  # [H, K, D]
    key: Tensor | None  # [H, K, D]
    value: Tensor | None  # [H, K, D]
    output: Tensor | None  # [H, D, K]


class ObservableModel(Protocol):
    """A causal language model in eval mode. No method records gradients."""

    n_layer: int  # L
    n_head: int  # query heads per layer, H
    context_length: int  # largest number of tokens in a text
    vocab_size: int  # V

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Returns float32 logits [B, T, V] of `tokens` [B, T], or [B, V] at `positions` [B] only.

        With `streams`, which is `residual_stream(tokens)`, an edited pass may start at the lowest edited layer.
        """

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Returns what each layer's attention computes; `query_positions` [B, Tq] limits the rows of the scores."""

    def attention_scores(self, tokens: Tensor, query_positions: Tensor | None = None) -> Tensor:
        """Returns the scores of all layers before the softmax, [L, B, H, Tq, T]; arguments as `record`."""
        return torch.stack([record.scores for record in self.record(tokens, query_positions)])

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Returns the residual stream before each layer and after the last: L + 1 tensors [B, T, D]."""

    def site_pass(self, tokens: Tensor, site: Tensor) -> "SitePass":
        """Returns a pass over `tokens` [B, T] whose logits at the positions `site` [B] can be computed with edits."""
        return SitePass(self, tokens, site)

    def head_weights(self, layer: int) -> HeadWeights:
        """Returns the projections of each head."""

    def unembedding(self) -> Tensor:
        """Returns the output embedding [V, D]."""

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Pulls `direction` [..., D] back through the final norm, which reads `stream` [..., D]; None if not known.

        The norm's divisor is held fixed. The dot product of the result with a term of the residual stream is that
        term's contribution to the dot product of `direction` with the normalised stream.
        """


class SiteRecord(NamedTuple):
    """What the heads of one layer computed at the site, without edits."""

    weights: Tensor  # [B, H, T] attention weights of the site's row
    output: Tensor  # [B, H, K] weighted sum of values


class SitePass:
    """The logits at one position of each text, without and with edits of heads there. This one runs whole passes."""

    def __init__(self, model: ObservableModel, tokens: Tensor, site: Tensor) -> None:
        """Runs the unedited pass over `tokens` [B, T]; `site` [B] are the positions."""
        self._model, self._tokens, self._site = model, tokens, site
        self._rows = torch.arange(len(site), device=site.device)
        self._streams = model.residual_stream(tokens)

    def logits(self, edits: Sequence[SiteEdit] = ()) -> Tensor:
        """Returns the logits [B, V] of the token after the site."""
        return self.edited_logits([edits])[0]

    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]]) -> Tensor:
        """Returns the logits [E, B, V] with each of E lists of edits."""
        found = []
        for edits in edit_lists:
            whole = [edit.at(self._site) for edit in edits]
            found.append(self._model.logits(self._tokens, self._site, whole, self._streams))
        return torch.stack(found)

    def records(self) -> list[SiteRecord]:
        """Returns what the heads of each layer computed at the site."""
        found = []
        for record in self._model.record(self._tokens, self._site[:, None]):
            found.append(SiteRecord(record.scores[:, :, 0].softmax(-1), record.head_output[self._rows, :, self._site]))
        return found

    def final_stream(self) -> Tensor:
        """Returns the unedited residual stream [B, D] at the site after the last layer."""
        return self._streams[-1][self._rows, self._site]


class TransformerView(ObservableModel):
    """The `ObservableModel` of our `Transformer`; the model must be in eval mode and causal."""

    def __init__(self, model: Transformer) -> None:
        """Wraps `model` without copying it."""
        self.model = model
        self.n_layer, self.n_head = model.config.n_layer, model.config.n_head
        self.context_length, self.vocab_size = model.config.context_length, model.vocab_size

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.token_embedding.weight.device

    @torch.no_grad()
    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Returns float32 logits [B, T, V], or [B, V] at `positions` [B]."""
        first = min((edit.layer for edit in edits), default=self.n_layer) if streams is not None else 0
        x = self.model.embed(tokens) if streams is None else streams[first]
        for layer, block in enumerate(self.model.layers()[first:], first):
            layer_edits = [edit for edit in edits if edit.layer == layer]
            x = edited_block(block, x, layer_edits) if layer_edits else block(x)
        if positions is not None:
            x = x[torch.arange(len(x), device=x.device), positions]
        return self.model.unembed(x).float()

    @torch.no_grad()
    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Returns what each layer's attention computes, as in training, and the scores by the formula."""
        x, records = self.model.embed(tokens), list[LayerRecord]()
        for block in self.model.layers():
            inputs = block.norm_1(x)
            query, key, value = block.attention.project(inputs)
            head_output = block.attention.weighted_values(query, key, value)
            scores = block.attention.scores(query, key, query_positions)
            records.append(LayerRecord(scores, value, head_output, inputs))
            if len(records) < self.n_layer:  # nothing reads the stream after the last layer
                x = x + block.attention.merge_heads(head_output)
                x = x + block.mlp(block.norm_2(x))
        return records

    @torch.no_grad()
    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Returns the residual stream before each layer and after the last: L + 1 tensors [B, T, D]."""
        streams = [self.model.embed(tokens)]
        for block in self.model.layers():
            streams.append(block(streams[-1]))
        return streams

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        """Returns a pass that computes only the edited position again."""
        return TransformerSitePass(self, tokens, site)

    def head_weights(self, layer: int) -> HeadWeights:
        """Returns the projections of each head."""
        return HeadWeights(*(weight.detach() for weight in self.model.layers()[layer].attention.by_head()))

    def unembedding(self) -> Tensor:
        """Returns the output embedding [V, D]."""
        return self.model.token_embedding.weight.detach()

    @torch.no_grad()
    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor:
        """Pulls a direction [..., D] back through the final RMSNorm, with the RMS of `stream` [..., D] held fixed."""
        norm = self.model.final_norm
        return direction * norm.gain / (stream.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()


class TransformerSitePass(SitePass):
    """The site's logits from keys and values of one unedited pass: an edit at the site changes no other position."""

    @torch.no_grad()
    def __init__(self, view: TransformerView, tokens: Tensor, site: Tensor) -> None:
        """Keeps keys and values [B, H, T, K] of all layers and the stream [B, 1, D] at the site before each."""
        self._transformer, self._site = view.model, site
        self._rows = torch.arange(len(site), device=site.device)
        self._keys, self._values, self._inputs = list[Tensor](), list[Tensor](), list[Tensor]()
        x = view.model.embed(tokens)
        for block in view.model.layers():
            self._inputs.append(x[self._rows, site][:, None])
            query, key, value = block.attention.project(block.norm_1(x))
            self._keys.append(key)
            self._values.append(value)
            x = x + block.attention.merge_heads(block.attention.weighted_values(query, key, value))
            x = x + block.mlp(block.norm_2(x))
        self._final = x[self._rows, site]

    @torch.no_grad()
    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]]) -> Tensor:
        """Returns the logits [E, B, V] with each of E lists of edits."""
        # Every list has its own copy of the texts, [E * B, 1, D], from the lowest edited layer on.
        n_lists, n_texts = len(edit_lists), len(self._site)
        first = min((edit.layer for edits in edit_lists for edit in edits), default=len(self._inputs))
        inputs = [*self._inputs, self._final[:, None]]
        x = inputs[first].repeat(n_lists, 1, 1)
        site, rows = self._site.repeat(n_lists), torch.arange(n_lists * n_texts, device=self._site.device)
        for layer, block in enumerate(self._transformer.layers()[first:], first):
            # The site's own key and value depend on the edits below; those of all other positions do not.
            query, key, value = block.attention.project_site(block.norm_1(x), site)  # each [E * B, H, 1, K]
            keys, values = (kept[layer].repeat(n_lists, 1, 1, 1) for kept in (self._keys, self._values))
            keys[rows, :, site] = key[:, :, 0]
            values[rows, :, site] = value[:, :, 0]
            weights = block.attention.site_scores(query, keys, site).softmax(-1)[:, :, 0]  # [E * B, H, T]
            edit_rows(weights, layer, edit_lists, "weights")
            head_output = (weights[:, :, None] @ values.float())[:, :, 0]  # [E * B, H, K]
            edit_rows(head_output, layer, edit_lists, "output")
            x = x + block.attention.merge_heads(head_output[:, :, None].to(x.dtype))
            x = x + block.mlp(block.norm_2(x))
        return self._transformer.unembed(x[:, 0]).float().unflatten(0, (n_lists, n_texts))

    @torch.no_grad()
    def records(self) -> list[SiteRecord]:
        """Returns what the heads of each layer computed at the site."""
        found = []
        for layer, block in enumerate(self._transformer.layers()):
            query, _, _ = block.attention.project_site(block.norm_1(self._inputs[layer]), self._site)
            weights = block.attention.site_scores(query, self._keys[layer], self._site).softmax(-1)  # [B, H, 1, T]
            output = weights @ self._values[layer].float()  # [B, H, 1, K]
            found.append(SiteRecord(weights[:, :, 0], output[:, :, 0]))
        return found

    def final_stream(self) -> Tensor:
        """Returns the unedited residual stream [B, D] at the site after the last layer."""
        return self._final


def edit_rows(values: Tensor, layer: int, edit_lists: Sequence[Sequence[SiteEdit]], part: str) -> None:
    """Applies the edits of one layer's `part`, "weights" or "output", to `values` [E * B, H, ...], in place."""
    by_list = values.unflatten(0, (len(edit_lists), -1))  # [E, B, H, ...]
    for i, edits in enumerate(edit_lists):
        for edit in edits:
            change = getattr(edit, part)
            if edit.layer == layer and change is not None:
                by_list[i, :, edit.head] = change(by_list[i, :, edit.head])


def edited_block(block: Block, x: Tensor, edits: Sequence[HeadEdit]) -> Tensor:
    """Returns the residual stream [B, T, D] after `block`, computed by the formula with `edits` applied."""
    query, key, value = block.attention.project(block.norm_1(x))
    weights = block.attention.scores(query, key).softmax(-1)  # [B, H, T, T]
    head_output = apply_edits(weights, value, edits)
    x = x + block.attention.merge_heads(head_output.to(x.dtype))
    return x + block.mlp(block.norm_2(x))


def apply_edits(weights: Tensor, values: Tensor, edits: Sequence[HeadEdit]) -> Tensor:
    """Returns the head outputs [B, H, T, K] of one layer after all `edits` of its weights, then of its outputs.

    The `weights` [B, H, T, T] are changed in place; `values` are [B, H, T, K].
    """
    for edit in edits:
        if edit.weights is not None:
            weights[:, edit.head] = edit.weights(weights[:, edit.head])
    head_output = weights @ values.float()
    for edit in edits:
        if edit.output is not None:
            head_output[:, edit.head] = edit.output(head_output[:, edit.head])
    return head_output
