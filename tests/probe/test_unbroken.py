"""Probes that are ended at any moment, that meet on one run, and runs that are damaged, moved or not to be written."""

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probe.config import ProbeConfig
from probe.open import Opened, open_run
from probe.probing import is_probed
from probe.several import compare_seeds
from report.page import page
from report.reporting import page_content, read_probe, read_sound_texts
from tests.reliability.doors import Doors, Ended, Running
from tests.reliability.faults import limit_file_size
from tests.test_report import CAT, PROBE, ROOT, STORIES, TRAIN
from training.checkpoint import load_checkpoint, save_checkpoint
from training.settings import EvalConfig

pytestmark = pytest.mark.slow
OTHER = [*PROBE, "probe.n_controls=12"]  # another probe of the same run
SETTINGS = EvalConfig(
    run=None, text=None, runs=None, compare=None, model=None, out=None, task=None, path=None, open=False, figures=False,
    device="cpu", threads=1, cache_dir="cache",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run probed with PROBE, called first, and the same run probed with OTHER, called second."""
    here = tmp_path_factory.mktemp("unbroken")
    done = doors.run("train.py", f"out={here / 'trained'}", f"cache_dir={here / 'cache'}", *TRAIN, *STORIES)
    assert done.status == 0, done.err
    for name, settings in (("first", PROBE), ("second", OTHER)):
        shutil.copytree(here / "trained", here / name / "run")
        done = probe(doors, here, here / name / "run", settings)
        assert done.status == 0, done.err
    return here


def arguments(place: Path, run: Path, settings: list[str]) -> list[str]:
    return [f"run={os.path.relpath(run, run.parent)}", f"cache_dir={place / 'cache'}", *settings]


def started(doors: Doors, place: Path, run: Path, settings: list[str], **how: Any) -> Running:
    """Begin to probe `run`, by a name that is the same wherever it lies: it stands in the files."""
    return doors.start("eval.py", *arguments(place, run, settings), cwd=run.parent, **how)


def probe(doors: Doors, place: Path, run: Path, settings: list[str], **how: Any) -> Ended:
    return started(doors, place, run, settings, **how).wait(300)


def files(run: Path) -> dict[str, bytes]:
    """Return every file of a probe; of the event file, which holds the time, whether there is one."""
    found = {str(path.relative_to(run)): path for path in (run / "probe").rglob("*") if path.is_file()}
    events = {f"scores {len(list((run / 'tb').glob('*.probe')))}": b""}
    return events | {name: path.read_bytes() for name, path in found.items() if path.name != ".lock"}


def state(place: Path, run: Path) -> str:
    """Return which probe there is, "first" or "second", or "none" if every reader says so too."""
    here = {name: content for name, content in files(run).items() if ".unfinished" not in name}
    if "probe/probe.json" in here:
        return next(name for name in ("first", "second") if here == files(place / name / "run"))
    probed, (note,) = read_probe(opened(run))
    config = ProbeConfig(**json.loads((place / "second" / "run" / "probe" / "probe.json").read_text())["settings"])
    assert probed is None and "has not been probed" in note and not is_probed(run, config)
    assert is_probed(place / "second" / "run", config)
    return "none"


def opened(run: Path) -> Opened:
    from dataclasses import replace

    return open_run(replace(SETTINGS, run=str(run)))


def a_copy(place: Path, tmp_path: Path, name: str = "first") -> Path:
    return Path(shutil.copytree(place / name / "run", tmp_path / "run"))


def test_killed_at_any_moment_a_probe_leaves_all_of_one_or_none_that_counts(
    doors: Doors, place: Path, tmp_path: Path, full: bool
) -> None:
    began = time.monotonic()
    assert probe(doors, place, a_copy(place, tmp_path / "whole"), OTHER).status == 0
    whole, chance, states = time.monotonic() - began, random.Random(0), set()
    for number in range(12 if full else 4):
        run = a_copy(place, tmp_path / str(number))
        known = (run / "probe" / "probe.json").stat().st_ino
        process = started(doors, place, run, OTHER)
        if number % 2:
            time.sleep(chance.uniform(0.3, 1) * whole)
        elif number % 4:  # while it writes
            while not process.has_ended and not (run / "probe" / ".unfinished").exists():
                time.sleep(0.0005)
            time.sleep(chance.uniform(0, 0.04))
        else:  # once it has begun to take the earlier one's place
            while not process.has_ended and is_known(run / "probe" / "probe.json", known):
                time.sleep(0.0002)
        process.send(signal.SIGKILL)
        process.wait()
        states.add(state(place, run))
        if number % 4 == 0:  # what is left can be read, and is healed by the next
            done = doors.run("eval.py", f"run={run}", f"text={CAT}", "threads=1")
            assert done.status == 0, done.err
            (run / "probe" / "sentences.json").unlink()
            assert probe(doors, place, run, OTHER).status == 0
            assert files(run) == files(place / "second" / "run")
    assert {"first"} < states, states


def test_a_probe_that_finds_no_room_changes_nothing_and_says_where(doors: Doors, place: Path, tmp_path: Path) -> None:
    run = a_copy(place, tmp_path)
    before = files(run)
    done = probe(doors, place, run, OTHER, before=partial(limit_file_size, 50_000))
    assert done.status == 2 and done.err.count("\n") == 1, done.err
    assert "probe/.unfinished/" in done.err and "bytes" in done.err and files(run) == before


def is_known(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_probe_that_is_asked_to_stop_leaves_with_the_shells_status_and_nothing_of_itself(
    doors: Doors, place: Path, tmp_path: Path, number: int, status: int
) -> None:
    for wait in (0.0, 0.7, 2.0):
        run = a_copy(place, tmp_path / str(wait))
        before = files(run)
        process = started(doors, place, run, [*OTHER, "probe.n_bootstrap=20000"])
        while not (process.folder / "out").read_text().startswith("run "):
            assert not process.has_ended, process.wait().err
            time.sleep(0.01)
        time.sleep(wait)
        process.send(number)
        ended = process.wait(30)
        assert (ended.status, ended.err) == (status, "") and files(run) == before


def test_the_second_of_two_probes_of_one_run_is_refused_in_a_line(doors: Doors, place: Path, tmp_path: Path) -> None:
    run = a_copy(place, tmp_path)
    first, lock = started(doors, place, run, OTHER), run / "probe" / ".lock"
    while str(first.pid) not in lock.read_text():
        assert not first.has_ended, first.wait().err
        time.sleep(0.01)
    first.send(signal.SIGSTOP)
    for asked in ([], [f"text={CAT}"]):
        second = doors.run("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", *PROBE, *asked)
        assert second.status == 2 and second.err.count("\n") == 1, second.err
        assert f"is being written by process {first.pid}" in second.err
    first.send(signal.SIGKILL)
    first.wait()
    assert state(place, run) == "first" and probe(doors, place, run, OTHER).status == 0
    assert state(place, run) == "second"


def test_a_run_is_read_whole_while_it_saves_again_and_again(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(place / "trained", tmp_path / "run"))
    folder = run / "checkpoints"
    known, _ = load_checkpoint(folder, best=True)
    saver = subprocess.Popen([sys.executable, "-c", SAVES, str(folder)], cwd=ROOT)
    steps = set()
    try:
        while len(steps) < 60:
            assert saver.poll() is None
            here = opened(run)
            assert (here.model.token_embedding.weight == known["model"]["token_embedding.weight"]).all()
            steps.add(here.step)
    finally:
        saver.kill()
        saver.wait()
    assert "damaged" not in capsys.readouterr().err


SAVES = """
import sys
from pathlib import Path
from training.checkpoint import load_checkpoint, save_checkpoint

folder, step = Path(sys.argv[1]), 4
state, _ = load_checkpoint(folder, best=True)
while True:
    step += 1
    save_checkpoint(folder, state | {"step": step}, step, best=True)
"""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to everything in a JSON value; of a list the first and the last."""
    yield path
    keys = (
        list(value)
        if isinstance(value, dict)
        else sorted({0, len(value) - 1})
        if isinstance(value, list) and value
        else []
    )
    for key in keys:
        yield from leaves(value[key], (*path, key))


def damaged(value: Any, path: tuple[Any, ...], chance: random.Random) -> Any:
    """Return a copy of a JSON value in which what stands at `path` is another or missing."""
    value = copy.deepcopy(value)
    if not path:
        return chance.choice([None, [], {}, "x", 3])
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if chance.random() < 0.3:
        del inner[path[-1]]
    else:
        inner[path[-1]] = chance.choice([None, [], {}, "x", -1, 1e300, [[]], {"a": None}, True, "\ud800"])
    return value


@pytest.mark.parametrize(
    "name",
    ["probe/probe.json", "probe/claims.json", "probe/items.jsonl", "metrics.jsonl", "attention.jsonl", "config.json",
     "environment.json", "probe/sentences.json", "resumes.jsonl"],
)  # fmt: skip
def test_a_file_with_anything_wrong_in_it_is_read_or_refused_in_a_line_that_names_it(
    place: Path, tmp_path: Path, name: str
) -> None:
    run, chance = a_copy(place, tmp_path), random.Random(name)
    (run / "probe" / "sentences.json").write_text(json.dumps([CAT]))
    (run / "resumes.jsonl").write_text(
        json.dumps({"step": 2, "time": "", "environment": {}, "settings": {"a": [1, 2]}})
    )
    text = (run / name).read_text()
    lines = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
    ways = [(i, way) for i in {0, len(lines) // 2, len(lines) - 1} for way in leaves(lines[i])]
    refused = 0
    for i, way in chance.sample(ways, min(len(ways), 25)):
        some = [damaged(one, way, chance) if i == j else one for j, one in enumerate(lines)]
        (run / name).write_text("\n".join(map(json.dumps, some)) + "\n")
        try:
            here = opened(run)
            probed, notes = read_probe(here)
            page(page_content(here, probed, read_sound_texts(run), notes))
        except ValueError as error:
            refused += 1
            assert Path(name).name in str(error) and "\n" not in str(error), (way, error)
    assert refused or name in ("probe/claims.json", "probe/sentences.json")  # of which little can be wrong


@pytest.mark.parametrize("name", ["probe/probe.json", "metrics.jsonl"])
def test_a_sweep_with_a_damaged_run_is_compared_or_refused_in_a_line_that_names_the_file(
    place: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        run = Path(shutil.copytree(place / "first" / "run", tmp_path / "sweep" / str(seed)))
        config = json.loads((run / "config.json").read_text())
        config["run"]["seed"] = seed
        (run / "config.json").write_text(json.dumps(config))
    found, chance = json.loads((run / "probe" / "probe.json").read_text()), random.Random(name)
    text = (run / name).read_text()
    lines = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]
    ways = [(i, way) for i in {0, len(lines) // 2, len(lines) - 1} for way in leaves(lines[i])]
    ways = [
        (i, way) for i, way in ways if name.endswith("l") or way[:1] not in ((), ("settings",), ("schema_version",))
    ]
    refused = 0
    for i, way in chance.sample(ways, 25):
        some = [damaged(one, way, chance) if i == j else one for j, one in enumerate(lines)]
        if name == "probe/probe.json" and (some[0]["model"], some[0]["data"]) != (found["model"], found["data"]):
            continue  # that of another checkpoint would be probed anew
        (run / name).write_text("\n".join(map(json.dumps, some)) + "\n")
        try:
            compare_seeds(str(tmp_path / "sweep"), SETTINGS, ProbeConfig(**found["settings"]))
        except SystemExit as error:
            said = capsys.readouterr().err
            refused += 1
            named = Path(name).name in said or "has not ended" in said  # its last line says that it has
            assert error.code == 2 and said.count("\n") == 1 and named, (way, said)
    assert refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: config["model"].update(rope_theta=77.0), "model.rope_theta is 77.0"),
        (lambda config: config["data"].update(skew=0.51), "data.skew is 0.51"),
        (lambda config: config.update(data_fingerprint="0" * 64), "data_fingerprint is 000"),
    ],
)
def test_a_run_whose_settings_were_edited_is_refused_and_the_setting_named(
    doors: Doors, place: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    run = a_copy(place, tmp_path)
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))
    done = doors.run("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", *PROBE)
    assert done.status == 2 and done.err.count("\n") == 1 and said in done.err, done.err
    assert "config.json has been changed" in done.err and state(place, run)


@pytest.mark.parametrize("state", [{}, {"step": 4}, {"step": 4, "model": 3}, {"step": "4", "model": {"a": 1}}])
def test_a_checkpoint_of_something_else_is_refused_in_a_line(
    place: Path, tmp_path: Path, state: dict[str, Any]
) -> None:
    run = a_copy(place, tmp_path)
    save_checkpoint(run / "checkpoints", state, 4, best=True)
    with pytest.raises(ValueError, match=r"checkpoints holds no checkpoint of a model"):
        opened(run)


def test_a_tokenizer_with_a_bit_turned_over_is_refused(place: Path, tmp_path: Path) -> None:
    run, chance = a_copy(place, tmp_path), random.Random(3)
    content = (run / "tokenizer.json").read_bytes()
    for _ in range(20):
        turned = bytearray(content)
        turned[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (run / "tokenizer.json").write_bytes(turned)
        with pytest.raises(ValueError, match=r"tokenizer\.json is damaged"):
            opened(run)
    (run / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        opened(run)


def test_what_was_changed_when_training_went_on_is_said_wherever_its_numbers_are(
    doors: Doors, place: Path, tmp_path: Path
) -> None:
    run = a_copy(place, tmp_path)
    changed = {"optim.learning_rate": [0.02, 0.01]}, {"packages.torch": ["2.12", "2.13"]}
    lines = [
        {"step": 2, "time": "2026-11-21", "settings": changed[0], "environment": changed[1]},
        {"step": 3, "time": "2026-11-21", "settings": {}, "environment": {}},
    ]
    (run / "resumes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = (
        "At step 2 training went on with optim.learning_rate 0.01 instead of 0.02, packages.torch 2.13 instead of 2.12."
    )
    done = probe(doors, place, run, OTHER)
    assert [line for line in done.out.splitlines() if line.startswith("note ")] == [f"note     {said}"], done.err
    assert json.loads((run / "probe" / "probe.json").read_text())["warnings"] == [said]
    assert said in (run / "probe" / "report.html").read_text()


def may_not_be_written(folder: str) -> None:
    """Make the system say of a folder what it says to others than root, who may write everywhere."""
    access = os.access
    os.access = lambda path, mode: access(path, mode) and not (str(path) == folder and mode & os.W_OK)


@pytest.mark.parametrize("folder", [".", "probe"])
def test_a_run_of_anothers_is_looked_at_and_nothing_is_written(
    doors: Doors, place: Path, tmp_path: Path, folder: str
) -> None:
    run = a_copy(place, tmp_path)
    (run / "probe" / ".lock").unlink()
    (run / folder).chmod(0o555)
    before = files(run)
    try:
        for asked, shown in ((PROBE, "question"), (["threads=1", f"text={CAT}"], 'at "it"')):
            before_it = partial(may_not_be_written, str(run / folder))
            done = doors.run("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", *asked, before=before_it)
            assert done.status == 0 and done.err == "" and shown in done.out, done.err
            assert "cannot be written: what is found is printed, and nothing is kept of it" in done.out
            assert "wrote " not in done.out and "see " not in done.out
        assert files(run) == before and not (run / "probe" / ".lock").exists()
    finally:
        (run / folder).chmod(0o755)
