"""model/checkpoints.py: nanoGPT and llama2.c against their published formulas, and hostile files."""

import os
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints import LLAMA2C_LAYER, read_checkpoint
from model.external import open_transformers

pytest.importorskip("transformers")
L, H, K, V, T, M = 2, 4, 6, 29, 11, 40  # layers, heads, head dimension, vocabulary, context, MLP width
G, D = 2, H * K  # heads of keys and values
CPU = torch.device("cpu")
Weights = dict[str, Tensor]


def random_weights(shapes: dict[str, tuple[int, ...]]) -> Weights:
    generator = torch.Generator().manual_seed(1)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns causal attention [B, T, H K] of query, key and value [B, H, T, K]."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    masked = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    return (masked.softmax(-1) @ value).transpose(1, 2).flatten(2)


def by_head(x: Tensor, n_head: int) -> Tensor:
    return x.unflatten(-1, (n_head, K)).transpose(1, 2)


# nanoGPT


def nanogpt_weights(*, bias: bool = True) -> Weights:
    kinds = {"attn.c_attn": (3 * D, D), "attn.c_proj": (D, D), "mlp.c_fc": (4 * D, D), "mlp.c_proj": (D, 4 * D)}
    tensors = {"ln_f": (D,)}
    for layer in range(L):
        tensors |= {f"h.{layer}.{name}": shape for name, shape in (kinds | {"ln_1": (D,), "ln_2": (D,)}).items()}
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (V, D), "wpe.weight": (T, D)}
    shapes |= {f"{name}.weight": shape for name, shape in tensors.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in tensors.items() if bias}
    weights = random_weights({f"transformer.{name}": shape for name, shape in shapes.items()})
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


def nanogpt_logits(w: Weights, tokens: Tensor) -> Tensor:
    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"transformer.{name}.weight"], w.get(f"transformer.{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (D,), w[f"transformer.{name}.weight"], w.get(f"transformer.{name}.bias"))

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(L):
        h = f"h.{layer}"
        query, key, value = (
            by_head(tensor, H) for tensor in linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").chunk(3, -1)
        )
        x = x + linear(attention(query, key, value), f"{h}.attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
    return norm(x, "ln_f") @ w["lm_head.weight"].T


def save_nanogpt(path: Path, weights: Weights, **sizes: Any) -> Path:
    arguments = {"n_layer": L, "n_head": H, "n_embd": D, "block_size": T, "vocab_size": V, "bias": True, **sizes}
    torch.save({"model": weights, "model_args": arguments, "optimizer": {}, "config": {}, "iter_num": 3}, path)
    return path


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (3, T), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_a_nanogpt_checkpoint_computes_its_formula(tmp_path: Path, tokens: Tensor, bias: bool, prefix: str) -> None:
    weights = nanogpt_weights(bias=bias)
    path = save_nanogpt(tmp_path / "ckpt.pt", {prefix + name: weight for name, weight in weights.items()})
    logits = read_checkpoint(path)(input_ids=tokens).logits
    assert logits.std() > 0.2
    torch.testing.assert_close(logits, nanogpt_logits(weights, tokens), rtol=1e-4, atol=1e-5)


# llama2.c


def llama2c_weights(*, is_tied: bool) -> Weights:
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings": (V, D), "norm": (D,)}
    kinds = {"wq": (D, D), "wk": (G * K, D), "wv": (G * K, D), "wo": (D, D), "w1": (M, D), "w2": (D, M), "w3": (M, D)}
    for layer in range(L):
        shapes |= {f"layers.{layer}.{name}": kinds.get(name.split(".")[-1], (D,)) for name in LLAMA2C_LAYER}
    weights = random_weights({f"{name}.weight": shape for name, shape in (shapes | {"output": (V, D)}).items()})
    return weights | ({"output.weight": weights["tok_embeddings.weight"]} if is_tied else {})


def rotated(x: Tensor) -> Tensor:
    """Rotates neighbouring dimensions of x [B, H, T, K] as complex numbers (Su et al. 2021)."""
    angles = torch.outer(torch.arange(x.shape[2]), 1e4 ** (-torch.arange(0, K, 2) / K))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def llama2c_logits(w: Weights, tokens: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (D,), w[f"{name}.weight"], 1e-5)

    x = w["tok_embeddings.weight"][tokens]
    for layer in range(L):

        def linear(x: Tensor, name: str, layer: int = layer) -> Tensor:
            return x @ w[f"layers.{layer}.{name}.weight"].T

        inputs = norm(x, f"layers.{layer}.attention_norm")
        query, key = (rotated(by_head(linear(inputs, f"attention.{name}"), n)) for name, n in (("wq", H), ("wk", G)))
        value = by_head(linear(inputs, "attention.wv"), G)
        key, value = (tensor.repeat_interleave(H // G, dim=1) for tensor in (key, value))
        x = x + linear(attention(query, key, value), "attention.wo")
        inputs = norm(x, f"layers.{layer}.ffn_norm")
        gated = F.silu(linear(inputs, "feed_forward.w1")) * linear(inputs, "feed_forward.w3")
        x = x + linear(gated, "feed_forward.w2")
    return norm(x, "norm") @ w["output.weight"].T


def save_llama2c(path: Path, w: Weights, *, is_tied: bool) -> Path:
    """Writes model.bin, version 0."""
    header = struct.pack("7i", D, M, L, H, G, V if is_tied else -V, T)
    tensors = [w["tok_embeddings.weight"]]
    tensors += [w[f"layers.{layer}.{name}.weight"] for name in LLAMA2C_LAYER for layer in range(L)]
    tensors += [w["norm.weight"], torch.zeros(T * K)] + ([] if is_tied else [w["output.weight"]])
    path.write_bytes(header + b"".join(tensor.numpy().astype("<f4").tobytes() for tensor in tensors))
    return path


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", ["model.bin", "ckpt.pt"])
def test_a_llama2c_checkpoint_computes_its_formula(tmp_path: Path, tokens: Tensor, kind: str, is_tied: bool) -> None:
    weights, path = llama2c_weights(is_tied=is_tied), tmp_path / kind
    if kind == "model.bin":
        save_llama2c(path, weights, is_tied=is_tied)
    else:
        torch.save({"model": weights, "model_args": {"n_heads": H, "n_kv_heads": G, "max_seq_len": T}}, path)
    logits = read_checkpoint(path)(input_ids=tokens).logits
    assert logits.std() > 0.2
    torch.testing.assert_close(logits, llama2c_logits(weights, tokens), rtol=1e-4, atol=1e-5)


# Hostile files


class Gadget:
    """Becomes a call when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def huge(weights: Weights) -> Weights:
    """Returns the weights with one that claims 10^12 numbers and stores one."""
    return {**weights, "transformer.wte.weight": torch.zeros(1).expand(10**6, 10**6)}


def compressed(path: Path) -> Path:
    """Compresses a file of torch, with a megabyte of zeros."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr("zeros", bytes(10**6))
    return path


def without_a_norm(weights: Weights) -> Weights:
    return {name: weight for name, weight in weights.items() if name != "transformer.ln_f.weight"}


def infinite(weights: Weights) -> Weights:
    return {name: weight / 0 for name, weight in weights.items()}


def with_other_output(weights: Weights) -> Weights:
    return weights | {"lm_head.weight": torch.ones(V, D)}


CHANGED: dict[str, Callable[[Weights], Weights]] = {
    "a tensor larger than the file": huge,
    "a weight that is missing": without_a_norm,
    "an output embedding of its own": with_other_output,
    "an infinite weight": infinite,
}
SIZES: dict[str, Any] = {"heads that do not divide the width": 7, "heads that are no number": "4"}
TOO_LARGE = {"a tensor larger than the file", "a compressed file"}
HEADERS = {
    "a header of ten gigabytes": (2**14, 2**16, 32, 32, 32, 2**17, 2**11),
    "a negative size": (D, -M, L, H, G, V, T),
    "no layers": (D, M, 0, H, G, V, T),
    "heads that do not divide": (D, M, L, 7, G, V, T),
}


PICKLED, COMPRESSED = "a pickle that runs a command", "a compressed file"


@pytest.mark.parametrize("name", [PICKLED, COMPRESSED, *CHANGED, *SIZES, *HEADERS, "an empty file", "text"])
def test_a_hostile_checkpoint_is_refused_in_one_line_and_executes_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ckpt.pt"
    if name == PICKLED:
        save_nanogpt(path, {"w": Gadget(tmp_path / "mark")})  # type: ignore[dict-item]
    elif name == COMPRESSED:
        compressed(save_nanogpt(path, nanogpt_weights()))
    elif name in CHANGED:
        save_nanogpt(path, CHANGED[name](nanogpt_weights()))
    elif name in SIZES:
        save_nanogpt(path, nanogpt_weights(), n_head=SIZES[name])
    else:
        path = save_llama2c(tmp_path / "model.bin", llama2c_weights(is_tied=True), is_tied=True)
        content = {"an empty file": b"", "text": b"a" * 1000}.get(name)
        path.write_bytes(content if content is not None else struct.pack("7i", *HEADERS[name]) + path.read_bytes()[28:])
    (tmp_path / "input.txt").write_text("".join(map(chr, range(65, 65 + V))))
    before = set(tmp_path.iterdir())
    problem = "its tensors are larger than the file" if name in TOO_LARGE else ""
    with pytest.raises(ValueError, match=f"^model={re.escape(str(path))}: {problem}[^\n]*$"):
        open_transformers(str(path), CPU, str(tmp_path / "input.txt"))
    assert set(tmp_path.iterdir()) == before
