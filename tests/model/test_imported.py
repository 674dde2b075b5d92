"""Models of transformers through our own interface: the same attention, the same logits, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from model.imported import Imported, check_can_be_read
from model.observe import attention_maps, attention_scores, streams
from model.transformer import n_parameters
from probe.contract import _observe
from probe.weights import ov_logits, qk_scores

transformers = pytest.importorskip("transformers")

V, T = 61, 19
_SHAPE = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 3, "vocab_size": V, "pad_token_id": None}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}


def gpt2(**given: Any) -> Any:
    return transformers.GPT2Config(
        **{"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": V, "n_inner": 31,
           "bos_token_id": 0, "eos_token_id": 0} | given
    )  # fmt: skip


def llama(kind: str = "Llama", **given: Any) -> Any:
    plain = _SHAPE | {"num_attention_heads": 4, "max_position_embeddings": 64, "num_key_value_heads": 4}
    return getattr(transformers, f"{kind}Config")(**plain | given)


SHAPES = {
    "gpt2": gpt2(),
    "gpt2 unscaled, own unembedding": gpt2(scale_attn_weights=False, tie_word_embeddings=False),
    "llama": llama(tie_word_embeddings=True),
    "llama, grouped heads, own unembedding": llama(num_key_value_heads=2, tie_word_embeddings=False),
    "llama, biases": llama(num_key_value_heads=2, attention_bias=True, mlp_bias=True),
    "llama3's angles": llama(rope_parameters=_LLAMA3),
    "YaRN's angles": llama(rope_parameters=_YARN),
    "mistral, wide heads": llama("Mistral", num_key_value_heads=2, head_dim=10, sliding_window=None),
    "mistral, window": llama("Mistral", num_key_value_heads=1, sliding_window=T),
    "qwen2": llama("Qwen2", num_key_value_heads=2),
}


def theirs(config: Any, attention: str = "sdpa", seed: int = 0) -> Any:
    """Return random weights with nothing zero, biases and gains included, so that no part can be forgotten."""
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            middle = 1.0 if parameter.ndim == 1 and "weight" in name else 0.0
            parameter.copy_(middle + 0.2 * torch.randn(parameter.shape, generator=generator))
    return made.eval()


@pytest.fixture(scope="module", params=list(SHAPES))
def config(request: pytest.FixtureRequest) -> Any:
    return SHAPES[request.param]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (3, T), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_every_weight_is_the_one_that_transformers_gives_without_fusing(config: Any, tokens: Tensor) -> None:
    eager = theirs(config, "eager")(tokens, output_attentions=True)
    maps = attention_maps(Imported(theirs(config)), tokens)
    torch.testing.assert_close(maps, torch.stack(eager.attentions), atol=1e-6, rtol=0)
    assert eager.attentions[0].std() > 0.05  # weights of which each is another


@torch.no_grad()
def test_the_pass_that_is_observed_ends_in_the_logits_of_their_fused_pass(config: Any, tokens: Tensor) -> None:
    model, used = Imported(theirs(config)), theirs(config)(tokens).logits
    assert torch.equal(model(tokens), used)
    found = _observe(model, tokens, torch.full((3, 1), T - 1))
    assert max(found["logits"], found["fused_output"], found["query_rows"]) < 1e-5
    *_, last = streams(model, tokens)
    torch.testing.assert_close(model.unembed(last), used, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_contract_notices_where_one_weight_is_not_theirs(tokens: Tensor) -> None:
    for part in ("query", "key", "value", "output"):
        model = Imported(theirs(SHAPES["qwen2"]))
        linear = getattr(next(model.layers()).attention, part)
        linear.weight = torch.nn.Parameter(linear.weight + 0.1, requires_grad=False)
        assert _observe(model, tokens, torch.full((3, 1), T - 1))["logits"] > 1e-2


@torch.no_grad()
def test_what_the_last_norm_reads_adds_up_to_logits_whatever_norm_it_is(config: Any) -> None:
    """The direction before the norm, dotted with the stream, and what is always added make the dot product behind."""
    model = Imported(theirs(config))
    generator = torch.Generator().manual_seed(1)
    x, direction = torch.randn(5, 24, generator=generator), torch.randn(5, 24, generator=generator)
    always = model.final_norm.always(direction)
    assert (always is None) == (config.model_type != "gpt2")
    before = (model.final_norm.before(direction, x) * x).sum(-1)
    behind = (model.final_norm(x) * direction).sum(-1)
    torch.testing.assert_close(before + (0 if always is None else always), behind, atol=1e-4, rtol=1e-5)
    size = x.std(-1, correction=0, keepdim=True) if config.model_type == "gpt2" else x.pow(2).mean(-1, True).sqrt()
    undivided = model.final_norm.undivided(x) / (size**2 + model.final_norm.eps).sqrt()
    torch.testing.assert_close((undivided * direction).sum(-1), before, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_scores_of_bare_tokens_are_those_of_the_first_layer_where_nothing_else_is_read(tokens: Tensor) -> None:
    """Of a model that turns, two tokens at a distance score alike in a text and by their weights; with biases too."""
    for name in ("llama", "qwen2", "YaRN's angles", "llama, biases"):
        model = Imported(theirs(SHAPES[name]))
        scores = attention_scores(model, tokens[:1])[0, 0]  # [H, T, T]
        for head in range(2):
            one, other, distance = int(tokens[0, 9]), int(tokens[0, 4]), torch.tensor([5])
            found = qk_scores(model, [one], [other], distance, 0, head)[0, 0, 0]
            torch.testing.assert_close(found, scores[head, 9, 4], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_what_a_head_writes_is_read_with_the_unembedding_that_is_used() -> None:
    """By hand: of a Llama whose unembedding is its own, not of its embedding."""
    made = theirs(SHAPES["llama, grouped heads, own unembedding"])
    own = made.model.layers[0].self_attn
    read = made.model.layers[0].input_layernorm(made.model.embed_tokens.weight[[3, 7]])
    value = read @ own.v_proj.weight[:6].T  # the first of two, which serves heads 0 and 1
    written = (value @ own.o_proj.weight[:, 6:12].T) * made.model.norm.weight @ made.lm_head.weight[[1, 2]].T
    torch.testing.assert_close(ov_logits(Imported(made), [3, 7], [1, 2], 0, 1), written, atol=1e-5, rtol=1e-5)


def test_weights_count_once_and_untrained_models_are_of_one_shape_and_another_by_seed(config: Any) -> None:
    made = theirs(config)
    model = Imported(made)
    assert n_parameters(model) == sum(one.numel() for one in made.parameters())
    one, two, again = (model.untrained(seed) for seed in (1, 2, 1))
    assert one.config == model.config
    weights = [next(each.layers()).attention.query.weight for each in (one, two, again)]
    assert torch.equal(weights[0], weights[2]) and not torch.equal(weights[0], weights[1])
    before = torch.random.get_rng_state()
    model.untrained(3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_window_bounds_how_much_a_model_is_given_to_read() -> None:
    assert Imported(theirs(SHAPES["mistral, window"])).config.context_length == T
    assert Imported(theirs(SHAPES["mistral, wide heads"])).config.context_length == 64
    assert Imported(theirs(SHAPES["gpt2"])).config.context_length == 32


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (gpt2(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=true"),
        (gpt2(reorder_and_upcast_attn=True), "reorder_and_upcast_attn=true"),
        (llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 5.0, "factor": 2.0}), "rope_type=dynamic"),
        (llama(rope_parameters={"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5}), "partial"),
        (gpt2(layer_norm_epsilon=float("nan")), "layer_norm_epsilon=nan cannot be probed"),
        (llama(rms_norm_eps=-1e-5), "rms_norm_eps=-1e-05 cannot be probed"),
        (llama(rms_norm_eps=float("inf")), "rms_norm_eps=inf cannot be probed"),
        (llama(rope_parameters={"rope_type": "default", "rope_theta": 0.0}), "rope_theta=0.0 cannot be probed"),
        (llama(rope_parameters={"rope_type": "default", "rope_theta": float("inf")}), "rope_theta=inf"),
        (transformers.OPTConfig(), "model_type=opt cannot be probed: only gpt2, llama, mistral, qwen2 can"),
    ],
)
def test_what_is_computed_in_another_way_is_refused_by_name(config: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_can_be_read(config)
