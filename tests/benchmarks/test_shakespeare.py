"""How recipes and a peer are judged; the peer here is a stand-in that speaks and saves as nanoGPT does."""

import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shakespeare
from benchmarks.shakespeare import GOALS, Trained

MODEL = """
import torch
from dataclasses import dataclass
from torch import nn

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        print("number of parameters: none to speak of")
        self.config = config
        self.logits = nn.Parameter(torch.zeros(config.block_size, config.vocab_size))

    def forward(self, tokens, targets):
        assert tokens.shape[1] <= self.config.block_size and (tokens[:, 1:] == targets[:, :-1]).all()
        logits = self.logits[: tokens.shape[1]].expand(len(tokens), -1, -1)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""
TRAIN = """
import os, pickle, sys, time
import numpy as np, torch
from model import GPT, GPTConfig
given = dict(one[2:].split("=") for one in sys.argv[1:] if one.startswith("--"))
folder, steps = given["dataset"], int(given["max_iters"])
meta = pickle.load(open(f"{folder}/meta.pkl", "rb"))
assert len(np.fromfile(f"{folder}/train.bin", np.uint16)) == 900 and given["device"] == "cpu"
torch.manual_seed(1337)
print("seed", torch.initial_seed(), "threads", torch.get_num_threads())
config = {"block_size": 8, "vocab_size": meta["vocab_size"]}
model = GPT(GPTConfig(**config))
model.logits.data[:, meta["stoi"]["a"]] = 1.0
began = time.time()
for step in range(steps + 1):
    time.sleep(0.1)
    print(f"iter {step}: loss 1.0000, time {(time.time() - began) * 1000:.2f}ms, mfu -100.00%")
    began = time.time()
os.makedirs(given["out_dir"])
torch.save({"model": model.state_dict(), "model_args": config, "iter_num": steps}, given["out_dir"] + "/ckpt.pt")
"""


def test_a_peer_is_trained_from_the_outside_and_scored_over_the_whole_validation_part(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "model.py").write_text(MODEL)
    (checkout / "train.py").write_text(TRAIN)
    text = "".join(np.random.default_rng(0).choice([*"abc"], 1000))
    (tmp_path / "input.txt").write_text(text)
    shakespeare.write_their_data(tmp_path / "input.txt", tmp_path / "text")
    found = shakespeare.nanogpt(checkout, tmp_path, 2, 4)
    predicted = text[901:]  # nothing precedes the first character
    normal = math.log(math.e + 2)
    assert found.loss == pytest.approx(normal - predicted.count("a") / len(predicted), abs=1e-5)
    assert 0 <= found.loop < 0.1 < found.process  # it slept half a second, and sleeping is no work
    assert {path.name for path in checkout.iterdir()} <= {"model.py", "train.py", "__pycache__"}


def test_a_peers_seed_is_moved_without_touching_its_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch; torch.manual_seed(1337); print(torch.initial_seed())")
    said = shakespeare.timed([sys.executable, "-c", shakespeare._THEIRS, "3", "train.py"], folder=tmp_path).said
    assert said == "1340\n"


def test_the_loop_is_every_step_but_those_that_evaluate() -> None:
    said = "".join(
        f"iter {step}: loss 1.0, time {time}.00ms, mfu -1%\n" for step, time in enumerate([900, 10, 20, 800])
    )
    assert shakespeare.loop_seconds(said, 3) == pytest.approx((15 + 10 + 20) / 1000)
    with pytest.raises(SystemExit, match="4 steps and not of 6"):
        shakespeare.loop_seconds(said, 5)


def test_what_must_be_given_and_what_nobody_knows_is_said() -> None:
    with pytest.raises(SystemExit, match="nanogpt must be given"):
        shakespeare.rows({"data.path": "input.txt"})
    with pytest.raises(SystemExit, match="recipes=gpu: known are cpu_quick,cpu_quick_alibi,cpu"):
        shakespeare.rows({"data.path": "input.txt", "nanogpt": "there", "recipes": "cpu,gpu"})


def test_one_seed_that_is_too_slow_or_not_good_enough_misses_the_goal() -> None:
    quick, _, long = GOALS
    peers = [Trained(1.9, 100.0, 120.0)] * 3
    good = [Trained(1.8, 3.9, 6.0, 1.5, 0.5)] * 3
    judge = partial(shakespeare.judge, version="commit abc")
    row = judge(quick, good, peers)
    assert row.met and row.aim_met and row.ours == [3.9] * 3 and row.peer == [100.0] * 3
    assert "nanoGPT (commit abc)" in row.note and judge(long, good, peers).peer == []  # its time is no goal there
    row = judge(quick, [*good[:2], Trained(1.8, 6.0, 9.0, 1.5, 0.5)], peers)
    assert row.met and not row.aim_met
    assert not judge(quick, [*good[:2], Trained(1.8, 7.0, 9.0, 1.5, 0.5)], peers).met
    row = judge(quick, [*good[:2], Trained(1.89, 3.0, 9.0, 1.5, 0.5)], peers)
    assert not row.met and not row.aim_met and "2 of 3 seeds good enough" in row.note
    assert judge(long, [Trained(1.4697, 170.0, 200.0, 1.5, 0.5)] * 3, peers).met
    assert not judge(long, [Trained(1.4698, 100.0, 200.0, 1.5, 0.5)] * 3, peers).met
    assert not judge(long, [Trained(1.4, 181.0, 200.0, 1.5, 0.5)] * 3, peers).met


def test_a_model_above_counting_misses_though_another_is_below() -> None:
    below, above = (Trained(loss, 1.0, 2.0, 1.56, 0.5) for loss in (1.45, 1.8))
    row = shakespeare.beside_counting("a", [below, above])
    assert not row.met and row.ours == [1.45, 1.8] and row.peer == [1.56, 1.56]
    assert shakespeare.beside_counting("a", [below, below]).met


def test_a_peer_is_named_by_its_commit(tmp_path: Path) -> None:
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "."],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text("1")
    said = shakespeare.commit_of(tmp_path)
    assert len(said.split()) == 2 and said.startswith("commit ")
    subprocess.run(["git", "add", "train.py"], cwd=tmp_path, check=True)
    assert shakespeare.commit_of(tmp_path) == f"{said} and changes"
