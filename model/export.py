"""Our model as a Llama of transformers, with its tokenizer."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from model.transformer import Transformer
from settings.errors import UserError
from settings.model import ModelConfig, departures

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


def check_is_llama(config: ModelConfig) -> None:
    """Raise UserError unless a Llama can compute the same; tied projections can be copied."""
    if wrong := [switch for switch in departures(config) if not switch.startswith("model.tie_")]:
        raise UserError(f"{', '.join(wrong)}: not exportable, a Llama does not have it")


def as_llama(model: Transformer, bos_id: int = 0) -> Any:
    """Return a `LlamaForCausalLM` with the same logits bit by bit; UserError if no Llama has a switch of `model`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    check_is_llama(config)
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


def export_transformers(model: Transformer, folder: Path, bos_id: int, tokenizer: Tokenizer) -> None:
    """Write `as_llama` and its tokenizer to `folder`; `bos_id` begins and ends a text and pads a batch."""
    from transformers import PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    as_llama(model, bos_id).save_pretrained(folder)

    # transformers pads a batch with the same token; the attention mask hides it.
    bos = tokenizer.id_to_token(bos_id)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=model.config.context_length,
        bos_token=bos, eos_token=bos, pad_token=bos, unk_token=getattr(tokenizer.model, "unk_token", None),
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # fmt: skip
