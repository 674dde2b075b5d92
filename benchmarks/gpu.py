"""All that is asked of a GPU, in one call of less than nine minutes: python -m benchmarks.gpu out=DIR [data.path=FILE].

Runs tests/test_gpu.py, measures the matmul ceiling, then tokens a second, its share of that ceiling and peak memory for
model=small and model=base, plain, compiled and with CUDA graphs, the text on the device and on the host; with data.path
also a short training (bits per byte against seconds). Prints Markdown and writes gpu.json and gpu.md into `out`. With
device=cpu everything is tiny and only shows that this script runs. Exit status 2 where there is no CUDA device.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir

from benchmarks.files import keep
from data.loader import BatchLoader, Split
from model.transformer import Transformer, flops_per_token, n_parameters
from training.ceiling import matmul_ceiling
from training.device import Place, choose_place
from training.optim import set_rates
from training.settings import Compile, Device, Precision, typed_train
from training.setup import make_training
from training.trainer import Training, train_step

ROOT = Path(__file__).parent.parent
_LIMIT = 520  # seconds after which no further part is begun: a lent device is not lent for longer than ten minutes
_VOCABULARY = 4096
_STEPS = 30
_SIZES = {"cuda": (["small", "base"], 32768), "cpu": (["nano", "tiny"], 256)}  # models and tokens of a step


def main() -> None:
    """Measure what there is time for; say what was left out."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    unknown = given.keys() - {"out", "device", "data.path"}
    if unknown or "out" not in given:
        sys.exit(_refused(f"{min(unknown)} is not a setting here" if unknown else "out=DIR must be given"))
    try:
        place = choose_place(Device(given.get("device", "cuda")), Precision.auto)
    except ValueError as error:
        sys.exit(_refused(str(error)))
    folder = Path(given["out"])
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"device": place.reason, "torch": torch.__version__, "left_out": []}
    began = time.perf_counter()
    found["ceiling"] = {
        name: matmul_ceiling(place.device, bfloat16=name == "bfloat16") for name in ("float32", "bfloat16")
    }
    found["speeds"] = []
    for asked in combinations(place):
        if time.perf_counter() - began > _LIMIT / 2:  # the other half is for the training and the tests
            found["left_out"].append(" ".join(asked))
            continue
        try:
            found["speeds"].append(speed(*asked, place, found["ceiling"]["bfloat16" if place.bfloat16 else "float32"]))
        except Exception as error:  # of whatever kind: the other figures are worth having
            found["left_out"].append(
                f"{' '.join(asked)} ({type(error).__name__}: {(str(error) or 'no message').splitlines()[0][:200]})"
            )
        write(folder, found)  # what was measured stays, whatever comes after it
    left = _LIMIT - (time.perf_counter() - began)
    if "data.path" in given:
        found["training"] = trained(Path(given["data.path"]).resolve(), folder, place, left / 2)
        write(folder, found)
    left = _LIMIT - (time.perf_counter() - began)
    found["tests"] = tested(left)
    found["seconds"] = round(time.perf_counter() - began, 1)
    write(folder, found)
    print(markdown(found))


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def combinations(place: Place) -> Iterator[tuple[str, str, str]]:
    """Yield (model, compile, where the text lies), what matters most first."""
    models, _ = _SIZES[place.device.type]
    kinds = [one.value for one in Compile] if place.device.type == "cuda" else [Compile.none.value]
    for where in ("device", "host"):
        for model in models:
            for kind in kinds:
                yield model, kind, where


def speed(model_name: str, kind: str, where: str, place: Place, ceiling: float) -> dict[str, Any]:
    """Train for a few steps on random tokens; return tokens a second, the share of the ceiling and peak memory."""
    training, model = made(model_name, kind, where, place)
    on_gpu = place.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    n_tokens = sum(stepped(training) for _ in range(5))  # compiles, captures and fills caches
    first_steps = _waited(place, began)
    began = time.perf_counter()
    n_tokens = sum(stepped(training) for _ in range(_STEPS))
    rate = n_tokens / _waited(place, began)
    return {
        "model": model_name,
        "compile": kind,
        "text_on": where,
        "parameters": n_parameters(model),
        "tokens_per_second": round(rate),
        "utilisation": rate * flops_per_token(model) / ceiling,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "seconds_of_first_five_steps": round(first_steps, 1),
    }


def made(model_name: str, kind: str, where: str, place: Place) -> tuple[Training, Transformer]:
    """Return a training on random tokens and its model."""
    torch.compiler.reset()  # it compiles one function for so many models only, and then no more
    _, tokens_per_batch = _SIZES[place.device.type]
    overrides = [f"model={model_name}", f"compile={kind}", f"tokens_per_batch={tokens_per_batch}", "max_steps=100"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        settings = typed_train(compose("train", overrides))
    tokens = np.random.default_rng(0).integers(_VOCABULARY, size=2**20).astype(np.uint16)
    model = Transformer(settings.model, _VOCABULARY, seed=0).to(place.device)
    training = make_training(settings, model, Split(tokens, len(tokens)), place)
    supply = training.batch_at
    if isinstance(supply, BatchLoader) and where == "host":
        training.batch_at = BatchLoader(supply.batches, place.device, pad=settings.run.compile is not Compile.none)
    return training, model


def stepped(training: Training) -> int:
    """Take a step and return how many tokens it read."""
    set_rates(training.optimizers, 0.5)
    _, _, n_tokens = train_step(training)
    training.step += 1
    return n_tokens


def _waited(place: Place, began: float) -> float:
    """Return the seconds since `began`, once the device has done what it was told."""
    if place.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def trained(path: Path, folder: Path, place: Place, seconds: float) -> dict[str, Any]:
    """Train on a text through train.py; return bits per byte at each evaluation and the lines it ended with."""
    on_gpu = place.device.type == "cuda"
    settings = ["data=text", f"data.path={path}", f"out={folder / 'run'}", f"cache_dir={folder / 'cache'}"]
    settings += [f"device={place.device.type}", "sample_tokens=0"]
    if on_gpu:
        settings += ["model=small", "model.dropout=0.1", "tokens_per_batch=16384", "max_steps=1500"]
        settings += ["eval_every_steps=100", "validation_tokens=65536", "data.vocab_size=4096", "compile=default"]
        settings += ["optim.decay_power=1.0", "optim.weight_decay=1.0"]
    else:
        settings += ["model=nano", "tokens_per_batch=256", "max_steps=20", "eval_every_steps=10", "data.vocab_size=300"]
    try:
        ran = subprocess.run(
            [sys.executable, "train.py", *settings],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=max(1.0, seconds),
        )  # fmt: skip
        ended = {"returncode": ran.returncode, "last_lines": (ran.stdout + ran.stderr).splitlines()[-4:]}
    except subprocess.TimeoutExpired:
        ended = {"returncode": None, "last_lines": [f"stopped after {seconds:.0f} s"]}
    records = folder / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
    curve = [
        {"step": one["step"], "seconds": one["seconds"], "bits_per_byte": one["bits_per_byte"]}
        for one in lines
        if one["split"] == "validation"
    ]
    return {"settings": settings, "curve": curve, **ended}


def tested(seconds: float) -> dict[str, Any]:
    """Run the tests that need a GPU; return the exit status and how they ended."""
    command = [sys.executable, "-m", "pytest", "tests/test_gpu.py", "-q", "--tb=short", "--durations=5"]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired as stopped:
        seen = stopped.stdout or b""  # bytes, whatever was asked for
        text = seen.decode(errors="replace") if isinstance(seen, bytes) else seen
        return {"returncode": None, "last_lines": [*text.splitlines()[-40:], f"stopped after {seconds:.0f} s"]}
    return {"returncode": ran.returncode, "last_lines": ran.stdout.splitlines()[-40:]}


def write(folder: Path, found: dict[str, Any]) -> None:
    """Write what has been found so far, for a machine and for a person."""
    keep(folder / "gpu.json", found)
    (folder / "gpu.md").write_text(markdown(found) + "\n")


def markdown(found: dict[str, Any]) -> str:
    """Return the tables that go into docs/gpu.md."""
    ceiling = ", ".join(f"{name} {value / 1e12:,.2f} TFLOP/s" for name, value in found["ceiling"].items())
    lines = [f"{found['device']}; torch {found['torch']}; matmul ceiling: {ceiling}", ""]
    lines += ["| model | compile | text on | tokens/s | of the ceiling | peak memory | first five steps |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for one in found["speeds"]:
        memory = "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f} GiB"
        lines.append(
            f"| {one['model']}, {one['parameters'] / 1e6:.1f} M | {one['compile']} | {one['text_on']} "
            f"| {one['tokens_per_second']:,} | {100 * one['utilisation']:.0f} % | {memory} "
            f"| {one['seconds_of_first_five_steps']} s |"
        )
    if found["left_out"]:
        lines += ["", f"Not measured, for want of time where nothing else is said: {', '.join(found['left_out'])}."]
    if "training" in found:
        lines += ["", "| step | seconds of training | bits/byte |", "|---|---|---|"]
        lines += [
            f"| {one['step']} | {one['seconds']:.1f} | {one['bits_per_byte']:.3f} |"
            for one in found["training"]["curve"]
        ]
        lines += ["", *(f"    {line}" for line in found["training"]["last_lines"])]
    if "tests" in found:
        lines += ["", f"tests/test_gpu.py: exit status {found['tests']['returncode']}", ""]
        lines += [f"    {line}" for line in found["tests"]["last_lines"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
