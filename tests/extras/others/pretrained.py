"""Models of transformers with random weights."""

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
L, H, D, V = 3, 4, 32, 37
PLAIN = {"hidden_size": D, "intermediate_size": 31, "num_hidden_layers": L, "num_attention_heads": H}
PLAIN |= {"max_position_embeddings": 16, "vocab_size": V}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
# Sizes of experts must be multiples of 4.
EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 32}
LINEAR = {"linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
ONE_ATTENDS = ["linear_attention", "full_attention", "linear_attention"]
TWO_ATTEND = ["full_attention", "linear_attention", "full_attention"]
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": D, "n_layer": L, "n_head": H, "n_positions": 16, "vocab_size": V},
    "gpt_neox": PLAIN,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 10},
    "opt": {**PLAIN, "ffn_dim": 31, "word_embed_proj_dim": D},
    "phi": PLAIN,
    "gemma2": {**GROUPED, "head_dim": 10, "sliding_window": 4, "final_logit_softcapping": 3.0},
    "olmo2": GROUPED,
    "gpt_oss": {**GROUPED, **EXPERTS, "head_dim": 10, "sliding_window": 4},
    "qwen3_5_text": {**GROUPED, **LINEAR, "head_dim": 10, "linear_num_key_heads": 2, "layer_types": ONE_ATTENDS},
    "olmo_hybrid": {**GROUPED, **LINEAR, "linear_num_key_heads": 4, "layer_types": TWO_ATTEND},
}
# Token ids below V: the default ids of special tokens can lie outside these small vocabularies.
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}


@torch.no_grad()
def pretrained(model_type: str, **changes: Any) -> Any:
    """Return a model of a shape of SHAPES, or of `changes` alone."""
    shape = {"vocab_size": V, **SPECIAL, **SHAPES.get(model_type, {}), **changes}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for weight in model.parameters():  # the standard initial weights are so small that attention is uniform
        if weight.ndim >= 2:
            weight.normal_(0, 0.25)
        else:
            weight.add_(torch.randn_like(weight) / 4)  # norms' gains and biases
    return model
