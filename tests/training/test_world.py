"""What a process knows of the others that train the same model."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import training.distributed
from training.distributed import ALONE, LOST, World, broken_connection, lives, lost_line, one_voice, together, world_of

TOLD = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}


def test_a_process_learns_its_place_from_torchrun_and_is_alone_without() -> None:
    world = world_of(TOLD)
    assert (world.rank, world.size, world.local_rank, world.is_first) == (3, 8, 1, False)
    for left_out in TOLD:
        alone = world_of({name: value for name, value in TOLD.items() if name != left_out})
        assert (alone.rank, alone.size, alone.is_first) == (0, 1, True)


@pytest.mark.parametrize("wrong", [{"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "many"}, {"LOCAL_RANK": "1.0"}])
def test_a_place_that_is_none_is_refused_in_one_line(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="torchrun sets these to numbers"):
        world_of(TOLD | wrong)


def test_the_shares_of_all_are_every_row_once() -> None:
    for size in (1, 2, 3, 5):
        shares = [list(range(7))[World(rank, size).share] for rank in range(size)]
        assert sorted(sum(shares, [])) == list(range(7))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_everything_is_as_it_was() -> None:
    torch.manual_seed(5)
    before, value = torch.get_rng_state(), torch.tensor(1.25)
    ALONE.reseed(1, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert ALONE.mean(value) is value and ALONE.agree(15) == 15 and ALONE.tell("x") == "x"
    ALONE.tell_run(Path("elsewhere"))
    assert ALONE.run == ""
    with together(ALONE, cuda=True):  # nobody to meet
        pass


@pytest.fixture
def random_state() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


def test_dropout_falls_by_seed_step_and_rank(random_state: None) -> None:
    def drawn(seed: int, step: int, rank: int) -> float:
        World(rank, 4).reseed(seed, step)
        return torch.rand(()).item()

    places = [(seed, step, rank) for seed in (1, 2) for step in (0, 1) for rank in range(3)]
    assert len({drawn(*place) for place in places}) == len(places)
    assert drawn(1, 1, 2) == drawn(1, 1, 2)


def test_only_the_first_is_heard_before_all_have_met(capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        with one_voice(World(rank, 3)):
            print(f"out {rank}")
            print(f"err {rank}", file=sys.stderr)
    assert capfd.readouterr() == ("out 0\n", "err 0\n")


def test_another_waits_for_the_first_to_have_said_that_a_setting_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for rank, status, meets, n_waits in ((1, 2, False, 1), (0, 2, False, 0), (1, 0, False, 0), (1, 143, True, 0)):
        monkeypatch.setattr(World, "meets", meets)
        slept.clear()
        with pytest.raises(SystemExit) as ended, one_voice(World(rank, 2)):
            sys.exit(status)
        assert ended.value.code == status and len(slept) == n_waits


def test_where_they_do_not_meet_that_is_said_and_nobody_is_gone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("Connection refused by peer\nC++ trace")

    monkeypatch.setattr(World, "meets", False)
    monkeypatch.setattr(dist, "rendezvous", refused)
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    with pytest.raises(SystemExit) as ended, one_voice(World(1, 2)), together(World(1, 2), cuda=False):
        raise AssertionError("they have met")
    assert ended.value.code == 2
    assert capfd.readouterr().err == "error: rank 1 of 2 could not meet the others: Connection refused by peer\n"


def test_one_that_never_comes_is_waited_for_as_long_as_a_meeting_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "meets", False)
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(HashStore(), 0, 2)]))
    monkeypatch.setattr(training.distributed, "_MEETING", timedelta(seconds=0.2))
    with pytest.raises(ConnectionError, match="rank 0 of 2 could not meet the others"):
        World(0, 2).join(cuda=False)


def test_of_several_that_end_one_speaks_and_all_have_its_status() -> None:
    store, worlds = HashStore(), [World(rank, 3) for rank in range(3)]
    store.set_timeout(timedelta(seconds=5))
    for world in worlds:
        world._store = store
    assert [world.may_speak(status) for world, status in zip(worlds, (2, LOST, LOST), strict=True)] == [
        (True, 2), (False, 2), (False, 2),
    ]  # fmt: skip
    assert World(1, 2).may_speak(LOST) == (True, LOST)  # where nobody keeps the word any more


def test_a_process_that_waits_to_be_noticed_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    world = World(0, 2)
    world._others = [(os.uname().nodename, os.getpid()), (os.uname().nodename, child.pid)]
    assert lives(child.pid) and lives(os.getpid())
    child.send_signal(signal.SIGKILL)
    assert world.gone() == [f"rank 1 (process {child.pid})"]
    child.wait()
    assert not lives(child.pid)


def test_a_broken_connection_is_known_by_torchs_words_and_under_a_signal_too() -> None:
    broken = RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:29873")
    assert broken_connection(broken) is broken
    assert broken_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert broken_connection(SystemExit(143)) is None
    lost = dist.DistBackendError("ncclRemoteError")
    assert broken_connection(lost) is lost
    for other in ("no module in the storehouse", "expected a tensor whose storage is on cpu, not gloomy"):
        assert broken_connection(RuntimeError(other)) is None
    over = SystemExit(143)
    over.__context__ = broken
    assert broken_connection(over) is broken


@pytest.mark.parametrize(
    ("gone", "error", "path", "line"),
    [
        (
            ["rank 1 (process 17)"], "gloo", "runs/x",
            "rank 1 (process 17) is gone, and the others end with it; the last checkpoint goes on, with as many "
            "processes as you like: python train.py resume=true out=runs/x",
        ),
        (
            ["rank 1 (process 17)", "rank 3 (process 19)"], "gloo", "",
            "rank 1 (process 17) and rank 3 (process 19) are gone, and the others end with them: begin again",
        ),
        (
            [], "Connection closed by peer [10.0.0.7]:29873", "",
            "a process on 10.0.0.7 (Connection closed by peer [10.0.0.7]:29873) is gone, and the others end with it: "
            "begin again",
        ),
        (
            ["rank 0 (process 1)"], "", "my runs/x",
            "rank 0 (process 1) is gone, and the others end with it; the last checkpoint goes on, with as many "
            "processes as you like: python train.py resume=true 'out=my runs/x'",
        ),
        ([], "timed out\nmore", "", "a process (timed out) is gone, and the others end with it: begin again"),
    ],
)  # fmt: skip
def test_the_line_says_who_is_gone_and_how_to_go_on(gone: list[str], error: str, path: str, line: str) -> None:
    assert lost_line(gone, error, path) == line
