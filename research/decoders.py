"""Which model types of transformers open: tiny models with random weights, compared with their own eager attention."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from extras.others.pretrained_view import PretrainedView
from model.transformer import n_parameters
from probe.text_tables import markdown_table
from research.measure import start_benchmark, write_page
from settings.errors import one_line

MAX_PARAMETERS = 20_000_000  # a larger model did not take the sizes below
N_TOKENS = 24  # in each text, more than a window
MAX_REASON = 80  # characters
WIDTH, VOCABULARY = 32, 37
# Sizes by the names that configurations have for them; each type takes those that it knows.
LAYERS = "num_hidden_layers n_layer num_layers decoder_layers encoder_layers"
HEADS = "num_attention_heads n_head num_heads decoder_attention_heads encoder_attention_heads"
WIDTHS = "hidden_size n_embd d_model embedding_size word_embed_proj_dim intermediate_size moe_intermediate_size ffn_dim"
WIDTHS += " n_inner d_ff decoder_ffn_dim encoder_ffn_dim shared_expert_intermediate_size shared_intermediate_size"
WIDTHS += " expert_ffn_hidden_size ffn_hidden_size"
LENGTHS = "max_position_embeddings n_positions n_ctx"
FOURS = "num_local_experts num_experts n_routed_experts linear_num_value_heads mamba_n_heads mamba_num_heads rotary_dim"
EIGHTS = "head_dim d_kv sliding_window qk_rope_head_dim qk_nope_head_dim v_head_dim linear_key_head_dim"
EIGHTS += " linear_value_head_dim mamba_d_state ssm_state_size state_size hidden_size_per_layer_input"
SIXTEENS = "q_lora_rank kv_lora_rank qk_head_dim mamba_d_head mamba_head_dim"
ONES = "pad_token_id bos_token_id eos_token_id n_group topk_group n_groups num_hidden_groups first_k_dense_replace"
SIZES: dict[str, int] = {"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "num_experts_per_tok": 2}
SIZES |= {"linear_num_key_heads": 2}
for names, size in (
    (LAYERS, 4), (HEADS, 4), (WIDTHS, WIDTH), (LENGTHS, 64), (FOURS, 4), (EIGHTS, 8), (SIXTEENS, 16), (ONES, 1),
):  # fmt: skip
    SIZES |= dict.fromkeys(names.split(), size)


@dataclass
class _DecoderOptions:
    """python -m research.decoders."""


@dataclass(frozen=True)
class Decoder:
    """The result for a model type."""

    name: str
    attends: str  # "1 of 4": layers with attention; "" if it does not open
    difference: float | None  # largest, of a logit, between our attention and its own
    reason: str  # why it does not open, or was not made


@dataclass(frozen=True)
class DecoderResults:
    """The lists of the page."""

    transformers: str
    decoders: list[Decoder]
    not_made: list[Decoder]  # with these sizes

    def lines(self) -> list[str]:
        """Return the page's lines."""
        opened = [each for each in self.decoders if each.difference is not None]
        exact = [each for each in opened if each.difference == 0]
        largest = max(each.difference or 0.0 for each in opened)
        said = (
            f"Of {len(self.decoders)} model types of transformers {self.transformers} that could be made with random "
            f"weights {len(opened)} open. The difference of their logits from those of their own eager attention is 0 "
            f"in {len(exact)}, at most {largest:.1g} in the others; most logits go to about 5. A hybrid may fail here "
            f"because its four layers have no attention. {len(self.not_made)} types take other sizes and were not made."
        )
        rows = [[each.name, each.attends, f"{each.difference:.1g}"] for each in opened if each.difference is not None]
        refused = [[each.name, each.reason] for each in self.decoders if each.difference is None]
        others = [[each.name, each.reason] for each in self.not_made]
        return [
            said, "", *markdown_table(["opens", "layers with attention", "difference"], rows),
            "", *markdown_table(["does not open", "reason"], refused),
            "", *markdown_table(["not made", "reason"], others),
        ]  # fmt: skip


def made(name: str, sizes: Mapping[str, int]) -> Any:
    """Return a tiny model with random weights; ValueError and other errors if the type does not take the sizes."""
    default = AutoConfig.for_model(name)
    config = AutoConfig.for_model(name, **{size: sizes[size] for size in sizes if hasattr(default, size)})
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(copy.deepcopy(config), **options)
    if n_parameters(shape) > MAX_PARAMETERS:
        raise ValueError("takes its sizes from other names")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, **options).eval()
    with torch.no_grad():
        for weight in model.parameters():  # the standard initial weights are so small that attention is uniform
            weight.normal_(0, 0.25) if weight.ndim >= 2 else weight.add_(torch.randn_like(weight) / 4)
    return model


@torch.no_grad()
def compared(name: str) -> tuple[Decoder, bool]:
    """Return what became of a type, and whether it could be made; keys and values are grouped, or else are not."""
    decoder, was_made = Decoder(name, "", None, ""), False
    tokens = torch.randint(VOCABULARY, (2, N_TOKENS), generator=torch.Generator().manual_seed(0))
    for n_groups in (2, 4):
        try:
            model = made(name, SIZES | {"num_key_value_heads": n_groups})
            expected = model(input_ids=tokens, use_cache=False).logits
            was_made = True
            view = PretrainedView(model)
            difference = float((view.logits(tokens) - expected).abs().max())
            return Decoder(name, f"{len(view.attention_layers)} of {view.n_layer}", difference, ""), True
        except Exception as error:  # transformers raises errors of every type
            reason = one_line(error).removeprefix(f"model_type={name}: cannot be observed, ")
            decoder = Decoder(name, "", None, reason[:MAX_REASON])
    return decoder, was_made


def main(options: _DecoderOptions) -> None:
    """Try every type, and write the page."""
    import transformers

    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    decoders, not_made = list[Decoder](), list[Decoder]()
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        decoder, was_made = compared(name)
        (decoders if was_made else not_made).append(decoder)
        print(decoder, flush=True)
    results = DecoderResults(transformers.__version__, decoders, not_made)
    write_page("decoders", "Model types of transformers that open", results)


if __name__ == "__main__":
    start_benchmark(main, _DecoderOptions)
