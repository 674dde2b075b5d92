"""Runs that are broken off at random moments and gone on with, against the run that was never broken."""

import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.reliability import faults
from tests.reliability.counts import counted
from tests.reliability.doors import Doors, Ended, Running, waited
from tests.reliability.runs import (
    EVERY,
    FILES,
    SETTINGS,
    STEPS,
    differences,
    duplicates,
    hashes,
    lines,
    losses,
    saved_step,
    scalars,
    weights,
)

Figure = Callable[[str, str, str, bool], None]
Resume = Callable[..., Ended]
_SHARE = 0.3  # of a whole run's time, in which a life is broken off; a start takes 0.1, so most get some checkpoints on
_IN_TIME = 2.0  # seconds from a signal to the end of the process


@dataclass(frozen=True)
class Hit:
    """How a life ended that was broken off."""

    number: int  # of the signal
    ended: Ended
    wall: float  # seconds from the signal to the end
    busy: float  # of these: ready to go on and no core was free; a run of its own machine would not have waited

    @property
    def took(self) -> float:
        return self.wall - self.busy

    @property
    def was_before_the_run(self) -> bool:
        """Whether the signal itself ended it, before it said where it runs: there was nothing to save."""
        return self.ended.status == -self.number and "run  " not in self.ended.out

    @property
    def left_in_order(self) -> bool:
        """Whether it ended as a shell has it, 143 or 130, and said nothing."""
        return (self.was_before_the_run or self.ended.status == 128 + self.number) and self.ended.err == ""


class Broken:
    """Runs that were broken off by one signal after the other at random moments, each gone on with to its end."""

    def __init__(self, doors: Doors, cache: str, folder: Path, signals: Sequence[int], seconds: float) -> None:
        lot, left = random.Random(0), list(signals)
        self.runs: list[Path] = []
        self.hits: list[Hit] = []
        self.lost: list[int] = []  # steps, by every life that said from where it went on
        while left:  # a run that has come to its end is followed by another
            assert len(self.runs) <= 10 * len(signals), f"{len(self.runs)} runs have heard {len(self.hits)} signals"
            out, ended = folder / str(len(self.runs)), None
            while ended is None or ended.status:
                kept = saved_step(out)
                begun = ["resume=true"] if (out / "config.json").exists() else []
                run = doors.start("train.py", f"out={out}", cache, *SETTINGS, *begun)
                sent = run.began + lot.uniform(0, _SHARE * seconds)
                waited_before = hit(run, sent, left[0]) if left else 0.0
                ended = run.wait()
                self.lost += lost_by(kept, ended)
                check_life(out, kept, ended)
                if ended.status:
                    assert left, ended.err
                    self.hits.append(Hit(left.pop(0), ended, ended.moment - sent, ended.waited - waited_before))
            self.runs.append(out)


def named(differences: list[str]) -> str:
    return f"differs in {', '.join(differences)}" if differences else "no difference"


def hit(run: Running, moment: float, number: int) -> float:
    """Send a signal at `moment`, unless the run has ended by then; return how long it had waited for a core so far."""
    while time.monotonic() < moment and not run.has_ended:
        time.sleep(0.001)
    so_far = waited(run.pid)
    run.send(number)
    return so_far


def lost_by(kept: int, ended: Ended) -> list[int]:
    """Return by how many steps a life went on before the newest whole checkpoint that there was; [] where it did not.

    A life that ended before it said from where it goes on has lost nothing yet: the next one is asked.
    """
    said = re.search(r"\(from step (\d+) of", ended.out)
    return [abs(kept - int(said[1]))] if said and kept >= 0 else []


def check_life(out: Path, kept: int, ended: Ended) -> None:
    """A life leaves a checkpoint of each step that calls for it."""
    recorded = losses(out)[-1][0] if losses(out) else 0
    assert saved_step(out) >= max(kept, (recorded - 1) // EVERY * EVERY)
    if ended.status > 0 and recorded:  # it was asked to stop, and lost nothing
        assert saved_step(out) == recorded


@pytest.mark.slow
def test_killed_at_random_moments_a_run_loses_nothing_and_ends_bit_for_bit_as_the_unbroken_one(
    doors: Doors, cache: str, timed: tuple[Path, float], tmp_path: Path, full: bool, figure: Figure
) -> None:
    (unbroken, seconds), n = timed, 50 if full else 6
    broken = Broken(doors, cache, tmp_path, [signal.SIGKILL] * n, seconds)
    assert {hit.ended.status for hit in broken.hits} == {-signal.SIGKILL}
    same = sum(one == other for run in broken.runs for one, other in zip(losses(run), losses(unbroken), strict=True))
    equal = sum(weights(run) == weights(unbroken) for run in broken.runs)
    found = [difference for run in broken.runs for difference in differences(run, unbroken) + duplicates(run)]
    n_runs, lost = len(broken.runs), sum(broken.lost)
    figure(
        f"SIGKILL at random moments of {STEPS}-step runs, resumed each time",
        f"{counted(n, 50)} kills: weights' sha256 equal; all losses bit-identical; no step lost beyond the last "
        "checkpoint",
        f"{len(broken.hits)} kills in {n_runs} runs: {equal}/{n_runs} sha256 equal; {same}/{n_runs * STEPS} losses "
        f"bit-identical; {named(found)}; {lost:,} steps lost by {len(broken.lost)} lives that went on with one",
        lost == 0 and broken.lost != [] and equal == n_runs and same == n_runs * STEPS and not found,
    )


@pytest.mark.slow
def test_asked_to_stop_at_random_moments_a_run_saves_leaves_in_time_and_ends_as_the_unbroken_one(
    doors: Doors, cache: str, timed: tuple[Path, float], tmp_path: Path, full: bool, figure: Figure
) -> None:
    (unbroken, seconds), n = timed, 20 if full else 3
    broken = Broken(doors, cache, tmp_path, [signal.SIGTERM, signal.SIGINT] * n, seconds)
    orderly = sum(hit.left_in_order and hit.took <= _IN_TIME for hit in broken.hits)
    print(*(hit for hit in broken.hits if not hit.left_in_order), sep="\n")
    at_once = sum(hit.was_before_the_run for hit in broken.hits)
    longest = max(broken.hits, key=lambda hit: hit.took)
    found = [difference for run in broken.runs for difference in differences(run, unbroken) + duplicates(run)]
    figure(
        "SIGTERM and SIGINT at random moments",
        f"{counted(n, 20)} of each: all leave within {_IN_TIME:.0f} s, waits for a core left out, with status 143 or "
        "130; all resume exactly",
        f"{orderly} of {len(broken.hits)}, {at_once} of them before the run line by the signal's default action (-15 "
        f"or -2, which a shell sees as 143 or 130); the longest {longest.took:.2f} s, with its waits "
        f"{longest.wall:.2f} s, and by the clock alone {max(hit.wall for hit in broken.hits):.2f} s; {named(found)}",
        orderly == len(broken.hits) == 2 * n and not found,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_two_runs_of_a_sweep_ends_it(doors: Doors, cache: str, tmp_path: Path, number: int) -> None:
    """Nothing is lost by it, and nobody has to ask twice."""
    out = tmp_path / "sweep"
    sweep = ["-m", f"out={out}", cache, *SETTINGS, "max_steps=1", "seed=1,2,3"]
    ended = doors.run("train.py", *sweep, before=partial(faults.send_before_run, number, 1))
    assert ended.status == 128 + number and ended.err == ""
    assert {path.name for path in out.iterdir()} == {"0", "multirun.yaml"} and losses(out / "0")  # Hydra's own note


@pytest.mark.parametrize("part", ["random", "optimizers", "position"])
def test_with_a_part_of_the_checkpoint_left_out_the_same_comparison_fails(
    unbroken: Path, broken: Callable[[str], Path], resume: Resume, figure: Figure, part: str
) -> None:
    whole, without = broken("whole"), broken("without")
    assert resume(whole).status == 0 and resume(without, before=partial(faults.forget, part)).status == 0
    found = differences(without, unbroken)
    names = {"random": "state of the random numbers", "optimizers": "optimizers' state", "position": "data position"}
    figure(
        f"negative control: {names[part]} left out of the checkpoint",
        "the resume test fails",
        f"fails by {', '.join(found)}" if found else "passes",
        {"metrics.jsonl", "weights"} <= set(found) and differences(whole, unbroken) == [],
    )


def killed_after(doors: Doors, cache: str, out: Path, step: int, *resumed: str, back: float = 0.0) -> None:
    """Train, on a clock that was set `back`, until `step` is written down, and no further."""
    before = partial(faults.clock_back, back)
    run = doors.start("train.py", f"out={out}", cache, *SETTINGS, *resumed, before=before)
    while not (losses(out) and losses(out)[-1][0] >= step):
        assert not run.has_ended, run.wait().err
        time.sleep(0.01)
    run.send(signal.SIGKILL)
    run.wait()


@pytest.mark.slow
def test_after_five_resumes_one_of_them_on_a_clock_set_back_a_day_every_step_is_there_once(
    doors: Doors, cache: str, unbroken: Path, tmp_path: Path, figure: Figure
) -> None:
    out = tmp_path / "run"
    backs = (0, 0, 0, 86_400, 0)
    for i, back in enumerate(backs):
        killed_after(doors, cache, out, 100 * i + 57, *(["resume=true"] if i else []), back=back)
    assert doors.run("train.py", f"out={out}", "resume=true", cache).status == 0
    steps = [step for step, _ in losses(out)]
    assert all(after == before + 1 for before, after in pairwise(steps)) and len(steps) == STEPS
    twice, found = duplicates(out), differences(out, unbroken)
    n_points = sum(len(points) for points in scalars(out).values()) + sum(len(lines(out, file)) for file in FILES)
    figure(
        "5 resumes, one on a clock set back a day",
        "0 duplicate steps",
        f"{len(twice)} duplicates among {n_points:,} points and lines; {named(found)}",
        not twice and not found,
    )


def test_a_run_that_was_copied_elsewhere_goes_on_there_and_the_first_is_not_touched(
    late: Path, unbroken: Path, tmp_path: Path, resume: Resume, figure: Figure
) -> None:
    before = hashes(late)
    away = Path(shutil.copytree(late, tmp_path / "away"))
    ended = resume(away)
    found = differences(away, unbroken)
    figure(
        "a run's directory copied elsewhere",
        "goes on there bit for bit; the first is not touched",
        f"status {ended.status}; {named(found)}; first {'unchanged' if hashes(late) == before else 'changed'}",
        ended.status == 0 and not found and hashes(late) == before,
    )
