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
from pathlib import Path
from typing import Any

import pytest

from probe.commands.opened import Opened, open_run
from probe.commands.probing import is_probed
from probe.commands.reporting import page_content, read_probe, read_sound_texts
from probe.commands.several import compare_seeds
from probe.config import ProbeConfig
from probe.report.page import page
from run.checkpoint import load_checkpoint, save_checkpoint
from run.config import EvalConfig
from tests.test_report import CAT, PROBE, ROOT, STORIES, TRAIN, ran

pytestmark = pytest.mark.slow
OTHER = [*PROBE, "probe.n_controls=12"]  # another probe of the same run
SETTINGS = EvalConfig(
    run=None, text=None, runs=None, compare=None, task=None, path=None, open=False, figures=False,
    device="cpu", threads=1, cache_dir="cache",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run probed with PROBE, called first, and the same run probed with OTHER, called second."""
    here = tmp_path_factory.mktemp("unbroken")
    done = ran("train.py", f"out={here / 'trained'}", f"cache_dir={here / 'cache'}", *TRAIN, *STORIES)
    assert done.returncode == 0, done.stderr
    for name, settings in (("first", PROBE), ("second", OTHER)):
        shutil.copytree(here / "trained", here / name / "run")
        done = probe(here, here / name / "run", settings)
        assert done.returncode == 0, done.stderr
    return here


def arguments(place: Path, run: Path, settings: list[str]) -> list[str]:
    return [f"run={os.path.relpath(run, run.parent)}", f"cache_dir={place / 'cache'}", *settings]


def started(place: Path, run: Path, settings: list[str]) -> subprocess.Popen[str]:
    """Begin to probe `run`, by a name that is the same wherever it lies: it stands in the files."""
    command = [sys.executable, str(ROOT / "eval.py"), *arguments(place, run, settings)]
    return subprocess.Popen(
        command,
        cwd=run.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # of a test in the background it is ignored
    )


def probe(place: Path, run: Path, settings: list[str]) -> subprocess.CompletedProcess[str]:
    process = started(place, run, settings)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


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
    place: Path, tmp_path: Path, full: bool
) -> None:
    began = time.monotonic()
    assert probe(place, a_copy(place, tmp_path / "whole"), OTHER).returncode == 0
    whole, chance, states = time.monotonic() - began, random.Random(0), set()
    for number in range(12 if full else 4):
        run = a_copy(place, tmp_path / str(number))
        known = (run / "probe" / "probe.json").stat().st_ino
        process = started(place, run, OTHER)
        if number % 2:
            time.sleep(chance.uniform(0.3, 1) * whole)
        elif number % 4:  # while it writes
            while process.poll() is None and not (run / "probe" / ".unfinished").exists():
                time.sleep(0.0005)
            time.sleep(chance.uniform(0, 0.04))
        else:  # once it has begun to take the earlier one's place
            while process.poll() is None and is_known(run / "probe" / "probe.json", known):
                time.sleep(0.0002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        states.add(state(place, run))
        if number % 4 == 0:  # what is left can be read, and is healed by the next
            done = ran("eval.py", f"run={run}", f"text={CAT}", "threads=1")
            assert done.returncode == 0, done.stderr
            (run / "probe" / "sentences.json").unlink()
            assert probe(place, run, OTHER).returncode == 0
            assert files(run) == files(place / "second" / "run")
    assert {"first"} < states, states


def test_a_probe_that_finds_no_room_changes_nothing_and_says_where(place: Path, tmp_path: Path) -> None:
    run = a_copy(place, tmp_path)
    before = files(run)
    command = [sys.executable, str(ROOT / "eval.py"), *arguments(place, run, OTHER)]
    done = subprocess.run(
        ["prlimit", "--fsize=50000", *command], cwd=run.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "probe/.unfinished/" in done.stderr and "bytes" in done.stderr and files(run) == before


def is_known(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_probe_that_is_asked_to_stop_leaves_with_the_shells_status_and_nothing_of_itself(
    place: Path, tmp_path: Path, number: int, status: int
) -> None:
    for wait in (0.0, 0.7, 2.0):
        run = a_copy(place, tmp_path / str(wait))
        before = files(run)
        process = started(place, run, [*OTHER, "probe.n_bootstrap=20000"])
        assert process.stdout is not None
        assert process.stdout.readline().startswith("run ")
        time.sleep(wait)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (status, "") and files(run) == before


def test_the_second_of_two_probes_of_one_run_is_refused_in_a_line(place: Path, tmp_path: Path) -> None:
    run = a_copy(place, tmp_path)
    first, lock = started(place, run, OTHER), run / "probe" / ".lock"
    while str(first.pid) not in lock.read_text():
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGSTOP)
    for asked in ([], [f"text={CAT}"]):
        second = ran("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", *PROBE, *asked)
        assert second.returncode == 2 and second.stderr.count("\n") == 1, second.stderr
        assert f"is being written by process {first.pid}" in second.stderr
    first.kill()
    first.communicate()
    assert state(place, run) == "first" and probe(place, run, OTHER).returncode == 0
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
from run.checkpoint import load_checkpoint, save_checkpoint

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
    place: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    run = a_copy(place, tmp_path)
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))
    done = ran("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", *PROBE)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr
    assert "config.json has been changed" in done.stderr and state(place, run)


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


def test_what_was_changed_when_training_went_on_is_said_wherever_its_numbers_are(place: Path, tmp_path: Path) -> None:
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
    done = probe(place, run, OTHER)
    assert [line for line in done.stdout.splitlines() if line.startswith("note ")] == [f"note     {said}"], done.stderr
    assert json.loads((run / "probe" / "probe.json").read_text())["warnings"] == [said]
    assert said in (run / "probe" / "report.html").read_text()


@pytest.mark.parametrize("folder", [".", "probe"])
def test_a_run_of_anothers_is_looked_at_and_nothing_is_written(place: Path, tmp_path: Path, folder: str) -> None:
    run = a_copy(place, tmp_path)
    (run / "probe" / ".lock").unlink()
    (run / folder).chmod(0o555)
    before = files(run)
    try:
        for asked, shown in ((PROBE, "question"), (["threads=1", f"text={CAT}"], 'at "it"')):
            command = [sys.executable, "-c", _OF_ANOTHER, str(run / folder), str(ROOT / "eval.py"), f"run={run}"]
            done = subprocess.run(
                [*command, f"cache_dir={place / 'cache'}", *asked],
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
            )
            assert done.returncode == 0 and done.stderr == "" and shown in done.stdout, done.stderr
            assert "cannot be written: what is found is printed, and nothing is kept of it" in done.stdout
            assert "wrote " not in done.stdout and "see " not in done.stdout
        assert files(run) == before and not (run / "probe" / ".lock").exists()
    finally:
        (run / folder).chmod(0o755)


# Root may write everywhere, so the system is made to say of the folder what it says to others.
_OF_ANOTHER = """
import os, runpy, sys
_, folder, door, *arguments = sys.argv
access = os.access
os.access = lambda path, mode: access(path, mode) and not (str(path) == folder and mode & os.W_OK)
sys.argv = [door, *arguments]
sys.path.insert(0, os.path.dirname(door))
runpy.run_path(door, run_name="__main__")
"""
