"""The passes by hand against the plain ones: as near to float32 as autocast comes, and taken only where they should."""

import pytest
import torch
import torch.nn.functional as F

from model import fast, transformer
from model.config import ModelConfig, Position, Scale, Weighting
from model.transformer import Transformer
from tests.model.standard import PLAIN

V, B = 53, 5
KINDS = {
    "plain": {},
    "falling scores, the token before mixed in": {"position": Position.alibi, "token_shift": True},
    "learned positions, unscaled": {"position": Position.learned, "scale": Scale.none},
    "queries are keys, no positions": {"tie_query_key": True, "position": Position.none},
    "one projection": {"tie_query_key": True, "tie_key_value": True},
}


def made(length: int, **changes: object) -> Transformer:
    """Return a model that no part of is zero, so that every gradient is something."""
    shape = {"n_layer": 2, "n_head": 3, "d_model": 42, "d_mlp": 71, "context_length": length}
    model = Transformer(ModelConfig(**{**shape, **PLAIN, **changes}), V, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        model.token_embedding.weight *= 4
    return model


def passed(model: Transformer, tokens: torch.Tensor, *, bfloat16: bool) -> dict[str, torch.Tensor]:
    """Return the logits and every gradient."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        logits = model(tokens)
    F.cross_entropy(logits.float().flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return found | {"logits": logits.detach().float()}


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("length", [3, 67, 257])
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_logits_and_all_gradients_are_as_near_to_float32_as_the_plain_ones_in_bfloat16(
    changes: dict, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(length, **changes)
    tokens = torch.randint(V, (B, length), generator=torch.Generator().manual_seed(3))
    exact, ours = passed(model, tokens, bfloat16=False), passed(model, tokens, bfloat16=True)
    monkeypatch.setattr(transformer, "_trains_in_bfloat16", lambda x: False)
    plain = passed(model, tokens, bfloat16=True)
    assert set(ours) == set(exact) == {"logits", *(name for name, _ in model.named_parameters())}
    every = [torch.cat([one[name].flatten() for name in exact]) for one in (ours, plain, exact)]
    assert off(every[0], every[2]) < 1.5 * off(every[1], every[2])
    for name in exact:  # short rows: scores are bfloat16's here and float32's there; a term left out is off by far more
        assert off(ours[name], exact[name]) < max(0.01, 3 * off(plain[name], exact[name])), name
        assert not torch.equal(ours[name], plain[name])


def test_the_future_reaches_nothing() -> None:
    model = made(11)
    x = torch.randn(2, 11, 42, generator=torch.Generator().manual_seed(4), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = next(model.layers())(x)
    first[:, :7].sum().backward()
    assert x.grad is not None
    assert (x.grad[:, 7:] == 0).all() and (x.grad[:, :7] != 0).all()


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"weighting": Weighting.sum}], ids=["dropout", "sum"])
def test_a_block_that_it_does_not_know_takes_the_plain_path(changes: dict) -> None:
    assert not next(made(7, **changes).layers()).can_be_fast
    assert next(made(7).layers()).can_be_fast


def test_packed_stories_float32_and_looking_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the losses of stories, which everything published rests on, stay what they are."""
    taken = []
    monkeypatch.setattr(transformer.Block, "_fast", lambda self, x: taken.append(1) or x)
    model, tokens = made(7), torch.zeros(2, 7, dtype=torch.int64)
    model(tokens)
    transformer.attention_maps(model, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens, torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2))
        with torch.no_grad():
            model(tokens)
        assert taken == []
        model(tokens)
    assert taken == [1, 1]


@pytest.mark.parametrize("changes", [{}, {"position": Position.alibi}], ids=["rope", "alibi"])
def test_some_heads_at_a_time_give_the_same_bits(changes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(19, **changes)
    tokens = torch.randint(V, (B, 19), generator=torch.Generator().manual_seed(3))
    at_once = passed(model, tokens, bfloat16=True)
    monkeypatch.setattr(fast, "_SCORES_AT_ONCE", 4 * 19 * 19)  # three of fifteen at a time, for alibi's three slopes
    in_pieces = passed(model, tokens, bfloat16=True)
    assert all(torch.equal(in_pieces[name], at_once[name]) for name in at_once)
