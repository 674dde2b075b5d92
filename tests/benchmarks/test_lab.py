"""docs/lab.md shows what was measured, by commands that exist."""

import json
import re

import pytest

from benchmarks.lab import EXPERIMENTS, FIGURES, PAGE, RESULTS, printed_commands, tables
from training.command_line import check_overrides

KEPT = json.loads(RESULTS.read_text())
TEXT = PAGE.read_text()


@pytest.mark.parametrize("marker", list(tables(KEPT)))
def test_every_block_is_what_was_measured(marker: str) -> None:
    found = re.findall(rf"^<!-- {marker} -->\n(.*?)^<!-- end -->", TEXT, re.DOTALL | re.MULTILINE)
    assert len(found) == 1 and found[0].rstrip("\n").split("\n") == tables(KEPT)[marker]


def test_all_eight_experiments_have_five_seeds_of_every_variant_and_a_figure() -> None:
    assert list(KEPT["experiments"]) == list(EXPERIMENTS) and len(KEPT["seeds"]) == 5
    for name, one in KEPT["experiments"].items():
        assert all(variant["seeds"] == KEPT["seeds"] for variant in one["results"]["variants"])
        assert (FIGURES / f"{name}.png").read_bytes()[:4] == b"\x89PNG" and f"lab/{name}.png" in TEXT


def test_the_commands_beside_the_tables_are_let_in_by_their_doors() -> None:
    for name in EXPERIMENTS:
        for command in printed_commands(name, "1,2,3,4,5"):
            assert command in TEXT
            _, door, *arguments = command.split()
            check_overrides(arguments, door.removesuffix(".py"))


def test_the_whole_lab_took_under_ninety_minutes_and_the_quick_one_under_six() -> None:
    assert KEPT["seconds"] < 90 * 60 and KEPT["quick_seconds"] < 6 * 60


def test_the_model_without_a_mask_lies_far_below_the_floor_and_is_called_a_cheat() -> None:
    standard, cheat = KEPT["experiments"]["mask"]["results"]["variants"]
    assert standard["measures"]["gap"]["least"] > 0
    assert max(cheat["measures"]["gap"]["by_seed"]) < -0.5
    assert "cheats" in cheat["sentence"] and cheat["sentence"] in TEXT
