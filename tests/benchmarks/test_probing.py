"""When the whole probe is fast enough, and what its causal part takes of it."""

import re
import sys

import pytest

from benchmarks import probing
from benchmarks.rows import ROOT, Child

CHILD = Child(40.0, 35.0, 2**29, "")


def test_each_part_has_a_limit_of_its_own_and_the_slowest_pass_decides() -> None:
    without, whole = probing.judged([29.9, 31.0], [10.0, 11.0], CHILD, CHILD)
    assert without.ours == pytest.approx([19.9, 20.0]) and whole.ours == [29.9, 31.0]
    assert without.met and whole.met
    without, whole = probing.judged([29.9, 60.1], [10.0, 40.0], CHILD, CHILD)
    assert not without.met and not whole.met


@pytest.mark.slow
def test_a_pass_is_the_real_door_and_says_how_long_its_causal_part_took() -> None:
    child = [sys.executable, "-m", "benchmarks.probing", probing._CLOCKED]
    said = probing.timed([*child, "--help"]).said
    assert "Probe a trained run." in said
    with pytest.raises(SystemExit, match=r"exit status 2 of .*\n.*no config.json"):
        probing.timed([*child, f"run={ROOT / 'docs'}"])


def test_what_a_child_says_last_is_read_back() -> None:
    assert probing.causal_seconds(f"see      file:///x\n{probing._SAID}7.250\n") == 7.25
    assert re.fullmatch(r"[\w.]+", probing._CLOCKED)
