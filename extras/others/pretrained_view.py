"""Observe any causal language model of the transformers library.

transformers lets a program register its own attention function (`AttentionInterface`). Ours is the explicit formula
with recording and edits, so one implementation serves every architecture that uses the interface: GPT-2, GPT-NeoX,
Llama, Mistral, Qwen, OPT, Phi, Gemma, OLMo and many others. In a hybrid only the layers that call it have heads.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from extras.others.own_model import are_near
from model.observe import CachedSitePass, Heads, ObservedModel, Pass, SitePass, at_positions
from model.transformer import n_parameters
from settings.errors import UserError

_INTERFACE = "antecedent"  # name of our attention function in transformers
# Names of attributes for the output projection in an attention module, of the norm in a model's body.
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


_current_pass: ContextVar[Pass | None] = ContextVar("current_pass", default=None)


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
    """Return the head outputs [B, T, H, K] by `Pass.attend`.

    transformers calls it in every layer with its attention `module`, query [B, H, T, K], key and value [B, G, T, K],
    and `attention_mask` [B or 1, 1, T, T], True where a query may see a key. `softcap` bounds the scores (Gemma 2);
    `s_aux` [H] are the sinks (gpt-oss).
    """
    current = _current_pass.get() or Pass()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    current.modules[layer] = module
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scored = partial(_scaled, scaling=factor, softcap=softcap)
    assert attention_mask is not None  # see `_full_mask`
    output = current.attend(layer, Heads(query, key, value, scored, attention_mask, s_aux))
    return output.to(query.dtype).transpose(1, 2).contiguous(), None


def _scaled(scores: Tensor, scaling: float, softcap: float | None) -> Tensor:
    scores = scores * scaling
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def _full_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the boolean mask of a pass, also where transformers would leave it to the kernel."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


class PretrainedView(ObservedModel):
    """The `ObservableModel` of a causal language model of transformers."""

    @torch.no_grad()
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
        self.context_length = int(min(filter(None, limits)))
        self.vocab_size = len(model.get_output_embeddings().weight)
        self.n_layer = int(model.config.num_hidden_layers)
        self._layers = list[nn.Module]()
        self._projections = list[nn.Module]()
        self._n_outputs = 0  # length of the tuple, stream first, that a layer returns; 0: the stream alone

        length = min(16, self.context_length)
        tokens = torch.linspace(0, self.vocab_size - 1, length, device=self.device).long()[None]
        reference = model(input_ids=tokens, use_cache=False).logits
        AttentionInterface.register(_INTERFACE, _observed_attention)
        AttentionMaskInterface.register(_INTERFACE, _full_mask)
        model.set_attn_implementation(_INTERFACE)
        first_pass = Pass(is_recording=True)
        other_form = f"{kind}, its attention is not softmax(scores) @ values by AttentionInterface"
        try:
            logits = self.forward(tokens, first_pass)
        except (TypeError, RuntimeError, AssertionError):  # masks, queries or keys of another form (Doge)
            raise UserError(other_form) from None
        self._modules = dict(sorted(first_pass.modules.items()))
        self._layers = _layers_around(self._modules, model, self.n_layer)
        heads = {record.scores.shape[1] for record in first_pass.records.values()}
        if not self._layers or len(heads) != 1 or not are_near(logits, reference):
            raise UserError(other_form)

        [self.n_head] = heads
        projections = [_first_attribute(module, _OUTPUT_PROJECTIONS) for module in self._modules.values()]
        self._projections = projections if all(projections) else []
        # Whether a pass that starts at the middle layer gives the logits of the whole pass.
        middle = self.n_layer // 2
        late = self.forward(tokens, Pass(first=middle, start=self.residual_stream(tokens)[middle]))
        self.starts_late = are_near(late, logits)

    @property
    def device(self) -> torch.device:
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight.device

    @property
    def attention_layers(self) -> Sequence[int]:
        return tuple(self._modules)

    @property
    def longest(self) -> int:
        return int(self.model.config.max_position_embeddings)  # a sliding window is no limit here

    def forward(self, tokens: Tensor, current: Pass) -> Tensor:
        self.model.eval()  # its owner may have trained it
        arguments = {} if current.places is None else {"position_ids": current.places}
        joined = list[Tensor]()
        with ExitStack() as stack:
            stack.callback(_current_pass.reset, _current_pass.set(current))
            if current.keeps_streams or current.is_recording:
                _keep_inputs(stack, self._projections, joined)
            if current.keeps_streams:
                self._keep_streams(stack, current.streams)
            self._start_at(stack, current.first, current.start)
            self._answer(stack, current.positions, current.words)
            module = self.model if current.has_logits else self.model.base_model
            output = module(input_ids=tokens, use_cache=False, **arguments)
        # Without the last attending layer replaced (`_start_at`), our attention must have run.
        if self._layers and not current.modules and current.first <= self.attention_layers[-1]:
            raise UserError("the model's attention was changed after it was opened; open it again")
        for layer, each in zip(current.modules, joined, strict=False):
            current.joined[layer] = each.unflatten(-1, (self.n_head, -1))
            if current.is_recording:
                record = current.records[layer]
                gated = current.joined[layer].transpose(1, 2)
                if not torch.equal(gated, record.head_output):
                    gate = torch.where(record.head_output == 0, 1, gated / record.head_output)
                    current.records[layer] = record._replace(gate=gate)
        result: Tensor = output.logits.float() if current.has_logits else output[0]
        return result

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        """Return a pass over the site alone, unless this model gives other logits that way, as hybrids do."""
        is_hybrid = len(self._modules) < self.n_layer
        if not is_hybrid and "position_ids" in signature(self.model.forward).parameters:
            site_pass = CachedSitePass(self, tokens, site)
            if are_near(site_pass.run([[]])[0], site_pass.logits()):
                return site_pass
        return SitePass(self, tokens, site)

    def _keep_streams(self, stack: ExitStack, streams: list[Tensor]) -> None:
        """Put the L + 1 streams of `residual_stream` into a list."""

        def keep_output(_: nn.Module, inputs: Any, output: Any) -> None:
            self._n_outputs = 0
            if not isinstance(output, Tensor):
                self._n_outputs = len(output)
                output = output[0]
            streams.append(output)

        _keep_inputs(stack, self._layers, streams)
        stack.enter_context(self._layers[-1].register_forward_hook(keep_output))

    def _start_at(self, stack: ExitStack, first: int, stream: Tensor | None) -> None:
        """Let passes begin at the layer `first` with the residual stream `stream` [B, T, D]; 0: as usual."""
        output = (stream, *[None] * (self._n_outputs - 1)) if self._n_outputs else stream
        _replace(stack, self._layers[:first], lambda *_, **__: output)

    def _answer(self, stack: ExitStack, positions: Tensor | None, words: Tensor | None) -> None:
        """Let the output layer compute the logits at `positions` [B] or [B, n] only, or of `words` [B, n] only."""
        layer: Any = self.model.get_output_embeddings()
        if words is None:
            hook = layer.register_forward_pre_hook(lambda _, inputs: (at_positions(inputs[0], positions),))
            stack.enter_context(hook)
            return
        weight = layer.weight[words]  # [B, n, D]
        bias = 0 if getattr(layer, "bias", None) is None else layer.bias[words][:, None]  # [B, 1, n]
        _replace(stack, [layer], lambda stream: stream @ weight.mT + bias)

    def output_weights(self, layer: int) -> Tensor | None:
        if not self._projections:
            return None
        output: Any = self._projections[self.attention_layers.index(layer)]
        # GPT-2's Conv1D has its matrix transposed.
        matrix = output.weight if isinstance(output, nn.Linear) else output.weight.T
        by_head: Tensor = matrix.unflatten(1, (self.n_head, -1)).transpose(0, 1)  # [H, D, K]
        return by_head

    def unembedding(self) -> Tensor:
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        body = getattr(self.model.base_model, "decoder", self.model.base_model)
        norm = _first_attribute(body, _FINAL_NORMS)
        if norm is None:
            return None
        eps = _first_attribute(norm, ("eps", "variance_epsilon"))
        gain = norm.weight
        is_layer_norm = isinstance(norm, nn.LayerNorm)
        if is_layer_norm:
            # It also subtracts the mean, which is a projection: applied before and after.
            stream = stream - stream.mean(-1, keepdim=True)
        else:
            # Gemma and Qwen3.5 multiply by 1 + weight; an RMS norm of ones shows the gain.
            gain = norm(torch.ones_like(gain)) * (1 + eps) ** 0.5
        pulled: Tensor = direction * gain / (stream.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        if is_layer_norm:
            pulled = pulled - pulled.mean(-1, keepdim=True)
        return pulled

    def untrained(self, seed: int) -> "PretrainedView":
        """Return a model of the same shape with transformers' initial weights for `seed`; UserError without memory."""
        from transformers import AutoModelForCausalLM

        check_memory(self.model, self.device, "with the untrained copy that it is compared with", n_copies=2)
        config = deepcopy(self.model.config)  # from_config writes the attention implementation into it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        return PretrainedView(model.to(self.device))


def _keep_inputs(stack: ExitStack, modules: Sequence[nn.Module], kept: list[Tensor]) -> None:
    """Put the hidden states [B, T, D] that each of `modules` reads into a list, until the stack is closed."""

    def keep(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        kept.append(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

    for module in modules:
        stack.enter_context(module.register_forward_pre_hook(keep, with_kwargs=True))


def _replace(stack: ExitStack, modules: Sequence[Any], forward: Callable[..., Any]) -> None:
    """Let `modules` compute `forward` instead of their own until the stack is closed."""
    for module in modules:
        module.forward = forward  # only this object's method; its class keeps the real one
        stack.callback(delattr, module, "forward")


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


def _first_attribute(module: Any, names: Sequence[str]) -> Any:
    """Return the first of these attributes that the module has and that is not None, if any."""
    for name in names:
        if getattr(module, name, None) is not None:
            return getattr(module, name)
    return None
