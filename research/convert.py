"""Convert a model of llama2.c for transformers: python research/convert.py MODEL.bin TOKENIZER.bin FOLDER.

The files are version 0 of https://github.com/karpathy/llama2.c, for example stories260K.bin with tok512.bin.
`eval.py model=FOLDER` tests the result.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# transformers' names of the tensors of a layer, in the order of the file.
NAMES = """input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj post_attention_layernorm
mlp.gate_proj mlp.down_proj mlp.up_proj""".split()


def read_model(path: Path) -> LlamaForCausalLM:
    """Return the model: seven int32 (a negative vocabulary: the output embedding differs), then float32 weights."""
    d, d_mlp, n_layer, n_head, n_kv, vocab, context = struct.unpack("7i", path.read_bytes()[:28])
    d_kv = d // n_head * n_kv
    shapes = [(d,), (d, d), (d_kv, d), (d_kv, d), (d, d), (d,), (d_mlp, d), (d, d_mlp), (d_mlp, d)]
    numbers = torch.from_numpy(np.fromfile(path, dtype="<f4", offset=28))

    def take(*shape: int) -> Tensor:
        nonlocal numbers
        n = int(np.prod(shape))
        first, numbers = numbers[:n], numbers[n:]
        return first.view(shape)

    # The tensors of a kind follow each other over all layers.
    weights = {"model.embed_tokens.weight": take(abs(vocab), d)}
    for name, shape in zip(NAMES, shapes, strict=True):
        for layer, weight in enumerate(take(n_layer, *shape)):
            if name in ("self_attn.q_proj", "self_attn.k_proj"):
                # For RoPE llama2.c rotates neighbouring rows, transformers row i and row i + K/2.
                weight = weight.unflatten(0, (-1, d // n_head // 2, 2)).transpose(1, 2).flatten(0, 2)
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    weights["model.norm.weight"] = take(d)
    take(2, context, d // n_head // 2)  # the frequencies of RoPE are computed again
    weights["lm_head.weight"] = take(-vocab, d) if vocab < 0 else weights["model.embed_tokens.weight"]

    config = LlamaConfig(
        vocab_size=abs(vocab), hidden_size=d, intermediate_size=d_mlp, num_hidden_layers=n_layer, rms_norm_eps=1e-5,
        num_attention_heads=n_head, num_key_value_heads=n_kv, max_position_embeddings=context,
        tie_word_embeddings=vocab > 0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(weights)
    return model


def read_tokenizer(path: Path, vocab_size: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer: int32 longest piece, then for each token float32 score, int32 number of bytes, bytes."""
    content, position = path.read_bytes(), 4
    scores = {}
    for _ in range(vocab_size):
        score, n_bytes = struct.unpack_from("<fi", content, position)
        position += 8 + n_bytes
        scores[content[position - n_bytes : position].decode(errors="replace")] = score

    # llama2.c merges the two pieces whose union has the best score, so every cut is a merge.
    cuts = [(piece[:i], piece[i:]) for piece in scores for i in range(1, len(piece))]
    merges = sorted((cut for cut in cuts if set(cut) <= scores.keys()), key=lambda cut: -scores["".join(cut)])
    unknown, start, end = list(scores)[:3]
    vocabulary = {piece: i for i, piece in enumerate(scores)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token=unknown, fuse_unk=True))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown, bos_token=start, eos_token=end)


if __name__ == "__main__":
    model_file, tokenizer_file, folder = map(Path, sys.argv[1:])
    model = read_model(model_file)
    model.save_pretrained(folder)
    read_tokenizer(tokenizer_file, model.config.vocab_size).save_pretrained(folder)
