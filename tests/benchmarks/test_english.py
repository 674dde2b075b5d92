"""The table beside GPT-2 is the one that was measured, and measures what it says."""

import json
import math
import re

import numpy as np
import pytest
import torch

from benchmarks.english import RESULTS, compare, gpt2, overlap, readme_lines, tables, train_peer
from benchmarks.link_head import ROOT
from data.loader import Split, StreamBatches
from training.evaluate import RowLosses, token_losses

KEPT = json.loads(RESULTS.read_text())


@pytest.mark.parametrize("marker", list(tables(KEPT)))
def test_tables_are_those_that_were_measured(marker: str) -> None:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- end -->", (ROOT / "docs" / "english.md").read_text(), re.DOTALL)
    assert found and found[1].strip("\n").split("\n") == tables(KEPT)[marker]


def test_the_readme_says_the_same() -> None:
    found = re.search(r"<!-- english -->\n(.*?)<!-- end -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found and found[1].strip("\n").split("\n") == readme_lines(KEPT)


def test_the_peer_is_as_large_was_trained_as_long_and_is_beaten_on_both_files() -> None:
    ours, peer = KEPT["ours"], KEPT["peer"]
    assert abs(peer["parameters"] / ours["parameters"] - 1) < 0.05
    assert peer["seconds"] >= ours["seconds"]
    assert ours["seconds"] <= 15 * 60
    assert len(KEPT["files"]) == 2
    for found in KEPT["files"].values():
        assert found["difference"] == pytest.approx(found["peer"] - found["ours"])
        assert found["difference"] - 2 * found["error"] > 0


def test_bits_per_byte_and_their_difference_are_those_of_a_hand_count() -> None:
    counts = torch.tensor([[2.0], [2.0]])
    ours = RowLosses(torch.tensor([[2.0], [4.0]]), counts, None)
    theirs = RowLosses(torch.tensor([[3.0], [7.0]]), counts, None)
    found = compare(ours, theirs, n_bytes=8, n_together=1)
    assert found["ours"] == pytest.approx(6 / math.log(2) / 8)
    assert found["difference"] == pytest.approx(4 / math.log(2) / 8)
    # differences 1 and 3, their mean 2: (1 + 1) 2 / (2 - 1) = 4, its root over 8 bytes
    assert found["error"] == pytest.approx(2 / math.log(2) / 8)
    twice = RowLosses(torch.tensor([[1.0], [1.0], [2.0], [2.0]]), torch.ones(4, 1), None)
    other = RowLosses(torch.tensor([[1.5], [1.5], [3.5], [3.5]]), torch.ones(4, 1), None)
    assert compare(twice, other, n_bytes=8, n_together=2) == found  # the same parts, cut smaller


def test_overlap_counts_runs_of_eight_words() -> None:
    words = [f"w{i}" for i in range(10)]
    assert overlap([" ".join(words)], " ".join(words)) == 1
    assert overlap([" ".join(words[:9])], " ".join(words)) == pytest.approx(2 / 3)
    assert overlap([" ".join(words[:5]), " ".join(words[5:])], " ".join(words)) == 0


def test_the_peer_learns_within_the_seconds_it_is_given() -> None:
    tokens = np.tile(np.arange(7), 40).astype(np.uint16)
    shape = {"n_layer": 1, "n_head": 2, "d_model": 16, "context_length": 8}
    batches = StreamBatches(Split(tokens, 280), tokens_per_batch=64, context_length=8, seed=1)
    model, batch = gpt2(shape, 7, seed=1), batches.at(0)
    before = token_losses(model(batch.tokens), batch.targets).mean()
    spent = train_peer(model, batches, 1.0, 0.01, bfloat16=False)
    assert spent["seconds"] >= 1.0 and spent["tokens"] == spent["steps"] * 64 > 0
    assert token_losses(model(batch.tokens), batch.targets).mean() < before  # by how much, the machine decides
