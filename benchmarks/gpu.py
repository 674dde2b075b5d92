"""Measure everything that needs a GPU: python -m benchmarks.gpu out=DIR [part=tests,speed,shakespeare,ladder].

Each measurement is one row of out/gpu.json and out/gpu.md, written as soon as it ends; out/logs has the output of each
program. The call stops after minutes=9. The next call with the same folders measures the rows that are missing or have
a problem, and resumes unfinished training runs. The parts:

- tests: the tests marked "gpu".
- speed: training steps of each model preset without compilation, with torch.compile and with CUDA graphs.
- shakespeare: text=input.txt. experiment=shakespeare/gpu to nanoGPT's loss of 1.4697; with nanogpt=DIR, a checkout of
  nanoGPT, its own recipe on the same device.
- ladder: tokens=FOLDER, a tokenized text (data=tokens). Models of 2.6, 12 and 29 million parameters are trained on 50,
  200 and 600 million tokens of English and tested by eval.py, on natural text and on the blocks of sentences.

Training runs are in runs=DIR (default: out/runs). device=cpu quick=true is a rehearsal: a few steps of a small model.
The exit status is 1 if a row has a problem.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import ROOT, arguments, fail, read_records, short_paths
from benchmarks.speed import write_nanogpt_data
from data.config import TokensConfig
from data.corpus import load_corpus
from data.loader import Split
from model.transformer import Transformer, n_parameters
from probe.external import markdown_table
from report.tables import estimate
from training.device import ComputeDevice, choose_device
from training.files import lock, write_atomically
from training.run_dir import environment
from training.settings import compose_settings
from training.trainer import make_trainer, train_step, wait_for_device

VOCABULARY = 4096
N_TOKENS = 2**22  # random text
WARM_UP_STEPS, N_STEPS, N_QUICK_STEPS = 10, 100, 5
PRESETS = ("nano", "tiny", "small", "base")
TARGET_LOSS = 1.4697  # nats per character, nanoGPT's README
BATCH = 32768  # tokens, of experiment=english/gpu
SIZES = {
    "2.6 M": ["model.n_layer=4", "model.n_head=6", "model.d_model=192", "model.d_mlp=512"],
    "12 M": ["model=small"],
    "29 M": ["model=base"],
}
MILLIONS_OF_TOKENS = (50, 200, 600)
MIN_SECONDS = 60  # left, to start a measurement
GRACE = 45  # seconds after SIGTERM until SIGKILL
# What a rehearsal changes: a few steps of a small model.
QUICK = ["model=nano", "max_steps=4", "eval_every_steps=2", "validation_tokens=2000", "tokens_per_batch=512"]
QUICK += ["compile=none", "probe_sequences=20", "model.context_length=128"]
QUICK_PROBE = ["probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
LEGENDS = {
    "tests": "The tests marked gpu.",
    "speed": "Training on random tokens. FLOPs utilisation: FLOPs of the matrix products (Kaplan et al. 2020; PaLM, "
    "appendix B) per second, as a share of the speed of one large matrix product in the same number format on this "
    "device. Memory: the most that torch had allocated at a time.",
    "shakespeare": "Best validation loss that each program prints, in nats per character: ours on 65,536 characters, "
    "at the end on all; nanoGPT's on random batches. Seconds of the whole process, with imports, compilation and "
    "evaluations.",
    "ladder": "Natural text: the head whose attention turns with she/he, to the entity that matches the pronoun or to "
    "the other one: contrast in nats [95 %], corrected p, verdict. Blocks: the same model on sentences with a known "
    "antecedent.",
}
Row = dict[str, Any]


class Job(NamedTuple):
    """One measurement."""

    part: str
    name: str
    measure: Callable[[], Row]


class Output(NamedTuple):
    """What a program printed."""

    status: int
    lines: list[tuple[float, str]]  # seconds since its start, line

    def problem(self) -> Row:
        """Returns a row with the line that names the error, otherwise with the last line."""
        lines = [line for _, line in self.lines if line.strip()] or ["no output"]
        line = next((line for line in lines if line.startswith("error: ")), lines[-1])
        return {"problem": f"status {self.status}: {line}"[:200]}


class Call:
    """The arguments of this call, its deadline and its folders."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Reads checked arguments; the time starts now."""
        self.options = options
        self.is_quick = options["quick"] == "true"
        self.device = options["device"]
        self.out = Path(options["out"]).resolve()
        self.runs = Path(options["runs"]).resolve() if options["runs"] else self.out / "runs"
        self.deadline = time.monotonic() + 60 * float(options["minutes"])

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline."""
        return self.deadline - time.monotonic()

    def run(self, name: str, *command: str, cwd: Path = ROOT) -> Output:
        """Runs a command to its end; at the deadline it gets SIGTERM, GRACE seconds later SIGKILL."""
        log = self.out / "logs" / (re.sub(r"[^\w.]+", "_", name) + ".log")
        log.parent.mkdir(exist_ok=True)
        left = max(1.0, self.seconds_left())
        start, lines = time.monotonic(), list[tuple[float, str]]()
        with log.open("w") as file, subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        ) as process:  # fmt: skip
            timers = [
                threading.Timer(left, process.terminate),  # train.py saves a checkpoint
                threading.Timer(left + GRACE, kill_group, [process]),
            ]
            for timer in timers:
                timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    lines.append((time.monotonic() - start, line.rstrip("\n")))
                    file.write(f"{lines[-1][0]:8.1f}  {line}")
                    file.flush()
                process.wait()
            finally:
                for timer in timers:
                    timer.cancel()
                stop(process)
        return Output(process.returncode, lines)

    def train(self, name: str, run: Path, *settings: str) -> Output:
        """Trains a run until its end or the deadline; continues an unfinished run."""
        resume = f"resume={str((run / 'config.json').exists()).lower()}"
        command = [sys.executable, "train.py", *settings, *(QUICK if self.is_quick else []), self.cache]
        return self.run(name, *command, f"device={self.device}", f"out={run}", resume, "sample_tokens=0")

    @property
    def cache(self) -> str:
        """The setting of the cache."""
        return f"cache_dir={self.runs / 'cache'}"


def stop(process: subprocess.Popen[str]) -> None:
    """Stops a process that is still running because a signal stops this call."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Ends a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def gpu_tests(call: Call) -> Row:
    """Runs the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rf", "--tb=short", "-p", "no:cacheprovider"]
    output = call.run("tests", *command, "tests/test_gpu.py")
    return output.problem() if output.status else {"result": output.lines[-1][1].strip("= ")}


def matmul_flops(device: ComputeDevice, size: int) -> float:
    """Returns the FLOP/s of a square matrix product in the training's number format, the best of five."""
    left, right = (torch.randn(size, size, device=device.device, dtype=device.dtype) for _ in range(2))
    seconds = timeit.repeat(lambda: (left @ right).sum().item(), number=1, repeat=5)  # item() waits for the device
    return 2 * size**3 / min(seconds)


def training_speed(model_name: str, compile_mode: str, device_name: str, tokens_per_batch: int, n_steps: int) -> Row:
    """Returns the speed and memory of training one preset."""
    chosen = [f"model={model_name}", f"compile={compile_mode}", f"device={device_name}", "data=stories"]
    settings = compose_settings([*chosen, f"tokens_per_batch={tokens_per_batch}"])
    device = choose_device(settings.run.device, settings.run.precision, settings.run.threads)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=N_TOKENS).astype(np.uint16)
    model = Transformer(settings.model, VOCABULARY, seed=0).to(device.device)
    trainer = make_trainer(settings, model, Split(tokens, len(tokens)), device)
    for _ in range(WARM_UP_STEPS):
        train_step(trainer)
    wait_for_device(trainer)
    trainer.seconds, trainer.n_tokens = 0.0, 0
    for _ in range(n_steps):
        train_step(trainer)
    wait_for_device(trainer)
    is_cuda, rate = device.device.type == "cuda", trainer.n_tokens / trainer.seconds
    peak_bytes = torch.cuda.max_memory_allocated() if is_cuda else None  # before the product below allocates more
    return {
        "parameters": n_parameters(model),
        "tokens per step": trainer.n_tokens // n_steps,
        "tokens per second": round(rate),
        "FLOPs utilisation": rate * flops_per_token(model) / matmul_flops(device, 8192 if is_cuda else 1024),
        "memory in GiB": None if peak_bytes is None else peak_bytes / 2**30,
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


def speed(call: Call, model_name: str, compile_mode: str) -> Row:
    """Measures one preset in a process of its own, so that its memory is its own."""
    batch, n_steps = (512, N_QUICK_STEPS) if call.is_quick else (BATCH, N_STEPS)
    preset = (model_name, compile_mode, call.device, batch, n_steps)
    code = f"import json, benchmarks.gpu as gpu; print(json.dumps(gpu.training_speed(*{preset!r})))"
    output = call.run(f"speed {model_name} {compile_mode}", sys.executable, "-c", code)
    return output.problem() if output.status else json.loads(output.lines[-1][1])


def shakespeare(call: Call) -> Row:
    """Trains experiment=shakespeare/gpu from the start."""
    text = Path(call.options["text"]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        settings = ("experiment=shakespeare/gpu", f"data.path={text}")
        return losses(call.train("shakespeare ours", Path(folder) / "run", *settings))


def nanogpt(call: Call) -> Row:
    """Trains nanoGPT's own recipe."""
    with tempfile.TemporaryDirectory() as name:
        write_nanogpt_data(Path(call.options["text"]), Path(name) / "text")
        settings = [f"--dataset={name}/text", f"--out_dir={name}/out", f"--device={call.device}"]
        if call.is_quick:
            settings += ["--compile=False", "--max_iters=4", "--eval_interval=2", "--eval_iters=1", "--batch_size=2"]
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *settings]
        return losses(call.run("shakespeare nanogpt", *command, cwd=Path(call.options["nanogpt"]).resolve()))


def losses(output: Output) -> Row:
    """Returns the best validation loss that a program printed, its seconds and the seconds to TARGET_LOSS."""
    printed = [(seconds, re.search(r"val(?:idation)? loss ([\d.]+)", line)) for seconds, line in output.lines]
    found = [(seconds, float(match.group(1))) for seconds, match in printed if match]
    if output.status or not found:
        return output.problem()
    reached = next((seconds for seconds, loss in found if loss <= TARGET_LOSS), None)
    best = min(loss for _, loss in found)
    return {
        "loss": best,
        "seconds": round(output.lines[-1][0]),
        f"seconds to {TARGET_LOSS}": reached and round(reached),
    }


def ladder(call: Call, size: str, millions: int) -> Row:
    """Trains and tests one model on English."""
    name = f"{'quick_' if call.is_quick else ''}{size}_{millions}M".replace(" ", "")
    run = call.runs / name
    settings = ["experiment=english/gpu", "data=tokens", f"data.path={Path(call.options['tokens']).resolve()}"]
    settings += [] if call.is_quick else [*SIZES[size], f"max_steps={millions * 1_000_000 // BATCH}"]
    output = call.train(f"ladder {name} train", run, *settings)
    if not output.status:
        probe = QUICK_PROBE if call.is_quick else []
        command = [sys.executable, "eval.py", f"run={run}", f"device={call.device}", call.cache, *probe]
        output = call.run(f"ladder {name} eval", *command)
    return output.problem() if output.status else verdict_of(run)


def verdict_of(run: Path) -> Row:
    """Returns loss, contrasts and verdicts of a finished and tested run."""
    results = json.loads((run / "probe" / "probe.json").read_text())
    last = read_records(run, "validation")[-1]
    row: Row = {"steps": last["step"], "bits per byte": last["bits_per_byte"], "seconds of training": last["seconds"]}
    gender = results["natural"]["questions"].get("gender", {}).get("chosen", {})
    for target, entry in gender.items():
        place = f"L{entry['layer']}H{entry['head']}, {entry['site'].replace('_', ' ')}"
        contrast = estimate(entry["contrast"], entry["contrast_interval"])
        row[f"natural text, {target}"] = f"{place}: {contrast}, p {entry['p_corrected']:.4f}, {entry['verdict']}"
    for entry in results["selected"]:
        row["blocks"] = f"L{entry['layer']}H{entry['head']}, {entry['verdict']} ({entry['evidence_level']})"
    for answers in results["behaviour"]:
        if (answers["family"], answers["holdout"]) == ("english", "headline"):
            row["blocks, model right"] = answers["accuracy"]
    return row | ({"not tested": "; ".join(missing)} if (missing := results["natural"]["missing"]) else {})


def jobs(call: Call) -> Iterator[Job]:
    """Yields all measurements of all parts, the cheap ones first."""
    yield Job("tests", "tests/test_gpu.py", partial(gpu_tests, call))
    for model in PRESETS[:1] if call.is_quick else PRESETS:
        for mode in ("none",) if call.device == "cpu" else ("none", "default", "graphs"):
            yield Job("speed", f"model={model} compile={mode}", partial(speed, call, model, mode))
    yield Job("shakespeare", "experiment=shakespeare/gpu", partial(shakespeare, call))
    if call.options["nanogpt"]:
        yield Job("shakespeare", "nanoGPT, train_shakespeare_char", partial(nanogpt, call))
    rungs = [(size, millions) for millions in MILLIONS_OF_TOKENS for size in SIZES]
    for size, millions in rungs[:1] if call.is_quick else rungs:
        name = "nano, a few steps" if call.is_quick else f"{size} parameters, {millions} M tokens"
        yield Job("ladder", name, partial(ladder, call, size, millions))


class Results:
    """The rows so far, by part and name, and the calls that made them; both are kept over calls."""

    def __init__(self, call: Call) -> None:
        """Reads out/gpu.json, if it exists."""
        self._folder, title = call.out, "Rehearsal" if call.is_quick else f"Measured with device={call.device}"
        self._content: dict[str, Any] = {"title": title, "calls": [], "results": {}}
        if (path := call.out / "gpu.json").exists():
            try:
                self._content = json.loads(path.read_text())
                old_title = self._content["title"]
            except (ValueError, LookupError, TypeError, OSError):
                fail(f"{path}: is damaged; move it away, or choose another out=")
            if old_title != title:
                fail(f"out={call.options['out']}: holds other results ({old_title}); choose another folder")
        about = environment(torch.cuda.get_device_name() if call.device == "cuda" else "cpu", torch.get_num_threads())
        command = " ".join(["python -m benchmarks.gpu", *map(short_paths, sys.argv[1:])])
        date = datetime.now().astimezone().isoformat(timespec="minutes")
        self._content["calls"].append({"command": command, "date": date, "environment": about})

    def has(self, job: Job) -> bool:
        """Returns True if the job has been measured without a problem."""
        return "problem" not in self._content["results"].get(job.part, {}).get(job.name, {"problem": ""})

    def add(self, job: Job, row: Row) -> None:
        """Adds a row and writes both files."""
        self._content["results"].setdefault(job.part, {})[job.name] = row | {"call": len(self._content["calls"])}
        write_atomically(self._folder / "gpu.json", (json.dumps(self._content, indent=1) + "\n").encode())
        write_atomically(self._folder / "gpu.md", "".join(f"{line}\n" for line in self._lines()).encode())

    def _lines(self) -> Iterator[str]:
        yield from (f"# {self._content['title']}", "")
        for number, call in enumerate(self._content["calls"], 1):
            about = call["environment"]
            packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
            machine = f"{about['device']}, Python {about['python']}, {packages}"
            yield f"{number}. `{call['command']}`, {call['date']}: {machine}"
        for part, rows in self._content["results"].items():
            header = list(dict.fromkeys(name for row in rows.values() for name in row))
            cells = [[name, *(cell(row.get(column)) for column in header)] for name, row in rows.items()]
            yield from ("", f"## {part}", "", LEGENDS[part], "", *markdown_table(["", *header], cells))


def cell(value: Any) -> str:
    """Returns a value for a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def checked_arguments() -> tuple[dict[str, str], list[str]]:
    """Returns the arguments and the parts; exits with status 2 and one line if one is wrong."""
    parts = list(LEGENDS)
    defaults = {"part": ",".join(parts), "device": "cuda", "quick": "false", "minutes": "9", "runs": "", "text": ""}
    options = arguments({**defaults, "tokens": "", "nanogpt": ""}, required=["out"])
    chosen = options["part"].split(",")
    if unknown := [part for part in chosen if part not in parts]:
        fail(f"part={unknown[0]}: unknown; there are {', '.join(parts)}")
    for name, allowed in {"quick": ("true", "false"), "device": ("cuda", "cpu")}.items():
        if options[name] not in allowed:
            fail(f"{name}={options[name]}: must be {' or '.join(allowed)}")
    try:
        minutes = float(options["minutes"])
    except ValueError:
        minutes = math.nan
    if not 2 <= minutes < math.inf:
        fail(f"minutes={options['minutes']}: must be a number of 2 or more")
    if options["device"] == "cuda" and not torch.cuda.is_available():
        fail("device=cuda: there is no CUDA device; device=cpu quick=true is a rehearsal")
    if "shakespeare" in chosen and not Path(options["text"]).is_file():
        fail(f"text={options['text']}: part=shakespeare needs a text file")
    if options["nanogpt"] and not (Path(options["nanogpt"]) / "config" / "train_shakespeare_char.py").is_file():
        fail(f"nanogpt={options['nanogpt']}: is no checkout of nanoGPT")
    if "ladder" in chosen:
        try:
            load_corpus(TokensConfig(source="tokens", path=options["tokens"]), Path("unused"))
        except (ValueError, OSError) as error:
            fail(f"tokens={options['tokens']}: part=ladder needs a tokenized text ({error})")
    return options, chosen


def main() -> int:
    """Measures the missing rows and writes each of them at once; returns the exit status."""
    if "--help" in sys.argv:
        print(__doc__)
        return 0
    options, parts = checked_arguments()
    call, status = Call(options), 0
    try:
        call.out.mkdir(parents=True, exist_ok=True)
        folder_lock = lock(call.out)
    except OSError as error:
        fail(f"out={options['out']}: cannot be used ({error.strerror})" if error.strerror else f"out={error}")
    with closing(folder_lock):
        results = Results(call)
        for job in jobs(call):
            if job.part not in parts or results.has(job):
                continue
            if call.seconds_left() < MIN_SECONDS:
                print(f"stopped before {job.part}, {job.name}: the time is over; call again to go on", flush=True)
                break
            row = job.measure()
            results.add(job, row)
            status = 1 if "problem" in row else status
            print(
                f"{job.part}, {job.name}: {', '.join(f'{name} {cell(value)}' for name, value in row.items())}",
                flush=True,
            )
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the finally block of Call.run stops the child
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
