"""What grows is drawn and printed as it was measured."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.growth import Size
from model.transformer import flops_per_token

TEXT = growth.PAGE.read_text()
FOUND = json.loads(growth.RESULTS.read_text())


def of(size: Size, seconds: float, flops: float) -> dict[str, Any]:
    parts = {"projections": 0.4, "attention": 0.1, "optimizers": 0.2, "rest": 0.3}
    measured = {"seconds_per_step": seconds, "flops_per_step": flops, "shares": parts, "attention_flops": flops / 4}
    return asdict(size) | measured | {"parameters": 1000, "peak_bytes": 10**8}


def corpus_of(tokens: int, ratio: float, ratio_range: list[float], mapped: float, read: float) -> dict[str, Any]:
    taken = {"seconds_per_token": 2e-5 * ratio, "reading": 2e-8, "ratio": ratio, "ratio_range": ratio_range}
    return {"tokens": tokens, **taken, "faults_per_step": {"mapped": mapped, "read": read}}


MADE_UP = {
    "sweeps": {"width": [of(Size(width=64), 0.03, 1e9), of(Size(), 0.04, 2e9), of(Size(width=256), 0.16, 8e9)]},
    "corpus": [corpus_of(10**6, 1.0, [1.0, 1.0], 0.5, 0.0), corpus_of(10**9, 1.05, [1.002, 1.09], 9.0, 2.0)],
}


def test_the_page_and_the_figure_hold_what_was_measured() -> None:
    for marker, lines in growth.tables(FOUND).items():
        (written,) = re.findall(rf"^<!-- {marker} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL | re.MULTILINE)
        assert written.splitlines() == lines
    assert growth.drawn(FOUND).encode() in growth.FIGURE.read_bytes()
    assert list(FOUND["sweeps"]) == list(growth.SWEEPS)
    assert tuple(one["tokens"] for one in FOUND["corpus"]) == growth.SIZES


def test_the_line_goes_through_the_model_that_all_sweeps_share() -> None:
    assert growth.lines_of(MADE_UP) == {"width": [pytest.approx(0.02), pytest.approx(0.04), pytest.approx(0.16)]}
    below, base, above = growth.tables(MADE_UP)["growth"][2:]
    assert base == (
        "| width | 128 | 1,000 | 2.00 | 40.0 | 1.00 | 40 % | 10 % | 20 % | 30 % | 93.8 | 125 | 100 |"
    ) and "| 30.0 | 1.50 | 40 % |" in below and "| 160 | 1.00 | 40 % |" in above  # fmt: skip
    assert all(Size() in sizes for sizes in growth.SWEEPS.values())


def test_what_a_larger_corpus_costs_is_said_with_its_page_faults() -> None:
    *_, largest = growth.tables(MADE_UP)["corpus"]
    assert largest == "| 1 G | 21.0 | 0.0200 | 11.0 | 2.0 | 1.0500 [1.0020, 1.0900] |"


def test_a_corpus_that_costs_more_than_a_hundredth_misses_the_goal() -> None:
    row = growth.row(MADE_UP)
    assert not row.met and row.ours == [pytest.approx(20), pytest.approx(21)]
    assert row.work == "time per token, 1 M to 1 G tokens of corpus"
    assert "1.0500 [1.0020, 1.0900]" in row.note
    flat = [MADE_UP["corpus"][0], MADE_UP["corpus"][1] | {"ratio": 0.995}]  # type: ignore[operator]
    assert growth.row({"corpus": flat}).met


def test_works_take_turns_in_a_new_order_each_round() -> None:
    done: list[int] = []
    taken = growth.in_turns([lambda: done.append(0), lambda: done.append(sum(range(10**5)))], 20)
    assert taken.shape == (20, 2) and (taken[:, 1] > taken[:, 0]).all()
    assert len(done) == 42 and done.count(0) == 21
    rounds = {tuple(done[i : i + 2]) for i in range(2, 42, 2)}
    assert len(rounds) == 2


def test_a_training_is_that_asked_for_and_its_parts_are_named() -> None:
    tokens = growth.made_up(2**16)
    trainings = [
        growth.made(Size(context=context, width=16, depth=depth), tokens) for context, depth in ((32, 2), (128, 1))
    ]
    (read,), targets, n_targets = trainings[0].batch_at(0)
    assert read.shape == (64, 32) == targets.shape and n_targets == 2048
    flops = [flops_per_token(training.model) for training in trainings]  # type: ignore[arg-type]
    assert flops[0] - flops[1] == 6 * (4 * 16**2 + 3 * 16 * 48) + 6 * 16 * (2 * 32 - 128)
    growth.stepped(trainings[0], 3)
    assert trainings[0].step == 3
    for training in trainings:  # with the fused kernel and with pieces
        parts = growth.shares(training)
        assert sum(parts.values()) == pytest.approx(1) and min(parts.values()) > 0.01, parts


def test_a_corpus_is_mapped_from_a_file_of_its_size(tmp_path: Path) -> None:
    tokens = growth.written(tmp_path / "tokens.npy", 2**24 + 5)
    assert isinstance(tokens, np.memmap) and tokens.shape == (2**24 + 5,) and tokens.dtype == np.uint16
    assert tokens.max() == 511 and (tokens[-5:] == growth.made_up(5)).all()
    found = growth.corpus([3000, 20_000], 3)
    assert [one["tokens"] for one in found] == [3000, 20_000]
    assert found[0]["ratio"] == 1.0 and found[0]["ratio_range"] == [1.0, 1.0]
    low, high = found[1]["ratio_range"]
    assert 0 < low <= found[1]["ratio"] <= high
    assert all(0 < one["reading"] < one["seconds_per_token"] / 10 for one in found)


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = [low <= 0 <= high for low, high in (growth._interval(rng.normal(size=100)) for _ in range(2000))]
    assert 0.94 < np.mean(held) < 0.98


def test_a_wider_model_takes_more_memory_at_its_peak() -> None:
    small, large = growth.peak(Size(width=32)), growth.peak(Size(width=512))
    assert 10**6 < small < large - 4 * 6 * 10**6  # the larger has 6 million weights more, four bytes each


def test_the_figure_can_be_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = MADE_UP | {"sweeps": {name: [of(size, 0.1, 1e9) for size in some] for name, some in growth.SWEEPS.items()}}
    growth.draw(found, tmp_path / "figure.png")
    assert growth.drawn(found).encode() in (tmp_path / "figure.png").read_bytes()
