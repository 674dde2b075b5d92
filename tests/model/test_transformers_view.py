"""model/transformers_view.py: models of transformers against their own eager attention."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from model.edits import exchange_links
from model.observe import SiteEdit, SitePass
from model.transformers_view import TransformersSitePass, TransformersView
from tests.model.site_passes import SITE, check_against_whole_passes, check_refusals, cut_first, texts

transformers = pytest.importorskip("transformers")
L, H, G, D, V, T = 3, 4, 2, 32, 37, 11  # G: heads of keys and values where they are grouped
PLAIN = {"hidden_size": D, "intermediate_size": 31, "num_hidden_layers": L, "num_attention_heads": H}
PLAIN |= {"max_position_embeddings": 16, "vocab_size": V}
GROUPED = {**PLAIN, "num_key_value_heads": G}
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
}
each_type = pytest.mark.parametrize("model_type", SHAPES)
# Token ids below V: the default ids of special tokens can lie outside these small vocabularies.
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}


@cache
def make_view(model_type: str) -> TransformersView:
    config = transformers.AutoConfig.for_model(model_type, **SHAPES[model_type], **SPECIAL)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():  # the standard initial weights are so small that attention is uniform
            if weight.ndim == 2:
                weight.normal_(0, 0.25)
            else:
                weight.add_(torch.randn_like(weight) / 4)  # norms' gains and biases
    return TransformersView(model)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (5, T), generator=torch.Generator().manual_seed(2))


def eager(model_type: str, tokens: Tensor) -> Any:
    """Return the output of transformers' own attention for the same weights."""
    reference = transformers.AutoModelForCausalLM.from_config(
        deepcopy(make_view(model_type).model.config), dtype=torch.float32, attn_implementation="eager"
    )
    reference.load_state_dict(make_view(model_type).model.state_dict())
    with torch.no_grad():
        return reference.eval()(tokens, output_attentions=True, output_hidden_states=True, use_cache=False)


@each_type
def test_maps_logits_and_residual_stream_equal_eager(model_type: str, tokens: Tensor) -> None:
    view, expected = make_view(model_type), eager(model_type, tokens)
    maps = view.attention_scores(tokens).softmax(-1)
    assert maps.shape == (L, 5, H, T, T) and maps.std() > 0.05
    torch.testing.assert_close(maps, torch.stack(expected.attentions))
    torch.testing.assert_close(view.logits(tokens), expected.logits)
    streams = view.residual_stream(tokens)
    assert len(streams) == L + 1
    for stream, hidden_state in zip(streams[:-1], expected.hidden_states, strict=False):
        torch.testing.assert_close(stream, hidden_state)


@each_type
def test_an_exchange_moves_the_logits_from_its_query_on(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    edited = view.logits(tokens, edits=[exchange_links(1, 2, 6, [4], [5])])
    difference = (edited - view.logits(tokens)).abs().amax((0, 2))
    assert (difference[:6] < 1e-5).all() and difference[6] > 1e-3


@each_type
def test_the_pass_over_the_site_alone_equals_whole_passes(model_type: str) -> None:
    check_against_whole_passes(make_view(model_type), TransformersSitePass)


@contextmanager
def counting(modules: list[Any]) -> Iterator[list[int]]:
    """Yield a list that receives the index of a module each time that it computes."""
    calls: list[int] = []
    with ExitStack() as hooks:
        for i, module in enumerate(modules):
            hooks.enter_context(module.register_forward_hook(lambda *_, i=i: calls.append(i)))
        yield calls


@each_type
def test_an_edited_pass_runs_the_layers_from_the_edit_on(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    site_pass = view.site_pass(texts(), SITE)
    edit_lists = [[], [SiteEdit(2, 0, weights=cut_first)], [SiteEdit(1, 1, weights=cut_first)]]
    words = torch.tensor([[4, 36], [11, 2], [8, 3], [7, 7]])
    with counting(view._modules) as calls:
        of_words = site_pass.edited_logits(edit_lists, words)
    assert sorted(calls) == [1, 2, 2]
    torch.testing.assert_close(of_words, site_pass.edited_logits(edit_lists).gather(2, words.expand(3, -1, -1)))

    # Whole passes over the text, from the streams before the layers
    edits = [exchange_links(1, 2, 6, [4], [5])]
    streams = view.residual_stream(tokens)
    with counting(view._modules) as calls:
        late = view.logits(tokens, None, edits, streams)
        clean = view.logits(tokens, None, [], streams)
    assert calls == [1, 2]
    torch.testing.assert_close(late, view.logits(tokens, None, edits))
    torch.testing.assert_close(clean, view.logits(tokens))


def test_a_model_that_mixes_positions_outside_attention_gets_whole_passes() -> None:
    view = make_view.__wrapped__("llama")  # not from the cache: its layers change
    check_refusals(view)

    def add_neighbour(module: torch.nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + output.roll(1, dims=1) / 2

    view.model.model.layers[1].mlp.register_forward_hook(add_neighbour)
    site_pass = view.site_pass(torch.randint(V, (2, 6)), torch.tensor([5, 3]))
    assert type(site_pass) is SitePass


@each_type
def test_the_record_is_consistent_with_head_weights(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    for layer, record in enumerate(view.record(tokens)):
        torch.testing.assert_close(record.scores.softmax(-1) @ record.values, record.head_output)
        weights, module = view.head_weights(layer), view._modules[layer]
        zero = torch.einsum("btd,hkd->bhtk", record.inputs, weights.value) - record.values  # minus the bias, if any
        torch.testing.assert_close(zero, zero[:1, :, :1].expand_as(zero), rtol=1e-4, atol=1e-5)
        added = torch.einsum("bhtk,hdk->btd", record.head_output, weights.output)
        name = next(name for name in ("o_proj", "out_proj", "c_proj", "dense") if hasattr(module, name))
        projection = getattr(module, name)
        expected = projection(record.head_output.transpose(1, 2).flatten(2))
        if projection.bias is not None:
            expected -= projection.bias
        torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-5)


@each_type
def test_contributions_to_the_final_norm_add_up_to_logits(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    stream, unembedding = view.residual_stream(tokens)[-1], view.unembedding()
    difference = unembedding[3] - unembedding[8]
    pulled = view.final_norm_pullback(difference.expand_as(stream), stream)
    body = getattr(view.model.base_model, "decoder", view.model.base_model)
    norm = next(module for name, module in body.named_children() if "norm" in name or name == "ln_f")
    bias = 0.0 if getattr(norm, "bias", None) is None else (norm.bias * difference).sum()
    torch.testing.assert_close((pulled * stream).sum(-1) + bias, norm(stream) @ difference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bloom", "gpt_neo"])
def test_models_off_the_attention_interface_are_refused_by_name(model_type: str) -> None:
    shape = {"hidden_size": D, "n_layer": 2, "num_layers": 2, "n_head": H, "num_heads": H, "vocab_size": V}
    shape |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(ValueError, match=f"model_type={model_type}"):
        TransformersView(model)
