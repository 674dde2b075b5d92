"""How much of what a CPU core can multiply goes into training: python -m benchmarks.utilisation [out=FILE.json].

The steps of `train.py` on random tokens, model=small (10.6 M weights in the blocks, context 256) in bfloat16 on one
thread, and between them, in the same process, the fastest large matrix product (`run/ceiling.py`): the share is of the
ceiling seen around the very same steps, by the FLOPs that `flops_per_token` counts. About a minute.
"""

import time

import numpy as np
import torch

from benchmarks.rows import ROOT, Row, alone, number, repeats, spread
from data.loader import Split
from model.transformer import Transformer, flops_per_token
from training.ceiling import matmul_ceiling
from training.device import choose_place, keep_freed_memory
from training.optim import set_rates
from training.settings import Device, Precision, typed_train
from training.setup import make_training
from training.trainer import Training, train_step

KNOWN: tuple[str, ...] = ()
_VOCABULARY = 4096
_TOKENS = 4096  # of a step
_STEPS = 4  # between two looks at the ceiling
_GOAL, _AIM = 40.0, 60.0  # per cent


def rows(given: dict[str, str]) -> list[Row]:
    """Measure the share of the ceiling."""
    torch.set_num_threads(1)
    keep_freed_memory()
    place = choose_place(Device.cpu, Precision.auto)
    training, flops = made()
    stepped(training, 2)  # fills caches
    shares, rates = [], []
    for _ in range(repeats(given)):
        before = matmul_ceiling(place.device, bfloat16=place.bfloat16)
        rates.append(_STEPS * _TOKENS * flops / stepped(training, _STEPS))
        after = matmul_ceiling(place.device, bfloat16=place.bfloat16)
        shares.append(100 * rates[-1] / max(before, after))
    return [judged(shares, rates, "bfloat16" if place.bfloat16 else "float32")]


def judged(shares: list[float], rates: list[float], numbers: str) -> Row:
    """Return the row of shares of the ceiling and the FLOPs a second that they were."""
    return Row(
        work="share of the measured matmul ceiling while training, one core",
        goal=f"{_GOAL:.0f} % or more",
        aim=f"{_AIM:.0f} %",
        unit="%",
        ours=shares,
        peer_name="",
        peer=[],
        met=min(shares) >= _GOAL,
        aim_met=min(shares) >= _AIM,
        note=f"model=small, {_TOKENS} tokens a step, {numbers}: "
        f"{spread(rates, lambda one: number(one / 1e9))} GFLOP/s; the ceiling is that of the same seconds.",
    )


def made() -> tuple[Training, float]:
    """Return a training on random tokens, and the FLOPs that a token takes."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        settings = typed_train(compose("train", ["model=small", f"tokens_per_batch={_TOKENS}", "device=cpu"]))
    tokens = np.random.default_rng(0).integers(_VOCABULARY, size=2**18).astype(np.uint16)
    model = Transformer(settings.model, _VOCABULARY, seed=0)
    place = choose_place(Device.cpu, Precision.auto)
    return make_training(settings, model, Split(tokens, len(tokens)), place), flops_per_token(model)


def stepped(training: Training, n_steps: int) -> float:
    """Take steps; return the CPU-seconds they took."""
    set_rates(training.optimizers, 0.5)
    began = time.process_time()
    for _ in range(n_steps):
        train_step(training)
        training.step += 1
    return time.process_time() - began


if __name__ == "__main__":
    alone(rows, KNOWN)
