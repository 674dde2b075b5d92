"""Observe any causal language model of the transformers library.

transformers lets a program register its own attention function (`AttentionInterface`). Ours is the explicit formula
with recording and edits, so one implementation serves every architecture that uses the interface: GPT-2, GPT-NeoX,
Llama, Mistral, Qwen, OPT, Phi, Gemma, OLMo and many others. In a hybrid only the layers that call it have heads.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from model.observe import (
    HeadEdit,
    LayerRecord,
    ObservableModel,
    SiteEdit,
    SitePass,
    SiteRecord,
    apply_edits,
    at_positions,
    check_edits,
    check_tokens,
    edited_heads,
    of_words,
    softmax,
)
from model.transformer import n_parameters
from settings.errors import UserError

_Scaled = Callable[[Tensor], Tensor]
_INTERFACE = "antecedent"  # name of our attention function in transformers
# Names of attributes for the output projection in an attention module, of the norm in a model's body.
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


@dataclass
class _Site:
    """One layer of an unedited pass, kept for the passes over the site alone; G heads have keys and values."""

    keys: Tensor  # [B, G, T, K]
    values: Tensor  # [B, G, T, K]
    is_visible: Tensor  # [B, T] what the site may see
    record: SiteRecord


@dataclass
class _Pass:
    """Options and records of the forward pass in progress."""

    edits: Sequence[HeadEdit] = ()
    site: Tensor | None = None  # [B] positions whose layers are kept in `sites`
    sites: dict[int, _Site] = field(default_factory=dict)
    edit_lists: Sequence[Sequence[SiteEdit]] | None = None  # for a pass over the tokens at `site`
    query_positions: Tensor | None = None  # [B, Tq] recorded rows of the scores, if not all
    is_recording: bool = False
    modules: dict[int, nn.Module] = field(default_factory=dict)  # layer -> attention module
    # layer -> scores, values, head output, sinks
    layers: dict[int, tuple[Tensor, Tensor, Tensor, Tensor | None]] = field(default_factory=dict)


_current_pass: ContextVar[_Pass | None] = ContextVar("current_pass", default=None)


def _observed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the head outputs [B, T, H, K] by the explicit formula, recorded and edited as the current pass asks.

    transformers calls it in every layer with its attention `module`, query [B, H, T, K], key and value [B, G, T, K],
    and `attention_mask` [B or 1, 1, T, T], True where a query may see a key. `softcap` bounds the scores (Gemma 2);
    `s_aux` [H] are the sinks (gpt-oss).
    """
    current = _current_pass.get() or _Pass()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    current.modules[layer] = module
    scaled = partial(_scaled, scaling=query.shape[-1] ** -0.5 if scaling is None else scaling, softcap=softcap)
    if current.edit_lists is not None:
        return _site_attention(query, key, value, layer, current, scaled, s_aux), None

    n_shared = query.shape[1] // key.shape[1]
    values = value.repeat_interleave(n_shared, dim=1)  # [B, H, T, K]
    scores = query @ key.repeat_interleave(n_shared, dim=1).mT  # [B, H, T, T]
    assert attention_mask is not None  # see `_full_mask`
    scores = scaled(scores).masked_fill(~attention_mask, float("-inf"))
    weights, head_output = edited_heads(scores, values, layer, current.edits, s_aux)

    if current.site is not None:
        rows = torch.arange(len(query), device=query.device)
        is_visible = attention_mask.expand(len(query), -1, -1, -1)[rows, 0, current.site]  # [B, T]
        record = SiteRecord(weights[rows, :, current.site], head_output[rows, :, current.site])
        current.sites[layer] = _Site(key, value, is_visible, record)
    if current.is_recording:
        if current.query_positions is not None:
            scores = scores.take_along_dim(current.query_positions[:, None, :, None], dim=2)
        current.layers[layer] = (scores, values, head_output, s_aux)
    return head_output.to(query.dtype).transpose(1, 2).contiguous(), None


def _scaled(scores: Tensor, scaling: float, softcap: float | None) -> Tensor:
    scores = scores.float() * scaling
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def _site_attention(
    query: Tensor, key: Tensor, value: Tensor, layer: int, current: _Pass, scaled: _Scaled, sinks: Tensor | None
) -> Tensor:
    """Return the head outputs [E * B, 1, H, K] at the site alone, from cached keys and values, with E lists of edits.

    `query` [E * B, H, 1, K], `key` and `value` [E * B, G, 1, K] are the site's own; R = H / G query heads share a key.
    """
    assert current.site is not None and current.edit_lists is not None
    cached = current.sites[layer]
    n_lists = len(current.edit_lists)
    n_texts, n_groups = cached.keys.shape[:2]
    rows = torch.arange(n_texts, device=query.device)
    own_key = key[:, :, 0].unflatten(0, (n_lists, n_texts))  # [E, B, G, K]
    own_value: Tensor = value[:, :, 0].unflatten(0, (n_lists, n_texts))  # [E, B, G, K]
    queries = query[:, :, 0].unflatten(0, (n_lists, n_texts)).unflatten(2, (n_groups, -1))  # [E, B, G, R, K]

    # The lists and the query heads of a group are rows of one product: keys are not copied.
    scores = torch.einsum("ebgrk,bgtk->ebgrt", queries, cached.keys)
    scores[:, rows, :, :, current.site] = (queries * own_key[:, :, :, None]).sum(-1).transpose(0, 1)
    scores = scaled(scores).masked_fill(~cached.is_visible[:, None, None], float("-inf"))

    # Edits see the rows in the order [E * B, H, T].
    weights = softmax(scores.flatten(2, 3).flatten(0, 1)[:, :, None], sinks)[:, :, 0]
    apply_edits(weights, layer, current.edit_lists, "weights")

    grouped: Tensor = weights.unflatten(0, (n_lists, n_texts)).unflatten(2, (n_groups, -1))  # [E, B, G, R, T]
    output = torch.einsum("ebgrt,bgtk->ebgrk", grouped, cached.values.float())
    on_itself = grouped[:, rows, :, :, current.site].transpose(0, 1)  # [E, B, G, R]
    changed = own_value.float() - cached.values[rows, :, current.site].float()  # [E, B, G, K]
    output = output + on_itself[..., None] * changed[:, :, :, None]
    output = output.flatten(2, 3).flatten(0, 1)  # [E * B, H, K]
    apply_edits(output, layer, current.edit_lists, "output")
    return output[:, None].to(query.dtype)


def _full_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the boolean mask of a pass, also where transformers would leave it to the kernel."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


class PretrainedView(ObservableModel):
    """The `ObservableModel` of a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        """Switch a float32 `PreTrainedModel` with logits to our attention; UserError if they then differ."""
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface

        self.model = model.eval().requires_grad_(False)
        kind = f"model_type={model.config.model_type}: cannot be observed"
        if not hasattr(model.config, "max_position_embeddings"):
            raise UserError(f"{kind}, its config.json has no max_position_embeddings")
        # A head with a sliding window cannot see a noun outside it.
        limits = (model.config.max_position_embeddings, getattr(model.config, "sliding_window", None))
        self.context_length = min(int(limit) for limit in limits if limit)
        self.vocab_size = len(model.get_output_embeddings().weight)
        self.n_layer = int(model.config.num_hidden_layers)
        self._layers = list[nn.Module]()

        length = min(16, self.context_length)
        tokens = torch.linspace(0, self.vocab_size - 1, length, device=self.device).long()[None]
        with torch.no_grad():
            reference = model(input_ids=tokens, use_cache=False).logits
        AttentionInterface.register(_INTERFACE, _observed_attention)
        AttentionMaskInterface.register(_INTERFACE, _full_mask)
        model.set_attn_implementation(_INTERFACE)
        first_pass = _Pass(is_recording=True)
        other_form = f"{kind}, its attention is not softmax(scores) @ values by AttentionInterface"
        try:
            logits = self._run(model, tokens, first_pass).logits
        except (TypeError, RuntimeError, AssertionError):  # masks, queries or keys of another form (Doge)
            raise UserError(other_form) from None
        self._modules = dict(sorted(first_pass.modules.items()))
        self._layers = _layers_around(self._modules, model, self.n_layer)
        heads = {scores.shape[1] for scores, *_ in first_pass.layers.values()}
        if not self._layers or len(heads) != 1 or not _are_near(logits, reference):
            raise UserError(other_form)

        [self.n_head] = heads
        projections = [_first_attribute(module, _OUTPUT_PROJECTIONS) for module in self._modules.values()]
        self._projections = projections if all(projections) else []
        self._n_outputs = 0  # of a layer, if it returns the stream as the first of a tuple
        # Whether a pass that starts at the middle layer gives the logits of the whole pass.
        middle = self.n_layer // 2
        with self.starting_at(middle, self.residual_stream(tokens)[middle]):
            self.starts_late = _are_near(self._run(self.model, tokens).logits, logits)

    @property
    def device(self) -> torch.device:
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight.device

    @property
    def attention_layers(self) -> Sequence[int]:
        return tuple(self._modules)

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        check_tokens(tokens, self.model.config.max_position_embeddings, self.vocab_size, positions)
        check_edits(self, edits)
        first = min((edit.layer for edit in edits), default=self.n_layer) if self.starts_late and streams else 0
        with self.starting_at(first, streams[first] if streams else None), self.answering_at(positions):
            logits: Tensor = self._run(self.model, tokens, _Pass(edits)).logits
        return logits

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        """Return a pass over the site alone, unless this model gives other logits that way, as hybrids do."""
        is_hybrid = len(self._modules) < self.n_layer
        if not is_hybrid and "position_ids" in signature(self.model.forward).parameters:
            site_pass = PretrainedSitePass(self, tokens, site)
            if site_pass.agrees():
                return site_pass
        return SitePass(self, tokens, site)

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        current = _Pass(query_positions=query_positions, is_recording=True)
        with self.keeping_joined() as joined:
            self._run(self.model.base_model, tokens, current)
        records = []
        for i, (scores, values, head_output, sinks) in enumerate(current.layers.values()):
            gate = None
            if joined and not torch.equal(joined[i], head_output):
                gate = torch.where(head_output == 0, 1, joined[i] / head_output)
            records.append(LayerRecord(scores, values, head_output, sinks, gate))
        return records

    @contextmanager
    def keeping_joined(self) -> Iterator[list[Tensor]]:
        """Yield a list that receives what each output projection reads in a pass, [B, H, T, K]; empty if not known."""
        joined = list[Tensor]()
        with _keeping_inputs(self._projections) as inputs:
            yield joined
        joined += [each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in inputs]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        with self.keeping_streams() as streams:
            self._run(self.model.base_model, tokens)
        return streams

    @contextmanager
    def keeping_streams(self) -> Iterator[list[Tensor]]:
        """Yield a list that receives the L + 1 streams of `residual_stream` in a pass."""
        with _keeping_inputs(self._layers) as streams:

            def keep_output(_: nn.Module, inputs: Any, output: Any) -> None:
                self._n_outputs = 0 if isinstance(output, Tensor) else len(output)
                streams.append(output[0] if self._n_outputs else output)

            with self._layers[-1].register_forward_hook(keep_output):
                yield streams

    def starting_at(self, first: int, stream: Tensor | None) -> AbstractContextManager[None]:
        """Let passes begin at the layer `first` with the residual stream `stream` [B, T, D]; 0: as usual."""
        output = (stream, *[None] * (self._n_outputs - 1)) if self._n_outputs else stream
        return _replaced(self._layers[:first], lambda *_, **__: output)

    def answering_at(self, positions: Tensor | None) -> AbstractContextManager[Any]:
        """Let the output layer compute the logits at `positions` [B] or [B, n] only; None: at all."""
        layer: nn.Module = self.model.get_output_embeddings()
        return layer.register_forward_pre_hook(lambda _, inputs: (at_positions(inputs[0], positions),))

    def answering(self, words: Tensor) -> AbstractContextManager[None]:
        """Let the output layer compute the logits of `words` [B, n] only, in passes over one token of each text."""
        layer: Any = self.model.get_output_embeddings()
        weight = layer.weight[words]  # [B, n, D]
        bias = 0 if getattr(layer, "bias", None) is None else layer.bias[words][:, None]  # [B, 1, n]
        return _replaced([layer], lambda stream: stream @ weight.mT + bias)

    def output_weights(self, layer: int) -> Tensor | None:
        if not self._projections:
            return None
        output = self._projections[self.attention_layers.index(layer)]
        by_head: Tensor = _matrix(output).unflatten(1, (self.n_head, -1)).transpose(0, 1)  # [H, D, K]
        return by_head

    def unembedding(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        body = getattr(self.model.base_model, "decoder", self.model.base_model)
        norm = _first_attribute(body, _FINAL_NORMS)
        if norm is None:
            return None
        # LayerNorm also subtracts the mean, which is a projection: applied before and after.
        is_centred = isinstance(norm, nn.LayerNorm)
        eps = _first_attribute(norm, ("eps", "variance_epsilon"))
        # Gemma and Qwen3.5 multiply by 1 + weight; an RMS norm of ones shows the gain.
        gain = norm.weight if is_centred else norm(torch.ones_like(norm.weight)) * (1 + eps) ** 0.5
        centred = stream - stream.mean(-1, keepdim=True) if is_centred else stream
        pulled: Tensor = direction * gain / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return pulled - pulled.mean(-1, keepdim=True) if is_centred else pulled

    def untrained(self, seed: int) -> "PretrainedView":
        """Return a model of the same shape with transformers' initial weights for `seed`; UserError without memory."""
        from transformers import AutoModelForCausalLM

        check_memory(self.model, self.device, "with the untrained copy that it is compared with", n_copies=2)
        config = deepcopy(self.model.config)  # from_config writes the attention implementation into it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        return PretrainedView(model.to(self.device))

    @torch.no_grad()
    def _run(self, module: Any, tokens: Tensor, current: _Pass | None = None, **arguments: Tensor) -> Any:
        """Return the output of the model, or of its body, which computes no logits."""
        longest = self.model.config.max_position_embeddings  # a sliding window is no limit here
        check_tokens(tokens, longest, self.vocab_size)
        self.model.eval()  # its owner may have trained it
        current = current or _Pass()
        token = _current_pass.set(current)
        try:
            output = module(input_ids=tokens, use_cache=False, **arguments)
        finally:
            _current_pass.reset(token)
        # Without the last attending layer replaced (`starting_at`), our attention must have run.
        if self._layers and not current.modules and "forward" not in vars(self._layers[self.attention_layers[-1]]):
            raise UserError("the model's attention was changed after it was opened; open it again")
        return output


class PretrainedSitePass(SitePass):
    """The site's logits from keys and values of one unedited pass, for models that mix positions in attention only."""

    def __init__(self, view: PretrainedView, tokens: Tensor, site: Tensor) -> None:
        self._view = view
        self._site = site
        self._tokens = at_positions(tokens, site)  # [B]
        unedited = _Pass(site=site)
        with view.keeping_streams() as streams, view.keeping_joined() as joined, view.answering_at(site):
            self._clean = view._run(view.model, tokens, unedited).logits.float()  # [B, V]
        self._streams = [at_positions(stream, site) for stream in streams]  # L + 1 times [B, D]
        self._sites = unedited.sites
        self._records = {layer: cached.record for layer, cached in self._sites.items()}
        for layer, output in zip(self._records, joined, strict=False):
            at_site = at_positions(output.transpose(1, 2), site)
            self._records[layer] = self._records[layer]._replace(output=at_site)

    def agrees(self) -> bool:
        return _are_near(self._run([[]])[0], self._clean)

    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]], words: Tensor | None = None) -> Tensor:
        # The lists with the same lowest edited layer together: nothing below it changes.
        members = defaultdict[int, list[int]](list)
        for i, edits in enumerate(edit_lists):
            if edits:
                members[min(edit.layer for edit in edits) if self._view.starts_late else 0].append(i)
        logits = of_words(self._clean[None], words).repeat(len(edit_lists), 1, 1)  # [E, B, V or n]
        for first, indices in members.items():
            logits[indices] = self._run([edit_lists[i] for i in indices], words, first)
        return logits

    def _run(self, edit_lists: Sequence[Sequence[SiteEdit]], words: Tensor | None = None, first: int = 0) -> Tensor:
        """Return the logits of `edited_logits` by a pass over the tokens at the site, from the layer `first` on."""
        n_lists = len(edit_lists)
        tokens = self._tokens.repeat(n_lists)[:, None]  # [E * B, 1]
        positions = self._site.repeat(n_lists)[:, None]  # [E * B, 1]
        current = _Pass(site=self._site, sites=self._sites, edit_lists=edit_lists)
        answering = nullcontext() if words is None else self._view.answering(words.repeat(n_lists, 1))
        with answering, self._view.starting_at(first, self._streams[first].repeat(n_lists, 1)[:, None]):
            output = self._view._run(self._view.model, tokens, current, position_ids=positions)
        logits: Tensor = output.logits[:, 0].float().unflatten(0, (n_lists, -1))
        return logits

    def records(self) -> dict[int, SiteRecord]:
        return self._records

    def final_stream(self) -> Tensor:
        return self._streams[-1]


@contextmanager
def _keeping_inputs(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Yield a list that receives the hidden states [B, T, D] that each of `modules` reads in a pass."""
    inputs: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(keep, with_kwargs=True))
        yield inputs


@contextmanager
def _replaced(modules: Sequence[Any], forward: Callable[..., Any]) -> Iterator[None]:
    """Let `modules` compute `forward` instead of their own in the body."""
    with ExitStack() as stack:
        for module in modules:
            module.forward = forward  # only this object's method; its class keeps the real one
            stack.callback(delattr, module, "forward")
        yield


def check_memory(model: nn.Module, device: torch.device, what: str = "", n_copies: int = 1) -> None:
    """Raise UserError unless `n_copies` of a model's weights in float32 fit into the memory of the device."""
    n_bytes = 4 * n_copies * n_parameters(model)
    available = n_bytes
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[1]
    elif hasattr(os, "sysconf"):  # not on Windows
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n_bytes > available:
        raise UserError(f"the model needs {n_bytes:,} bytes {what}".rstrip() + f", but {device.type} has {available:,}")


def _layers_around(modules: dict[int, nn.Module], model: nn.Module, n_layer: int) -> list[nn.Module]:
    """Return the `n_layer` layers of a model, those at their numbers around the attention `modules`; [] if unknown."""
    for layers in model.modules():
        if not isinstance(layers, nn.ModuleList) or len(layers) != n_layer:
            continue
        is_around = [layer < n_layer and module in layers[layer].modules() for layer, module in modules.items()]
        if is_around and all(is_around):
            return list(layers)
    return []


def _are_near(logits: Tensor, expected: Tensor) -> bool:
    return torch.allclose(logits, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def _first_attribute(module: Any, names: Sequence[str]) -> Any:
    """Return the first of these attributes that the module has and that is not None, if any."""
    return next((value for name in names if (value := getattr(module, name, None)) is not None), None)


def _matrix(projection: Any) -> Tensor:
    """Return the weight of a linear layer as [outputs, inputs]; GPT-2's Conv1D transposes it."""
    return projection.weight if isinstance(projection, nn.Linear) else projection.weight.T
