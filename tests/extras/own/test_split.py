"""Dev and test of a question of the user's own."""

from itertools import product

import pytest

from extras.own.split import divided

Block = tuple[str, str, str]
INDEPENDENT = [(f"f{i}", f"a{i}", f"b{i}") for i in range(200)]
OWN_PAIRS = [(f"f{i // 10}", f"a{i}", f"b{i}") for i in range(200)]
ALL_PAIRS = [*product(range(80), repeat=2)]


def crossed(n_frames, n_words):
    return [(f"f{frame}", f"a{i}", f"b{i}") for frame, i in product(range(n_frames), range(n_words))]


@pytest.mark.parametrize(("blocks", "least_dev", "least_tested", "most_lost"), [
    (INDEPENDENT, 50, 150, 0),
    (OWN_PAIRS, 50, 150, 0),
    ([*crossed(12, 12), *INDEPENDENT[50:]], 73, 144, 0),
    ([*crossed(12, 12), *INDEPENDENT[50:70]], 20, 144, 0),
    (crossed(12, 12), 16, 64, 64),
    ([(f"f{f}", f"a{i}", f"b{j}") for f, i, j in product(range(12), repeat=3)], 18, 810, 900),
    (crossed(80, 80), 64, 5000, 1200),
    ([(f"f{i % 12}", f"a{i % 60}", f"b{i * i % 61}") for i in range(240)], 16, 140, 80),
    ([(f"f{(i + j) % 8}", f"a{i}", f"b{j}") for i, j in ALL_PAIRS], 64, 3000, 3300),
])  # fmt: skip
def test_unconnected_blocks_are_kept_and_much_of_a_crossed_design_is_tested(blocks, least_dev, least_tested, most_lost):
    parts = divided(blocks)
    assert parts.count("dev") >= least_dev and parts.count("test") >= least_tested and parts.count("") <= most_lost
    dev, test = ([block for block, name in zip(blocks, parts, strict=True) if name == part] for part in ("dev", "test"))
    assert not {name for block in dev for name in block} & {name for block in test for name in block}
    assert divided(blocks[::-1]) == parts[::-1]  # the order of the lines does not matter


@pytest.mark.parametrize("n_words", [0, 16])
def test_more_frames_give_more_tested_clusters(n_words):
    tested = []
    for n in (12, 16, 24, 48, 96):
        blocks = crossed(n, n_words) or INDEPENDENT[:n]
        tested.append(len({block[0] for block, part in zip(blocks, divided(blocks), strict=True) if part == "test"}))
    assert tested == sorted(set(tested))
