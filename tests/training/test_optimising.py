"""Rates, optimizers and where they run."""

import copy
import platform

import pytest
import torch

from model.config import ModelConfig
from model.transformer import Transformer
from tests.model.standard import PLAIN
from training.device import choose_place, keep_freed_memory
from training.optim import StackedMuon, is_probe_step, make_optimizers, rate_factor, set_rates
from training.plain import PlainAdamW
from training.settings import Device, OptimConfig, Optimizer, Precision, RunConfig

MODEL = ModelConfig(n_layer=2, n_head=3, d_model=30, d_mlp=41, context_length=13, **PLAIN)


def optim(name: Optimizer, **changes: object) -> OptimConfig:
    values = {
        "learning_rate": 0.02,
        "embedding_learning_rate": 0.003,
        "weight_decay": 0.1,
        "embedding_weight_decay": 0.2,
        "momentum": 0.95,
    }
    values |= {"beta_1": 0.9, "beta_2": 0.95, "warmup_steps": 10, "decay_power": 1.0, "clip_norm": 1.0}
    return OptimConfig(name=name, **(values | changes))


def test_the_rate_rises_over_the_warm_up_and_falls_to_nothing() -> None:
    factors = [rate_factor(step, 10, 110) for step in range(111)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == factors[10] == 1.0
    assert factors[60] == pytest.approx(0.5)
    assert factors[110] == 0.0
    assert rate_factor(0, 0, 1) == 1.0


@pytest.mark.parametrize(
    ("max_steps", "expected"),
    [
        (7, [0, 1, 2, 3, 4, 5, 6, 7]),
        (210, sorted({0, 1, 2, 128, 210, *range(0, 210, 4), *(2**i for i in range(8))})),
        (100_003, [0, *(2**i for i in range(10)), *range(2000, 100_001, 2000), 100_003]),
    ],
)
def test_the_probe_runs_at_doublings_up_to_512_and_every_two_percent(max_steps: int, expected: list[int]) -> None:
    assert [step for step in range(max_steps + 1) if is_probe_step(step, max_steps)] == expected


@pytest.mark.parametrize("name", list(Optimizer))
def test_every_weight_has_exactly_one_optimizer_and_gains_do_not_decay(name: Optimizer) -> None:
    model = Transformer(MODEL, 29, seed=0)
    optimizers = make_optimizers(model, optim(name))
    held = [id(p) for one in optimizers for group in one.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    gains = {id(p) for p in model.parameters() if p.ndim == 1}
    for one in optimizers:
        for group in one.param_groups:
            assert (group["weight_decay"] == 0) == ({id(p) for p in group["params"]} <= gains)
    if name is Optimizer.muon:
        muon = {id(p) for group in optimizers[0].param_groups for p in group["params"]}
        assert muon == {id(p) for p in model.blocks.parameters() if p.ndim == 2}


def test_rates_are_shares_of_each_groups_own_peak() -> None:
    optimizers = make_optimizers(Transformer(MODEL, 29, seed=0), optim(Optimizer.muon))
    set_rates(optimizers, 0.5)
    set_rates(optimizers, 0.25)
    assert [g["lr"] for one in optimizers for g in one.param_groups] == pytest.approx([0.005, 0.00075, 0.00075])


@pytest.mark.parametrize("name", list(Optimizer))
def test_both_optimizers_learn(name: Optimizer) -> None:
    model = Transformer(MODEL, 29, seed=0)
    optimizers = make_optimizers(model, optim(name))
    tokens = torch.randint(29, (4, 11), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_cuda_is_refused_where_there_is_none_and_the_choice_is_explained() -> None:
    place = choose_place(Device.cpu, Precision.float32)
    assert place.device.type == "cpu" and not place.bfloat16
    assert "asked for" in place.reason
    assert choose_place(Device.cpu, Precision.bfloat16).bfloat16
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no CUDA device"):
            choose_place(Device.cuda, Precision.auto)
        assert "no CUDA device found" in choose_place(Device.auto, Precision.auto).reason


def test_freed_memory_can_be_kept_where_the_c_library_is_glibc() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="clip_norm must be above 0"):
        optim(Optimizer.muon, clip_norm=0)
    with pytest.raises(ValueError, match="momentum"):
        optim(Optimizer.muon, momentum=1.0)
    values = {name: 1 for name in RunConfig.__dataclass_fields__} | {"out": None, "resume": False, "threads": None}
    with pytest.raises(ValueError, match="resume=true needs out=DIR"):
        RunConfig(**(values | {"resume": True}))
    with pytest.raises(ValueError, match="max_steps must be 1 or more"):
        RunConfig(**(values | {"max_steps": 0}))


@pytest.mark.parametrize("name", list(Optimizer))
def test_optimizers_on_a_cpu_are_torchs_to_the_bit_and_load_what_torchs_have_saved(name: Optimizer) -> None:
    """Without torch's compiler, which torch's own import whether or not anything is compiled."""
    ours, theirs = (Transformer(MODEL, 29, seed=0) for _ in range(2))
    optimizers = make_optimizers(ours, optim(name))
    kinds = {StackedMuon: torch.optim.Muon, PlainAdamW: torch.optim.AdamW}
    torchs = make_optimizers(theirs, optim(name))
    torchs = [kinds[type(one)]([dict(group) for group in one.param_groups]) for one in torchs]
    tokens = torch.randint(29, (3, 13), generator=torch.Generator().manual_seed(3))
    for step in range(6):
        for model, some in ((ours, optimizers), (theirs, torchs)):
            set_rates(some, 1 / (1 + step))
            model(tokens).logsumexp(-1).sum().backward()
            for one in some:
                one.step()
                one.zero_grad()
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))
        if step == 2:
            for one, other in zip(optimizers, torchs, strict=True):
                one.load_state_dict(copy.deepcopy(other.state_dict()))
