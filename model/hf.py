"""Models of the transformers library: observe any causal language model that it has, and export ours to it.

transformers lets a program register its own attention function (`AttentionInterface`). `TransformersView` registers
the explicit formula with recording and edits, so that one implementation serves every architecture that uses the
interface: GPT-2, GPT-NeoX, Llama, Mistral, Qwen, OPT, Phi, Gemma, OLMo and many others.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from data.errors import one_line
from data.tokenizer import end_id, imported_tokenizer, llama2c_tokenizer, load_tokenizer, nanogpt_characters
from model.checkpoints import check_uncompressed, read_checkpoint
from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.observe import (
    HeadEdit,
    HeadWeights,
    LayerRecord,
    ObservableModel,
    SiteEdit,
    SitePass,
    SiteRecord,
    apply_edits,
    edit_rows,
)
from model.transformer import Transformer

# The weights of one layer: our name -> transformers' name in a Llama.
LLAMA_LAYER = {
    "norm_1.gain": "input_layernorm",
    "attention.query.weight": "self_attn.q_proj",
    "attention.key.weight": "self_attn.k_proj",
    "attention.value.weight": "self_attn.v_proj",
    "attention.output.weight": "self_attn.o_proj",
    "norm_2.gain": "post_attention_layernorm",
    "mlp.gate.weight": "mlp.gate_proj",
    "mlp.up.weight": "mlp.up_proj",
    "mlp.down.weight": "mlp.down_proj",
}
LLAMA_SWITCHES = {  # values of our switches in a Llama (Touvron et al. 2023)
    "position": Position.rope,
    "scale": Scale.inverse_sqrt,
    "weighting": Weighting.softmax,
    "mask": Mask.causal,
    "token_shift": False,
    "tie_query_key": False,
    "tie_key_value": False,
}
GPT2, GPT2_SIZES = "openai-community/gpt2", (50257, 50304)  # on the hub; 50304: padded by nanoGPT
_INTERFACE = "antecedent"  # name of our attention function in transformers
_FILES = ("*.json", "*.txt", "*.model")  # settings and tokenizer
MAX_LAYERS = 1000
# Weights in the files of published models that no model uses: masks, frequencies, a copy of the embedding.
_UNUSED = re.compile(r"(attn|attention)\.(masked_)?bias$|inv_freq$|^lm_head\.weight$")
_OUTPUT_PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense")  # attribute names in attention modules
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # attribute names in the model's body


# Observing a model


@dataclass
class _Site:
    """One layer of an unedited pass, kept for the passes over the site alone; G heads have keys and values."""

    keys: Tensor  # [B, G, T, K]
    values: Tensor  # [B, G, T, K]
    is_visible: Tensor | None  # [B, T] what the site may see; None: everything up to it
    record: SiteRecord


@dataclass
class _Pass:
    """Options and records of the forward pass in progress."""

    edits: Sequence[HeadEdit] = ()
    site: Tensor | None = None  # [B] positions whose layers are kept in `sites`
    sites: dict[int, _Site] = field(default_factory=dict)
    edit_lists: Sequence[Sequence[SiteEdit]] | None = None  # a pass over the tokens at `site` alone, with each list
    query_positions: Tensor | None = None  # [B, Tq] recorded rows of the scores, if not all
    is_recording: bool = False
    modules: dict[int, nn.Module] = field(default_factory=dict)  # layer -> attention module
    layers: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)  # scores, values, head output


_current_pass: ContextVar[_Pass | None] = ContextVar("current_pass", default=None)


def observed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Returns the head outputs [B, T, H, K] by the explicit formula, recorded and edited as the current pass asks.

    transformers calls it in every layer with its attention `module`, query [B, H, T, K], key and value [B, G, T, K]
    (each of G heads is shared by H / G query heads) and `attention_mask` [B or 1, 1, T, T], True where a query may see
    a key. `scaling` multiplies the scores (default: 1 / sqrt(K)), `softcap` is their bound (Gemma 2).
    """
    current = _current_pass.get() or _Pass()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if current.edit_lists is not None:
        return _site_attention(query, key, value, layer, current, scaling, softcap), None
    own_key, own_value = key, value
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = (query @ key.mT).float() * scaling  # [B, H, T, T]
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    weights = scores.softmax(-1)
    head_output = apply_edits(weights, value, [edit for edit in current.edits if edit.layer == layer])
    current.modules[layer] = module
    if current.site is not None:
        rows = torch.arange(len(query), device=query.device)
        is_visible = None
        if attention_mask is not None:
            is_visible = attention_mask.expand(len(query), -1, -1, -1)[rows, 0, current.site]  # [B, T]
        record = SiteRecord(weights[rows, :, current.site], head_output[rows, :, current.site])
        current.sites[layer] = _Site(own_key, own_value, is_visible, record)
    if current.is_recording:
        if current.query_positions is not None:
            scores = scores.take_along_dim(current.query_positions[:, None, :, None], dim=2)
        current.layers[layer] = (scores, value, head_output)
    return head_output.to(query.dtype).transpose(1, 2).contiguous(), None


def _site_attention(
    query: Tensor, key: Tensor, value: Tensor, layer: int, current: _Pass, scaling: float, softcap: float | None
) -> Tensor:
    """Returns the head outputs [E * B, 1, H, K] at the site alone, from kept keys and values, with E lists of edits.

    `query` [E * B, H, 1, K], `key` and `value` [E * B, G, 1, K] are those of the site itself.
    """
    assert current.site is not None and current.edit_lists is not None
    kept, n_lists = current.sites[layer], len(current.edit_lists)
    n_texts, n_groups = kept.keys.shape[:2]
    rows = torch.arange(n_texts, device=query.device)

    # The lists and the query heads of a group are rows of one product, so keys and values are not copied.
    queries = query[:, :, 0].unflatten(0, (n_lists, n_texts)).unflatten(2, (n_groups, -1))  # [E, B, G, R, K]
    n_shared = queries.shape[3]
    of_group = queries.permute(1, 2, 0, 3, 4).flatten(2, 3)  # [B, G, E * R, K]
    scores = (of_group @ kept.keys.mT).unflatten(2, (n_lists, n_shared))  # [B, G, E, R, T]
    own_key, own_value = (x[:, :, 0].unflatten(0, (n_lists, n_texts)) for x in (key, value))  # [E, B, G, K]
    own_scores = (queries * own_key[:, :, :, None]).sum(-1)  # [E, B, G, R]
    scores[rows, ..., current.site] = own_scores.permute(1, 2, 0, 3)
    scores = scores.float() * scaling
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    positions = torch.arange(scores.shape[-1], device=query.device)
    is_visible = positions <= current.site[:, None] if kept.is_visible is None else kept.is_visible  # [B, T]
    scores = scores.masked_fill(~is_visible[:, None, None, None], float("-inf"))

    # Edits see the rows in the order [E * B, H, T].
    weights = scores.softmax(-1).permute(2, 0, 1, 3, 4).flatten(2, 3).flatten(0, 1).contiguous()
    edit_rows(weights, layer, current.edit_lists, "weights")
    grouped = weights.unflatten(0, (n_lists, n_texts)).unflatten(2, (n_groups, n_shared))  # [E, B, G, R, T]
    of_group = grouped.permute(1, 2, 0, 3, 4).flatten(2, 3)  # [B, G, E * R, T]
    output = (of_group @ kept.values.float()).unflatten(2, (n_lists, n_shared))  # [B, G, E, R, K]
    output = output.permute(2, 0, 1, 3, 4)  # [E, B, G, R, K]
    on_itself = grouped[:, rows, :, :, current.site].transpose(0, 1)  # [E, B, G, R]
    changed = own_value.float() - kept.values[rows, :, current.site].float()  # [E, B, G, K]
    output = (output + on_itself[..., None] * changed[:, :, :, None]).flatten(2, 3).flatten(0, 1)  # [E * B, H, K]
    edit_rows(output, layer, current.edit_lists, "output")
    return output[:, None].to(query.dtype)


def _full_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Returns the boolean mask of a pass, also where transformers would leave the causal mask to the kernel."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False})


class TransformersView(ObservableModel):
    """The `ObservableModel` of a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        """Switches `model` to `observed_attention`; ValueError if its logits do not stay the same.

        `model` is a `transformers.PreTrainedModel` with a language-modelling head, in float32, with the attention
        implementation "eager" as the reference.
        """
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface

        AttentionInterface.register(_INTERFACE, observed_attention)
        AttentionMaskInterface.register(_INTERFACE, _full_mask)
        self.model = model.eval().requires_grad_(False)
        # A head with a sliding window cannot see a noun outside it.
        limits = (model.config.max_position_embeddings, getattr(model.config, "sliding_window", None))
        self.context_length = min(int(limit) for limit in limits if limit)
        self.vocab_size = len(model.get_output_embeddings().weight)
        length = min(16, self.context_length)
        tokens = torch.linspace(0, self.vocab_size - 1, length, device=self.device).long()[None]
        reference = self._run(model, tokens).logits
        model.set_attn_implementation(_INTERFACE)
        first_pass = _Pass(is_recording=True)
        logits = self._run(model, tokens, first_pass).logits
        self._modules = [first_pass.modules[layer] for layer in sorted(first_pass.modules)]
        self.n_layer = int(model.config.num_hidden_layers)
        kind = f"model_type={model.config.model_type}: cannot be observed"
        if len(self._modules) != self.n_layer:
            n_layers = f"{len(self._modules)} of {self.n_layer} layers"
            raise ValueError(f"{kind}, only {n_layers} use the AttentionInterface of transformers")
        if not torch.allclose(logits, reference, rtol=1e-3, atol=1e-3 * float(reference.abs().max())):
            raise ValueError(f"{kind}, its attention is not softmax(scores) @ values")
        names = {module: name for name, module in model.named_modules()}
        self._layers = [model.get_submodule(names[module].rpartition(".")[0]) for module in self._modules]
        scores, values, _ = first_pass.layers[0]
        self.n_head, self._head_dim = scores.shape[1], values.shape[-1]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.get_input_embeddings().weight.device

    def logits(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        edits: Sequence[HeadEdit] = (),
        streams: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """Returns float32 logits [B, T, V], or [B, V] at `positions` [B]; `streams` is not used, the pass is whole."""
        if positions is None:
            return self._run(self.model, tokens, _Pass(edits)).logits
        return self._logits_at(tokens, positions, _Pass(edits))

    def _logits_at(self, tokens: Tensor, positions: Tensor, current: _Pass) -> Tensor:
        """Returns the logits [B, V] at `positions` [B]; the output layer computes no others."""
        rows = torch.arange(len(tokens), device=tokens.device)

        def select(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            return (inputs[0][rows, positions][:, None],)

        with self.model.get_output_embeddings().register_forward_pre_hook(select):
            return self._run(self.model, tokens, current).logits[:, 0]

    def site_pass(self, tokens: Tensor, site: Tensor) -> SitePass:
        """Returns a pass that computes only the site again, unless this architecture gives other logits that way."""
        if "position_ids" not in signature(self.model.forward).parameters:
            return SitePass(self, tokens, site)
        fast = TransformersSitePass(self, tokens, site)
        return fast if fast.agrees() else SitePass(self, tokens, site)

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        """Returns what each layer's attention computes."""
        inputs: list[Tensor] = []
        current = _Pass(query_positions=query_positions, is_recording=True)
        with ExitStack() as hooks:
            for module in self._modules:
                hooks.enter_context(module.register_forward_pre_hook(_keep(inputs), with_kwargs=True))
            self._run(self.model.base_model, tokens, current)
        return [LayerRecord(*current.layers[layer], inputs[layer]) for layer in range(self.n_layer)]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        """Returns the residual stream before each layer and after the last: L + 1 tensors [B, T, D]."""
        streams: list[Tensor] = []
        with ExitStack() as hooks, self.keeping_final_stream() as final:
            for layer in self._layers:
                hooks.enter_context(layer.register_forward_pre_hook(_keep(streams), with_kwargs=True))
            self._run(self.model.base_model, tokens)
        return [*streams, *final]

    @contextmanager
    def keeping_final_stream(self) -> Iterator[list[Tensor]]:
        """Yields a list that receives the residual stream [B, T, D] after the last layer in each pass."""
        streams: list[Tensor] = []

        def keep_output(_: nn.Module, inputs: Any, output: Any) -> None:
            streams.append(output if isinstance(output, Tensor) else output[0])

        with self._layers[-1].register_forward_hook(keep_output):
            yield streams

    def head_weights(self, layer: int) -> HeadWeights:
        """Returns the projections of each head."""
        module = self._modules[layer]
        query, key, value = (self._projection(module, f"{name}_proj", index) for index, name in enumerate("qkv"))
        output = next((getattr(module, name) for name in _OUTPUT_PROJECTIONS if hasattr(module, name)), None)
        by_head = None if output is None else _matrix(output).unflatten(1, (self.n_head, -1)).transpose(0, 1)
        return HeadWeights(query, key, value, by_head)

    def _projection(self, module: Any, name: str, index: int) -> Tensor | None:
        """Returns a projection [H, K, D] by its name, or by its index in a fused query, key and value projection."""
        if (projection := getattr(module, name, None)) is not None:
            weight = _matrix(projection)
        elif type(module).__name__ == "GPT2Attention":  # queries, keys and values one after the other
            weight = _matrix(module.c_attn).chunk(3)[index]
        elif type(module).__name__ == "GPTNeoXAttention":  # query, key and value of each head one after the other
            weight = _matrix(module.query_key_value).unflatten(0, (self.n_head, 3, -1))[:, index].flatten(0, 1)
        else:
            return None
        by_head = weight.unflatten(0, (-1, self._head_dim))  # [H or fewer, K, D]
        return by_head.repeat_interleave(self.n_head // len(by_head), dim=0)

    def unembedding(self) -> Tensor:
        """Returns the output embedding [V, D]."""
        return self.model.get_output_embeddings().weight

    def final_norm_pullback(self, direction: Tensor, stream: Tensor) -> Tensor | None:
        """Pulls a direction [..., D] back through the final LayerNorm or RMSNorm, with its divisor held fixed."""
        body = getattr(self.model.base_model, "decoder", self.model.base_model)
        norm = next((getattr(body, name) for name in _FINAL_NORMS if getattr(body, name, None) is not None), None)
        if norm is None:
            return None
        is_centred = isinstance(norm, nn.LayerNorm)
        eps = next(getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name))
        centred = stream - stream.mean(-1, keepdim=True) if is_centred else stream
        gain = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
        pulled = direction * gain / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return pulled - pulled.mean(-1, keepdim=True) if is_centred else pulled

    def untrained(self, seed: int) -> "TransformersView":
        """Returns a model of the same shape with the initial weights that transformers draws from `seed`."""
        from transformers import AutoModelForCausalLM

        config = deepcopy(self.model.config)  # from_config writes the attention implementation into it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        return TransformersView(model.to(self.device))

    @torch.no_grad()
    def _run(self, module: Any, tokens: Tensor, current: _Pass | None = None, **arguments: Tensor) -> Any:
        """Returns the output of the model, or of its body, which computes no logits: a vocabulary can be large."""
        if int(tokens.max()) >= self.vocab_size:
            raise ValueError(f"token {int(tokens.max())}: the model has only {self.vocab_size:,} tokens")
        token = _current_pass.set(current)
        try:
            return module(input_ids=tokens, use_cache=False, **arguments)
        finally:
            _current_pass.reset(token)


class TransformersSitePass(SitePass):
    """The site's logits from keys and values of one unedited pass, for models that mix positions in attention only."""

    def __init__(self, view: TransformersView, tokens: Tensor, site: Tensor) -> None:
        """Keeps keys and values of all layers."""
        self._view, self._site = view, site
        self._rows = torch.arange(len(site), device=site.device)
        self._tokens = tokens[self._rows, site]
        kept = _Pass(site=site)
        with view.keeping_final_stream() as streams:
            self._clean = view._logits_at(tokens, site, kept).float()
        self._final, self._sites = streams[0][self._rows, site], kept.sites

    def agrees(self) -> bool:
        """Returns whether a pass over the site alone gives the logits of the whole pass."""
        alone = self._run([[]])[0]
        return torch.allclose(alone, self._clean, rtol=1e-3, atol=1e-3 * float(self._clean.abs().max()))

    def edited_logits(self, edit_lists: Sequence[Sequence[SiteEdit]]) -> Tensor:
        """Returns the logits [E, B, V] with each of E lists of edits."""
        if not any(edit_lists):
            return self._clean.expand(len(edit_lists), -1, -1)
        return self._run(edit_lists)

    def _run(self, edit_lists: Sequence[Sequence[SiteEdit]]) -> Tensor:
        n_lists = len(edit_lists)
        tokens = self._tokens.repeat(n_lists)[:, None]  # [E * B, 1]
        current = _Pass(site=self._site, sites=self._sites, edit_lists=edit_lists)
        positions = self._site.repeat(n_lists)[:, None]
        logits = self._view._run(self._view.model, tokens, current, position_ids=positions).logits[:, 0].float()
        return logits.unflatten(0, (n_lists, -1))

    def records(self) -> list[SiteRecord]:
        """Returns what the heads of each layer computed at the site."""
        return [self._sites[layer].record for layer in range(self._view.n_layer)]

    def final_stream(self) -> Tensor:
        """Returns the unedited residual stream [B, D] at the site after the last layer."""
        return self._final


def _keep(inputs: list[Tensor]) -> Any:
    """Returns a forward pre-hook that appends the hidden states of its module to `inputs`."""

    def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        inputs.append(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])

    return hook


def _matrix(projection: Any) -> Tensor:
    """Returns the weight of a linear layer as [outputs, inputs]; GPT-2's Conv1D stores it transposed."""
    return projection.weight if isinstance(projection, nn.Linear) else projection.weight.T


# Opening a model


def open_transformers(
    source: str, device: torch.device, tokenizer_source: str | None = None
) -> tuple[TransformersView, Tokenizer, dict[str, Any]]:
    """Loads a causal language model in float32.

    `source` is a folder of `save_pretrained`, a name on the hub, or a checkpoint file (model/checkpoints.py).
    `tokenizer_source` is explained at `find_tokenizer`. No code of the model's folder is run and no pickle is executed:
    weights are read from safetensors or by `torch.load(weights_only=True)`. The tokenizer adds nothing around a text.
    The facts are for the report: "start" (the token before every text), "path", "commit" (None if it is not of the
    hub), "sha256" of all files, shape and version. ValueError with one line if the model cannot be loaded or observed.
    """
    if find_spec("transformers") is None:
        raise ValueError(f"model={source}: needs transformers; pip install '.[export]'")
    path, commit = find_model(source)
    view = _load(path, source, device)
    tokenizer, start = find_tokenizer(path, source, tokenizer_source, view.vocab_size)
    if start >= view.vocab_size:
        raise ValueError(f"model={source}: its start token {start} is outside its {view.vocab_size:,} tokens")
    config = view.model.config
    facts = {
        "source": "transformers", "model_type": config.model_type, "n_layer": view.n_layer, "n_head": view.n_head,
        "d_model": config.hidden_size, "context_length": view.context_length, "vocab_size": view.vocab_size,
        "start": start, "tokenizer": tokenizer_source, "path": path, "commit": commit, "sha256": _sha256(path),
        "transformers": version("transformers"),
    }  # fmt: skip
    return view, tokenizer, facts


def find_model(source: str, setting: str = "model", *, has_weights: bool = True) -> tuple[Path, str | None]:
    """Returns the path of a model and None, or for a name on the hub its downloaded snapshot and commit.

    Without `has_weights` only settings and tokenizer are downloaded.
    """
    if not source:
        raise ValueError(f"{setting}=: the name is empty")
    path = Path(source)
    if path.is_file() and path.name in ("model.safetensors", "pytorch_model.bin"):
        raise ValueError(f"{setting}={source}: give its folder")
    if path.is_dir() or (path.is_file() and path.suffix in (".pt", ".bin")):
        return path, None
    if path.exists() or source.startswith((".", "/", "~")):
        raise ValueError(
            f"{setting}={source}: no such model; give a folder of save_pretrained, a hub name, ckpt.pt or model.bin"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = Path(
            snapshot_download(
                source, allow_patterns=[*_FILES, *(["*.safetensors"] if has_weights else [])], ignore_patterns="*/*"
            )
        )
        if has_weights and not _weight_files(folder):
            snapshot_download(source, allow_patterns="pytorch_model*.bin", ignore_patterns="*/*")
    except (OSError, HFValidationError) as error:  # no network, no such model, private
        problem = "cannot be reached" if "Connect" in str(error) else f"does not provide it: {one_line(error)}"
        raise ValueError(f"{setting}={source}: no such folder, and the hub {problem}") from None
    return folder, folder.name


def find_tokenizer(path: Path, source: str, tokenizer_source: str | None, vocab_size: int) -> tuple[Tokenizer, int]:
    """Returns the tokenizer of the model at `path` and the token before every text; ValueError if there is none.

    `tokenizer_source` is a folder or a hub name with a tokenizer, a tokenizer.json, llama2.c's tokenizer.bin, or a text
    whose sorted characters are the tokens, as in nanoGPT. If None, it is in the model's folder; for a checkpoint of
    nanoGPT with GPT-2's vocabulary it is that of GPT-2 on the hub.
    """
    if tokenizer_source is None and path.is_dir():
        return imported_tokenizer(path, f"model={source}")
    setting = f"tokenizer={tokenizer_source}"
    if tokenizer_source is None:
        neighbours = [path.parent / name for name in ("tokenizer.json", "tokenizer.bin")]
        tokenizer_source = next((str(file) for file in neighbours if file.is_file()), None)
        setting = f"model={source}"
        if tokenizer_source is None and vocab_size not in GPT2_SIZES:
            raise ValueError(f"{setting}: has no tokenizer beside it; give tokenizer=FILE")
    if tokenizer_source is None:
        try:
            return imported_tokenizer(find_model(GPT2, has_weights=False)[0], setting)
        except ValueError:
            problem = "needs GPT-2's tokenizer, and the hub does not provide it; give tokenizer=FOLDER"
            raise ValueError(f"{setting}: {problem}") from None
    file = Path(tokenizer_source)
    if file.suffix not in (".txt", ".bin", ".json", ".model"):
        return imported_tokenizer(find_model(tokenizer_source, "tokenizer", has_weights=False)[0], setting)
    if file.suffix == ".model":
        raise ValueError(f"{setting}: give the tokenizer.bin that llama2.c's tokenizer.py makes of it")
    try:
        return tokenizer_of(file, vocab_size)
    except (OSError, ValueError) as error:
        raise ValueError(f"{setting}: {one_line(error)}") from None


def tokenizer_of(file: Path, vocab_size: int) -> tuple[Tokenizer, int]:
    """Returns the tokenizer in a .txt, .bin or .json file (see `find_tokenizer`) and the token before every text."""
    if file.suffix == ".bin":
        return llama2c_tokenizer(file, vocab_size), 1
    if file.suffix == ".json":
        tokenizer = load_tokenizer(file)
        return tokenizer, end_id(tokenizer)
    tokenizer = nanogpt_characters(file.read_text(encoding="utf-8"))
    if tokenizer.get_vocab_size() != vocab_size:
        n_characters = tokenizer.get_vocab_size()
        raise ValueError(f"has {n_characters} different characters, but the model has {vocab_size} tokens")
    return tokenizer, tokenizer.token_to_id("\n") or 0  # a text begins after a line


def check_memory(config: Any, device: torch.device) -> None:
    """Raises ValueError if a model and an untrained copy in float32 need more memory than the machine has."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        n_bytes = 2 * sum(4 * weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[1]
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if n_bytes > available:
        raise ValueError(f"needs {n_bytes:,} bytes with an untrained copy, but {device.type} has {available:,}")


def _load(path: Path, source: str, device: torch.device) -> TransformersView:
    """Returns the model at `path`; ValueError with one line for every problem that transformers or we find."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if path.is_file():
            try:
                model = read_checkpoint(path)
            except KeyError as error:
                raise ValueError(f"lacks {error.args[0]}") from None
            except (EOFError, RuntimeError, OSError, TypeError, IndexError, AttributeError) as error:
                raise ValueError(f"is damaged or no checkpoint of nanoGPT or llama2.c: {one_line(error)}") from None
            model.set_attn_implementation("eager")
            check_finite(model)
            return TransformersView(model.to(device))
        values, _ = transformers.PretrainedConfig.get_config_dict(path, local_files_only=True)
        if "model_type" not in values and (path / "checkpoints").is_dir():
            raise ValueError(f"is a run of train.py; use run={source}")
        if values.get("quantization_config"):
            raise ValueError("its weights are quantized; use the version that is not")
        if re.search(r'attn_implementation": "[^"]*/', json.dumps(values)):
            raise ValueError("its config.json asks for attention code from the hub")
        layers = [values.get(name) for name in ("num_hidden_layers", "n_layer", "num_layers")]
        if any(isinstance(n, int) and n > MAX_LAYERS for n in layers):
            raise ValueError(f"its config.json asks for more than {MAX_LAYERS} layers")
        check_files(path)
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        check_memory(config, device)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", local_files_only=True, trust_remote_code=False,
            weights_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        model, info = loaded
        if wrong := {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}:
            raise ValueError(f"its weights do not fit its config.json: {min(wrong)} is missing or has another shape")
        if extra := sorted(key for key in info["unexpected_keys"] if not _UNUSED.search(key)):
            raise ValueError(f"its config.json does not use all weights: {extra[0]}")
        check_finite(model)
        return TransformersView(model.to(device))
    except torch.OutOfMemoryError:
        raise
    except UnpicklingError:
        raise ValueError(f"model={source}: its weights hold more than tensors and are not loaded") from None
    except Exception as error:  # transformers and the files of others raise exceptions of every type
        raise ValueError(f"model={source}: {one_line(error)}") from None


def check_finite(model: Any) -> None:
    """Raises ValueError if a weight is infinite or not a number."""
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise ValueError("its weights are not finite")


def check_files(folder: Path) -> None:
    """Raises ValueError if weights are compressed, or if their index names a file outside the folder."""
    for file in folder.glob("pytorch_model*.bin"):
        check_uncompressed(file)
    for index in folder.glob("*.index.json"):
        content = json.loads(index.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("weight_map"), dict):
            raise ValueError(f"{index.name} is damaged")
        for name in content["weight_map"].values():
            if not isinstance(name, str) or Path(name).name != name or name == "..":
                raise ValueError(f"{index.name} names a file outside the folder: {name}")


def _weight_files(folder: Path) -> list[Path]:
    """Returns the files with weights: safetensors, or PyTorch's format if there are none."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _sha256(path: Path) -> str:
    """Returns one digest of a checkpoint, or of settings, tokenizer and weights in a folder."""
    digest, files = hashlib.sha256(), [path]
    if path.is_dir():
        files = [*sorted(file for pattern in _FILES for file in path.glob(pattern)), *_weight_files(path)]
    for name in files:
        with name.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


# Exporting our model


def departures(config: ModelConfig) -> list[str]:
    """Returns NAME=VALUE of every switch of `config` that no Llama has."""
    values = {name: getattr(config, name) for name in LLAMA_SWITCHES}
    return [f"model.{name}={str(value).lower()}" for name, value in values.items() if value != LLAMA_SWITCHES[name]]


def check_is_llama(config: ModelConfig) -> None:
    """Raises ValueError unless a Llama can compute the same; tied projections are exported as two equal matrices."""
    if wrong := [switch for switch in departures(config) if not switch.startswith("model.tie_")]:
        raise ValueError(f"{', '.join(wrong)}: not exportable, a Llama does not have it")


def llama_weights(model: Transformer) -> dict[str, Tensor]:
    """Returns the weights in float32 on the CPU under transformers' names; tied projections are copied."""
    check_is_llama(model.config)
    names = {"token_embedding.weight": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
    for layer in range(model.config.n_layer):
        names |= {f"blocks.{layer}.{a}": f"model.layers.{layer}.{b}.weight" for a, b in LLAMA_LAYER.items()}
    weights = model.state_dict()
    return {llama: weights[name].detach().float().cpu().clone() for name, llama in names.items()}


def as_llama(model: Transformer, end: int = 0) -> Any:
    """Returns `transformers.LlamaForCausalLM` with the weights of `model`; it computes the same logits bit by bit.

    ValueError if `model` has a switch that no Llama has; `end` is the token that begins and ends a text.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config, weights = model.config, llama_weights(model)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=model.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.d_mlp,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
            dtype="float32",
        )
    )
    llama.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return llama.eval()


def export_transformers(model: Transformer, folder: Path, end: int = 0, tokenizer: Tokenizer | None = None) -> None:
    """Writes `model` as a Llama to `folder`, with its tokenizer if given, for `from_pretrained` of transformers.

    ValueError if `model` has a switch that no Llama has; `end` begins and ends a text and pads a batch.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    as_llama(model, end).save_pretrained(folder)
    if tokenizer is not None:
        symbol, unknown = tokenizer.id_to_token(end), getattr(tokenizer.model, "unk_token", None)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=model.config.context_length, bos_token=symbol,
            eos_token=symbol, pad_token=symbol, unk_token=unknown, clean_up_tokenization_spaces=False,
        ).save_pretrained(folder)  # fmt: skip
