"""docs/ranks.md shows what was measured, by commands that exist."""

import json
import re

import pytest

from benchmarks.ranks import PAGE, PLAIN, RECIPES, RESULTS, VARIANTS, tables
from training.command_line import check_overrides

KEPT = json.loads(RESULTS.read_text())
TEXT = PAGE.read_text()


@pytest.mark.parametrize("marker", list(tables(KEPT)))
def test_every_block_is_what_was_measured(marker: str) -> None:
    found = re.findall(rf"^<!-- {marker} -->\n(.*?)^<!-- end -->", TEXT, re.DOTALL | re.MULTILINE)
    assert len(found) == 1 and found[0].rstrip("\n").split("\n") == tables(KEPT)[marker]


def test_several_processes_train_the_run_of_one_to_a_millionth_where_numbers_are_whole() -> None:
    assert KEPT["steps"] == 50 and list(KEPT["differences"]) == list(RECIPES)
    assert all(KEPT["differences"][PLAIN][variant] <= 1e-6 for variant in VARIANTS)
    assert KEPT["resumed"] <= 1e-6 and KEPT["killed"]["difference"] <= 1e-6


def test_where_one_was_killed_the_others_left_in_time_with_one_line() -> None:
    one = KEPT["killed"]
    assert one["seconds"] < 30 and one["torchrun_status"] != 0
    [line] = one["said"]
    assert line.startswith("error: rank 1 (process PROCESS) is gone") and line.endswith("resume=true out=RUN")


def test_the_commands_of_the_page_are_let_in_by_their_door() -> None:
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    commands = [line.partition("train.py ")[2].split() for line in blocks.splitlines() if "train.py" in line]
    assert len(commands) >= 4
    for arguments in commands:
        check_overrides(arguments, "train")
