"""The whole model: causal, observable without a trace, and a Llama."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.attention_rows import llama
from model.config import Mask, Position
from model.observe import attention_maps, observed, streams
from model.transformer import EMBEDDING_STD, Transformer, flops_per_token, n_parameters, positions_within
from tests.model.standard import VARIANTS
from tests.model.test_attention import config

V, B, T = 29, 2, 11


def carrying(**switches: object) -> Transformer:
    """Return a model whose output projections are not zero, so that every path carries something."""
    model = Transformer(config(**switches), V, seed=3)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if name.endswith(("output.weight", "down.weight")):
            with torch.no_grad():
                parameter.normal_(0, 0.1, generator=generator)
    return model.eval()


@pytest.fixture
def model() -> Transformer:
    return carrying()


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def any_model(request: pytest.FixtureRequest) -> Transformer:
    return carrying(**request.param)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(5))


def test_forward_gives_a_logit_for_every_word_at_every_place(model: Transformer, tokens: torch.Tensor) -> None:
    assert model(tokens).shape == (B, T, V)


def test_future_tokens_do_not_change_past_logits(any_model: Transformer, tokens: torch.Tensor) -> None:
    """By gradient: the logits at a place depend on every embedding up to it and on none after."""
    place = 6
    embedded = any_model.embed(tokens).detach().requires_grad_()
    x = embedded
    for block in any_model.blocks:
        x = block(x)
    any_model.unembed(x)[:, place].sum().backward()
    reached = embedded.grad.abs().sum(-1) > 0
    assert reached[:, : place + 1].all()
    assert not reached[:, place + 1 :].any()


def test_texts_packed_into_a_row_are_read_as_if_each_stood_alone(any_model: Transformer) -> None:
    parts = torch.randint(V, (13,), generator=torch.Generator().manual_seed(6)).split([3, 5, 4, 1])
    texts = torch.tensor([number for number, part in enumerate(parts[:3]) for _ in part] + [-1])
    packed = any_model(torch.cat(parts)[None], texts[None])[0]
    for number, part in enumerate(parts[:3]):
        alone = any_model(part[None])[0]
        assert torch.allclose(packed[texts == number], alone, atol=1e-5)
    assert not torch.allclose(any_model(torch.cat(parts)[None])[0][3:8], any_model(parts[1][None])[0], atol=1e-2)


def test_observed_maps_are_the_weights_the_fused_path_uses(any_model: Transformer, tokens: torch.Tensor) -> None:
    """Rebuild every layer from the observed weights: the logits agree with the fused path to 1e-5."""
    maps = attention_maps(any_model, tokens)
    assert maps.shape == (2, B, 3, T, T)
    x = any_model.embed(tokens)
    for layer, block in enumerate(any_model.blocks):
        _, _, value = block.attention.project(block.norm_1(x))
        x = x + block.attention.output((maps[layer] @ value).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm_2(x))
    torch.testing.assert_close(any_model.unembed(x), any_model(tokens), atol=1e-5, rtol=0)


def test_what_is_observed_layer_by_layer_is_what_each_layer_reads(any_model: Transformer, tokens: torch.Tensor) -> None:
    query = torch.tensor([[3, 10], [7, 0]])
    seen = list(observed(any_model, tokens, query))
    for block, x, (normed, scores) in zip(any_model.layers(), streams(any_model, tokens), seen, strict=False):
        torch.testing.assert_close(normed, block.norm_1(x), atol=1e-5, rtol=0)
        expected = block.attention.scores(block.norm_1(x))[torch.arange(B)[:, None], :, query].transpose(1, 2)
        torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert len(seen) == any_model.config.n_layer


def test_observing_leaves_no_trace(model: Transformer, tokens: torch.Tensor) -> None:
    before = model(tokens)
    attention_maps(model, tokens)
    assert torch.equal(before, model(tokens))


def test_initial_weights_follow_the_table_and_come_from_the_seed_alone() -> None:
    wide = Transformer(config(), 1009, seed=7)
    torch.manual_seed(99)
    again = Transformer(config(), 1009, seed=7)
    for (name, one), two in zip(wide.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
        if name.endswith("gain"):
            assert (one == 1).all()
        elif name.endswith(("output.weight", "down.weight")):
            assert (one == 0).all()
        else:
            expected = EMBEDDING_STD if name == "token_embedding.weight" else 1 / math.sqrt(30)
            assert one.std().item() == pytest.approx(expected, rel=0.1)
    assert not torch.equal(wide.token_embedding.weight, Transformer(config(), 1009, seed=8).token_embedding.weight)


def test_a_new_model_knows_nothing(tokens: torch.Tensor) -> None:
    """Every block starts as the identity, so the first loss is about log V."""
    new = Transformer(config(), V, seed=3)
    loss = torch.nn.functional.cross_entropy(new(tokens).flatten(0, 1), tokens.flatten().roll(1))
    assert loss.item() == pytest.approx(math.log(V), abs=0.2)


def test_parameters_are_counted_with_the_tied_embedding_once(model: Transformer) -> None:
    per_block = 4 * 30 * 30 + 3 * 30 * 41 + 2 * 30
    assert n_parameters(model) == V * 30 + 2 * per_block + 30


def test_logits_equal_llamas_with_the_same_weights(model: Transformer, tokens: torch.Tensor) -> None:
    pytest.importorskip("transformers")
    with torch.no_grad():
        out = llama(model)(tokens, output_attentions=True)
        torch.testing.assert_close(model(tokens), out.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(attention_maps(model, tokens), torch.stack(out.attentions), atol=1e-6, rtol=0)


@pytest.mark.parametrize("position", Position)
def test_a_token_said_at_another_place_reads_as_another_unless_nothing_tells_places(position: Position) -> None:
    """The same three tokens before the last, in another order: only a model that is told positions can notice."""
    one, two = torch.tensor([[5, 7, 11, 2]]), torch.tensor([[11, 5, 7, 2]])
    shallow = carrying(position=position, n_layer=1)
    same = torch.allclose(shallow(one)[0, -1], shallow(two)[0, -1], atol=1e-5)
    assert same == (position is Position.none)


def test_a_share_of_the_token_before_is_added_but_not_across_texts() -> None:
    model = Transformer(config(token_shift=True), V, seed=5)
    tokens, texts = torch.tensor([[5, 7, 11, 2, 3]]), torch.tensor([[0, 0, 1, 1, 1]])
    plain = model.token_embedding(tokens)
    assert torch.equal(model.embed(tokens), plain)  # it begins as a model without it
    model.shift.data.uniform_(generator=torch.Generator().manual_seed(6))
    mixed = plain + model.shift * torch.cat([torch.zeros_like(plain[:, :1]), plain[:, :-1]], dim=1)
    torch.testing.assert_close(model.embed(tokens), mixed)
    apart = model.embed(tokens, positions_within(texts))
    assert torch.equal(apart[:, 2], plain[:, 2]) and torch.equal(apart[:, [1, 3, 4]], mixed[:, [1, 3, 4]])
    assert model.config.n_parameters(V) == n_parameters(model)


def test_two_layers_without_positions_still_notice_order_through_the_mask() -> None:
    blind = carrying(position=Position.none)
    one, two = (blind(torch.tensor([some]))[0, -1] for some in ([5, 7, 11, 2], [11, 5, 7, 2]))
    assert not torch.allclose(one, two, atol=1e-3)


def test_without_a_mask_the_future_reaches_every_logit_but_not_that_of_another_text() -> None:
    cheat = carrying(mask=Mask.none)
    tokens = torch.tensor([[5, 7, 11, 2, 3]])
    texts = torch.tensor([[0, 0, 0, 1, 1]])
    changed = torch.tensor([[5, 7, 12, 2, 3]])
    apart = (cheat(tokens, texts) - cheat(changed, texts)).abs().amax(-1)[0]
    assert (apart[:3] > 1e-4).all() and (apart[3:] == 0).all()
    alone = cheat(tokens[:, :3])
    torch.testing.assert_close(cheat(tokens, texts)[:, :3], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("switches", [{}, {"tie_query_key": True}, {"position": Position.learned}])
def test_flops_per_token_are_those_that_torch_counts_but_for_the_half_that_a_mask_hides(switches: dict) -> None:
    model, length = Transformer(config(**switches), V, seed=0), config().context_length
    tokens = torch.randint(V, (B, length), generator=torch.Generator().manual_seed(0))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:  # of kernels that recompute nothing
        model(tokens).sum().backward()
    attention = 12 * model.config.n_layer * length * model.config.d_model
    assert counted.get_total_flops() == tokens.numel() * (flops_per_token(model) + attention / 2)


def test_flops_of_a_model_without_a_mask_count_all_of_attention() -> None:
    masked, unmasked = (Transformer(config(mask=mask), V, seed=0) for mask in (Mask.causal, Mask.none))
    products = 12 * masked.config.n_layer * masked.config.context_length * masked.config.d_model
    assert flops_per_token(unmasked) - flops_per_token(masked) == products / 2


def test_dropout_falls_on_what_each_half_of_a_block_adds_and_on_nothing_else(tokens: torch.Tensor) -> None:
    """With nearly everything dropped, the stream is what was embedded: no gradient reaches a block's weights."""
    model = carrying(dropout=1 - 1e-9)
    plain = carrying()
    assert torch.equal(model(tokens), plain(tokens))  # none in eval mode
    stream = model.train().embed(tokens)
    for block in model.layers():
        assert torch.equal(block(stream), stream)
    torch.testing.assert_close(model(tokens), model.unembed(stream), atol=0, rtol=0)
