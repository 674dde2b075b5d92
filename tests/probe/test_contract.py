"""No model whose observed attention is not the one it uses gets past the contract."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.config import Position
from model.transformer import Transformer
from probe.contract import LIMITS, check_contract
from tests.model.standard import VARIANTS
from tests.probe.story_items import planted, random_model, story_items


@pytest.mark.parametrize("switches", VARIANTS.values(), ids=VARIANTS)
def test_a_sound_model_of_any_kind_passes_and_its_figures_are_told(switches: dict) -> None:
    found = check_contract(random_model(**switches), story_items("test"))
    assert set(found) == set(LIMITS)
    assert found["future_weight"] == 0 and found["logits"] < 1e-5
    # With a mask of numbers torch's own attention takes the very same steps; elsewhere rounding must show.
    assert (found["logits"] == 0) == (switches.get("position") is Position.alibi)


def lose_mask_in_the_fused_path(model: Transformer) -> None:
    attention = model.blocks[1].attention

    def forward(x: Tensor, allowed: Tensor | None = None) -> Tensor:
        mixed = F.scaled_dot_product_attention(*attention.project(x))
        return attention.output(mixed.transpose(1, 2).flatten(2))

    attention.forward = forward


def lose_mask_in_both_paths(model: Transformer) -> None:
    attention = model.blocks[1].attention
    lose_mask_in_the_fused_path(model)

    def scores(x: Tensor, positions: Tensor | None = None) -> Tensor:
        query, key, _ = attention.project(x)
        every = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if positions is None:
            return every
        return every.gather(2, positions[:, None, :, None].expand(-1, every.shape[1], -1, every.shape[-1]))

    attention.scores = scores


def corrupt_the_observed_path(model: Transformer) -> None:
    attention = model.blocks[0].attention
    sound = attention.scores
    attention.scores = lambda x, positions=None: 1.01 * sound(x, positions)


def read_the_row_before(model: Transformer) -> None:
    attention = model.blocks[0].attention
    sound = attention.scores
    attention.scores = lambda x, positions=None: sound(x, None if positions is None else positions - 1)


def leave_the_weights_unnormalised(model: Transformer) -> None:
    """Scores whose softmax is nan at one query: no weights at all."""
    attention = model.blocks[1].attention
    sound = attention.scores

    def scores(x: Tensor, positions: Tensor | None = None) -> Tensor:
        found = sound(x, positions).clone()
        found[:, :, 0] = float("-inf")
        return found

    attention.scores = scores


def let_the_mlp_see_the_future(model: Transformer) -> None:
    mlp = model.blocks[0].mlp
    sound = mlp.forward
    mlp.forward = lambda x: sound(x + x.mean(dim=1, keepdim=True))


def change_what_comes_after_the_blocks(model: Transformer) -> None:
    """The logits are not those of the pass that is observed."""
    sound = model.forward
    model.forward = lambda tokens: sound(tokens) * 1.001


def lose_a_weight(model: Transformer) -> None:
    with torch.no_grad():
        model.blocks[0].attention.query.weight[0, 0] = float("nan")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lose_mask_in_the_fused_path, "is not the attention the model uses"),
        (lose_mask_in_both_paths, "attention rests on tokens that come later"),
        (corrupt_the_observed_path, "is not the attention the model uses"),
        (read_the_row_before, "is not the row of the whole map"),
        (leave_the_weights_unnormalised, "off by nan"),
        (let_the_mlp_see_the_future, "tokens that come later change the logits"),
        (change_what_comes_after_the_blocks, "does not end in the model's logits"),
        (lose_a_weight, "off by nan"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(damage: Callable[[Transformer], None], said: str) -> None:
    model = random_model()
    damage(model)
    with pytest.raises(ValueError, match=said) as refused:
        check_contract(model, story_items("test"), n_items=13)
    assert "\n" not in str(refused.value)


def test_checking_leaves_the_model_as_it_was() -> None:
    model = planted("coreference")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    check_contract(model, story_items("test"), n_items=5)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
