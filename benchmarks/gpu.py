"""Measure everything that needs a GPU, into out/gpu.json and out/gpu.md; out/logs has the output of each program.

- tests: the tests marked "gpu".
- speed: training steps of each model preset without compilation, with torch.compile and with CUDA graphs.
- shakespeare: experiment=shakespeare/gpu to nanoGPT's loss of 1.4697, and nanoGPT's own recipe on the same device.
- ladder: models of 2.6, 12 and 29 million parameters are trained on 50, 200 and 600 million tokens of English and
  tested by eval.py, on natural text and on the blocks of sentences.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING

from benchmarks.measure import (
    ROOT,
    Machine,
    listed,
    read_probe,
    short_paths,
    start_benchmark,
    this_machine,
)
from benchmarks.speed import write_nanogpt_data
from data.errors import UserError
from data.loader import Split
from data.text_tables import markdown_table
from model.transformer import Transformer, n_parameters
from training.device import ComputeDevice, choose_device
from training.files import write_atomically
from training.metrics import load_metrics
from training.settings import compose_settings
from training.trainer import make_trainer, train_step, wait_for_device

VOCABULARY = 4096
N_TOKENS = 2**22  # random text
WARM_UP_STEPS = 10
PRESETS = ("nano", "tiny", "small", "base")
TARGET_LOSS = 1.4697  # nats per character, nanoGPT's README
BATCH = 32768  # tokens, of experiment=english/gpu
SIZES = {
    "2.6 M": ["model.n_layer=4", "model.n_head=6", "model.d_model=192", "model.d_mlp=512"],
    "12 M": ["model=small"],
    "29 M": ["model=base"],
}
RUNGS = list(product((50, 200, 600), SIZES))  # millions of tokens, size
# What a rehearsal changes: a few steps of a small model.
QUICK = ["model=nano", "max_steps=4", "eval_every_steps=2", "validation_tokens=2000", "tokens_per_batch=512"]
QUICK += ["compile=none", "probe_sequences=20", "model.context_length=128"]
QUICK_PROBE = ["probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
LEGENDS = {
    "tests": "The tests marked gpu.",
    "speed": "Training on random tokens. FLOPs utilisation: FLOPs of the matrix products (Kaplan et al. 2020; PaLM, "
    "appendix B) per second, as a share of one large product's in the same number format.",
    "shakespeare": "Best validation loss that each program prints, nats per character: ours on 65,536 characters, at "
    "the end on all; nanoGPT's on random batches. Seconds of the whole process.",
    "ladder": "Natural text: the head whose attention turns with she/he, to the entity that matches the pronoun or to "
    "the other one: contrast in nats [95 %], corrected p, verdict. Blocks: sentences with a known antecedent.",
}
Cells = dict[str, Any]  # by column


@dataclass
class GpuOptions:
    """python -m benchmarks.gpu out=DIR [part=tests,speed,shakespeare,ladder] [text=input.txt] [tokens=FOLDER].

    - out: a new folder
    - text: for part=shakespeare; with nanogpt=DIR, a checkout of nanoGPT, its own recipe is measured too
    - tokens: a tokenized text (data=tokens), for part=ladder
    - runs=DIR: training runs of the ladder (default: out/runs); those that are there are continued
    - device=cpu quick=true: a rehearsal, a few steps of a small model
    """

    out: str = MISSING
    part: str = "tests,speed,shakespeare,ladder"
    device: str = "cuda"
    quick: bool = False
    runs: str = ""
    text: str = ""
    tokens: str = ""
    nanogpt: str = ""

    def __post_init__(self) -> None:
        """Raise UserError if a value cannot be used."""
        parts = listed(self.part)
        for part in parts:
            if part not in LEGENDS:
                raise UserError(f"part={part}: unknown; there are {', '.join(LEGENDS)}")
        if self.device not in ("cuda", "cpu"):
            raise UserError(f"device={self.device}: must be cuda or cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("device=cuda: there is no CUDA device; device=cpu quick=true is a rehearsal")
        if "shakespeare" in parts and not Path(self.text).is_file():
            raise UserError(f"text={self.text}: part=shakespeare needs a text file")
        if "ladder" in parts and not self.tokens:
            raise UserError("tokens=: part=ladder needs a tokenized text")
        if (Path(self.out) / "gpu.json").exists():
            raise UserError(f"out={self.out}: holds other results; choose another folder")


@dataclass(frozen=True)
class _GpuRow:
    """One measurement."""

    part: str
    name: str
    cells: Cells


@dataclass
class _GpuResults:
    """All measurements so far, with the command and the machine."""

    title: str
    command: str
    machine: Machine
    rows: list[_GpuRow] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write gpu.json and gpu.md."""
        lines = [f"# {self.title}", "", f"`{self.command}`: {self.machine.device}, {self.machine.versions}"]
        for part, legend in LEGENDS.items():
            rows = [row for row in self.rows if row.part == part]
            # The columns of all rows, in order
            header = list(dict.fromkeys(chain.from_iterable(row.cells for row in rows)))
            cells = []
            for row in rows:
                cells.append([row.name, *(_cell(row.cells.get(column)) for column in header)])
            lines += ["", f"## {part}", "", legend, "", *markdown_table(["", *header], cells)] if rows else []
        write_atomically(folder / "gpu.json", (json.dumps(asdict(self), indent=1) + "\n").encode())
        write_atomically(folder / "gpu.md", ("\n".join(lines) + "\n").encode())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


class _MeasurementError(Exception):
    """A program that failed; the message is the line that names the error."""


def flops_per_token(model: Transformer) -> float:
    """Return the matrix-product FLOPs of training on one token, 6 N + 12 L T D (half of the latter if causal).

    N counts each weight as often as it multiplies (tied projections several times, the embedding once, as output).
    Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022 (PaLM), appendix B.
    """
    config = model.config
    layer = 4 * config.d_model**2 + 3 * config.d_model * config.d_mlp
    weights = config.n_layer * layer + model.vocab_size * config.d_model
    attention = 12 * config.n_layer * config.context_length * config.d_model
    return 6 * weights + (attention / 2 if config.is_causal else attention)


def _matmul_flops(device: ComputeDevice, size: int) -> float:
    """Return the FLOP/s of a square matrix product in the training's number format, the best of five."""
    left, right = (torch.randn(size, size, device=device.device, dtype=device.dtype) for _ in range(2))
    seconds = timeit.repeat(lambda: (left @ right).sum().item(), number=1, repeat=5)  # item() waits for the device
    return 2 * size**3 / min(seconds)


def _training_speed(model_name: str, compile_mode: str, device_name: str, tokens_per_batch: int, n_steps: int) -> Cells:
    """Return the speed and memory of training one preset."""
    chosen = [f"model={model_name}", f"compile={compile_mode}", f"device={device_name}", "data=stories"]
    settings = compose_settings([*chosen, f"tokens_per_batch={tokens_per_batch}"])
    # A model with random tokens: only the speed counts
    device = choose_device(settings.run.device, settings.run.precision, settings.run.threads)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=N_TOKENS).astype(np.uint16)
    model = Transformer(settings.model, VOCABULARY, seed=0).to(device.device)
    trainer = make_trainer(settings, model, Split(tokens, len(tokens)), device)
    # Compilation and the first steps are not counted
    for _ in range(WARM_UP_STEPS):
        train_step(trainer)
    wait_for_device(trainer)
    trainer.seconds = 0.0
    trainer.n_tokens = 0
    for _ in range(n_steps):
        train_step(trainer)
    wait_for_device(trainer)
    # Tokens per second, as a share of what the device can do
    is_cuda = device.device.type == "cuda"
    rate = trainer.n_tokens / trainer.seconds
    peak_bytes = torch.cuda.max_memory_allocated() if is_cuda else None  # before the product below allocates more
    return {
        "parameters": n_parameters(model),
        "tokens per step": trainer.n_tokens // n_steps,
        "tokens per second": round(rate),
        "FLOPs utilisation": rate * flops_per_token(model) / _matmul_flops(device, 8192 if is_cuda else 1024),
        "memory in GiB": None if peak_bytes is None else peak_bytes / 2**30,
    }


class Measurements:
    """The parts of the benchmark."""

    def __init__(self, options: GpuOptions) -> None:
        """Make the folder of the results."""
        self.options = options
        self.out = Path(options.out).resolve()
        self.runs = Path(options.runs).resolve() if options.runs else self.out / "runs"
        self.cache = f"cache_dir={self.runs / 'cache'}"
        (self.out / "logs").mkdir(parents=True, exist_ok=True)

    def all(self) -> Iterator[tuple[str, str, Callable[[], Cells]]]:
        """Yield part, name and function of all measurements, the cheap ones first."""
        yield "tests", "tests/test_gpu.py", self.gpu_tests
        for model in PRESETS[:1] if self.options.quick else PRESETS:
            for mode in ("none",) if self.options.device == "cpu" else ("none", "default", "graphs"):
                yield "speed", f"model={model} compile={mode}", partial(self.speed, model, mode)
        yield "shakespeare", "experiment=shakespeare/gpu", self.shakespeare
        if self.options.nanogpt:
            yield "shakespeare", "nanoGPT, train_shakespeare_char", self.nanogpt
        for millions, size in [RUNGS[0]] if self.options.quick else RUNGS:
            yield "ladder", f"{size} parameters, {millions} M tokens", partial(self.ladder, size, millions)

    def run(self, name: str, *command: str, cwd: Path = ROOT) -> list[tuple[float, str]]:
        """Run a command to its end; return (seconds since its start, line) of all that it prints."""
        # Every line goes to the log, with the seconds since the start
        log = self.out / "logs" / (re.sub(r"[^\w.]+", "_", name) + ".log")
        start = time.monotonic()
        lines = []
        with log.open("w") as file, subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                lines.append((time.monotonic() - start, line.rstrip("\n")))
                file.write(f"{lines[-1][0]:8.1f}  {line}")
        # The line that names the error, otherwise the last one
        if process.returncode:
            printed = [line for _, line in lines if line.strip()] or ["no output"]
            problem = next((line for line in printed if line.startswith("error: ")), printed[-1])
            raise _MeasurementError(f"status {process.returncode}: {problem}"[:200])
        return lines

    def train(self, name: str, run: Path, *settings: str) -> list[tuple[float, str]]:
        """Train a run, or continue an unfinished one."""
        resume = f"resume={str((run / 'config.json').exists()).lower()}"
        quick = QUICK if self.options.quick else []
        command = [sys.executable, "train.py", *settings, *quick, self.cache, "sample_tokens=0"]
        return self.run(name, *command, f"device={self.options.device}", f"out={run}", resume)

    def gpu_tests(self) -> Cells:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rf", "--tb=short", "-p", "no:cacheprovider"]
        return {"result": self.run("tests", *command, "tests/test_gpu.py")[-1][1].strip("= ")}

    def speed(self, model_name: str, compile_mode: str) -> Cells:
        """Measure one preset in a process of its own, so that its memory is its own."""
        batch, n_steps = (512, 5) if self.options.quick else (BATCH, 100)
        preset = (model_name, compile_mode, self.options.device, batch, n_steps)
        code = f"import json, benchmarks.gpu as gpu; print(json.dumps(gpu._training_speed(*{preset!r})))"
        lines = self.run(f"speed {model_name} {compile_mode}", sys.executable, "-c", code)
        return json.loads(lines[-1][1])

    def shakespeare(self) -> Cells:
        with tempfile.TemporaryDirectory() as folder:
            settings = ("experiment=shakespeare/gpu", f"data.path={Path(self.options.text).resolve()}")
            return _losses(self.train("shakespeare ours", Path(folder) / "run", *settings))

    def nanogpt(self) -> Cells:
        with tempfile.TemporaryDirectory() as name:
            write_nanogpt_data(Path(self.options.text), Path(name) / "text")
            settings = [f"--dataset={name}/text", f"--out_dir={name}/out", f"--device={self.options.device}"]
            if self.options.quick:
                settings += ["--compile=False", "--max_iters=4", "--eval_interval=2", "--eval_iters=1"]
                settings += ["--batch_size=2"]
            command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *settings]
            return _losses(self.run("shakespeare nanogpt", *command, cwd=Path(self.options.nanogpt).resolve()))

    def ladder(self, size: str, millions: int) -> Cells:
        """Train and test one model on English."""
        # A rung has its own folder, so that another call can continue it
        quick = self.options.quick
        name = f"{'quick_' if quick else ''}{size}_{millions}M".replace(" ", "")
        run = self.runs / name
        settings = ["experiment=english/gpu", "data=tokens", f"data.path={Path(self.options.tokens).resolve()}"]
        settings += [] if quick else [*SIZES[size], f"max_steps={millions * 1_000_000 // BATCH}"]
        self.train(f"ladder {name} train", run, *settings)
        command = [sys.executable, "eval.py", f"run={run}", f"device={self.options.device}", self.cache]
        self.run(f"ladder {name} eval", *command, *(QUICK_PROBE if quick else []))
        return _verdicts(run)


def _losses(lines: list[tuple[float, str]]) -> Cells:
    """Return the best validation loss that a program printed, its seconds and the seconds to TARGET_LOSS."""
    # Both programs print their losses as "val loss" or "validation loss"
    best = None
    reached = None
    for seconds, line in lines:
        match = re.search(r"val(?:idation)? loss ([\d.]+)", line)
        if match:
            loss = float(match.group(1))
            best = loss if best is None else min(best, loss)
            if reached is None and loss <= TARGET_LOSS:
                reached = round(seconds)
    return {"loss": best, "seconds": round(lines[-1][0]), f"seconds to {TARGET_LOSS}": reached}


def _verdicts(run: Path) -> Cells:
    """Return loss, contrasts and verdicts of a finished and tested run."""
    probe = read_probe(run)
    last = load_metrics(run).validation[-1]
    cells: Cells = {"steps": last.step, "bits per byte": last.bits_per_byte, "seconds of training": last.seconds}
    # Heads
    for result in probe.selected:
        cells |= {"blocks": f"{result.place}, {result.verdict} ({result.evidence_level})"}
    return cells


def main(options: GpuOptions) -> None:
    """Measure the chosen parts, write each row at once; exit with status 1 if a program failed."""
    measurements = Measurements(options)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    title = "Rehearsal" if options.quick else f"Measured with device={options.device}"
    command = " ".join(["python -m benchmarks.gpu", *map(short_paths, sys.argv[1:])])
    results = _GpuResults(title, command, this_machine(device, torch.get_num_threads()))
    # A failed program is a row too, and the next one is measured
    has_failed = False
    for part, name, measure in measurements.all():
        if part not in listed(options.part):
            continue
        try:
            cells = measure()
        except _MeasurementError as error:
            cells = {"problem": str(error)}
            has_failed = True
        results.rows.append(_GpuRow(part, name, cells))
        results.write(measurements.out)
        shown = ", ".join(f"{column} {_cell(value)}" for column, value in cells.items())
        print(f"{part}, {name}: {shown}", flush=True)
    if has_failed:
        sys.exit(1)


if __name__ == "__main__":
    start_benchmark(main, GpuOptions)
