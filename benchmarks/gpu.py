"""Measure a GPU: python -m benchmarks.gpu out=DIR [models=small,base] [device=cuda].

Takes training steps of each model preset without compilation, with torch.compile and with CUDA graphs. Measures tokens
per second, model FLOPs utilisation (share of the speed of a large matrix product on the same device) and peak memory.
Writes gpu.json and gpu.md into `out` after each row. device=cpu models=nano is a rehearsal.
"""

import json
import timeit
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import arguments, fail
from data.loader import Split
from model.transformer import Transformer, n_parameters
from probe.external import markdown_table
from training.device import ComputeDevice, choose_device
from training.settings import compose_settings
from training.trainer import make_trainer, train_step

VOCABULARY = 4096
N_TOKENS = 2**22  # random text
WARM_UP_STEPS = 10


def matmul_flops(device: ComputeDevice, size: int) -> float:
    """Returns the FLOP/s of a square matrix product in the training's number format, the best of five."""
    left, right = (torch.randn(size, size, device=device.device, dtype=device.dtype) for _ in range(2))
    seconds = timeit.repeat(lambda: (left @ right).sum().item(), number=1, repeat=5)  # item() waits for the device
    return 2 * size**3 / min(seconds)


def measure(model_name: str, mode: str, device_name: str) -> dict[str, Any]:
    """Returns the speed and memory of training one preset."""
    settings = compose_settings([f"model={model_name}", f"device={device_name}", f"compile={mode}", "data=stories"])
    device = choose_device(settings.run.device, settings.run.precision, settings.run.threads)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=N_TOKENS).astype(np.uint16)
    model = Transformer(settings.model, VOCABULARY, seed=0).to(device.device)
    trainer = make_trainer(settings, model, Split(tokens, len(tokens)), device)
    is_cuda = device.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP_STEPS):
        train_step(trainer)
    steps = [train_step(trainer) for _ in range(100)]
    rate = sum(step.n_tokens for step in steps) / sum(step.seconds for step in steps)
    peak_flops = matmul_flops(device, 8192 if is_cuda else 1024)
    return {
        "model": model_name,
        "compile": mode,
        "parameters": n_parameters(model),
        "tokens_per_second": round(rate),
        "utilisation": rate * flops_per_token(model) / peak_flops,
        "peak_bytes": torch.cuda.max_memory_allocated() if is_cuda else None,
        "device": device.description,
    }


def flops_per_token(model: Transformer) -> float:
    """Returns the matrix-product FLOPs of training on one token, 6 N + 12 L T D (half of the latter if causal).

    N counts each weight as often as it multiplies (tied projections several times, the embedding once, as output).
    Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022 (PaLM), appendix B.
    """
    config = model.config
    layer = 4 * config.d_model**2 + 3 * config.d_model * config.d_mlp
    weights = config.n_layer * layer + model.vocab_size * config.d_model
    attention = 12 * config.n_layer * config.context_length * config.d_model
    return 6 * weights + (attention / 2 if config.is_causal else attention)


def write(folder: Path, speeds: list[dict[str, Any]]) -> None:
    """Writes the results so far."""
    rows = []
    for row in speeds:
        memory = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f} GiB"
        model = f"{row['model']} ({row['parameters'] / 1e6:.1f} M)"
        rows.append([model, row["compile"], f"{row['tokens_per_second']:,}", f"{row['utilisation']:.0%}", memory])
    header = ["model", "compile", "tokens/s", "utilisation", "peak memory"]
    lines = [f"torch {torch.__version__}; {speeds[0]['device']}", "", *markdown_table(header, rows)]
    (folder / "gpu.json").write_text(json.dumps({"speeds": speeds}, indent=1) + "\n")
    (folder / "gpu.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Measures, writes after each row, prints."""
    options = arguments({"device": "cuda", "models": "small,base"}, required=["out"])
    if options["device"] == "cuda" and not torch.cuda.is_available():
        fail("device=cuda: there is no CUDA device; device=cpu models=nano is a rehearsal")
    folder = Path(options["out"])
    folder.mkdir(parents=True, exist_ok=True)
    modes = ["none"] if options["device"] == "cpu" else ["none", "default", "graphs"]
    speeds: list[dict[str, Any]] = []
    for model_name in options["models"].split(","):
        for mode in modes:
            speeds.append(measure(model_name, mode, options["device"]))
            write(folder, speeds)
    print((folder / "gpu.md").read_text())


if __name__ == "__main__":
    main()
