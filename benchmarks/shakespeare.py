"""Characters of tiny Shakespeare on one core, beside nanoGPT and beside counting. Half an hour.

python -m benchmarks.shakespeare data.path=input.txt nanogpt=PATH [seeds=1,2,3,4,5] [recipes=cpu_quick,cpu]
[out=FILE.json] [quick=true]

nanogpt: a checkout of github.com/karpathy/nanoGPT, which is run as it is, in processes of its own, by its README's
recipe for a CPU; nothing is written into it. For each seed it and our recipes run one after the other on one thread,
and what is compared is the CPU-seconds of the training loop alone, evaluations left out, from the clock that each
program itself reads: the runner below only makes that clock count CPU-seconds. What both have learned is measured the
same way: the mean loss in nats over the whole validation part, in windows that do not overlap. quick=true takes twenty
steps of one seed and shows only that it all runs.
"""

import json
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, all_within, alone, repeats, spread, timed, whole_numbers

KNOWN = ("data.path", "nanogpt", "seeds", "recipes")
_STEPS = 2000  # of its recipe
_QUICK_STEPS = 20
# nanoGPT's README, "I only have a macbook", at 3adf61e. It evaluates at its first and last step only: what lies between
# is left out anyway, and so the checkpoint is that of the last step.
_RECIPE = """config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1
--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0""".split()
_OURS = """
import runpy, sys, time
time.perf_counter = time.process_time
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Its seed is a constant of its source: 1337 and, from the second run on, the numbers after it.
_THEIRS = """
import runpy, sys, time, torch
time.time, manual_seed, offset = time.process_time, torch.manual_seed, int(sys.argv[1])
torch.manual_seed = lambda seed: manual_seed(seed + offset)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SCORE = """
import sys
import numpy as np, torch
from model import GPT, GPTConfig
checkpoint = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
model, length = GPT(GPTConfig(**checkpoint["model_args"])), checkpoint["model_args"]["block_size"]
model.load_state_dict(checkpoint["model"])
model.eval()
tokens = torch.from_numpy(np.fromfile(sys.argv[2], np.uint16).astype(np.int64))
read, targets = tokens[:-1], tokens[1:]
whole = len(read) // length * length
parts = [*zip(read[:whole].view(-1, length).split(64), targets[:whole].view(-1, length).split(64))]
parts += [(read[None, whole:], targets[None, whole:])] if whole < len(read) else []
with torch.no_grad():
    total = sum(model(x, y)[1].item() * y.numel() for x, y in parts)
print(total / len(read))
"""


@dataclass(frozen=True)
class Goal:
    """What a recipe of ours is to reach."""

    experiment: str
    work: str
    most_loss: float  # nats over the whole validation part, in every seed
    most: float  # CPU-seconds of the loop: of nanoGPT's where `of_peer`, else of the clock
    aim: float
    of_peer: bool


GOALS = (
    Goal("shakespeare/cpu_quick", "Shakespeare characters, the default's shape", 1.88, 1 / 15, 1 / 25, True),
    Goal("shakespeare/cpu_quick_alibi", "the same with ALiBi and token shift", 1.88, 1 / 25, 1 / 40, True),
    Goal("shakespeare/cpu", "nanoGPT's A100 result, context 256", 1.4697, 180.0, 120.0, False),
)
_ALL = ",".join(goal.experiment.split("/")[1] for goal in GOALS)


@dataclass(frozen=True)
class Trained:
    """What came of one run."""

    loss: float  # nats over the whole validation part
    loop: float  # CPU-seconds of the training loop, evaluations left out
    process: float  # of the whole process
    counted: float = float("nan")  # of ours: the loss of counted 5-grams, as the run has it beside its own
    of_ceiling: float = float("nan")  # of ours: the share of the measured ceiling of matrix products


def rows(given: dict[str, str]) -> list[Row]:
    """Train everything for each seed, and judge it."""
    if missing := [name for name in ("data.path", "nanogpt") if name not in given]:
        sys.exit(f"{' and '.join(missing)} must be given")
    text, checkout = Path(given["data.path"]).resolve(), Path(given["nanogpt"]).resolve()
    seeds = whole_numbers(given, "seeds", "1,2,3,4,5")[: repeats(given)]
    steps = _QUICK_STEPS if given.get("quick") == "true" else None
    asked = given.get("recipes", _ALL).split(",")
    if unknown := {*asked} - {*_ALL.split(",")}:
        sys.exit(f"recipes={','.join(sorted(unknown))}: known are {_ALL}")
    goals = [goal for goal in GOALS if goal.experiment.split("/")[1] in asked]
    ours: dict[str, list[Trained]] = {goal.experiment: [] for goal in goals}
    peers = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_their_data(text, folder / "text")
        train(goals[0].experiment, text, 0, folder, 1)  # tokenizes: no repeat is to have that to do
        for seed in seeds:
            peers.append(nanogpt(checkout, folder, seed - 1, steps or _STEPS))
            print(f"seed {seed}: nanoGPT {peers[-1]}", file=sys.stderr, flush=True)
            for goal in goals:
                ours[goal.experiment].append(train(goal.experiment, text, seed, folder, steps))
                print(f"seed {seed}: {goal.experiment} {ours[goal.experiment][-1]}", file=sys.stderr, flush=True)
    version = commit_of(checkout)
    judged = [judge(goal, ours[goal.experiment], peers, version) for goal in goals]
    return judged + [beside_counting(name, runs) for name, runs in ours.items()]


def train(experiment: str, text: Path, seed: int, folder: Path, steps: int | None) -> Trained:
    """Train by one of our recipes, as a user would but on one thread and without samples of what it writes."""
    out = folder / "run"
    settings = [f"experiment={experiment}", f"data.path={text}", f"seed={seed}", f"out={out}", "threads=1"]
    settings += [f"cache_dir={folder / 'cache'}", "sample_tokens=0", *([f"max_steps={steps}"] if steps else [])]
    child = timed([sys.executable, "-c", _OURS, "train.py", *settings])
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (last,) = [one for one in records if one.get("whole")]
    (speed,) = [one["utilisation"] for one in records if one["split"] == "speed"] or [float("nan")]
    out.rename(folder / f"{experiment.replace('/', '_')}_{seed}_{steps}")
    return Trained(last["loss"], last["seconds"], child.cpu_seconds, last["counted_5grams"]["loss"], speed)


def write_their_data(text: Path, folder: Path) -> None:
    """Write a text as nanoGPT's data/shakespeare_char/prepare.py does."""
    folder.mkdir()
    data = text.read_text()
    characters = sorted(set(data))
    ids = {character: place for place, character in enumerate(characters)}
    tokens, cut = np.array([ids[one] for one in data], np.uint16), int(len(data) * 0.9)
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": ids}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def nanogpt(checkout: Path, folder: Path, offset: int, steps: int) -> Trained:
    """Train nanoGPT by its README's recipe and score its checkpoint as ours are scored."""
    own = [f"--dataset={folder / 'text'}", f"--out_dir={folder / 'nanogpt'}"]  # an absolute path is not below data/
    own += [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={steps}"]
    command = [sys.executable, "-c", _THEIRS, str(offset), "train.py", *_RECIPE, *own]
    child = timed(command, folder=checkout)
    score = [sys.executable, "-c", _SCORE, str(folder / "nanogpt" / "ckpt.pt"), str(folder / "text" / "val.bin")]
    loss = float(timed(score, folder=checkout).said.splitlines()[-1])
    return Trained(loss, loop_seconds(child.said, steps), child.cpu_seconds)


def loop_seconds(said: str, steps: int) -> float:
    """Return the seconds of a loop from the milliseconds that nanoGPT prints of every step.

    Its first step contains an evaluation, for which the median of the others stands; so does its last, one more than
    the recipe's number, which is left out.
    """
    each = {int(step): float(time) for step, time in re.findall(r"^iter (\d+): .* time ([\d.]+)ms", said, re.MULTILINE)}
    if each.keys() != {*range(steps + 1)}:
        sys.exit(f"nanoGPT said the time of {len(each)} steps and not of {steps + 1}")
    plain = [each[step] for step in range(1, steps)]
    return (sum(plain) + statistics.median(plain)) / 1000


def commit_of(checkout: Path) -> str:
    """Return which nanoGPT was run."""
    asked = [["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"]]
    commit, changes = (
        subprocess.run(["git", *one], cwd=checkout, capture_output=True, text=True, check=False).stdout.strip()
        for one in asked
    )
    return f"commit {commit or 'unknown'}{' and changes' if changes else ''}"


def judge(goal: Goal, ours: Sequence[Trained], peers: Sequence[Trained], version: str) -> Row:
    """Return the row of a recipe: met where every seed is both good enough and fast enough.

    `version`: of nanoGPT, which is a peer only where the goal is a share of its time.
    """
    loops, peer_loops = [one.loop for one in ours], [one.loop for one in peers]
    is_good = all_within([one.loss for one in ours], goal.most_loss)
    taken = [one / other for one, other in zip(loops, peer_loops, strict=True)] if goal.of_peer else loops
    seeds = f"full loss of {goal.most_loss} or less in {len(ours)} of {len(ours)} seeds, in "
    limit = f"1/{1 / goal.most:.0f} of nanoGPT's loop" if goal.of_peer else f"{goal.most:.0f} s, one core"
    good = sum(one.loss <= goal.most_loss for one in ours)
    note = f"experiment={goal.experiment}: full loss {spread([one.loss for one in ours], _loss)}, "
    note += f"{good} of {len(ours)} seeds good enough; whole processes {spread([one.process for one in ours])} CPU-s; "
    note += (
        f"{spread([100 * one.of_ceiling for one in ours])} % of the ceiling of matrix products measured at each end."
    )
    if goal.of_peer:
        note += (
            f" nanoGPT ({version}) by its README's CPU recipe, which computes in float32 where ours takes bfloat16: "
        )
        note += f"full loss {spread([one.loss for one in peers], _loss)}, "
        note += f"whole processes {spread([one.process for one in peers])} CPU-s."
    return Row(
        work=f"{goal.work}: the loop",
        goal=seeds + limit,
        aim=f"1/{1 / goal.aim:.0f}" if goal.of_peer else f"{goal.aim:.0f} s",
        unit="CPU-s",
        ours=loops,
        peer_name="nanoGPT's CPU recipe" if goal.of_peer else "",
        peer=peer_loops if goal.of_peer else [],
        met=is_good and all_within(taken, goal.most),
        aim_met=is_good and all_within(taken, goal.aim),
        note=note,
    )


def beside_counting(experiment: str, runs: Sequence[Trained]) -> Row:
    """Return the row that holds a recipe against counted 5-grams of the same text."""
    return Row(
        work=f"full loss of experiment={experiment}",
        goal="below that of counted 5-grams of the same text",
        aim="",
        unit="nats a character",
        ours=[one.loss for one in runs],
        peer_name="counted 5-grams (data/ngrams.py)",
        peer=[one.counted for one in runs],
        met=all(one.loss < one.counted for one in runs),
        aim_met=None,
        note="",
    )


def _loss(value: float) -> str:
    return f"{value:.4f}"


def main() -> None:
    """Train, print the rows and write them."""
    alone(rows, KNOWN)


if __name__ == "__main__":
    main()
