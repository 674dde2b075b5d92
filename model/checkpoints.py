"""Checkpoints of nanoGPT and llama2.c as models of transformers, converted in memory.

nanoGPT's `ckpt.pt` becomes a GPT-2; llama2.c's `ckpt.pt` and `model.bin` (version 0, its first format) become a Llama.
Shapes are those of the tensors themselves, and compressed files are refused, so a file cannot ask for much more memory
than it has bytes.
"""

import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.errors import UserError

_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # so stored by transformers' GPT-2
_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers of older versions of nanoGPT
LLAMA2C_LAYER = {  # llama2.c's names -> transformers' names, in the order of model.bin
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}
_NORM_EPS = 1e-5  # in both programs
_MAX_SIZE = 2**20  # largest number of heads, largest context
_LATER_FORMATS = 0x616B3432  # the first four bytes of llama2.c's versions 1 and 2


def read_checkpoint(path: Path) -> Any:
    """Return the model in a `ckpt.pt` or `model.bin`, in float32; UserError or UnpicklingError if it has none."""
    if path.suffix == ".bin":
        return _to_llama(*_read_model_bin(path))
    # Only tensors and plain values are unpickled.
    check_uncompressed(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        content = {}
    saved, sizes = content.get("model"), content.get("model_args")
    if not isinstance(saved, dict) or not isinstance(sizes, dict):
        raise UserError("no checkpoint of nanoGPT or llama2.c, which are dicts with model and model_args")
    if not all(isinstance(weight, Tensor) and weight.is_floating_point() for weight in saved.values()):
        raise UserError("its model holds more than real numbers")
    # A tensor can claim more numbers than are stored. Tied weights are stored once.
    if sum(weight.nbytes for weight in saved.values()) > 2 * path.stat().st_size:
        raise UserError("its tensors are larger than the file")

    # torch.compile adds a prefix to the names.
    weights = {name.removeprefix("_orig_mod."): weight.float() for name, weight in saved.items()}
    if "transformer.wte.weight" in weights:
        return _to_gpt2(weights, _size_of(sizes, "n_head"))
    if "tok_embeddings.weight" in weights:
        n_head = _size_of(sizes, "n_heads")
        n_kv_head = n_head if sizes.get("n_kv_heads") is None else _size_of(sizes, "n_kv_heads")
        return _to_llama(weights, n_head, n_kv_head, _size_of(sizes, "max_seq_len"))
    raise UserError("its weights have the names of neither nanoGPT nor llama2.c")


def check_uncompressed(path: Path) -> None:
    """Raise UserError if a file of torch is compressed: a small one could then fill the memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise UserError("its tensors are larger than the file")


def _size_of(sizes: Mapping[str, Any], name: str) -> int:
    value = sizes.get(name)
    if not isinstance(value, int) or not 0 < value <= _MAX_SIZE:
        raise UserError(f"model_args has {name}={value}")
    return value


def _n_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)})


def _to_gpt2(weights: Mapping[str, Tensor], n_head: int) -> Any:
    """Return `transformers.GPT2LMHeadModel` with the weights of nanoGPT; missing biases are 0."""
    from transformers import GPT2Config, GPT2LMHeadModel

    embedding = weights["transformer.wte.weight"]  # [V, D]
    vocab_size, d_model = embedding.shape
    if d_model % n_head:
        raise UserError(f"model_args has n_head={n_head}, which does not divide the width {d_model}")
    if not torch.equal(weights.get("lm_head.weight", embedding), embedding):
        raise UserError("its output embedding differs from its input embedding, which nanoGPT's does not")
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=len(weights["transformer.wpe.weight"]), n_embd=d_model,
        n_layer=_n_layers(weights, "transformer.h."), n_head=n_head, activation_function="gelu",
        layer_norm_epsilon=_NORM_EPS, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip

    # nanoGPT can be trained without biases.
    model = GPT2LMHeadModel(config)
    zeros = {name: torch.zeros_like(weight) for name, weight in model.state_dict().items() if name.endswith("bias")}
    converted = {**zeros, "lm_head.weight": embedding}
    for name, weight in weights.items():
        if not name.endswith(_MASKS):
            converted[name] = weight.T if name.endswith(_TRANSPOSED) else weight
    return _load_checked(model, converted)


def _to_llama(weights: Mapping[str, Tensor], n_head: int, n_kv_head: int, context_length: int) -> Any:
    """Return `transformers.LlamaForCausalLM` with the weights of llama2.c."""
    from transformers import LlamaConfig, LlamaForCausalLM

    embedding = weights["tok_embeddings.weight"]  # [V, D]
    output = weights.get("output.weight", embedding)  # [V, D]
    vocab_size, d_model = embedding.shape
    n_layer = _n_layers(weights, "layers.")
    if d_model % n_head or n_head % n_kv_head or d_model // n_head % 2:
        raise UserError(f"{n_head} heads and {n_kv_head} key heads do not fit the width {d_model}")
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=d_model, num_hidden_layers=n_layer, num_attention_heads=n_head,
        intermediate_size=len(weights["layers.0.feed_forward.w1.weight"]), num_key_value_heads=n_kv_head,
        max_position_embeddings=context_length, rms_norm_eps=_NORM_EPS,
        tie_word_embeddings=torch.equal(output, embedding), bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    converted = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": weights["norm.weight"],
        "lm_head.weight": output,
    }
    for layer in range(n_layer):
        for theirs, name in LLAMA2C_LAYER.items():
            weight = weights[f"layers.{layer}.{theirs}.weight"]
            if theirs in ("attention.wq", "attention.wk"):
                # For RoPE llama2.c rotates neighbouring rows, transformers row i and row i + K/2.
                weight = weight.unflatten(0, (-1, d_model // n_head // 2, 2)).transpose(1, 2).flatten(0, 2)
            converted[f"model.layers.{layer}.{name}.weight"] = weight
    return _load_checked(LlamaForCausalLM(config), converted)


def _load_checked(model: Any, weights: Mapping[str, Tensor]) -> Any:
    """Return `model` with the weights; UserError names one that is missing or has another shape."""
    expected = model.state_dict()
    for name in sorted({*expected, *weights}):
        if name not in expected or name not in weights or expected[name].shape != weights[name].shape:
            raise UserError(f"its weights do not fit: {name} is missing, unknown or has another shape")
    model.load_state_dict(weights)
    return model.eval()


def _read_model_bin(path: Path) -> tuple[dict[str, Tensor], int, int, int]:
    """Return the weights of a `model.bin`, the numbers of heads and of key heads, and the context length.

    The file: seven int32 (width, MLP width, layers, heads, key heads, vocabulary, context; a negative vocabulary says
    that input and output embedding differ), then float32 weights. UserError if its size is not what the header says.
    """
    with path.open("rb") as file:
        header = file.read(28)
    if len(header) < 28:
        raise UserError("no model.bin of llama2.c: it has no header")
    if struct.unpack_from("I", header)[0] == _LATER_FORMATS:
        raise UserError("is a model.bin of version 1 or 2 of llama2.c; export version 0")
    d_model, d_mlp, n_layer, n_head, n_kv_head, vocab, context = struct.unpack("7i", header)
    if min(d_model, d_mlp, n_layer, n_head, n_kv_head, abs(vocab), context) < 1 or context > _MAX_SIZE:
        raise UserError("no model.bin of llama2.c (version 0): its header has sizes that no model has")
    if d_model % n_head or n_head % n_kv_head:
        raise UserError(f"its header has {n_head} heads and {n_kv_head} key heads for width {d_model}")

    # The tensors in their order; those of a kind follow each other over all layers.
    d_kv = d_model // n_head * n_kv_head
    square, up = (d_model, d_model), (d_mlp, d_model)
    layer_shapes = [(d_model,), square, (d_kv, d_model), (d_kv, d_model), square, (d_model,), up, up[::-1], up]
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings": (abs(vocab), d_model)}
    for name, shape in zip(LLAMA2C_LAYER, layer_shapes, strict=True):
        shapes[name] = (n_layer, *shape)
    shapes["norm"] = (d_model,)
    shapes["rope"] = (2, context, d_model // n_head // 2)  # not used: computed again
    if vocab < 0:
        shapes["output"] = (abs(vocab), d_model)
    sizes = [math.prod(shape) for shape in shapes.values()]
    expected, n_bytes = 28 + 4 * sum(sizes), path.stat().st_size
    if n_bytes != expected:
        raise UserError(f"its header asks for {expected:,} bytes, but the file has {n_bytes:,}")

    # The names are those of a ckpt.pt of llama2.c.
    weights = dict[str, Tensor]()
    parts = torch.from_numpy(np.fromfile(path, dtype="<f4", offset=28)).split(sizes)
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        if name in LLAMA2C_LAYER:
            for layer, tensor in enumerate(part.view(shape)):
                weights[f"layers.{layer}.{name}.weight"] = tensor
        else:
            weights[f"{name}.weight"] = part.view(shape)
    return weights, n_head, n_kv_head, context
