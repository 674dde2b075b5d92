"""Observe a model's attention and run it with single heads edited, for every architecture alike.

`ObservableModel` is all that the probe needs of a model. `ObservedModel` implements it for every model that computes
its attention by `Pass.attend`: our Transformer (`TransformerView`), models of transformers and a user's own
(extras/others). Special in this file:

- A `Pass` says what to record and edit. A model has one method, `forward(tokens, pass)`, which calls its `attend`.
- Fused kernels return no weights. So recorded and edited layers compute them by the formula, in float32;
  `probe/contract.py` compares the outputs with those of the model's usual pass.
- Scores are recorded before the softmax: the log of a ratio of two weights is a difference of two scores.
- An edit at one token changes no earlier one. So `CachedSitePass` keeps keys and values of one unedited pass, and
  computes that token alone for many edits at once.
- Texts are padded on the right only: the causal mask hides the padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from model.transformer import Transformer
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


EditLists = Sequence[Sequence[SiteEdit]]  # the edits of each of several passes


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
    """The scores and values of one attention layer in a recorded pass."""

    scores: Tensor  # [B, H, Tq, T] float32 before the softmax, -inf where masked; Tq: recorded rows
    values: Tensor  # [B, H, T, K], grouped heads repeated
    outputs: Callable[[], Tensor]  # returns `head_output`, which few readers need
    sinks: Tensor | None = None  # [H] scores of what takes weight besides the tokens (gpt-oss)
    gate: Tensor | None = None  # [B, H, T, K] factor of head_output before the output projection (Qwen3.5)

    @property
    def head_output(self) -> Tensor:
        """The weights @ values that the model computed, before the output projection, [B, H, T, K]."""
        return self.outputs()

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
        return None

    def unembedding(self) -> Tensor:
        """Return the output embedding [V, D]."""

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Pull `direction` [..., D] back through the final norm, which reads `stream` [..., D]; None if not known.

        The norm's divisor is held fixed. The dot product with a term of the stream is then that term's contribution.
        """
        return None


def check_tokens(tokens: Tensor, longest: int, vocab_size: int, positions: Tensor | None = None) -> None:
    """Raise UserError unless `tokens` are ids [B, T] with T from 1 to `longest`, and `positions` [B, ...] in them."""
    if not _are_whole(tokens) or tokens.ndim != 2:
        raise UserError("tokens: must be a tensor of token ids (integers) [texts, tokens]")
    if not 1 <= tokens.shape[1] <= longest:
        raise UserError(f"tokens: the model reads 1 to {longest:,} tokens; found {tokens.shape[1]:,}")
    if ((tokens < 0) | (tokens >= vocab_size)).any():
        found = f"found {int(tokens.min())} to {int(tokens.max())}"
        raise UserError(f"tokens: the model has the tokens 0 to {vocab_size - 1:,}; {found}")
    if positions is None:
        return
    if not _are_whole(positions) or positions.ndim not in (1, 2) or len(positions) != len(tokens):
        raise UserError(f"positions: must be integers [texts] or [texts, n] for {len(tokens)} texts")
    if ((positions < 0) | (positions >= tokens.shape[1])).any():
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
    """The weights and outputs of the heads of one layer at the site, without edits."""

    weights: Tensor  # [B, H, T] attention weights of the site's row
    output: Tensor  # [B, H, K] weighted sum of values, times the gate if there is one


class SitePass:
    """The logits at one position of each text, without and with edits of heads there. This one runs whole passes."""

    def __init__(self, model: ObservableModel, tokens: Tensor, site: Tensor, read: Tensor | None = None) -> None:
        """Run the unedited pass over `tokens` [B, T]; `site` [B] are the positions.

        `read` [B] are those whose logits are returned, if they are later ones.
        """
        self._model = model
        self._tokens = tokens
        self._site = site
        self._read = site if read is None else read
        self._streams = model.residual_stream(tokens)

    def logits(self, edits: Sequence[SiteEdit] = ()) -> Tensor:
        """Return the logits [B, V] of the token after the site."""
        return self.edited_logits([edits])[0]

    def edited_logits(self, edit_lists: EditLists, words: Tensor | None = None) -> Tensor:
        """Return the logits [E, B, V] with each of E lists of edits, or [E, B, n] of the tokens `words` [B, n] only."""
        logits = []
        for edits in edit_lists:
            head_edits = [edit.at(self._site) for edit in edits]
            logits.append(self._model.logits(self._tokens, self._read, head_edits, self._streams))
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


class Heads(NamedTuple):
    """The inputs of the attention of one layer; G heads have keys and values, each for H / G queries."""

    query: Tensor  # [B, H, T, K]; Tq in place of T for some rows
    key: Tensor  # [B, G, T, K]
    value: Tensor  # [B, G, T, K]
    scored: Change  # makes scores of the products of queries and keys
    is_visible: Tensor  # [B or 1, 1, T, T] where a query may attend
    sinks: Tensor | None = None  # [H], see `LayerRecord`

    @property
    def keys(self) -> Tensor:
        """The key of each head, [B, H, T, K] float32."""
        return self._for_each_head(self.key)

    @property
    def values(self) -> Tensor:
        """The value of each head, [B, H, T, K] float32."""
        return self._for_each_head(self.value)

    def scores(self) -> Tensor:
        """Return the scores [B, H, T, T] float32, -inf where a query may not attend."""
        products = self.query.float() @ self.keys.mT
        return self.scored(products).masked_fill(~self.is_visible, float("-inf"))

    def at(self, rows: Tensor | None) -> "Heads":
        """Return the same for the queries at `rows` [B, Tq] only; None: for all."""
        if rows is None:
            return self
        of_texts = self.is_visible.expand(len(rows), -1, -1, -1)
        places = rows[:, None, :, None]
        return self._replace(
            query=self.query.take_along_dim(places, dim=2), is_visible=of_texts.take_along_dim(places, dim=2)
        )

    def _for_each_head(self, grouped: Tensor) -> Tensor:
        n_shared = self.query.shape[1] // grouped.shape[1]
        return grouped.float() if n_shared == 1 else grouped.float().repeat_interleave(n_shared, dim=1)


@dataclass
class Pass:
    """One forward pass: what to edit and record, then the records. `attend` is the attention of every layer."""

    edits: Sequence[HeadEdit] = ()
    first: int = 0  # the layer to start at
    start: Tensor | None = None  # [B, T, D] what that layer reads; None: the tokens
    places: Tensor | None = None  # [B, T] where the tokens stand; None: one after the other
    positions: Tensor | None = None  # [B] or [B, n] where logits are read; None: at all
    words: Tensor | None = None  # [B, n] the tokens whose logits are read; None: all
    has_logits: bool = True  # else it may end at the last attention
    site: Tensor | None = None  # [B] the position whose layers are kept
    edit_lists: EditLists | None = None  # for a pass over the tokens at `site` alone
    query_positions: Tensor | None = None  # [B, Tq] recorded rows of the scores, if not all
    is_recording: bool = False
    keeps_streams: bool = False
    kept: dict[int, Heads] = field(default_factory=dict)
    records: dict[int, LayerRecord] = field(default_factory=dict)
    streams: list[Tensor] = field(default_factory=list)
    joined: dict[int, Tensor] = field(default_factory=dict)  # [B, T, H, K] what output projections read, if known
    modules: dict[int, Any] = field(default_factory=dict)  # callers of `attend`, by layer, in models of transformers

    def attend(self, layer: int, heads: Heads, usual: Callable[[], Tensor] | None = None) -> Tensor:
        """Return the head outputs [B, H, T, K] by the formula, recorded and edited as this pass asks.

        `usual` gives the outputs as in training: a layer that is not edited need not be slow.
        """
        if self.edit_lists is not None:
            return self._attend_at_site(layer, heads)
        if usual is not None and not any(edit.layer == layer for edit in self.edits):
            self.observe(layer, heads, usual)
            return usual()
        self._keep_site(layer, heads)
        return self.from_scores(layer, heads.scores(), heads.values, heads.sinks)

    def observe(self, layer: int, heads: Heads, outputs: Callable[[], Tensor]) -> None:
        """Keep what this pass asks for of a layer that is not edited; `outputs` returns its head outputs."""
        self._keep_site(layer, heads)
        if self.is_recording:
            scores = heads.at(self.query_positions).scores()
            self.records[layer] = LayerRecord(scores, heads.values, outputs, heads.sinks)

    def _keep_site(self, layer: int, heads: Heads) -> None:
        if self.site is not None and self.edit_lists is None:
            self.kept[layer] = heads.at(self.site[:, None])

    def keep(self, stream: Tensor) -> None:
        """Keep the residual stream [B, T, D] before a layer, or after the last, if this pass asks for it."""
        if self.keeps_streams:
            self.streams.append(stream)

    def from_scores(self, layer: int, scores: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Return the outputs of the heads from their scores [B, H, T, T], -inf where masked, as `attend` does."""
        weights = softmax(scores, sinks)
        apply_edits(weights, layer, [self.edits], "weights")
        output = weights @ values.float()
        apply_edits(output, layer, [self.edits], "output")
        if self.is_recording:
            if self.query_positions is not None:
                scores = scores.take_along_dim(self.query_positions[:, None, :, None], dim=2)
            self.records[layer] = LayerRecord(scores, values, lambda: output, sinks)
        return output

    def _attend_at_site(self, layer: int, heads: Heads) -> Tensor:
        """Return the head outputs [E * B, H, 1, K] at the site alone, from kept keys and values, with E lists of edits.

        `heads` are the site's own: query [E * B, H, 1, K], key and value [E * B, G, 1, K].
        """
        assert self.site is not None and self.edit_lists is not None
        kept = self.kept[layer]
        lists = (len(self.edit_lists), len(self.site))
        rows = torch.arange(len(self.site), device=self.site.device)
        own = (heads.query.float(), heads.keys, heads.values)
        query, own_key, own_value = (each[:, :, 0].unflatten(0, lists) for each in own)  # each [E, B, H, K]

        # The lists are rows of one product: their keys are not copied.
        scores = torch.einsum("ebhk,bhtk->ebht", query, kept.keys)
        scores[:, rows, :, self.site] = (query * own_key).sum(-1).transpose(0, 1)
        scores = kept.scored(scores).masked_fill(~kept.is_visible[:, :, 0], float("-inf"))
        weights = softmax(scores.flatten(0, 1)[:, :, None], kept.sinks)[:, :, 0]  # [E * B, H, T]
        apply_edits(weights, layer, self.edit_lists, "weights")

        by_list: Tensor = weights.unflatten(0, lists)  # [E, B, H, T]
        on_itself = by_list[:, rows, :, self.site].transpose(0, 1)  # [E, B, H]
        changed = own_value - kept.values[rows, :, self.site]  # [E, B, H, K]
        output: Tensor = torch.einsum("ebht,bhtk->ebhk", by_list, kept.values) + on_itself[..., None] * changed
        output = output.flatten(0, 1)  # [E * B, H, K]
        apply_edits(output, layer, self.edit_lists, "output")
        return output[:, :, None]


class ObservedModel(ObservableModel):
    """The passes of `ObservableModel` for a model whose layers call `Pass.attend`: it only has to write `forward`."""

    starts_late = True  # whether a pass may start at the layer of the lowest edit

    @property
    def longest(self) -> int:
        """Tokens that a pass can read; `context_length` may be lower."""
        return self.context_length

    def forward(self, tokens: Tensor, current: Pass) -> Tensor:
        """Return the float32 logits that `current` asks for, from `tokens` [B, T]."""
        raise NotImplementedError

    @torch.no_grad()
    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        check_tokens(tokens, self.longest, self.vocab_size, positions)
        check_edits(self, edits)
        current = Pass(edits, positions=positions)
        if streams and self.starts_late:
            current.first = min((edit.layer for edit in edits), default=self.n_layer)
            current.start = streams[current.first]
        return self.forward(tokens, current)

    @torch.no_grad()
    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        check_tokens(tokens, self.longest, self.vocab_size)
        current = Pass(query_positions=query_positions, is_recording=True, has_logits=False)
        self.forward(tokens, current)
        return list(current.records.values())

    @torch.no_grad()
    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        check_tokens(tokens, self.longest, self.vocab_size)
        current = Pass(keeps_streams=True, has_logits=False)
        self.forward(tokens, current)
        return current.streams

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        return CachedSitePass(self, tokens, site)


class CachedSitePass(SitePass):
    """The site's logits from keys and values of one unedited pass: an edit at the site changes no other position."""

    @torch.no_grad()
    def __init__(self, model: ObservedModel, tokens: Tensor, site: Tensor) -> None:
        self._observed = model
        self._site = site
        self._tokens = at_positions(tokens, site)  # [B]
        current = Pass(site=site, keeps_streams=True, positions=site)
        self._clean = model.forward(tokens, current)  # [B, V]
        self._streams = [at_positions(stream, site) for stream in current.streams]  # L + 1 times [B, D]
        self._kept = current.kept
        self._joined = {layer: at_positions(each, site) for layer, each in current.joined.items()}

    @torch.no_grad()
    def edited_logits(self, edit_lists: EditLists, words: Tensor | None = None) -> Tensor:
        # The lists with the same lowest edited layer together: nothing below it changes.
        members: dict[int, list[int]] = {}
        for i, edits in enumerate(edit_lists):
            if edits:
                first = min(edit.layer for edit in edits) if self._observed.starts_late else 0
                members.setdefault(first, []).append(i)
        logits = of_words(self._clean[None], words).repeat(len(edit_lists), 1, 1)  # [E, B, V or n]
        for first, indices in members.items():
            logits[indices] = self.run([edit_lists[i] for i in indices], words, first)
        return logits

    def run(self, edit_lists: EditLists, words: Tensor | None = None, first: int = 0) -> Tensor:
        """Return the logits of `edited_logits` by a pass over the tokens at the site, from the layer `first` on."""
        n = len(edit_lists)
        if words is not None:
            words = words.repeat(n, 1)
        current = Pass(
            first=first,
            start=self._streams[first].repeat(n, 1)[:, None],
            places=self._site.repeat(n)[:, None],
            words=words,
            site=self._site,
            kept=self._kept,
            edit_lists=edit_lists,
        )
        logits = self._observed.forward(self._tokens.repeat(n)[:, None], current)  # [E * B, 1, V or n]
        by_list: Tensor = logits[:, 0].unflatten(0, (n, -1))
        return by_list

    @torch.no_grad()
    def records(self) -> dict[int, SiteRecord]:
        records = {}
        for layer, heads in self._kept.items():
            weights = softmax(heads.scores(), heads.sinks)  # [B, H, 1, T]
            output = (weights @ heads.values)[:, :, 0]
            records[layer] = SiteRecord(weights[:, :, 0], self._joined.get(layer, output))
        return records

    def final_stream(self) -> Tensor:
        return self._streams[-1]


class TransformerView(ObservedModel):
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

    def forward(self, tokens: Tensor, current: Pass) -> Tensor:
        places, positions = current.places, current.positions
        x = self.model.embed(tokens, places) if current.start is None else current.start  # [B, T, D]
        is_visible = torch.ones(2 * tokens.shape[1:], dtype=torch.bool, device=x.device).tril()[None, None]
        for layer, block in enumerate(self.model.layers()[current.first :], current.first):
            current.keep(x)
            # A pass without logits ends with the last attention, and the layers of a new model write nothing.
            is_last = layer == self.n_layer - 1 and not current.keeps_streams
            writes = bool(block.attention.output.weight.any() or block.mlp.down.weight.any())
            is_read = writes and (current.has_logits or not is_last)
            projected = block.attention.project(block.norm_1(x), None if places is None else places[:, None])
            heads = Heads(*projected, block.attention.scored, is_visible)
            usual = partial(block.attention.weighted_values, *projected)
            if not is_read:
                current.observe(layer, heads, usual)
                continue
            output = current.attend(layer, heads, usual)
            rows = output.transpose(1, 2)  # [B, T, H, K]
            if is_last:
                # After the attention of the last layer only the asked positions are needed.
                x, rows, positions = at_positions(x, positions), at_positions(rows, positions), None
            x = x + block.attention.output(rows.flatten(-2).to(x.dtype))
            x = x + block.mlp(block.norm_2(x))
        current.keep(x)
        if not current.has_logits:
            return x
        logits = self.model.unembed(at_positions(x, positions)).float()
        return logits if current.words is None else logits.gather(-1, current.words[:, None])

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
