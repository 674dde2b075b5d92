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

_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2 in transformers stores these transposed
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
    """Returns the model in a `ckpt.pt` or `model.bin`, in float32; ValueError or UnpicklingError if it has none."""
    if path.suffix == ".bin":
        return llama_of(*read_model_bin(path))
    check_uncompressed(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(content.get(key), dict) for key in ("model", "model_args")):
        raise ValueError("no checkpoint of nanoGPT or llama2.c, which are dicts with model and model_args")
    sizes = content["model_args"]
    weights = {name.removeprefix("_orig_mod."): weight for name, weight in content["model"].items()}
    if not all(isinstance(weight, Tensor) and weight.is_floating_point() for weight in weights.values()):
        raise ValueError("its model holds more than real numbers")
    if sum(weight.nbytes for weight in weights.values()) > 2 * path.stat().st_size:  # tied weights are stored once
        raise ValueError("its tensors are larger than the file")
    weights = {name: weight.float() for name, weight in weights.items()}
    if "transformer.wte.weight" in weights:
        return gpt2_of(weights, size_of(sizes, "n_head"))
    if "tok_embeddings.weight" in weights:
        n_head = size_of(sizes, "n_heads")
        n_kv_head = n_head if sizes.get("n_kv_heads") is None else size_of(sizes, "n_kv_heads")
        return llama_of(weights, n_head, n_kv_head, size_of(sizes, "max_seq_len"))
    raise ValueError("its weights have the names of neither nanoGPT nor llama2.c")


def check_uncompressed(path: Path) -> None:
    """Raises ValueError if a file of torch is compressed: a small one could then fill the memory."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                raise ValueError("its tensors are larger than the file")


def size_of(sizes: Mapping[str, Any], name: str) -> int:
    """Returns a size of `model_args`; ValueError if it is no number from 1 to 2^20."""
    value = sizes.get(name)
    if not isinstance(value, int) or not 0 < value <= _MAX_SIZE:
        raise ValueError(f"model_args has {name}={value}")
    return value


def n_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    """Returns the number of layers, from the names of the weights."""
    return len({name.removeprefix(prefix).split(".")[0] for name in weights if name.startswith(prefix)})


def gpt2_of(weights: Mapping[str, Tensor], n_head: int) -> Any:
    """Returns `transformers.GPT2LMHeadModel` with the weights of nanoGPT; missing biases are 0."""
    from transformers import GPT2Config, GPT2LMHeadModel

    vocab_size, d_model = weights["transformer.wte.weight"].shape
    if d_model % n_head:
        raise ValueError(f"model_args has n_head={n_head}, which does not divide the width {d_model}")
    if not torch.equal(
        weights.get("lm_head.weight", weights["transformer.wte.weight"]), weights["transformer.wte.weight"]
    ):
        raise ValueError("its output embedding differs from its input embedding, which nanoGPT's does not")
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=len(weights["transformer.wpe.weight"]), n_embd=d_model,
        n_layer=n_layers(weights, "transformer.h."), n_head=n_head, activation_function="gelu",
        layer_norm_epsilon=_NORM_EPS, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    converted = {
        name: weight.T if name.endswith(_TRANSPOSED) else weight
        for name, weight in weights.items()
        if not name.endswith(_MASKS)
    }
    no_bias = {
        name: torch.zeros_like(weight)
        for name, weight in model.state_dict().items()
        if name.endswith("bias") and name not in converted
    }
    return load_checked(model, {**converted, **no_bias})


def llama_of(weights: Mapping[str, Tensor], n_head: int, n_kv_head: int, context_length: int) -> Any:
    """Returns `transformers.LlamaForCausalLM` with the weights of llama2.c."""
    from transformers import LlamaConfig, LlamaForCausalLM

    embedding = weights["tok_embeddings.weight"]
    output = weights.get("output.weight", embedding)
    d_model, n_layer, is_tied = embedding.shape[1], n_layers(weights, "layers."), torch.equal(output, embedding)
    if d_model % n_head or n_head % n_kv_head or d_model // n_head % 2:
        raise ValueError(f"{n_head} heads and {n_kv_head} key heads do not fit the width {d_model}")
    config = LlamaConfig(
        vocab_size=len(embedding), hidden_size=d_model, num_hidden_layers=n_layer, num_attention_heads=n_head,
        intermediate_size=len(weights["layers.0.feed_forward.w1.weight"]), num_key_value_heads=n_kv_head,
        max_position_embeddings=context_length, rms_norm_eps=_NORM_EPS, tie_word_embeddings=is_tied,
        bos_token_id=None, eos_token_id=None,
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
                weight = pairs_to_halves(weight, d_model // n_head)
            converted[f"model.layers.{layer}.{name}.weight"] = weight
    return load_checked(LlamaForCausalLM(config), converted)


def pairs_to_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorders the rows of a projection [H K, D] for RoPE.

    llama2.c rotates neighbouring rows of a head together, transformers row i and row i + K/2.
    """
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def load_checked(model: Any, weights: dict[str, Tensor]) -> Any:
    """Returns `model` with the weights; ValueError names a weight that is missing or has another shape."""
    expected = {name: weight.shape for name, weight in model.state_dict().items()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    expected = {name: shape for name, shape in expected.items() if name != "lm_head.weight" or name in shapes}
    if wrong := [name for name in sorted({*expected, *shapes}) if expected.get(name) != shapes.get(name)]:
        raise ValueError(f"its weights do not fit: {wrong[0]} is missing, unknown or has another shape")
    model.load_state_dict(weights, strict=False)
    return model.eval()


def read_model_bin(path: Path) -> tuple[dict[str, Tensor], int, int, int]:
    """Returns the weights of a `model.bin`, the numbers of heads and of key heads, and the context length.

    The file: seven int32 (width, MLP width, layers, heads, key heads, vocabulary, context; a negative vocabulary says
    that input and output embedding differ), then float32 weights. ValueError if its size is not what the header says.
    """
    with path.open("rb") as file:
        header = file.read(28)
    if len(header) < 28:
        raise ValueError("no model.bin of llama2.c: it has no header")
    if struct.unpack_from("I", header)[0] == _LATER_FORMATS:
        raise ValueError("is a model.bin of version 1 or 2 of llama2.c; export version 0")
    d_model, d_mlp, n_layer, n_head, n_kv_head, vocab, context = struct.unpack("7i", header)
    if min(d_model, d_mlp, n_layer, n_head, n_kv_head, abs(vocab), context) < 1 or context > _MAX_SIZE:
        raise ValueError("no model.bin of llama2.c (version 0): its header has sizes that no model has")
    if d_model % n_head or n_head % n_kv_head:
        raise ValueError(f"its header has {n_head} heads and {n_kv_head} key heads for width {d_model}")
    d_kv = d_model // n_head * n_kv_head
    shapes = [
        (d_model,), (d_model, d_model), (d_kv, d_model), (d_kv, d_model), (d_model, d_model), (d_model,),
        (d_mlp, d_model), (d_model, d_mlp), (d_mlp, d_model),
    ]  # fmt: skip
    sizes: dict[str, tuple[int, ...]] = {"tok_embeddings": (abs(vocab), d_model)}
    sizes |= {f"layers.{theirs}": (n_layer, *shape) for theirs, shape in zip(LLAMA2C_LAYER, shapes, strict=True)}
    sizes |= {"norm": (d_model,), "rope": (2, context, d_model // n_head // 2)}
    sizes |= {"output": (abs(vocab), d_model)} if vocab < 0 else {}
    expected = 28 + 4 * sum(map(math.prod, sizes.values()))
    if path.stat().st_size != expected:
        raise ValueError(f"its header asks for {expected:,} bytes, but the file has {path.stat().st_size:,}")
    numbers = np.fromfile(path, dtype="<f4", offset=28)
    parts = np.split(numbers, np.cumsum([math.prod(shape) for shape in sizes.values()])[:-1])
    weights = dict[str, Tensor]()
    for (name, shape), part in zip(sizes.items(), parts, strict=True):
        tensor = torch.from_numpy(part).reshape(shape)
        if name.startswith("layers."):
            theirs = name.removeprefix("layers.")
            weights |= {f"layers.{layer}.{theirs}.weight": tensor[layer] for layer in range(n_layer)}
        elif name != "rope":  # computed again
            weights[f"{name}.weight"] = tensor
    return weights, n_head, n_kv_head, context
