"""Export a trained run for transformers: `python -m model.export run=DIR to=hf`."""

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

from data.errors import UserError, printable
from data.tokenizer import end_id
from model.config import Mask, ModelConfig, Position, Scale, Weighting
from model.transformer import Transformer, n_parameters

# The weights of one layer: our name -> transformers' name in a Llama.
_LLAMA_LAYER = {
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
# The values of our switches in a Llama (Touvron et al. 2023).
_LLAMA_SWITCHES = {
    "position": Position.rope,
    "scale": Scale.inverse_sqrt,
    "weighting": Weighting.softmax,
    "mask": Mask.causal,
    "token_shift": False,
    "tie_query_key": False,
    "tie_key_value": False,
}


def departures(config: ModelConfig) -> list[str]:
    """Return NAME=VALUE of every switch of `config` that no Llama has."""
    found = []
    for name, expected in _LLAMA_SWITCHES.items():
        value = getattr(config, name)
        if value != expected:
            found.append(f"model.{name}={str(value).lower()}")
    return found


def _check_is_llama(config: ModelConfig) -> None:
    """Raise UserError unless a Llama can compute the same; tied projections can be copied."""
    if wrong := [switch for switch in departures(config) if not switch.startswith("model.tie_")]:
        raise UserError(f"{', '.join(wrong)}: not exportable, a Llama does not have it")


def as_llama(model: Transformer, bos_id: int = 0) -> Any:
    """Return `transformers.LlamaForCausalLM` with the weights of `model`; it computes the same logits bit by bit.

    UserError if `model` has a switch that no Llama has; `bos_id` is the token that begins and ends a text.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    _check_is_llama(config)
    llama_config = LlamaConfig(
        vocab_size=model.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_mlp,
        num_hidden_layers=config.n_layer, num_attention_heads=config.n_head, head_dim=config.head_dim,
        max_position_embeddings=config.context_length, rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}, tie_word_embeddings=True,
        bos_token_id=bos_id, eos_token_id=bos_id, dtype="float32",
    )  # fmt: skip

    # Tied projections become two equal matrices.
    weights = model.state_dict()
    converted: dict[str, Tensor] = {
        "model.embed_tokens.weight": weights["token_embedding.weight"],
        "model.norm.weight": weights["final_norm.gain"],
        "lm_head.weight": weights["token_embedding.weight"],
    }
    for layer in range(config.n_layer):
        for name, llama_name in _LLAMA_LAYER.items():
            converted[f"model.layers.{layer}.{llama_name}.weight"] = weights[f"blocks.{layer}.{name}"]
    llama = LlamaForCausalLM(llama_config)
    llama.load_state_dict(converted)
    return llama.eval()


def export_transformers(model: Transformer, folder: Path, bos_id: int = 0, tokenizer: Tokenizer | None = None) -> None:
    """Write `model` as a Llama to `folder`, with its tokenizer if given, for `from_pretrained` of transformers.

    UserError if `model` has a switch that no Llama has; `bos_id` begins and ends a text and pads a batch.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    as_llama(model, bos_id).save_pretrained(folder)

    # transformers pads a batch with the same token; the attention mask hides it.
    if tokenizer is not None:
        bos = tokenizer.id_to_token(bos_id)
        unknown = getattr(tokenizer.model, "unk_token", None)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=model.config.context_length,
            bos_token=bos, eos_token=bos, pad_token=bos, unk_token=unknown,
            clean_up_tokenization_spaces=False,
        ).save_pretrained(folder)  # fmt: skip


# Command line


class _Format(StrEnum):
    """Formats of an export."""

    hf = "hf"  # a folder for from_pretrained of transformers


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSettings:
    """Write a trained model in another format.

    python -m model.export to=hf [NAME=VALUE ...]

    to   hf: a folder for transformers, TransformerLens, lm-eval
    run  directory of the run (default: the newest)
    out  new folder (default: export/hf in the run)
    """

    to: _Format
    run: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        if find_spec("transformers") is None:
            raise UserError(f"to={self.to}: needs transformers; pip install '.[export]'")


def model_card(model: Transformer, training: str, claims: str | None) -> str:
    """Return README.md of an exported model; `training` names data and steps, `claims` is Markdown from the probe."""
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
    """Return claims.md of the run's probe, or None if there is no probe of the checkpoint of this `step`."""
    try:
        probed_step = json.loads((run / "probe" / "probe.json").read_text())["model"]["step"]
        return (run / "probe" / "claims.md").read_text().strip() if probed_step == step else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def main(arguments: Sequence[str]) -> None:
    """Export a run; everything is written to a temporary folder and renamed."""
    # A command line needs training and probe, which are above the package `model`.
    from antecedent_lab.opened import open_run
    from training.command_line import one_line_errors
    from training.run_dir import find_run
    from training.settings import settings_from_arguments

    with one_line_errors():
        # Refuse what cannot be exported before anything is written.
        settings = settings_from_arguments(ExportSettings, arguments)
        run = find_run(settings.run)
        out = Path(settings.out or run / "export" / settings.to)
        if out.exists() or out.is_symlink():
            raise FileExistsError(f"out={out}: already exists; choose another name")
        opened = open_run(run, torch.device("cpu"))
        _check_is_llama(opened.transformer.config)
        tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
        training = f"data={opened.settings.data.source}, step {opened.step}"
        card = model_card(opened.transformer, training, read_claims(run, opened.step))

        # A reader never sees half an export.
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=out.parent) as temporary:
            path = Path(temporary, "export")
            export_transformers(opened.transformer, path, end_id(tokenizer), tokenizer)
            (path / "README.md").write_text(card, encoding="utf-8")
            path.rename(out)
        print(printable(f"wrote {out}"))


if __name__ == "__main__":
    main(sys.argv[1:])
