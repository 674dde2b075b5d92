"""Export a trained run: `python -m model.export run=DIR to=hf` (for transformers) or `to=gguf` (for GGUF readers)."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from data.tokenizer import end_id
from model.hf import check_is_llama, export_transformers, llama_weights
from model.transformer import Transformer, n_parameters


class Format(StrEnum):
    """Formats of an export."""

    hf = "hf"  # a folder for from_pretrained of transformers
    gguf = "gguf"  # one file


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """Write a trained model in another format.

    python -m model.export to=hf [NAME=VALUE ...]

    to   hf: a folder for transformers, TransformerLens, lm-eval; gguf: a file for GGUF readers
    run  directory of the run (default: the newest)
    out  new folder or file (default: export/hf or export/model.gguf in the run)
    """

    to: Format
    run: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if a package is missing."""
        if find_spec(package := "gguf" if self.to is Format.gguf else "transformers") is None:
            raise ValueError(f"to={self.to}: needs {package}; pip install '.[export]'")


def model_card(model: Transformer, training: str, claims: str | None) -> str:
    """Returns README.md of an exported model; `training` names data and steps, `claims` is Markdown from the probe."""
    config = model.config
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [antecedent]
---

# A Llama of {n_parameters(model):,} parameters, trained by Antecedent

{config.n_layer} layers of {config.n_head} heads, width {config.d_model}, context {config.context_length}, vocabulary
{model.vocab_size:,}. Training: {training}. The model was trained with a beginning-of-text token before every text; the
tokenizer does not add it.

## Which heads resolve pronouns

{claims or "Not probed: nothing is claimed about any head."}
"""


def read_claims(run: Path, step: int) -> str | None:
    """Returns claims.md of the run's probe, or None if there is no probe of the checkpoint of this `step`."""
    try:
        probed_step = json.loads((run / "probe" / "probe.json").read_text())["model"]["step"]
        return (run / "probe" / "claims.md").read_text().strip() if probed_step == step else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write_gguf(path: Path, model: Transformer, tokenizer: Tokenizer, name: str) -> None:
    """Writes a GGUF file in float32: the settings of the Llama, the tokenizer and the weights."""
    from gguf import GGUFWriter, LlamaFileType

    config, weights = model.config, gguf_weights(model)
    writer = GGUFWriter(path, "llama")
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
        _add_tokenizer(writer, tokenizer)
        for tensor_name, weight in weights.items():
            writer.add_tensor(tensor_name, weight.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def gguf_weights(model: Transformer) -> dict[str, Tensor]:
    """Returns the weights under llama.cpp's names, queries and keys in its order of rows."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, model.config.n_layer)
    return {
        str(names.get_name(name, try_suffixes=[".weight"])): interleave_pairs(weight, model.config.n_head)
        if "q_proj" in name or "k_proj" in name
        else weight
        for name, weight in llama_weights(model).items()
    }


def interleave_pairs(weight: Tensor, n_head: int) -> Tensor:
    """Returns [D, D] with the rows i and i + K/2 of each head as rows 2i and 2i + 1, the pairs of llama.cpp's RoPE."""
    return weight.unflatten(0, (n_head, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def _add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """Adds the tokens; llama.cpp can encode text only with a byte-level BPE, others read tokenizer.huggingface.json."""
    from gguf import Keys, TokenType

    settings = json.loads(tokenizer.to_str())
    if is_byte_bpe(settings):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        merges = settings["model"]["merges"]
        writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    else:
        writer.add_tokenizer_model("no_vocab")
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    added = {token["content"]: token["special"] for token in settings["added_tokens"]}
    kinds = {None: TokenType.NORMAL, True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[added.get(token)] for token in tokens])
    writer.add_bos_token_id(end_id(tokenizer))
    writer.add_eos_token_id(end_id(tokenizer))
    writer.add_add_bos_token(True)
    writer.add_string(Keys.Tokenizer.HF_JSON, tokenizer.to_str())


def is_byte_bpe(settings: dict[str, Any]) -> bool:
    """Returns True for the settings (tokenizer.json) of a byte-level BPE that splits text as GPT-2 does."""
    model, splitter = settings["model"], settings["pre_tokenizer"] or {}
    options = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
    return (
        model["type"] == "BPE"
        and not any(model.get(option) for option in options)
        and splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex", True)
        and not splitter["add_prefix_space"]
        and not settings["normalizer"]
    )


def main(arguments: Sequence[str]) -> None:
    """Exports a run; everything is written to a temporary folder and renamed."""
    # A command line needs training and probe, which are above the package `model`.
    from probe.open import open_run
    from training.command_line import one_line_errors, printable
    from training.run_dir import find_run
    from training.settings import settings_from_arguments

    with one_line_errors():
        settings = settings_from_arguments(ExportSettings, arguments)
        run = find_run(settings.run)
        out = Path(settings.out or run / "export" / ("hf" if settings.to is Format.hf else "model.gguf"))
        if out.exists() or out.is_symlink():
            raise FileExistsError(f"out={out}: already exists; choose another name")
        opened = open_run(run, torch.device("cpu"))
        check_is_llama(opened.transformer.config)
        tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=out.parent) as temporary:
            path = Path(temporary, "export")
            if settings.to is Format.hf:
                training = f"data={opened.settings.data.source}, step {opened.step}"
                card = model_card(opened.transformer, training, read_claims(run, opened.step))
                export_transformers(opened.transformer, path, end_id(tokenizer), tokenizer)
                (path / "README.md").write_text(card, encoding="utf-8")
            else:
                write_gguf(path, opened.transformer, tokenizer, run.resolve().name)
            path.rename(out)
        print(printable(f"wrote {out}"))
        if settings.to is Format.gguf and not is_byte_bpe(json.loads(tokenizer.to_str())):
            print("note: llama.cpp has no tokenizer of this kind; it loads the file but cannot encode text with it")


if __name__ == "__main__":
    main(sys.argv[1:])
