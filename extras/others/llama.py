"""Our model as a Llama of transformers, with its tokenizer, and the weights of such a Llama by our names."""

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


def _llama_names(n_layer: int) -> dict[str, str]:
    names = {"token_embedding.weight": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
    for layer in range(n_layer):
        for name, llama_name in _LLAMA_LAYER.items():
            names[f"blocks.{layer}.{name}"] = f"model.layers.{layer}.{llama_name}.weight"
    return names


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
    converted = {"lm_head.weight": weights["token_embedding.weight"]}
    for name, llama_name in _llama_names(config.n_layer).items():
        converted[llama_name] = weights[name]
    llama = LlamaForCausalLM(llama_config)
    llama.load_state_dict(converted)
    return llama.eval()


def from_llama(llama: Any) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return shape and weights of a causal model of transformers, by our names; UserError unless our formulas fit.

    Each head gets its own copy of the key and value projections that it shares. "output_embedding.weight" is there if
    it is not the token embedding.
    """
    theirs = llama.config
    if theirs.model_type != "llama":
        raise UserError(f"only a Llama can be run, not a model_type={theirs.model_type}")
    n_head = theirs.num_attention_heads
    needed = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    needed["head_dim"] = theirs.hidden_size // n_head
    for name, value in needed.items():
        if getattr(theirs, name) != value:
            raise UserError(f"only a Llama with {name}={value} can be run")
    rope = theirs.rope_parameters
    if rope != {"rope_type": "default", "rope_theta": rope["rope_theta"]}:
        raise UserError("only a Llama with the default RoPE can be run")
    config = ModelConfig(
        n_layer=theirs.num_hidden_layers,
        n_head=n_head,
        d_model=theirs.hidden_size,
        d_mlp=theirs.intermediate_size,
        context_length=theirs.max_position_embeddings,
        rope_theta=rope["rope_theta"],
        norm_eps=theirs.rms_norm_eps,
        dropout=0.0,
    )

    saved = llama.state_dict()
    n_sharing = n_head // theirs.num_key_value_heads
    weights = {}
    for name, llama_name in _llama_names(config.n_layer).items():
        weight = saved[llama_name]
        if name.endswith(("key.weight", "value.weight")):
            of_heads = weight.unflatten(0, (-1, config.head_dim))  # [key/value heads, K, D]
            weight = of_heads.repeat_interleave(n_sharing, dim=0).flatten(0, 1)
        weights[name] = weight
    if not theirs.tie_word_embeddings:
        weights["output_embedding.weight"] = saved["lm_head.weight"]
    return config, weights


def own_model(llama: Any) -> Transformer:
    """Return our model with the weights of a causal model of transformers; UserError unless it is of one shape."""
    config, weights = from_llama(llama)
    if "output_embedding.weight" in weights:
        raise UserError("only a Llama whose output embedding is the token embedding can be trained further")
    model = Transformer(config, len(weights["token_embedding.weight"]), seed=0).eval()
    model.load_state_dict(weights)
    return model


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
