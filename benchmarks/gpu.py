"""Measure everything that needs a GPU: python -m benchmarks.gpu out=DIR [part=tests,speed,shakespeare,ladder].

Every new row is written to out/gpu.json and out/gpu.md at once. The whole call stops after minutes=9. The parts:

- tests: the tests marked "gpu", and one run of train.py in a process group of one process.
- speed: training steps of each model preset without compilation, with torch.compile and with CUDA graphs: tokens per
  second, model FLOPs utilisation (share of the speed of a large matrix product on the same device) and peak memory.
- shakespeare: text=input.txt. experiment=shakespeare/gpu to nanoGPT's loss of 1.4697; with nanogpt=DIR, a checkout of
  nanoGPT, its own recipe on the same device.
- ladder: tokens=FOLDER, a tokenized text (data=tokens). Models of 2.6, 10 and 29 million parameters on 50, 200 and 600
  million tokens of English, and eval.py of each: which head turns with the pronoun, and the blocks of sentences.

Runs are in runs=DIR (default: out/runs). The next call with the same folders continues an unfinished run.
device=cpu quick=true takes a few steps of the smallest models, as a rehearsal.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import ROOT, arguments, fail, read_records
from benchmarks.speed import write_nanogpt_data
from data.loader import Split
from model.transformer import Transformer, n_parameters
from probe.external import markdown_table
from report.tables import estimate
from training.device import ComputeDevice, choose_device
from training.settings import compose_settings
from training.trainer import make_trainer, train_steps

VOCABULARY = 4096
N_TOKENS = 2**22  # random text
WARM_UP_STEPS = 10
PRESETS = ("tiny", "small", "base")
TARGET_LOSS = 1.4697  # nats per character, nanoGPT's README
BATCH = 32768  # tokens, of experiment=english/gpu
SIZES = {
    "2.6 M": ["model.n_layer=4", "model.n_head=6", "model.d_model=192", "model.d_mlp=512"],
    "10 M": ["model=small"],
    "29 M": ["model=base"],
}
MILLIONS_OF_TOKENS = (50, 200, 600)
# What a rehearsal changes: a few steps of a small model.
QUICK = ["model=nano", "max_steps=4", "eval_every_steps=2", "validation_tokens=2000", "tokens_per_batch=512"]
QUICK += ["compile=none", "probe_sequences=20", "model.context_length=128"]
QUICK_PROBE = ["probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
Row = dict[str, Any]


class Call:
    """The arguments of this call and its deadline."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Reads the arguments; the time starts now."""
        self.options = options
        self.is_quick = options["quick"] == "true"
        self.device = options["device"]
        self.out = Path(options["out"])
        self.runs = Path(options["runs"] or self.out / "runs")
        self.deadline = time.monotonic() + 60 * float(options["minutes"])

    def run(self, *command: str, cwd: Path = ROOT) -> tuple[int, str]:
        """Runs a command; returns its exit status and its output. At the deadline it gets SIGTERM."""
        process = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # train.py saves a checkpoint
            output, _ = process.communicate()
        return process.returncode, output

    def train(self, name: str, *settings: str) -> tuple[Path, int, str]:
        """Trains the run `name` until its end or the deadline; continues an unfinished run."""
        run = (self.runs / name).resolve()
        resume = f"resume={str((run / 'config.json').exists()).lower()}"
        cache = f"cache_dir={self.runs.resolve() / 'cache'}"
        quick = QUICK if self.is_quick else []
        command = [sys.executable, "train.py", *settings, *quick, f"device={self.device}", f"out={run}", resume, cache]
        command += ["sample_tokens=0"]
        return run, *self.run(*command)


def tests(call: Call) -> Iterator[Row]:
    """Yields the results of the GPU tests and of a process group of one process."""
    status, output = call.run(
        sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "tests/test_gpu.py"
    )
    yield {"test": "tests/test_gpu.py", "status": status, "result": outcome(output)}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "train.py"]
    with tempfile.TemporaryDirectory() as folder:
        settings = ["sample_tokens=0", f"out={folder}/run", f"device={call.device}", f"cache_dir={folder}/cache"]
        settings += ["data.n_train_stories=8000", *(QUICK if call.is_quick else ["max_steps=20"])]
        status, output = call.run(*torchrun, *settings)
    yield {"test": "torchrun, one process", "status": status, "result": outcome(output)}


def matmul_flops(device: ComputeDevice, size: int) -> float:
    """Returns the FLOP/s of a square matrix product in the training's number format, the best of five."""
    left, right = (torch.randn(size, size, device=device.device, dtype=device.dtype) for _ in range(2))
    seconds = timeit.repeat(lambda: (left @ right).sum().item(), number=1, repeat=5)  # item() waits for the device
    return 2 * size**3 / min(seconds)


def measure(model_name: str, mode: str, device_name: str, n_steps: int) -> dict[str, Any]:
    """Returns the speed and memory of training one preset."""
    settings = compose_settings([f"model={model_name}", f"device={device_name}", f"compile={mode}", "data=stories"])
    device = choose_device(settings.run.device, settings.run.precision, settings.run.threads)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=N_TOKENS).astype(np.uint16)
    model = Transformer(settings.model, VOCABULARY, seed=0).to(device.device)
    trainer = make_trainer(settings, model, Split(tokens, len(tokens)), device)
    is_cuda = device.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    train_steps(trainer, WARM_UP_STEPS)
    steps = train_steps(trainer, n_steps)
    rate = steps.n_tokens / steps.seconds
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


def speed(call: Call) -> Iterator[Row]:
    """Yields the speed of every preset in every mode of compilation."""
    for model_name in ("nano",) if call.is_quick else PRESETS:
        for mode in ("none",) if call.device == "cpu" else ("none", "default", "graphs"):
            if time.monotonic() > call.deadline:
                return
            yield measure(model_name, mode, call.device, 5 if call.is_quick else 100)


def shakespeare(call: Call) -> Iterator[Row]:
    """Yields the loss and the seconds of our recipe and, if its checkout is given, of nanoGPT's."""
    text = Path(call.options["text"]).resolve()
    run, status, output = call.train("shakespeare", "experiment=shakespeare/gpu", f"data.path={text}")
    if status:
        yield {"recipe": "experiment=shakespeare/gpu", "problem": outcome(output)}
    else:
        losses = [(record["loss"], record["seconds"]) for record in read_records(run, "validation")]
        reached = next((seconds for loss, seconds in losses if loss <= TARGET_LOSS), None)
        best, final = min(losses), losses[-1]
        yield {"recipe": "experiment=shakespeare/gpu", "loss": best[0], "seconds": final[1], "target_seconds": reached}
    if call.options["nanogpt"]:
        yield nanogpt(call, text)


def nanogpt(call: Call, text: Path) -> Row:
    """Returns the best validation loss that nanoGPT prints for its own recipe, and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        write_nanogpt_data(text, Path(name) / "text")
        settings = [f"--dataset={name}/text", f"--out_dir={name}/out", f"--device={call.device}"]
        if call.is_quick:
            settings += ["--compile=False", "--max_iters=4", "--eval_interval=2", "--eval_iters=1", "--batch_size=2"]
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *settings]
        start = time.monotonic()
        status, output = call.run(*command, cwd=Path(call.options["nanogpt"]).resolve())
    losses = [float(loss) for loss in re.findall(r"^step \d+: .*val loss ([\d.]+)", output, re.MULTILINE)]
    if status or not losses:
        return {"recipe": "nanoGPT, train_shakespeare_char", "problem": outcome(output)}
    seconds = time.monotonic() - start
    return {
        "recipe": "nanoGPT, train_shakespeare_char",
        "loss": min(losses),
        "seconds": seconds,
        "target_seconds": None,
    }


def ladder(call: Call) -> Iterator[Row]:
    """Yields what eval.py finds in each model, from the cheapest to the most expensive."""
    folder = Path(call.options["tokens"]).resolve()
    rungs = [(size, millions) for millions in MILLIONS_OF_TOKENS for size in SIZES]
    for size, millions in rungs[:1] if call.is_quick else rungs:
        if time.monotonic() > call.deadline:
            return
        settings = ["experiment=english/gpu", "data=tokens", f"data.path={folder}"]
        settings += [] if call.is_quick else [*SIZES[size], f"max_steps={millions * 1_000_000 // BATCH}"]
        row: Row = {"model": size, "tokens": f"{millions} M"}
        run, status, output = call.train(f"ladder_{size}_{millions}".replace(" ", ""), *settings)
        if status == 0 and not (run / "probe" / "probe.json").exists():
            cache = f"cache_dir={call.runs.resolve() / 'cache'}"
            probe = QUICK_PROBE if call.is_quick else []
            status, output = call.run(sys.executable, "eval.py", f"run={run}", f"device={call.device}", cache, *probe)
        yield row | (verdict_of(run) if status == 0 else {"problem": outcome(output)})


def verdict_of(run: Path) -> Row:
    """Returns loss, contrasts and verdicts of a finished and tested run."""
    results = json.loads((run / "probe" / "probe.json").read_text())
    last = read_records(run, "validation")[-1]
    row: Row = {"bits_per_byte": last["bits_per_byte"], "seconds": last["seconds"]}
    gender = results["natural"]["questions"].get("gender", {}).get("chosen", {})
    for target, entry in gender.items():
        place = f"L{entry['layer']}H{entry['head']}, {entry['site'].replace('_', ' ')}"
        contrast = estimate(entry["contrast"], entry["contrast_interval"])
        row[target] = f"{place}: {contrast}, p {entry['p_corrected']:.4f}, {entry['verdict']}"
    for entry in results["selected"]:
        row["blocks"] = f"L{entry['layer']}H{entry['head']}, {entry['verdict']} ({entry['evidence_level']})"
    answers = [row for row in results["behaviour"] if (row["family"], row["holdout"]) == ("english", "headline")]
    return row | ({"blocks_right": answers[0]["accuracy"]} if answers else {})


def outcome(output: str) -> str:
    """Returns the error in an output in one line, otherwise the last line."""
    lines = (output.strip() or "no output").splitlines()
    return next((line for line in lines if line.startswith("error: ")), lines[-1])[:200]


PARTS = {"tests": tests, "speed": speed, "shakespeare": shakespeare, "ladder": ladder}
NEEDS = {"shakespeare": "text", "ladder": "tokens"}  # arguments


def write(folder: Path, results: Mapping[str, list[Row]], device: str) -> None:
    """Writes the results so far."""
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    lines = [f"torch {torch.__version__}; {device}"]
    for part, rows in results.items():
        header = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[cell(row.get(name)) for name in header] for row in rows]
        lines += ["", f"## {part}", "", *markdown_table([name.replace("_", " ") for name in header], cells)]
    (folder / "gpu.md").write_text("\n".join(lines) + "\n")


def cell(value: Any) -> str:
    """Returns a value for a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def main() -> None:
    """Measures, writes after each row, prints."""
    defaults = {"part": ",".join(PARTS), "device": "cuda", "quick": "false", "minutes": "9", "runs": ""}
    options = arguments({**defaults, "text": "", "tokens": "", "nanogpt": ""}, required=["out"])
    parts = options["part"].split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        fail(f"part={unknown[0]}: unknown; there are {', '.join(PARTS)}")
    for part in parts:
        if (name := NEEDS.get(part)) and not Path(options[name] or "/nowhere").exists():
            fail(f"{name}={options[name]}: part={part} needs it")
    if options["device"] == "cuda" and not torch.cuda.is_available():
        fail("device=cuda: there is no CUDA device; device=cpu quick=true is a rehearsal")
    call = Call(options)
    call.out.mkdir(parents=True, exist_ok=True)
    results = json.loads((call.out / "gpu.json").read_text()) if (call.out / "gpu.json").exists() else {}
    name = torch.cuda.get_device_name() if options["device"] == "cuda" else "cpu"
    for part in parts:
        results[part] = []
        for row in PARTS[part](call):
            results[part].append(row)
            write(call.out, results, name)
            print(f"{part}: {row}", flush=True)


if __name__ == "__main__":
    main()
