"""Measure a GPU in at most eight minutes. Writes gpu.json and gpu.md after each part."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

import antecedent_lab
from data.corpus import load_corpus
from extras.gpu.graph import record_step
from model.transformer import Transformer
from probe.text_tables import markdown_table
from research.measure import RESULTS, ROOT, listed, start_benchmark, write_page
from research.peers import ANSWER, FOIL, N_HEADS, prompts
from research.speed import SCORE_NANOGPT, write_nanogpt_data
from settings.errors import UserError, one_line
from settings.train import Device, Precision, compose_settings
from training.device import SINGLE_PROCESS, ComputeDevice, choose_device, keep_freed_memory
from training.metrics import load_metrics
from training.trainer import make_trainer, train_step, wait_for_device

MAX_SECONDS = 480.0
MAX_TEST_SECONDS = 120.0  # limit for the tests of a GPU, and for all tests
STOPPED = 124  # the exit status of a program that was stopped, as `timeout` has it
MAX_LOSS = 1.4697  # nats per character over the whole validation part: that of nanoGPT's README
NANOGPT_STEPS = 1750  # its recipe has 5,000: there the whole validation loss was 1.4663 (measured on an H100)
N_TIMED = 100

TINY = ["model=nano", "validation_tokens=200", "probe_sequences=0", "tokens_per_batch=512"]
TINY_PROBE = ["probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
TINY_NANOGPT = ["--compile=False", "--n_layer=1", "--n_head=2", "--n_embd=32", "--batch_size=2", "--dtype=float32"]
# The block of GPT-2, 12 rows of 1,024 tokens
GPT2 = ["data=shakespeare", "model=base", "model.n_layer=12", "model.n_head=12", "model.d_model=768"]
GPT2 += ["model.d_mlp=2048", "model.context_length=1024", "tokens_per_batch=12288"]
SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
SMOLLM2 |= {"intermediate_size": 1536, "vocab_size": 49152}
# compile=, and whether the step is a graph
WAYS = {
    "kernel by kernel": ("none", False), "graph": ("none", True),
    "compiled": ("default", False), "compiled graph": ("default", True),
}  # fmt: skip
# Settings of experiment=shakespeare/gpu; nanoGPT's rates are those of config/train_shakespeare_char.py.
CANDIDATES = {
    "700 steps": ["max_steps=700", "compile=none"],
    "dropout 0.3": ["model.dropout=0.3", "compile=none"],
    "AdamW, nanoGPT's rates": [
        "optim.name=adamw", "optim.learning_rate=0.001", "optim.embedding_learning_rate=0.001", "optim.beta_2=0.99",
        "optim.weight_decay=0.1", "optim.embedding_weight_decay=0.1", "optim.warmup_steps=100", "compile=none",
    ],
}  # fmt: skip


@dataclass
class _GpuOptions:
    """python -m research.gpu text=input.txt [nanogpt=PATH] [parts=steps,default] [out=FOLDER].

    Measures a GPU in at most eight minutes, in this order (parts=: only these):

    gpu_tests    the tests that need a GPU, in at most 120 seconds
    steps        milliseconds of a step: kernel by kernel, as a graph, compiled; and of nanoGPT's bench.py
    suite        all tests, in at most 120 seconds
    default      train.py and eval.py, with an empty cache and again
    english      the same with experiment=english
    shakespeare  our recipe, three candidates and nanoGPT: seconds, and the loss on the whole validation part
    effects      the effects of 20 heads of a model of SmolLM2's shape with random weights

    Writes gpu.json and gpu.md after each part, to research/results or `out`. A part that fails, or finds no time, says
    so there. `text` is tiny Shakespeare; `nanogpt` a checkout of github.com/karpathy/nanoGPT, in which nothing is
    written. To try the program without a GPU: device=cpu steps=3, tiny models and so many steps; the page goes to
    runs/gpu.
    """

    text: str = ""
    nanogpt: str = ""
    device: Device = Device.cuda
    parts: str = ""
    steps: int | None = None
    out: str = ""


@dataclass(frozen=True)
class Figure:
    """One row of the page; a value of None was not measured."""

    part: str
    name: str
    value: float | None
    unit: str
    note: str = ""

    def cells(self) -> list[str]:
        value = "-" if self.value is None else f"{self.value:.4g}"
        return [self.part, self.name, value, self.unit, self.note]


@dataclass(frozen=True)
class GpuResults:
    """The table of the page."""

    figures: list[Figure]

    def lines(self) -> list[str]:
        rows = [figure.cells() for figure in self.figures]
        return markdown_table(["part", "what", "value", "unit", "note"], rows)


@dataclass
class _Work:
    """The inputs of every part, and the figures so far."""

    options: _GpuOptions
    device: ComputeDevice
    folder: Path
    figures: list[Figure] = field(default_factory=list)
    part: str = ""
    started: float = field(default_factory=time.monotonic)

    def settings(self, *settings: str) -> list[str]:
        """Return settings of train.py with those of every run; with `steps` those of tiny models."""
        common = [f"device={self.options.device.value}", f"cache_dir={self.folder / 'cache'}"]
        if self.options.steps:
            common += [*TINY, f"max_steps={self.options.steps}", f"eval_every_steps={self.options.steps}"]
        return [*settings, *common]

    def text(self) -> str:
        """Return the setting of the text; UserError without one."""
        if not self.options.text:
            raise UserError("needs text=input.txt")
        return f"data.path={Path(self.options.text).resolve()}"

    def left(self) -> float:
        """Return the seconds that are left; UserError if there are none."""
        left = MAX_SECONDS - (time.monotonic() - self.started)
        if left <= 0:
            raise UserError("no time left")
        return left

    def add(self, name: str, value: float | None, unit: str, note: str = "") -> None:
        note = re.sub(r"(?<![\w.])/(?:[^\s/:'\",]+/)+", "", note)  # folders of this machine
        self.figures.append(Figure(self.part, name, value, unit, note))
        print(*self.figures[-1].cells(), sep="  ", file=sys.stderr, flush=True)

    def run(
        self, *command: str, cwd: Path = ROOT, limit: float = MAX_SECONDS
    ) -> tuple[float, subprocess.CompletedProcess[str]]:
        """Run Python; return its seconds and its output, with status STOPPED after `limit` seconds."""
        left = min(limit, self.left())
        start = time.monotonic()
        command = (sys.executable, "-u", *command)
        try:
            process = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired as error:
            output, problems = ((part or b"").decode(errors="replace") for part in (error.stdout, error.stderr))
            process = subprocess.CompletedProcess(command, STOPPED, output, problems)
        return time.monotonic() - start, process

    def succeed(self, *command: str, cwd: Path = ROOT) -> tuple[float, str]:
        """Run Python; return its seconds and its output; UserError if it fails."""
        seconds, process = self.run(*command, cwd=cwd)
        if process.returncode == STOPPED:
            raise UserError(f"{command[0]}: no time left after {seconds:.0f} s")
        if process.returncode:
            raise UserError(f"{command[0]}: {_last_line(process)}")
        return seconds, process.stdout


def _last_line(process: subprocess.CompletedProcess[str]) -> str:
    return (process.stderr.strip() or process.stdout.strip() or "no output").splitlines()[-1]


# The parts


def _tests(work: _Work, *arguments: str, limit: float = MAX_TEST_SECONDS) -> None:
    """Run pytest; count what passed, failed or was skipped until its end or its limit, and name what failed."""
    seconds, process = work.run("-m", "pytest", "-vv", *arguments, limit=limit)
    # "NAME OUTCOME [ 9%]"; of several processes "[gw0] [ 9%] OUTCOME NAME"
    lines = re.findall(
        r"^(?:\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (.*)|(\S+::.*) (PASSED|FAILED|ERROR|SKIPPED)\b.*)$",
        process.stdout, re.MULTILINE,
    )  # fmt: skip
    if not lines:
        broken = re.search(r"^ERROR .*", process.stdout, re.MULTILINE)  # a file that cannot be imported
        raise UserError(broken[0] if broken else _last_line(process))
    outcomes = [(first or last, name or other) for first, name, other, last in lines]
    end = {0: "", 1: "", STOPPED: ", stopped before its end"}.get(process.returncode, f", {_last_line(process)}")
    for outcome, number in sorted(Counter(outcome for outcome, _ in outcomes).items()):
        work.add(outcome.lower(), number, "tests", f"{seconds:.0f} s{end}")
    for outcome, name in outcomes:
        if outcome in ("FAILED", "ERROR"):
            work.add(name.strip(), None, "", outcome.lower())


def _gpu_tests(work: _Work) -> None:
    _tests(work, "-m", "gpu", "tests/training/test_trainer.py" if work.options.steps else "tests")


def _suite(work: _Work) -> None:
    if work.options.steps:
        _tests(work, "tests/training/test_checkpoint.py", "-m", "not slow")
    else:
        several = ["-n", "8", "--dist", "loadfile"] if importlib.util.find_spec("xdist") else []
        _tests(work, *several)


def _steps(work: _Work) -> None:
    """Time the step of three models in each way, and nanoGPT's of the third."""
    for way in ("kernel by kernel", "graph"):
        _step_time(work, "default", way, [])
    if work.options.text:
        for way in WAYS:
            _step_time(work, "shakespeare/gpu", way, ["experiment=shakespeare/gpu", work.text()])
        shape = ["data=shakespeare"] if work.options.steps else GPT2
        for way in ("kernel by kernel", "graph") if work.options.steps else WAYS:
            _step_time(work, "GPT-2's shape", way, [*shape, work.text()])
    else:
        work.add("shakespeare/gpu and GPT-2's shape", None, "", "needs text=input.txt")
    if work.options.nanogpt and work.device.device.type == "cuda":  # it calls torch.cuda
        seconds, output = work.succeed("bench.py", "--real_data=False", cwd=Path(work.options.nanogpt))
        found = re.search(r"time per iteration: ([\d.]+)ms", output)
        note = f"whole process {seconds:.0f} s; its vocabulary has 50,304 tokens, ours the characters of the text"
        work.add("nanoGPT's bench.py", float(found[1]) if found else None, "ms", note)
    elif work.options.nanogpt:
        work.add("nanoGPT's bench.py", None, "", "needs a GPU")


def _step_time(work: _Work, name: str, way: str, overrides: list[str]) -> None:
    work.left()
    compilation, uses_graph = WAYS[way]
    settings = compose_settings(work.settings(*overrides, f"compile={compilation}"))
    corpus = load_corpus(settings.data, Path(settings.run.cache_dir))
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), settings.run.seed).to(work.device.device)
    trainer = make_trainer(settings, model, corpus.train, work.device, SINGLE_PROCESS, record_step)
    if not uses_graph:
        trainer.record = None

    # The first steps compile and record. Each `compiled` has kernels of its own shape to make; the next way finds them.
    cache = {"compiled": ", compiler's cache empty", "compiled graph": ", compiler's cache filled"}.get(way, "")
    start = time.perf_counter()
    for _ in range(5):
        stats = train_step(trainer)
    wait_for_device(trainer)
    first = time.perf_counter() - start
    if uses_graph and trainer.recorded is None:
        cache += ", not recorded"
    start = time.perf_counter()
    n_timed = work.options.steps or N_TIMED
    for _ in range(n_timed):
        train_step(trainer)
    wait_for_device(trainer)
    milliseconds = (time.perf_counter() - start) / n_timed * 1000
    work.add(f"{name}, {way}", milliseconds, "ms", f"first 5 steps {first:.1f} s{cache}; loss {stats.loss.item():.4f}")
    del trainer, model, stats
    if work.device.device.type == "cuda":
        torch.cuda.empty_cache()


def _default(work: _Work) -> None:
    _train_and_eval(work, "default")


def _english(work: _Work) -> None:
    _train_and_eval(work, "english", "experiment=english")


def _train_and_eval(work: _Work, name: str, *settings: str) -> None:
    """Train and test twice, with `steps` once: the first time with an empty cache."""
    cache = f"cache_dir={work.folder / name}"
    for again in ("",) if work.options.steps else ("", ", again"):
        run = work.folder / f"run_{name}{again.strip(', ')}"
        arguments = [*work.settings(*settings), cache, f"out={run}"]
        seconds, _ = work.succeed("train.py", *arguments)
        last = load_metrics(run).validation[-1]
        note = f"of training {last.seconds} s, validation loss {last.loss}"
        work.add(f"train.py{again}", seconds, "s", note)
        probe = TINY_PROBE if work.options.steps else []
        seconds, _ = work.succeed("eval.py", f"run={run}", f"device={work.options.device.value}", cache, *probe)
        work.add(f"eval.py{again}", seconds, "s")
    for finding in json.loads((run / "probe" / "probe.json").read_text())["findings"]:
        work.add(finding["question"], None, "", finding["set" if finding["unit"] == "set" else "head"]["verdict"])


def _shakespeare(work: _Work) -> None:
    """Train our recipe, nanoGPT's, and three candidates."""
    _train_shakespeare(work, "experiment=shakespeare/gpu", ["compile=none"] if work.options.steps else [])
    if work.options.nanogpt:
        _train_nanogpt(work)
    for name, settings in CANDIDATES.items():
        _train_shakespeare(work, name, settings)


def _train_shakespeare(work: _Work, name: str, settings: list[str]) -> None:
    run = work.folder / f"shakespeare_{len(work.figures)}"
    fixed = ["experiment=shakespeare/gpu", work.text(), f"out={run}"]
    arguments = [*work.settings(*fixed), *settings, f"validation_tokens={10**7}"]
    if work.options.steps:
        arguments.append(f"max_steps={work.options.steps}")
    seconds, _ = work.succeed("train.py", *arguments)

    # Every evaluation reads the whole validation part.
    best, best_step, reached = float("inf"), 0, None
    for record in load_metrics(run).validation:
        if record.loss is not None and record.loss < best:
            best, best_step = record.loss, record.step
        if reached is None and record.loss is not None and record.loss <= MAX_LOSS:
            reached = record.seconds
    work.add(name, best, "nats", f"at step {best_step}")
    work.add(f"{name}: training until {MAX_LOSS}", reached, "s", "steps only")
    work.add(f"{name}: whole process", seconds, "s", "all steps, start, compiling and evaluations")


def _train_nanogpt(work: _Work) -> None:
    checkout, data, out = Path(work.options.nanogpt), work.folder / "text", work.folder / "nanogpt"
    write_nanogpt_data(Path(work.options.text), data)
    n_steps = work.options.steps or NANOGPT_STEPS
    options = [f"--device={work.options.device.value}", f"--dataset={data}", f"--out_dir={out}", "--log_interval=1"]
    options += [f"--max_iters={n_steps}", f"--eval_interval={n_steps}", "--eval_iters=1"]
    options += TINY_NANOGPT if work.options.steps else []
    seconds, output = work.succeed("train.py", "config/train_shakespeare_char.py", *options, cwd=checkout)
    _, score = work.succeed("-c", SCORE_NANOGPT, str(out / "ckpt.pt"), str(data / "val.bin"), cwd=checkout)
    times = [float(found) for found in re.findall(r"^iter .* time ([\d.]+)ms", output, re.MULTILINE)]
    work.add("nanoGPT, a step", median(times), "ms", f"{len(times)} steps")
    work.add("nanoGPT", float(score.splitlines()[-1]), "nats", f"at step {n_steps}")
    work.add(
        f"nanoGPT: training, {n_steps} steps",
        sum(times) / 1000,
        "s",
        "steps, compiling in the first, and two short evaluations",
    )
    work.add("nanoGPT: whole process", seconds, "s", "all steps, start, compiling and two short evaluations")


def _effects(work: _Work) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = compose_settings(work.settings("experiment=english"))
    tokenizer = load_corpus(settings.data, Path(settings.run.cache_dir)).tokenizer
    shape = SMOLLM2 | ({"hidden_size": 18, "num_hidden_layers": 3, "vocab_size": 2048} if work.options.steps else {})
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape)).eval().to(work.device.device)
    opened = antecedent_lab.open_model(model, tokenizer=tokenizer)
    heads = [(layer, head) for layer in range(opened.model.n_layer) for head in range(opened.model.n_head)]
    texts = prompts(4 if work.options.steps else 64)
    for again in ("", ", again"):
        start = time.perf_counter()
        opened.effects(texts, ANSWER, FOIL, heads[:: max(1, len(heads) // N_HEADS)][:N_HEADS])
        work.add(f"effects of {N_HEADS} heads, {len(texts)} texts{again}", time.perf_counter() - start, "s")


PARTS: dict[str, Callable[[_Work], None]] = {
    "gpu_tests": _gpu_tests, "steps": _steps, "suite": _suite, "default": _default, "english": _english,
    "shakespeare": _shakespeare, "effects": _effects,
}  # fmt: skip


def _checked_folder(options: _GpuOptions) -> Path:
    """Return the folder of the page; UserError for options that cannot be used, before anything is measured."""
    if unknown := set(listed(options.parts)) - PARTS.keys():
        raise UserError(f"parts={options.parts}: {min(unknown)} is none of {', '.join(PARTS)}")
    if options.steps is not None and options.steps < 1:
        raise UserError(f"steps={options.steps}: must be 1 or more")
    if options.device is not Device.cuda and options.steps is None:
        raise UserError(f"device={options.device.value}: needs steps=, for example steps=3")
    if options.text and not Path(options.text).is_file():
        raise UserError(f"text={options.text}: is no file")
    if options.nanogpt and not (Path(options.nanogpt) / "bench.py").exists():
        raise UserError(f"nanogpt={options.nanogpt}: is no checkout of nanoGPT")
    folder = Path(options.out or (RESULTS if options.steps is None else "runs/gpu"))
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise UserError(f"out={folder}: cannot be written")
    return folder


def main(options: _GpuOptions) -> None:
    """Measure the parts, and write the page after each."""
    folder = _checked_folder(options)
    device = choose_device(options.device, Precision.auto)
    keep_freed_memory()

    with tempfile.TemporaryDirectory() as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(name) / "compiler")
        work = _Work(options, device, Path(name))
        if not options.nanogpt:
            work.add("nanogpt= was not given", None, "", "no comparison with nanoGPT")
        for work.part in listed(options.parts) or list(PARTS):
            try:
                work.left()
                PARTS[work.part](work)
            except Exception as error:  # whatever it is, the other parts are worth their time
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                work.add("not measured to its end", None, "", kind + one_line(error))
            results = GpuResults(work.figures)
            title = "A try with tiny models" if options.steps else "Measured on a GPU"
            write_page("gpu", title, results, torch.get_num_threads(), device.description, folder)


if __name__ == "__main__":
    start_benchmark(main, _GpuOptions)
