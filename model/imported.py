"""A folder as transformers' save_pretrained writes it: what it holds is checked by name, and then loaded."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.transformer import Attention, Block, RMSNorm, SwiGLU, Transformer

_COUNTS = (
    "num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_size max_position_embeddings "
    "intermediate_size n_layer n_head n_embd n_positions n_inner vocab_size"
).split()


# What a file may hold without being asked for it, for nothing is computed from it: old GPT-2s' triangle and its filling
# (now made from the places), a second copy of an embedding that is tied, and old Llamas' angles (now made from theta).
_NOT_MISSED = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias|lm_head\.weight|"
    r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)


def check_installed() -> None:
    """Raise ValueError, in one line, where transformers is not installed."""
    if find_spec("transformers") is None:
        raise ValueError("model= takes transformers: pip install '.[export]'")


def load(folder: Path, name: str, device: torch.device) -> Imported:
    """Load a model from a folder as `save_pretrained` writes it, in float32 whatever it is kept in.

    No code of the folder is run and no pickle opened: of weights only tensors are read.

    Args:
        folder: with config.json and weights, safetensors where there are some.
        name: what to call it in errors.
        device: where to put it.

    Raises:
        ValueError: in one line, why it cannot be loaded or read.

    """
    kept = _their_config(folder, name)
    _check_config(kept, folder, name)
    files = weights_of(folder)
    _check_files(files, name)
    theirs = _loaded(folder, name, is_safe=files[0].suffix == ".safetensors").to(device)
    try:
        return Imported(theirs)
    except torch.OutOfMemoryError:
        raise  # it is the device that is at fault
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"{name} cannot be read: {_short(error)}") from None


def _check_config(kept: Mapping[str, Any], folder: Path, name: str) -> None:
    """Raise ValueError for a config.json of something else, or of what is not read here."""
    if "model_type" not in kept and ({"run", "data", "optim"} <= kept.keys() or (folder / "checkpoints").is_dir()):
        raise ValueError(f"{name} is a run: run={name} probes it")
    if kept.get("model_type") not in TYPES:
        raise ValueError(f"{name}: model_type={kept.get('model_type')} cannot be probed: only {', '.join(TYPES)} can")
    if kept.get("quantization_config"):
        raise ValueError(f"{name}: its weights are quantized: take the ones that are not")
    for count in _COUNTS:
        if isinstance(kept.get(count), int) and kept[count] < 1:
            raise ValueError(f"{name}: {count}={kept[count]} cannot be probed: it is 1 or more")


def _check_files(files: Sequence[Path], name: str) -> None:
    """Raise ValueError where there are no weights, or a pickle of more than weights."""
    if not files:
        raise ValueError(f"{name} has no weights: neither *.safetensors nor pytorch_model*.bin")
    for path in files:
        if path.suffix == ".bin" and not _holds_tensors(path):
            raise ValueError(f"{name}: its weights hold more than tensors, which is not opened, or are damaged")


def _loaded(folder: Path, name: str, *, is_safe: bool) -> Any:
    """Return transformers' model with every weight of the folder and no other; ValueError where that cannot be."""
    import transformers

    transformers.utils.logging.set_verbosity_error()  # what it would warn of is an error here
    transformers.utils.logging.disable_progress_bar()
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False,
            use_safetensors=is_safe, weights_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are looked at below, where they have a name
        )  # fmt: skip
    except Exception as error:  # of any kind: whoever wrote the folder decides
        raise ValueError(f"transformers cannot load {name}: {_short(error)}") from None
    theirs, info = loaded
    held = {key for key in info["unexpected_keys"] if not _NOT_MISSED.fullmatch(key)}
    for what, some, why in (
        ("lacks", info["missing_keys"], "it is not whole"),
        ("has another size of", {key for key, *_ in info["mismatched_keys"]}, "config.json asks for other weights"),
        ("holds", held, "config.json does not ask for that"),
    ):
        if some:
            more = f", and {len(some) - 1} more of its weights" if len(some) > 1 else ""
            raise ValueError(f"{name} {what} {min(some)}{more}: {why}")
    if not all(one.isfinite().all() for one in theirs.parameters()):
        raise ValueError(f"{name} has weights that are not finite: there is nothing to read")
    return theirs


def _their_config(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{name} is no model of transformers: it has no config.json")
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: its config.json is damaged")
    return found


def _holds_tensors(path: Path) -> bool:
    """Say whether a pickle holds tensors by name and nothing else; what PyTorch says of others is how to run them."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except Exception:  # of any kind: whoever wrote the file decides
        return False
    return isinstance(held, dict) and all(isinstance(one, Tensor) for one in held.values())


def weights_of(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, in order: safetensors, and only where there are none others."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def sha256_of(files: list[Path]) -> str:
    """Return one digest of the contents of some files, in their order."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()


def _short(error: Exception) -> str:
    """Return of what kind an error is and what it says, in one line of 200 characters at most."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


TYPES = ("gpt2", "llama", "mistral", "qwen2")  # transformers' names of what can be opened


# Of rotary angles, those that are the same in a short text and in a long one.
_ANGLES = ("default", "linear", "llama3", "yarn")


_NO_GPT2 = ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedConfig(ModelConfig):
    """The shape of a model from elsewhere; in all that is not said here as of ours."""

    model_type: str  # one of TYPES
    d_head: int  # width of a head, which need not be d_model / n_head
    n_key_value_head: int  # heads that have keys and values of their own; each serves n_head / n_key_value_head

    def __post_init__(self) -> None:
        """Refuse nothing: transformers has built it."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_head


class ImportedNorm(RMSNorm):
    """Their LayerNorm or RMSNorm, and what of it is linear."""

    def __init__(self, theirs: nn.Module, eps: float) -> None:
        """Hold theirs; its weight is the gain."""
        nn.Module.__init__(self)
        self.theirs, self.eps = theirs, eps
        self.gain = theirs.weight  # type: ignore[assignment]
        self.is_centred = isinstance(theirs, nn.LayerNorm)

    def forward(self, x: Tensor) -> Tensor:
        """Return what theirs does."""
        return self.theirs(x)

    def undivided(self, x: Tensor) -> Tensor:
        """Return `x` [..., D] as the norm leaves it, but for the division by its size and for what is always added."""
        return self._centred(x) * self.gain

    def pull_back(self, direction: Tensor, x: Tensor) -> Tensor:
        """Return what `direction` [..., D] behind the norm is in front of it, where the norm reads `x` [..., D]."""
        size = (self._centred(x).pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return self._centred(direction * self.gain) / size  # taking the mean away is its own transpose

    def always(self, direction: Tensor) -> Tensor | None:
        """Return what the norm's bias gives to a dot product with `direction` [..., D]; None without one."""
        bias = getattr(self.theirs, "bias", None)
        return None if bias is None else (direction * bias).sum(-1)

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.is_centred else x


class ImportedMlp(SwiGLU):
    """Their MLP, of whatever kind."""

    def __init__(self, theirs: nn.Module) -> None:
        """Hold theirs."""
        nn.Module.__init__(self)
        self.theirs = theirs

    def forward(self, x: Tensor) -> Tensor:
        """Return what theirs does: [B, T, D] from [B, T, D]."""
        return self.theirs(x)


@dataclass(frozen=True, slots=True)
class Angles:
    """By how much queries and keys are turned at each position."""

    frequencies: Tensor  # [K/2] theirs
    factor: float  # by which turned vectors are made longer (YaRN, Peng et al. 2023)


class ImportedAttention(Attention):
    """Our attention over their weights, with the biases that they have."""

    def __init__(self, config: ImportedConfig, linears: Mapping[str, nn.Linear], angles: Angles | None) -> None:
        """Take query, key, value and output by name, each of all `n_head` heads."""
        nn.Module.__init__(self)
        self.n_head, self.theta = config.n_head, config.rope_theta
        self.scaled, self.causal = config.scale is Scale.inverse_sqrt, True
        self.has_rope, self.sums = angles is not None, False
        self.register_buffer("slopes", None, persistent=False)
        self.query, self.key, self.value, self.output = (linears[name] for name in ("query", "key", "value", "output"))
        self.angles = angles

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key (both turned by their positions) and value of `x` [B, T, D], each [B, H, T, K]."""
        query, key, value = (
            linear(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        if self.has_rope:
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            query, key = self.turn(query, positions), self.turn(key, positions)
        return query, key, value

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys `x` [..., T, K] turned by their positions, computed as transformers does."""
        assert self.angles is not None  # of a model that turns
        half = positions[..., None].float() * self.angles.frequencies
        whole = torch.cat([half, half], dim=-1)
        cos, sin = whole.cos() * self.angles.factor, whole.sin() * self.angles.factor
        one, other = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-other, one], dim=-1) * sin

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Return what all heads together add to the stream, [B, T, D] from the values they mixed [B, H, T, K]."""
        return self.output(mixed.transpose(1, 2).flatten(2))

    def offsets_by_head(self) -> tuple[Tensor, Tensor] | None:
        """Return what is added to each head's query and key [H, K] whatever is read; None: nothing."""
        if self.query.bias is None:
            return None
        return self.query.bias.unflatten(0, (self.n_head, -1)), self.key.bias.unflatten(0, (self.n_head, -1))


class ImportedBlock(Block):
    """One of their layers, taken apart."""

    def __init__(self, norms: tuple[RMSNorm, RMSNorm], attention: Attention, mlp: SwiGLU) -> None:
        """Put the parts where ours are."""
        nn.Module.__init__(self)
        (self.norm_1, self.norm_2), self.attention, self.mlp = norms, attention, mlp
        self.dropout = nn.Dropout(0.0)

    def adds(self) -> bool:
        """Say yes: theirs begin with weights that are not zero."""
        return True


class Imported(Transformer):
    """A model of theirs with the interface of ours."""

    config: ImportedConfig
    departures: tuple[str, ...]  # in what it is unlike the plain Llama that train.py makes, for a reader

    def __init__(self, theirs: Any) -> None:
        """Take a GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM or Qwen2ForCausalLM.

        Args:
            theirs: in float32, on its device, with fused attention (sdpa). It is put into eval mode.

        Raises:
            ValueError: in one line, what of it cannot be read.

        """
        nn.Module.__init__(self)
        check_can_be_read(theirs.config)
        self.theirs = theirs.eval().requires_grad_(False)
        theirs.config.pad_token_id = None  # or transformers warns of a text that holds it
        self.vocab_size = theirs.get_output_embeddings().weight.shape[0]
        self.token_embedding = theirs.get_input_embeddings()
        make = _gpt2 if theirs.config.model_type == "gpt2" else _llama
        self.config, self.final_norm, blocks = make(theirs)
        self.departures = _departures(theirs)
        # Not among the modules: what they hold is theirs, or made of it, and counts once.
        self._layers = tuple(blocks)

    def forward(self, tokens: Tensor, texts: Tensor | None = None) -> Tensor:
        """Return their logits [B, T, V] of the token after each of `tokens` [B, T], by their own forward pass."""
        if texts is not None:
            raise ValueError("a model from elsewhere reads one text in a row")
        return self.theirs(input_ids=self._known(tokens), use_cache=False).logits

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the stream [B, T, D] that enters the first block; arguments as `Transformer.embed`."""
        x = self.token_embedding(self._known(tokens))
        if self.config.position is not Position.learned:
            return x
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        return x + self.theirs.transformer.wpe(positions)

    def _known(self, tokens: Tensor) -> Tensor:
        """Return `tokens`; ValueError where a tokenizer has written one that the model has no vector for."""
        if (largest := int(tokens.max())) >= self.vocab_size:
            raise ValueError(f"the model's tokenizer writes token {largest}, and it knows only {self.vocab_size:,}")
        return tokens

    def layers(self) -> Iterator[Block]:
        """Yield the blocks, bottom up."""
        yield from self._layers

    @property
    def unembedding(self) -> Tensor:
        """Their vector of every token [V, D], which may be another than its embedding."""
        return self.theirs.get_output_embeddings().weight

    def untrained(self, seed: int) -> Imported:
        """Return a model of the same shape with weights as transformers draws them, by `seed` alone."""
        from transformers import AutoModelForCausalLM

        device = self.token_embedding.weight.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            drawn = AutoModelForCausalLM.from_config(
                self.theirs.config, dtype=torch.float32, attn_implementation="sdpa"
            )
        return Imported(drawn.to(device))


def check_can_be_read(config: Any) -> None:
    """Raise ValueError, in one line, for a model whose attention is not what is observed here.

    Args:
        config: of transformers.

    """
    if config.model_type not in TYPES:
        raise ValueError(f"model_type={config.model_type} cannot be probed: only {', '.join(TYPES)} can")
    for name in _NO_GPT2:
        if getattr(config, name, False):
            raise ValueError(f"{name}=true cannot be probed: no other attention here is computed that way")
    of_norm = "layer_norm_epsilon" if config.model_type == "gpt2" else "rms_norm_eps"
    if not 0 <= (eps := getattr(config, of_norm)) < math.inf:
        raise ValueError(f"{of_norm}={eps} cannot be probed: it is 0 or more, and finite")
    if config.model_type == "gpt2":
        return
    rope = config.rope_parameters or {}
    if not 0 < (theta := rope.get("rope_theta", 1.0)) < math.inf:
        raise ValueError(f"rope_theta={theta} cannot be probed: it is more than 0, and finite")
    if rope.get("rope_type", "default") not in _ANGLES:
        raise ValueError(f"rope_type={rope.get('rope_type')} cannot be probed: only {', '.join(_ANGLES)} can")
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or getattr(config, "partial_rotary_factor", 1.0) not in (
        None,
        1.0,
    ):
        raise ValueError("partial_rotary_factor other than 1 cannot be probed: here whole heads are turned")


def _departures(theirs: Any) -> tuple[str, ...]:
    config = theirs.config
    # Asked of the weights: transformers ties none where a file holds both and they differ, whatever config.json says.
    is_tied = theirs.get_output_embeddings().weight is theirs.get_input_embeddings().weight
    own = () if is_tied else ("an unembedding of its own",)
    if config.model_type == "gpt2":
        kind = str(config.activation_function).split("_")[0].upper()
        return ("learned positions", "LayerNorm", f"an MLP of {kind} without a gate", "biases", *own)
    found = []
    if config.num_key_value_heads != config.num_attention_heads:
        found.append(f"{config.num_key_value_heads} heads of keys and values")
    if (rope := (config.rope_parameters or {}).get("rope_type", "default")) != "default":
        found.append(f"angles of {rope}")
    if any(name.endswith("proj.bias") for name, _ in theirs.named_parameters()):
        found.append("biases")
    return (*found, *own)


def _gpt2(theirs: Any) -> tuple[ImportedConfig, ImportedNorm, list[ImportedBlock]]:
    """Take GPT-2 apart: its one matrix of queries, keys and values lies transposed (Conv1D), three in a row."""
    their, body = theirs.config, theirs.transformer
    config = ImportedConfig(
        **_plain(their),
        n_key_value_head=their.n_head,
        d_head=their.n_embd // their.n_head,
        d_mlp=their.n_inner or 4 * their.n_embd,
        context_length=their.n_positions,
        rope_theta=1.0,
        norm_eps=their.layer_norm_epsilon,
        scale=Scale.inverse_sqrt if their.scale_attn_weights else Scale.none,
        position=Position.learned,
    )
    blocks = []
    for one in body.h:
        of_three = (one.attn.c_attn.weight.T.chunk(3), one.attn.c_attn.bias.chunk(3))
        named = zip(("query", "key", "value"), *of_three, strict=True)
        linears = {name: _linear(weight, bias) for name, weight, bias in named}
        linears["output"] = _linear(one.attn.c_proj.weight.T, one.attn.c_proj.bias)
        norms = (ImportedNorm(one.ln_1, config.norm_eps), ImportedNorm(one.ln_2, config.norm_eps))
        blocks.append(ImportedBlock(norms, ImportedAttention(config, linears, None), ImportedMlp(one.mlp)))
    return config, ImportedNorm(body.ln_f, config.norm_eps), blocks


def _llama(theirs: Any) -> tuple[ImportedConfig, ImportedNorm, list[ImportedBlock]]:
    """Take a Llama apart: a head that serves several queries' heads is written out for each of them."""
    their, body = theirs.config, theirs.model
    rotary = body.rotary_emb
    angles = Angles(rotary.inv_freq, float(rotary.attention_scaling))
    windows = [their.max_position_embeddings]
    if getattr(their, "sliding_window", None):  # whoever reads no more than a window sees all of it
        windows.append(their.sliding_window)
    if not all(map(math.isfinite, (*angles.frequencies.tolist(), angles.factor))):
        raise ValueError("its rope_parameters give angles that are not finite")
    config = ImportedConfig(
        **_plain(their),
        n_key_value_head=their.num_key_value_heads,
        d_head=body.layers[0].self_attn.head_dim,
        d_mlp=their.intermediate_size,
        context_length=min(windows),
        rope_theta=float((their.rope_parameters or {}).get("rope_theta", 1.0)),
        norm_eps=their.rms_norm_eps,
        scale=Scale.inverse_sqrt,
        position=Position.rope,
    )
    if 2 * len(angles.frequencies) != config.head_dim:
        raise ValueError(f"only {2 * len(angles.frequencies)} of {config.head_dim} places of a head are turned")
    blocks = []
    for one in body.layers:
        own, groups = one.self_attn, config.n_head // config.n_key_value_head
        linears = {
            "query": _linear(own.q_proj.weight, own.q_proj.bias),
            "key": _linear(*(_for_each_head(some, config, groups) for some in (own.k_proj.weight, own.k_proj.bias))),
            "value": _linear(*(_for_each_head(some, config, groups) for some in (own.v_proj.weight, own.v_proj.bias))),
            "output": _linear(own.o_proj.weight, own.o_proj.bias),
        }
        norms = tuple(
            ImportedNorm(norm, config.norm_eps) for norm in (one.input_layernorm, one.post_attention_layernorm)
        )
        attention = ImportedAttention(config, linears, angles)
        blocks.append(ImportedBlock((norms[0], norms[1]), attention, ImportedMlp(one.mlp)))
    return config, ImportedNorm(body.norm, config.norm_eps), blocks


def _plain(their: Any) -> dict[str, Any]:
    """Return the settings that both families give alike."""
    return {
        "model_type": their.model_type,
        "n_layer": their.num_hidden_layers,
        "n_head": their.num_attention_heads,
        "d_model": their.hidden_size,
        "dropout": 0.0,
        "weighting": Weighting.softmax,
        "mask": Mask.causal,
        "tie_query_key": False,
        "tie_key_value": False,
        "token_shift": False,
    }


def _for_each_head(some: Tensor | None, config: ImportedConfig, groups: int) -> Tensor | None:
    """Return weights or a bias [KV heads · K, ...] as [H · K, ...], each head's `groups` times; None for None."""
    if some is None or groups == 1:
        return some
    return some.unflatten(0, (config.n_key_value_head, -1)).repeat_interleave(groups, dim=0).flatten(0, 1)


def _linear(weight: Tensor | None, bias: Tensor | None) -> nn.Linear:
    """Return a module over weights [out, in] that are there already, none of them copied."""
    assert weight is not None
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias, requires_grad=False)
    return made
