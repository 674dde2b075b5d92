"""Observe a model's attention and run it with single heads edited, for every architecture alike.

`ObservableModel` is all that the probe needs of a model. `TransformerView` implements it for our Transformer,
`PretrainedView` (model/pretrained_view.py) for the causal language models of transformers. Texts are padded on the
right only: the causal mask hides the padding from every real token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from model.transformer import Block, Transformer
from settings.errors import UserError

Change = Callable[[Tensor], Tensor]  # the result has the shape of the argument


@dataclass(frozen=True)
class HeadEdit:
    """A change of one attention head during a forward pass; edits of the same head apply in their order."""

    layer: int
    head: int
    weights: Change | None = None  # for the attention weights [B, T, T] of the head
    output: Change | None = None  # for the weighted sum of values [B, T, K] of the head
    token: int = 0  # the last position that it names, which every text must have


@dataclass(frozen=True)
class SiteEdit:
    """A change of one attention head at one position of each text, the site."""

    layer: int
    head: int
    weights: Change | None = None  # for the attention weights [B, T] of the site's row
    output: Change | None = None  # for the weighted sum of values [B, K] at the site

    def at(self, site: Tensor) -> HeadEdit:
        """Return the edit of a whole pass that changes the positions `site` [B] only."""
        return HeadEdit(self.layer, self.head, _at_site(self.weights, site), _at_site(self.output, site))


def _at_site(change: Change | None, site: Tensor) -> Change | None:
    """Return the change of values [B, T, ...] that changes those at `site` [B] as `change` does."""
    if change is None:
        return None

    def apply(values: Tensor) -> Tensor:
        edited = values.clone()
        edited[torch.arange(len(site), device=site.device), site] = change(at_positions(values, site))
        return edited

    return apply


class LayerRecord(NamedTuple):
    """What one attention layer computed in a recorded pass."""

    scores: Tensor  # [B, H, Tq, T] float32 before the softmax, -inf where masked; Tq: recorded rows
    values: Tensor  # [B, H, T, K], grouped heads repeated
    head_output: Tensor  # [B, H, T, K] weights @ values, before the output projection
    sinks: Tensor | None = None  # [H] scores of what takes weight besides the tokens (gpt-oss)
    gate: Tensor | None = None  # [B, H, T, K] factor of head_output before the output projection (Qwen3.5)

    def weights(self) -> Tensor:
        """Return the attention weights [B, H, Tq, T]; with sinks the rows sum to less than 1."""
        return softmax(self.scores, self.sinks)


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return scores [B, H, Tq, T] with the sinks [H] as a last column; without sinks as they are."""
    if sinks is None:
        return scores
    column = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the weights [B, H, Tq, T] of scores; the column of the sinks is dropped after the softmax."""
    return with_sinks(scores, sinks).softmax(-1)[..., : scores.shape[-1]]


class ObservableModel(Protocol):
    """A causal language model in eval mode. No method records gradients."""

    n_layer: int  # L
    n_head: int  # query heads per layer, H
    context_length: int  # largest number of tokens in a text
    vocab_size: int  # V

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    def attention_layers(self) -> Sequence[int]:
        """The layers with attention, in order; the others of a hybrid have no heads."""
        return range(self.n_layer)

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Return float32 logits [B, T, V] of `tokens` [B, T]; [B, V] at `positions` [B], or [B, n, V] at [B, n].

        With `streams`, which is `residual_stream(tokens)`, an edited pass may start at the lowest edited layer.
        Raise UserError for `tokens` or `edits` that this model cannot take.
        """

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Return what each of `attention_layers` computes; `query_positions` [B, Tq] limits the rows of the scores."""

    def attention_weights(self, tokens: Tensor) -> Tensor:
        """Return the attention weights of all layers, [L, B, H, T, T]; nan in a layer without attention."""
        n_texts, length = tokens.shape
        weights = torch.full((self.n_layer, n_texts, self.n_head, length, length), torch.nan, device=self.device)
        for layer, record in zip(self.attention_layers, self.record(tokens), strict=True):
            weights[layer] = record.weights()
        return weights

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Return the residual stream before each layer and after the last: L + 1 times [B, T, D]."""

    def site_pass(self, tokens: Tensor, site: Tensor) -> "SitePass":
        """Return a pass over `tokens` [B, T] that gives the logits at `site` [B], also with edits."""
        return SitePass(self, tokens, site)

    def output_weights(self, layer: int) -> Tensor | None:
        """Return the output projection of each head, [H, D, K]; None if it is not known."""

    def unembedding(self) -> Tensor:
        """Return the output embedding [V, D]."""

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Pull `direction` [..., D] back through the final norm, which reads `stream` [..., D]; None if not known.

        The norm's divisor is held fixed. The dot product with a term of the stream is then that term's contribution.
        """


def check_tokens(tokens: Tensor, longest: int, vocab_size: int, positions: Tensor | None = None) -> None:
    """Raise UserError unless `tokens` are ids [B, T] with T from 1 to `longest`, and `positions` [B, ...] in them."""
    if not _are_whole(tokens) or tokens.ndim != 2:
        raise UserError("tokens: must be a tensor of token ids (integers) [texts, tokens]")
    if not 1 <= tokens.shape[1] <= longest:
        raise UserError(f"tokens: the model reads 1 to {longest:,} tokens; found {tokens.shape[1]:,}")
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        found = f"found {int(tokens.min())} to {int(tokens.max())}"
        raise UserError(f"tokens: the model has the tokens 0 to {vocab_size - 1:,}; {found}")
    if positions is None:
        return
    if not _are_whole(positions) or positions.ndim not in (1, 2) or len(positions) != len(tokens):
        raise UserError(f"positions: must be integers [texts] or [texts, n] for {len(tokens)} texts")
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < tokens.shape[1]:
        raise UserError(f"positions: must be from 0 to {tokens.shape[1] - 1}, the last token of the longest text")


def at_positions(values: Tensor, positions: Tensor | None) -> Tensor:
    """Return `values` [B, T, ...] at `positions` [B] as [B, ...], or at [B, n] as [B, n, ...]; None: all."""
    if positions is None:
        return values
    rows = torch.arange(len(values), device=values.device)
    return values[rows if positions.ndim == 1 else rows[:, None], positions]


def _are_whole(values: object) -> bool:
    return isinstance(values, Tensor) and values.dtype in (torch.int64, torch.int32)


def check_edits(model: ObservableModel, edits: Sequence[HeadEdit]) -> None:
    """Raise UserError unless `edits` is a list of edits of heads that `model` has."""
    if not isinstance(edits, Sequence) or not all(isinstance(edit, HeadEdit) for edit in edits):
        raise UserError("edits: must be a list of edits, for example [remove_head(0, 1)]")
    for edit in edits:
        if edit.layer not in model.attention_layers or not 0 <= edit.head < model.n_head:
            limits = f"layers 0 to {model.n_layer - 1} and heads 0 to {model.n_head - 1}{only_layers(model)}"
            raise UserError(f"edits: no head L{edit.layer}H{edit.head}; the model has {limits}")


def only_layers(model: ObservableModel) -> str:
    """Return which layers have attention, to stand after the shape of a model; "" if all have it."""
    layers = model.attention_layers
    return "" if len(layers) == model.n_layer else f", attention in the layers {', '.join(map(str, layers))} only"


class SiteRecord(NamedTuple):
    """What the heads of one layer computed at the site, without edits."""

    weights: Tensor  # [B, H, T] attention weights of the site's row
    output: Tensor  # [B, H, K] weighted sum of values, times the gate if there is one


class SitePass:
    """The logits at one position of each text, without and with edits of heads there. This one runs whole passes."""

    def __init__(self, model: ObservableModel, tokens: Tensor, site: Tensor) -> None:
        """Run the unedited pass over `tokens` [B, T]; `site` [B] are the positions."""
        self._model = model
        self._tokens = tokens
        self._site = site
        self._streams = model.residual_stream(tokens)

    def logits(self, edits: Sequence[SiteEdit] = ()) -> Tensor:
        """Return the logits [B, V] of the token after the site."""
        return self.edited_logits([edits])[0]

    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]], words: Tensor | None = None) -> Tensor:
        """Return the logits [E, B, V] with each of E lists of edits, or [E, B, n] of the tokens `words` [B, n] only."""
        logits = []
        for edits in edit_lists:
            head_edits = [edit.at(self._site) for edit in edits]
            logits.append(self._model.logits(self._tokens, self._site, head_edits, self._streams))
        return of_words(torch.stack(logits), words)

    def records(self) -> dict[int, SiteRecord]:
        """Return what the heads computed at the site, by layer."""
        records = {}
        of_layers = self._model.record(self._tokens, self._site[:, None])
        for layer, record in zip(self._model.attention_layers, of_layers, strict=True):
            output = record.head_output if record.gate is None else record.head_output * record.gate
            at_site = at_positions(output.transpose(1, 2), self._site)
            records[layer] = SiteRecord(record.weights()[:, :, 0], at_site)
        return records

    def final_stream(self) -> Tensor:
        """Return the unedited residual stream [B, D] at the site after the last layer."""
        return at_positions(self._streams[-1], self._site)


class TransformerView(ObservableModel):
    """The `ObservableModel` of our `Transformer`; the model must be in eval mode."""

    def __init__(self, model: Transformer) -> None:
        self.model = model  # not copied
        self.n_layer = model.config.n_layer
        self.n_head = model.config.n_head
        self.context_length = model.config.context_length
        self.vocab_size = model.vocab_size

    @property
    def device(self) -> torch.device:
        return self.model.token_embedding.weight.device

    @torch.no_grad()
    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        check_tokens(tokens, self.context_length, self.vocab_size, positions)
        check_edits(self, edits)

        # The layers below the first edit need not run again if their streams are given.
        first = 0 if streams is None else min((edit.layer for edit in edits), default=self.n_layer)
        x = self.model.embed(tokens) if streams is None else streams[first]  # [B, T, D]

        # After the attention of the last layer only the asked positions are needed.
        for layer, block in enumerate(self.model.layers()[first:], first):
            rows = positions if layer == self.n_layer - 1 else None
            x = _block_output(block, x, layer, edits, rows)
        if first == self.n_layer:
            x = at_positions(x, positions)
        return self.model.unembed(x).float()

    @torch.no_grad()
    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Return what attention computes, as in training, and the scores by the formula."""
        check_tokens(tokens, self.context_length, self.vocab_size)
        records = list[LayerRecord]()
        x = self.model.embed(tokens)  # [B, T, D]
        for block in self.model.layers():
            query, key, value = block.attention.project(block.norm_1(x))  # each [B, H, T, K]
            head_output = block.attention.weighted_values(query, key, value)
            if query_positions is not None:
                query = query.take_along_dim(query_positions[:, None, :, None], dim=2)
            scores = block.attention.scores(query, key, query_positions)  # [B, H, Tq, T]
            records.append(LayerRecord(scores, value, head_output))
            if len(records) < self.n_layer:  # nothing reads the stream after the last layer
                x = x + block.attention.merge_heads(head_output)
                x = x + block.mlp(block.norm_2(x))
        return records

    @torch.no_grad()
    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        check_tokens(tokens, self.context_length, self.vocab_size)
        streams = [self.model.embed(tokens)]
        for block in self.model.layers():
            streams.append(block(streams[-1]))
        return streams

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        return TransformerSitePass(self, tokens, site)

    def output_weights(self, layer: int) -> Tensor | None:
        weight: Tensor = self.model.layers()[layer].attention.output.weight.detach()
        by_head: Tensor = weight.unflatten(1, (self.n_head, -1)).transpose(0, 1)
        return by_head

    def unembedding(self) -> Tensor:
        return self.model.token_embedding.weight.detach()

    @torch.no_grad()
    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        norm = self.model.final_norm
        return direction * norm.gain / (stream.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()


def _block_output(block: Block, x: Tensor, layer: int, edits: Sequence[HeadEdit], positions: Tensor | None) -> Tensor:
    """Return the residual stream [B, T, D] after `block` with the edits of this `layer`, at `positions` if given."""
    # An edited layer needs its weights, by the formula; the others run as in training.
    query, key, value = block.attention.project(block.norm_1(x))
    if any(edit.layer == layer for edit in edits):
        _, head_output = edited_heads(block.attention.scores(query, key), value, layer, edits)
    else:
        head_output = block.attention.weighted_values(query, key, value)

    # [B, T, H, K], or of the positions [B, H, K] or [B, n, H, K]
    of_rows = at_positions(head_output.transpose(1, 2), positions)
    x = at_positions(x, positions)
    x = x + block.attention.output(of_rows.flatten(-2).to(x.dtype))
    x = x + block.mlp(block.norm_2(x))
    return x


def edited_heads(
    scores: Tensor, values: Tensor, layer: int, edits: Sequence[HeadEdit], sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return weights [B, H, T, T] and outputs [B, H, T, K] of the heads of a `layer` by the formula, with its edits."""
    weights = softmax(scores, sinks)
    apply_edits(weights, layer, [edits], "weights")
    head_output = weights @ values.float()
    apply_edits(head_output, layer, [edits], "output")
    return weights, head_output


class TransformerSitePass(SitePass):
    """The site's logits from keys and values of one unedited pass: an edit at the site changes no other position."""

    @torch.no_grad()
    def __init__(self, view: TransformerView, tokens: Tensor, site: Tensor) -> None:
        self._transformer = view.model
        self._site = site
        self._keys = list[Tensor]()  # one per layer [B, H, T, K]
        self._values = list[Tensor]()  # one per layer [B, H, T, K]
        self._streams = list[Tensor]()  # [B, 1, D] at the site before each layer and after the last

        x = view.model.embed(tokens)  # [B, T, D]
        for block in view.model.layers():
            self._streams.append(at_positions(x, site[:, None]))
            query, key, value = block.attention.project(block.norm_1(x))
            self._keys.append(key)
            self._values.append(value)
            x = x + block.attention.merge_heads(block.attention.weighted_values(query, key, value))
            x = x + block.mlp(block.norm_2(x))
        self._streams.append(at_positions(x, site[:, None]))

    @torch.no_grad()
    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]], words: Tensor | None = None) -> Tensor:
        # Every list has its own copy of the texts, from the lowest edited layer on.
        n_lists = len(edit_lists)
        first = min((edit.layer for edit in chain(*edit_lists)), default=len(self._keys))
        x = self._streams[first].repeat(n_lists, 1, 1)  # [E * B, 1, D]
        site = self._site.repeat(n_lists)  # [E * B]
        rows = torch.arange(len(site), device=site.device)
        for layer, block in enumerate(self._transformer.layers()[first:], first):
            # The site's own key and value depend on the edits below; those elsewhere do not.
            query, key, value = block.attention.project(block.norm_1(x), site[:, None, None])
            keys = self._keys[layer].repeat(n_lists, 1, 1, 1)  # [E * B, H, T, K]
            values = self._values[layer].repeat(n_lists, 1, 1, 1)
            keys[rows, :, site] = key[:, :, 0]
            values[rows, :, site] = value[:, :, 0]

            scores = block.attention.scores(query, keys, site[:, None])  # [E * B, H, 1, T]
            weights = scores.softmax(-1)[:, :, 0]  # [E * B, H, T]
            apply_edits(weights, layer, edit_lists, "weights")
            head_output = (weights[:, :, None] @ values.float())[:, :, 0]  # [E * B, H, K]
            apply_edits(head_output, layer, edit_lists, "output")

            x = x + block.attention.merge_heads(head_output[:, :, None].to(x.dtype))
            x = x + block.mlp(block.norm_2(x))
        return of_words(self._transformer.unembed(x[:, 0]).float().unflatten(0, (n_lists, -1)), words)

    @torch.no_grad()
    def records(self) -> dict[int, SiteRecord]:
        records = {}
        for layer, block in enumerate(self._transformer.layers()):
            query, _, _ = block.attention.project(block.norm_1(self._streams[layer]), self._site[:, None, None])
            scores = block.attention.scores(query, self._keys[layer], self._site[:, None])
            weights = scores.softmax(-1)  # [B, H, 1, T]
            output = weights @ self._values[layer].float()  # [B, H, 1, K]
            records[layer] = SiteRecord(weights[:, :, 0], output[:, :, 0])
        return records

    def final_stream(self) -> Tensor:
        return self._streams[-1][:, 0]


def of_words(logits: Tensor, words: Tensor | None) -> Tensor:
    """Return the logits [E, B, n] of the tokens `words` [B, n] from all of them [E, B, V]; without `words` all."""
    return logits if words is None else logits.gather(2, words.expand(len(logits), -1, -1))


def apply_edits(
    values: Tensor,
    layer: int,
    edit_lists: Sequence[Sequence[HeadEdit | SiteEdit]],
    name: Literal["weights", "output"],
) -> None:
    """Apply the edits of one layer's weights or outputs to `values` [E * B, H, ...] of E lists, in place."""
    by_list = values.unflatten(0, (len(edit_lists), -1))  # [E, B, H, ...]
    for i, edits in enumerate(edit_lists):
        for edit in edits:
            change = getattr(edit, name)
            if edit.layer == layer and change is not None:
                by_list[i, :, edit.head] = change(by_list[i, :, edit.head])
