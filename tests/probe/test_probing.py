"""What eval.py does, as far as it can be seen without the door: a map of the heads for terminals that have colour."""

import os
import re
from typing import Any

import pytest

from probe.probing import Paint, paint_of, printed
from tests.probe.conftest import Studied


def test_a_terminal_with_colour_gets_a_map_and_a_file_or_no_color_none() -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, open(os.devnull, "w") as file:
        for more, every in (({}, False), ({"COLORTERM": "truecolor"}, True)):
            paint = paint_of(terminal, {"TERM": "xterm"} | more)
            assert paint is not None and paint.every_colour == every
        for environ in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
            assert paint_of(terminal, environ) is None
        assert paint_of(file, {"TERM": "xterm"}) is None
    os.close(master)


@pytest.mark.parametrize("paint", [None, Paint(80, False), Paint(40, True)])
def test_the_map_stands_below_the_verdicts_and_holds_every_heads_score(studied: Studied, paint: Paint | None) -> None:
    results: dict[str, Any] = {**studied[0], "showcase": {}}
    lines = printed(results, paint)
    if paint is None:
        assert not any("\033" in line for line in lines)
        return
    one = results["selected"][0]
    (start,) = (i for i, line in enumerate(lines) if line == f"Sel@1 of every head, {one['question']}")
    assert start == 3 + len(results["selected"])  # the head of the table, its rows and an empty line
    seen = re.findall(r"\d\.\d\d", re.sub(r"\033\[[\d;]*m", "", "\n".join(lines[start : start + 4])))
    assert seen == [f"{value:.2f}" for row in one["heads"]["accuracy"] for value in row]
    assert lines[: start - 1] == printed(results, None)[: start - 1]
