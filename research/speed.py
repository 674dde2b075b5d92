"""Compare the speed of training with nanoGPT, in one run.

Trains on the characters of tiny Shakespeare by `experiment=shakespeare/cpu_quick` and by nanoGPT's own CPU recipe (a
checkout of github.com/karpathy/nanoGPT, in which nothing is written), one thread, one after the other for each seed.
The figures are the CPU-seconds of the training loop without evaluations, and the mean loss over the whole validation
part in windows that do not overlap. Writes research/results/speed.{json,md}. Needs requirements-dev.txt.
"""

import pickle
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import MISSING

from probe.text_tables import markdown_table
from research.measure import listed, median_range, run_command, start_benchmark, write_page
from settings.errors import UserError
from training.metrics import load_metrics

MAX_LOSS = 1.88  # nats per character over the whole validation part
STEPS = 2000  # in the CPU recipe of nanoGPT
# The README of nanoGPT, "I only have a macbook", with evaluations at the first and the last step only.
RECIPE = """config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1
--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0""".split()
# Both programs read a clock around each step. This runner makes that clock count CPU-seconds, and adds a number to the
# seed, for which nanoGPT has no setting.
RUN = """
import runpy, sys, time, torch
clock, offset, manual_seed = sys.argv[1], int(sys.argv[2]), torch.manual_seed
setattr(time, clock, time.process_time)
torch.manual_seed = lambda seed: manual_seed(seed + offset)
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SCORE_NANOGPT = """
import sys
import numpy as np, torch
from model import GPT, GPTConfig
checkpoint = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
model, length = GPT(GPTConfig(**checkpoint["model_args"])), checkpoint["model_args"]["block_size"]
model.load_state_dict(checkpoint["model"])
model.eval()
tokens = torch.from_numpy(np.fromfile(sys.argv[2], np.uint16).astype(np.int64))
inputs, targets = tokens[:-1], tokens[1:]
full = len(inputs) // length * length
windows = [*zip(inputs[:full].view(-1, length).split(64), targets[:full].view(-1, length).split(64))]
windows += [(inputs[None, full:], targets[None, full:])] if full < len(inputs) else []
with torch.no_grad():
    print(sum(model(x, y)[1].item() * y.numel() for x, y in windows) / len(inputs))
"""


@dataclass
class _SpeedOptions:
    """python -m research.speed text=input.txt nanogpt=PATH [seeds=1,2,3]."""

    text: str = MISSING
    nanogpt: str = MISSING
    seeds: str = "1,2,3"


@dataclass(frozen=True)
class _TrainingCost:
    """One training: full validation loss, and CPU-seconds of the loop and of the whole process."""

    loss: float
    loop: float
    process: float


@dataclass(frozen=True)
class _CostPair:
    """Both programs with one seed."""

    ours: _TrainingCost
    nanogpt: _TrainingCost


@dataclass(frozen=True)
class SpeedResults:
    """The table of the page."""

    commit: str  # the commit of nanoGPT
    seeds: list[int]
    pairs: list[_CostPair]

    def lines(self) -> list[str]:
        # One row for each program
        header = "recipe | full validation loss, nats | training loop, CPU-s | whole process, CPU-s".split(" | ")
        rows = [
            _cost_row("experiment=shakespeare/cpu_quick", [pair.ours for pair in self.pairs]),
            _cost_row("nanoGPT, CPU recipe", [pair.nanogpt for pair in self.pairs]),
        ]
        ratios = [pair.nanogpt.loop / pair.ours.loop for pair in self.pairs]
        n_reached = sum(pair.ours.loss <= MAX_LOSS for pair in self.pairs)
        seeds = ", ".join(map(str, self.seeds))
        return [
            f"Characters of tiny Shakespeare, one thread, seeds {seeds}; median (range).",
            f"nanoGPT is commit {self.commit}; both compute in float32.",
            "",
            *markdown_table(header, rows),
            "",
            f"A full loss of {MAX_LOSS} or less in {n_reached} of {len(self.pairs)} seeds; "
            f"nanoGPT's loop takes {median_range(ratios)} times as long.",
        ]


def _cost_row(title: str, costs: list[_TrainingCost]) -> list[str]:
    loss = median_range([cost.loss for cost in costs], 3)
    loop = median_range([cost.loop for cost in costs])
    return [title, loss, loop, median_range([cost.process for cost in costs])]


def _train_ours(text: Path, seed: int, folder: Path) -> _TrainingCost:
    """Train the quick recipe on one thread."""
    run = folder / f"ours_{seed}"
    # The clock of each step counts CPU-seconds
    settings = ["experiment=shakespeare/cpu_quick", "precision=float32", "threads=1"]
    settings += [f"data.path={text}", f"seed={seed}", f"out={run}", f"cache_dir={folder / 'cache'}"]
    timing = run_command([sys.executable, "-c", RUN, "perf_counter", "0", "train.py", *settings])
    last = load_metrics(run).validation[-1]
    assert last.loss is not None and last.seconds is not None
    return _TrainingCost(last.loss, last.seconds, timing.cpu_seconds)


def _train_nanogpt(checkout: Path, folder: Path, offset: int) -> _TrainingCost:
    """Train nanoGPT by its CPU recipe on one thread, then measure the loss on the whole validation part."""
    out = folder / "nanogpt"
    data = folder / "text"
    options = [f"--dataset={data}", f"--out_dir={out}"]
    options += [f"--max_iters={STEPS}", f"--lr_decay_iters={STEPS}", f"--eval_interval={STEPS}"]
    command = [sys.executable, "-c", RUN, "time", str(offset), "train.py", *RECIPE, *options]
    timing = run_command(command, checkout)
    # The whole validation part, in windows that do not overlap
    score = [sys.executable, "-c", SCORE_NANOGPT, str(out / "ckpt.pt"), str(data / "val.bin")]
    loss = float(run_command(score, checkout).output.splitlines()[-1])
    return _TrainingCost(loss, _loop_seconds(timing.output), timing.cpu_seconds)


def _loop_seconds(output: str) -> float:
    """Return the seconds of nanoGPT's loop from the milliseconds that it prints for each step.

    Its first and last step contain an evaluation; the median of the others stands for the first, the last is extra.
    """
    # Every step must be there, or the sum would be too small
    printed = re.findall(r"^iter (\d+): .* time ([\d.]+)ms", output, re.MULTILINE)
    milliseconds = {int(step): float(duration) for step, duration in printed}
    if milliseconds.keys() != {*range(STEPS + 1)}:
        raise UserError(f"nanoGPT printed {len(milliseconds)} steps instead of {STEPS + 1}")
    steps = [milliseconds[step] for step in range(1, STEPS)]
    return (sum(steps) + statistics.median(steps)) / 1000


def write_nanogpt_data(text: Path, folder: Path) -> None:
    """Write the text in the format of nanoGPT's data/shakespeare_char: 90 % to train on, the rest to validate."""
    folder.mkdir()
    content = text.read_text()
    characters = sorted(set(content))
    ids = {character: index for index, character in enumerate(characters)}
    # Ids of characters, as 16-bit numbers
    tokens = np.array([ids[character] for character in content], np.uint16)
    cut = int(len(content) * 0.9)
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": ids}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))  # nanoGPT reads no other format


def main(options: _SpeedOptions) -> None:
    """Train both programs for every seed, one after the other, and write the page."""
    text = Path(options.text).resolve()
    checkout = Path(options.nanogpt).resolve()
    if not text.exists():
        raise UserError(f"text={options.text}: does not exist")
    if not (checkout / "train.py").exists():
        raise UserError(f"nanogpt={options.nanogpt}: is no checkout of nanoGPT")

    # Both programs take turns, so that the machine is the same for both
    pairs = []
    seeds = [int(seed) for seed in listed(options.seeds)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_nanogpt_data(text, folder / "text")
        for seed in seeds:
            costs = _CostPair(_train_ours(text, seed, folder), _train_nanogpt(checkout, folder, seed - 1))
            print(f"seed {seed}: {costs}", file=sys.stderr, flush=True)
            pairs.append(costs)
    commit = run_command(["git", "rev-parse", "--short", "HEAD"], checkout).output.strip()
    write_page("speed", "Speed compared with nanoGPT", SpeedResults(commit, seeds, pairs))


if __name__ == "__main__":
    start_benchmark(main, _SpeedOptions)
