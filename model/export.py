"""A trained run as files that others open: `python -m model.export run=DIR to=hf` or `to=gguf` (docs/export.md).

Our shape is Llama's (Touvron et al. 2023): RMSNorm in float32, rotary positions that turn the pairs (i, i + K/2),
SwiGLU, no biases, a tied embedding. So nothing is transposed or scaled on the way out, and transformers computes the
same logits to the last bit. What no Llama has is refused by name.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.transformer import n_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from model.transformer import Transformer

# What a Llama has of our switches. Tied projections are not among them: they are written out twice.
_LLAMA: dict[str, object] = {
    "position": Position.rope, "scale": Scale.inverse_sqrt, "weighting": Weighting.softmax, "mask": Mask.causal,
    "token_shift": False,
}  # fmt: skip
_OF_BLOCK = {
    "norm_1.gain": "input_layernorm", "attention.query.weight": "self_attn.q_proj",
    "attention.key.weight": "self_attn.k_proj", "attention.value.weight": "self_attn.v_proj",
    "attention.output.weight": "self_attn.o_proj", "norm_2.gain": "post_attention_layernorm",
    "mlp.gate.weight": "mlp.gate_proj", "mlp.up.weight": "mlp.up_proj", "mlp.down.weight": "mlp.down_proj",
}  # fmt: skip
# The parts of a block by llama.cpp's names (gguf-py/gguf/constants.py).
_IN_GGUF = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
# Of a byte-level BPE, what llama.cpp's does not do.
_UNLIKE_GPT2 = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
_UNPROBED = "Nobody has probed this run: nothing is claimed of any of its heads."


def check_is_llama(config: ModelConfig) -> None:
    """Raise ValueError that names every switch which no Llama has."""
    wrong = [
        f"model.{name}={str(getattr(config, name)).lower()}"
        for name, value in _LLAMA.items()
        if getattr(config, name) != value
    ]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: no Llama has that, and so neither format could hold this model")


def llama_config(config: ModelConfig, vocab_size: int, end: int) -> dict[str, Any]:
    """Return config.json of transformers' LlamaForCausalLM; `end` is the token that begins and ends a text."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_mlp,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_head,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,  # as transformers 4 reads it
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},  # and 5
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def llama_weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by transformers' names for them, float32 and on the CPU; of tied ones the second is a copy."""
    names = {"token_embedding.weight": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
    for layer in range(model.config.n_layer):
        block = f"model.layers.{layer}"
        names |= {f"blocks.{layer}.{ours}": f"{block}.{theirs}.weight" for ours, theirs in _OF_BLOCK.items()}
    state, found, places = model.state_dict(), {}, set()  # a state holds a tied projection under each of its names
    for ours, theirs in names.items():
        one = state[ours].detach().float().cpu()
        found[theirs] = one.clone() if one.data_ptr() in places else one  # safetensors writes nothing twice
        places.add(one.data_ptr())
    return found


def gguf_weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by llama.cpp's names for them, queries and keys in its order of rows."""
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for layer in range(model.config.n_layer):
        names |= {f"model.layers.{layer}.{theirs}": f"blk.{layer}.{gguf}" for theirs, gguf in _IN_GGUF.items()}
    found = {f"{names[name.removesuffix('.weight')]}.weight": one for name, one in llama_weights(model).items()}
    for name in [name for name in found if ".attn_q." in name or ".attn_k." in name]:
        found[name] = in_neighbouring_pairs(found[name], model.config.n_head)
    return found


def in_neighbouring_pairs(weights: Tensor, n_head: int) -> Tensor:
    """Return [D, D] with the rows i and i + K/2 of each head standing side by side, as 2 i and 2 i + 1."""
    return weights.unflatten(0, (n_head, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def tokenizer_config(tokenizer: Mapping[str, Any], end: str, context_length: int) -> dict[str, Any]:
    """Return tokenizer_config.json for a tokenizer.json: `end` begins and ends a text and fills up batches."""
    unknown = tokenizer["model"].get("unk_token")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "bos_token": end,
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
    } | ({"unk_token": unknown} if unknown else {})


def model_card(model: Transformer, about: Mapping[str, str], claims: str) -> str:
    """Return README.md of an export.

    Args:
        model: that is exported.
        about: what else a reader should know, by its heading.
        claims: what is claimed of its heads (`claims_of`).

    """
    config = model.config
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags: [antecedent]", "---", ""]
    lines += [f"# A Llama of {n_parameters(model):,} parameters, trained by Antecedent", ""]
    lines += [
        f"{config.n_layer} layers of {config.n_head} heads, width {config.d_model}, context {config.context_length}, "
        f"vocabulary {model.vocab_size:,}. It has read the beginning-of-text token before every text and expects it; "
        "the tokenizer does not put it there."
    ]
    for heading, text in about.items():
        lines += ["", f"**{heading}.** {text}"]
    lines += ["", "**Which of its heads know what a pronoun means**, as the program that trained it has tested it:", ""]
    return "\n".join([*lines, claims]) + "\n"


def claims_of(run: Path, step: int) -> str:
    """Return claims.md of a run's probe, or that nothing is claimed of the checkpoint of `step`, and why."""
    try:
        probed = json.loads((run / "probe" / "probe.json").read_text())["model"]["step"]
        claims = (run / "probe" / "claims.md").read_text().strip()
    except (OSError, ValueError, LookupError, TypeError):  # eval.py, too, takes what it cannot read for none
        return _UNPROBED
    if probed != step:
        return f"Probed was step {probed}, and this is step {step}: nothing is claimed of any of its heads."
    return claims or _UNPROBED


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield where to write what becomes `path` once all of it is written; nothing is left where it is not.

    Raises:
        FileExistsError: it is there already.
        OSError: it cannot be made there.

    """
    made = [one for one in path.parents if not one.exists()]
    if (there := next(one for one in path.parents if one.exists())).is_file():
        raise NotADirectoryError(f"out={path}: {there} is a file and no folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=path.parent) as beside:
            yield Path(beside, "it")
            check_new(path)
            Path(beside, "it").rename(path)
    finally:
        for one in made:
            with suppress(OSError):  # it is not there, or not empty: something was written
                one.rmdir()


def check_new(path: Path) -> None:
    """Raise FileExistsError where `path` is there."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} is there already: give another out=, or move it")


def write_llama(folder: Path, model: Transformer, tokenizer: str, end: str, card: str) -> None:
    """Write what transformers' `from_pretrained` opens, whole or not at all.

    Args:
        folder: that is not there yet.
        model: whose weights are written in float32.
        tokenizer: tokenizer.json.
        end: the token that stands before each text and ends it.
        card: README.md.

    Raises:
        ValueError: the model is no Llama.
        OSError: the folder is there already, or cannot be written.
        ImportError: safetensors is not installed.

    """
    from safetensors.torch import save

    check_is_llama(model.config)
    check_new(folder)
    read = json.loads(tokenizer)
    token = _pieces(read).index(end)
    contents = {
        "config.json": llama_config(model.config, model.vocab_size, token),
        "generation_config.json": {"bos_token_id": token, "eos_token_id": token, "pad_token_id": token},
        "tokenizer_config.json": tokenizer_config(read, end, model.config.context_length),
    }
    files = {name: json.dumps(content, indent=2) + "\n" for name, content in contents.items()}
    with whole(folder) as new:
        new.mkdir()
        for name, text in (files | {"tokenizer.json": tokenizer, "README.md": card}).items():
            (new / name).write_text(text, encoding="utf-8")
        # Not its save_file, which writes past Python and so says neither what is wrong nor where.
        (new / "model.safetensors").write_bytes(save(llama_weights(model), metadata={"format": "pt"}))


def write_gguf(path: Path, model: Transformer, tokenizer: str, end: str, name: str) -> str:
    """Write one GGUF file, float32 throughout; return what is to be said of its tokenizer, "" if nothing.

    GGUF's Llama turns neighbouring pairs of queries and keys, so their rows are written in that order. llama.cpp knows
    byte-level BPE and no tokenizer of whole words or characters; such a one stands under tokenizer.huggingface.json
    alone.

    Args:
        path: of a file that is not there yet.
        model: whose weights are written.
        tokenizer: tokenizer.json.
        end: the token that stands before each text and ends it.
        name: of the model, for people.

    Raises:
        ValueError: the model is no Llama.
        OSError: the file is there already, or cannot be written.
        ImportError: gguf is not installed.

    """
    from gguf import GGUFWriter, LlamaFileType

    check_is_llama(model.config)
    check_new(path)
    config = model.config
    with whole(path) as new:
        writer = GGUFWriter(new, "llama")
        try:
            writer.add_name(name)
            writer.add_file_type(LlamaFileType.ALL_F32)
            writer.add_context_length(config.context_length)
            writer.add_embedding_length(config.d_model)
            writer.add_block_count(config.n_layer)
            writer.add_feed_forward_length(config.d_mlp)
            writer.add_head_count(config.n_head)
            writer.add_head_count_kv(config.n_head)
            writer.add_layer_norm_rms_eps(config.norm_eps)
            writer.add_rope_dimension_count(config.head_dim)
            writer.add_rope_freq_base(config.rope_theta)
            writer.add_vocab_size(model.vocab_size)
            said = _add_tokenizer(writer, tokenizer, end)
            for tensor, weights in gguf_weights(model).items():
                writer.add_tensor(tensor, weights.numpy())
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
    return said


def _add_tokenizer(writer: Any, tokenizer: str, end: str) -> str:
    """Write a tokenizer.json into a GGUF file; return what a reader must know of it."""
    from gguf import Keys, TokenType

    read = json.loads(tokenizer)
    pieces, of_bytes = _pieces(read), _is_gpt2s(read)
    # How an added token is parted from a text: only what is special can be told not to be.
    added = {
        one["content"]: TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
        for one in read.get("added_tokens", [])
    }
    writer.add_tokenizer_model("gpt2" if of_bytes else "no_vocab")
    if of_bytes:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in read["model"]["merges"]])
    writer.add_token_list(pieces)
    writer.add_token_types([added.get(piece, TokenType.NORMAL) for piece in pieces])
    writer.add_bos_token_id(pieces.index(end))
    writer.add_eos_token_id(pieces.index(end))
    writer.add_add_bos_token(True)
    writer.add_string(Keys.Tokenizer.HF_JSON, tokenizer)
    if of_bytes:
        return ""
    return (
        f"llama.cpp has no tokenizer like this {read['model']['type']}: it opens the file and can neither read nor "
        "write text with it; the tokenizer stands in it as tokenizer.huggingface.json"
    )


def _is_gpt2s(read: Mapping[str, Any]) -> bool:
    """Whether a tokenizer is byte-level BPE that parts a text as GPT-2 does and changes nothing before."""
    parting, model = read.get("pre_tokenizer") or {}, read["model"]
    plain = parting.get("type") == "ByteLevel" and parting.get("use_regex", True) and not parting["add_prefix_space"]
    merges = model["type"] == "BPE" and not any(model.get(name) for name in _UNLIKE_GPT2)
    return bool(plain and merges and not read.get("normalizer"))


def _pieces(read: Mapping[str, Any]) -> list[str]:
    """Return every token of a tokenizer.json in the order of ids; ValueError where these leave gaps."""
    vocabulary = read["model"]["vocab"]
    if isinstance(vocabulary, list):  # of a unigram model, each piece with its score
        vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    vocabulary = vocabulary | {one["content"]: one["id"] for one in read.get("added_tokens", [])}
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[one] for one in pieces] != [*range(len(pieces))]:
        raise ValueError("the tokenizer's ids leave gaps")
    return pieces


if __name__ == "__main__":  # a door of its own, so only here does the model meet runs and tokenizers
    import sys
    from importlib.util import find_spec

    from data.tokenizer import END
    from probe.open import open_run
    from training.command_line import one_line_errors, printable
    from training.run_dir import find_run
    from training.settings import ExportConfig, Format, settings_from_arguments

    with one_line_errors():
        asked = settings_from_arguments(ExportConfig, sys.argv[1:])
        to_gguf = asked.to is Format.gguf
        if find_spec(package := "gguf" if to_gguf else "safetensors") is None:
            raise ValueError(f"to={'gguf' if to_gguf else 'hf'} takes {package}: pip install '.[export]'")
        run = find_run(asked.run)
        out = Path(asked.out or run / "export" / ("model.gguf" if to_gguf else "hf"))
        check_new(out)
        # As eval.py reads it, so that both refuse the same.
        opened = open_run(run, torch.device("cpu"))
        tokenizer = (run / "tokenizer.json").read_text(encoding="utf-8")
        note = ""
        if to_gguf:
            note = write_gguf(out, opened.transformer, tokenizer, END, run.resolve().name)
        else:
            settings = opened.settings
            about = {"Training": f"data={settings.data.source}, step {opened.step} of {settings.run.max_steps}."}
            write_llama(out, opened.transformer, tokenizer, END, model_card(opened.transformer, about, claims_of(run, opened.step)))
        print(printable(f"wrote    {out}"))
        if note:
            print(printable(f"note     {note}"))
