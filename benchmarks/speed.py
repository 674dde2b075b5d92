"""Speed compared with nanoGPT, in one run: python -m benchmarks.speed data.path=input.txt nanogpt=PATH [seeds=1,2,3].

Trains on the characters of tiny Shakespeare by `experiment=shakespeare/cpu_quick` and by nanoGPT's own CPU recipe (a
checkout of github.com/karpathy/nanoGPT, in which nothing is written), one thread, one after the other for each seed.
The figures are the CPU-seconds of the training loop without evaluations, and the mean loss over the whole validation
part in windows that do not overlap.

Writes docs/results/speed.{json,md}. Needs requirements-dev.txt.
"""

import json
import pickle
import re
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import arguments, fail, median_range, read_records, run_command, write_results
from data.text_tables import markdown_table

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


def train_ours(text: Path, seed: int, folder: Path) -> dict[str, float]:
    """Trains the quick recipe on one thread; returns its full validation loss and CPU-seconds."""
    run = folder / f"ours_{seed}"
    settings = [f"data.path={text}", f"seed={seed}", f"out={run}", f"cache_dir={folder / 'cache'}", "threads=1"]
    settings += ["experiment=shakespeare/cpu_quick", "sample_tokens=0"]
    timing = run_command([sys.executable, "-c", RUN, "perf_counter", "0", "train.py", *settings])
    last = read_records(run, "validation")[-1]
    return {"loss": last["loss"], "loop": last["seconds"], "process": timing.cpu_seconds}


def train_nanogpt(checkout: Path, folder: Path, offset: int) -> dict[str, float]:
    """Trains nanoGPT by its CPU recipe on one thread; returns its full validation loss and CPU-seconds."""
    out, data = folder / "nanogpt", folder / "text"
    options = [f"--dataset={data}", f"--out_dir={out}"]
    options += [f"--max_iters={STEPS}", f"--lr_decay_iters={STEPS}", f"--eval_interval={STEPS}"]
    timing = run_command([sys.executable, "-c", RUN, "time", str(offset), "train.py", *RECIPE, *options], checkout)
    score = [sys.executable, "-c", SCORE_NANOGPT, str(out / "ckpt.pt"), str(data / "val.bin")]
    loss = float(run_command(score, checkout).output.splitlines()[-1])
    return {"loss": loss, "loop": loop_seconds(timing.output), "process": timing.cpu_seconds}


def loop_seconds(output: str) -> float:
    """Returns the seconds of nanoGPT's loop from the milliseconds that it prints for each step.

    Its first and last step contain an evaluation; the median of the others stands for the first, the last is extra.
    """
    printed = re.findall(r"^iter (\d+): .* time ([\d.]+)ms", output, re.MULTILINE)
    milliseconds = {int(step): float(duration) for step, duration in printed}
    if milliseconds.keys() != {*range(STEPS + 1)}:
        fail(f"nanoGPT printed {len(milliseconds)} steps instead of {STEPS + 1}")
    steps = [milliseconds[step] for step in range(1, STEPS)]
    return (sum(steps) + statistics.median(steps)) / 1000


def write_nanogpt_data(text: Path, folder: Path) -> None:
    """Writes the text in the format of nanoGPT's data/shakespeare_char."""
    folder.mkdir()
    content = text.read_text()
    characters = sorted(set(content))
    ids = {character: index for index, character in enumerate(characters)}
    tokens, cut = np.array([ids[character] for character in content], np.uint16), int(len(content) * 0.9)
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": ids}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))  # nanoGPT reads no other format


def compare_training(text: Path, checkout: Path, seeds: list[int]) -> dict[str, Any]:
    """Trains both for every seed, one after the other."""
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_nanogpt_data(text, folder / "text")
        for seed in seeds:
            pair = {"ours": train_ours(text, seed, folder), "nanogpt": train_nanogpt(checkout, folder, seed - 1)}
            print(json.dumps({"seed": seed} | pair), file=sys.stderr, flush=True)
            pairs.append(pair)
    commit = run_command(["git", "rev-parse", "--short", "HEAD"], checkout).output.strip()
    return {"commit": commit, "seeds": seeds, "pairs": pairs}


def lines_of(training: dict[str, Any]) -> list[str]:
    """Returns the page's table."""
    pairs = training["pairs"]
    rows = []
    for name, title in (("ours", "experiment=shakespeare/cpu_quick"), ("nanogpt", "nanoGPT, CPU recipe")):
        loss, loop, process = ([pair[name][key] for pair in pairs] for key in ("loss", "loop", "process"))
        rows.append([title, median_range(loss, 3), median_range(loop), median_range(process)])
    ratios = [pair["nanogpt"]["loop"] / pair["ours"]["loop"] for pair in pairs]
    n_reached = sum(pair["ours"]["loss"] <= MAX_LOSS for pair in pairs)
    return [
        f"Characters of tiny Shakespeare, one thread, seeds {', '.join(map(str, training['seeds']))}; median (range).",
        f"nanoGPT is commit {training['commit']}; both compute in float32.",
        "",
        *markdown_table(["recipe", "full validation loss, nats", "training loop, CPU-s", "whole process, CPU-s"], rows),
        "",
        f"A full loss of {MAX_LOSS} or less in {n_reached} of {len(pairs)} seeds; "
        f"nanoGPT's loop takes {median_range(ratios)} times as long.",
    ]


def main() -> None:
    """Measures, writes, prints."""
    options = arguments({"seeds": "1,2,3"}, required=["data.path", "nanogpt"])
    text, checkout = Path(options["data.path"]).resolve(), Path(options["nanogpt"]).resolve()
    for path, hint in ((text, "data.path"), (checkout / "train.py", "nanogpt")):
        if not path.exists():
            fail(f"{hint}={options[hint]}: {path.name} does not exist")
    training = compare_training(text, checkout, [int(seed) for seed in options["seeds"].split(",")])
    write_results("speed", "Speed compared with nanoGPT", training, lines_of(training), threads=1)


if __name__ == "__main__":
    main()
