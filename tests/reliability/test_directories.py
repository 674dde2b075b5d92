"""One run, one directory, one process: starts at the same moment, places that are full, read-only or in use."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.reliability import faults
from tests.reliability.counts import counted
from tests.reliability.doors import ROOT, Doors, Ended
from tests.reliability.runs import EVERY, SETTINGS, STEPS, differences, hashes, losses, saved_step

Figure = Callable[[str, str, str, bool], None]
Resume = Callable[..., Ended]
SHORT = [*SETTINGS, "max_steps=1", "sample_tokens=0", "probe_sequences=0"]


def is_one_line(ended: Ended) -> bool:
    return ended.status == 2 and ended.err.startswith("error: ") and ended.err.count("\n") == 1


def test_eight_starts_in_the_same_microsecond_get_eight_directories(
    doors: Doors, cache: str, tmp_path: Path, figure: Figure
) -> None:
    started = [doors.start("train.py", cache, *SHORT, cwd=tmp_path, before=faults.freeze_clock) for _ in range(8)]
    ended = [run.wait() for run in started]
    assert {one.status for one in ended} == {0}, [one.err for one in ended]
    made = list((tmp_path / "runs").iterdir())
    whole = [run for run in made if [step for step, _ in losses(run)] == [1] and saved_step(run) == 1]
    figure("8 starts in the same second", "8 directories", f"{len(made)}, each with a whole run", len(whole) == 8)


def test_of_two_starts_at_once_in_one_directory_one_trains_and_the_other_is_refused(
    doors: Doors, cache: str, tmp_path: Path, full: bool, figure: Figure
) -> None:
    n = 10 if full else 3
    fair = 0
    for i in range(n):
        out = tmp_path / str(i)
        one, other = [doors.start("train.py", f"out={out}", cache, *SHORT) for _ in range(2)]
        ended = sorted((one.wait(), other.wait()), key=lambda one: one.status)
        fair += ended[0].status == 0 and is_one_line(ended[1]) and saved_step(out) == 1
    figure(
        "2 starts at once with the same out=",
        f"in {counted(n, 10)} of {n} one trains, the other is refused",
        f"{fair} of {n}",
        fair == n,
    )


def test_a_second_process_on_a_run_that_is_training_is_refused_and_the_first_is_not_disturbed(
    doors: Doors, cache: str, unbroken: Path, broken: Callable[[str], Path], resume: Resume, figure: Figure
) -> None:
    out = broken("run")
    first = doors.start("train.py", f"out={out}", "resume=true", cache)
    while losses(out)[-1][0] < STEPS - EVERY + 2 or "from step" not in (first.folder / "out").read_text():
        assert not first.has_ended, first.wait().err
        time.sleep(0.001)
    first.send(signal.SIGSTOP)  # so that it is still there when the other asks
    before = hashes(out)
    refused = [resume(out), doors.run("train.py", f"out={out}", cache, *SETTINGS)]
    unchanged = hashes(out) == before
    first.send(signal.SIGCONT)
    ended = first.wait()
    found = differences(out, unbroken)
    lines = sum(is_one_line(one) for one in refused)
    figure(
        "a second process on a run that is training, with resume=true and without",
        "refused with one line, exit 2; the first undisturbed",
        f"{lines}/2 refused; the first ends with status {ended.status} and {len(found)} differences",
        lines == 2 and unchanged and ended.status == 0 and not found,
    )


def test_a_run_directory_that_cannot_be_written_is_one_line_and_goes_on_once_it_can(
    unbroken: Path, broken: Callable[[str], Path], resume: Resume, figure: Figure
) -> None:
    out = broken("run")
    for path in (out, *out.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = hashes(out)
    refused = resume(out, before=faults.give_up_rights)
    same = hashes(out) == before
    for path in (out, *out.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    ended = resume(out)
    found = differences(out, unbroken)
    assert is_one_line(refused) and "Permission denied" in refused.err and str(out) in refused.err, refused.err
    figure(
        "a read-only run directory",
        "one clear line that names the path, exit 2; nothing changed; goes on bit for bit afterwards",
        f"exit {refused.status}, 1 line; {'nothing' if same else 'something'} changed; then {len(found)} differences",
        same and ended.status == 0 and not found,
    )


def test_from_a_folder_that_cannot_be_written_a_run_goes_elsewhere_and_a_sweep_is_one_line(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    """Hydra makes a folder for a sweep before any run of it is asked."""
    here = tmp_path / "here"
    here.mkdir()
    here.chmod(0o555)
    try:
        given = {"cwd": here, "before": faults.give_up_rights}
        run, sweep = (doors.run("train.py", one, cache, *SHORT, **given) for one in (f"out={tmp_path / 'run'}", "-m"))
    finally:
        here.chmod(0o755)
    assert run.status == 0 and saved_step(tmp_path / "run") == 1, run.err
    assert is_one_line(sweep) and "Permission denied: runs" in sweep.err, sweep.err


def test_where_files_cannot_grow_the_old_checkpoint_stays_and_the_run_goes_on_once_they_can(
    late: Path, unbroken: Path, broken: Callable[[str], Path], resume: Resume, figure: Figure
) -> None:
    """Limits under which another file is the first that cannot be written each time, the checkpoint among them."""
    checkpoint = (late / "checkpoints" / f"step_{STEPS - EVERY:08}.pt").stat().st_size
    attention, metrics = ((late / name).stat().st_size for name in ("attention.jsonl", "metrics.jsonl"))
    limits = (4000, attention // 2, metrics + 4000, checkpoint // 2 + metrics // 2, checkpoint - 1)
    old = hashes(late / "checkpoints")
    good, named = 0, set()
    for i, limit in enumerate(limits):
        run = broken(str(i))
        full = resume(run, before=partial(faults.limit_file_size, limit))
        assert is_one_line(full), (limit, full.err)
        named |= {name for name in ("step_", "metrics", "attention", "tfevents", "manifest") if name in full.err}
        left = hashes(run / "checkpoints")
        kept = all(left.get(name) == sha256 for name, sha256 in old.items() if name.endswith(".pt"))
        assert kept and saved_step(run) == STEPS - EVERY, (limit, full.err)
        ended = resume(run)
        assert ended.status == 0, (limit, ended.err)
        good += not differences(run, unbroken)
    assert "step_" in named and len(named) > 1, named
    figure(
        "RLIMIT_FSIZE at several sizes",
        "old checkpoint's hash unchanged, one clear line, exit 2; goes on bit for bit afterwards",
        f"{good}/{len(limits)}; named: {', '.join(sorted(named))}",
        good == len(limits),
    )


_ON_A_SMALL_DISK = """
set -eu
mount -t tmpfs -o size=$3 none "$1"
cp -r "$2" "$1/run"
head -c "$4" /dev/zero > "$1/filler"
status=0; "${@:5}" "out=$1/run" resume=true > /dev/null 2> "$2/../err" || status=$?
echo $status > "$2/../status"
cp -r "$1/run" "$2/../full"
rm "$1/filler"
"${@:5}" "out=$1/run" resume=true > /dev/null
cp -r "$1/run" "$2/../after"
"""


@pytest.mark.slow
def test_on_a_full_disk_the_old_checkpoint_stays_and_the_run_goes_on_once_there_is_room(
    late: Path, unbroken: Path, cache: str, tmp_path: Path, figure: Figure
) -> None:
    """A file system of its own in memory, as anyone may mount one in a name space of his own, where that is allowed."""
    allowed = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    if allowed.returncode:
        pytest.skip("no name space of one's own here")
    disk, first = tmp_path / "disk", tmp_path / "first"
    disk.mkdir()
    shutil.copytree(late, first)
    size = 8 * 2**20
    used = sum((path.stat().st_size + 4095) // 4096 * 4096 for path in first.rglob("*"))
    room = 300_000  # for event file and records, but not for a checkpoint of 380,000
    arguments = [
        str(disk),
        str(first),
        str(size),
        str(size - used - room),
        sys.executable,
        str(ROOT / "train.py"),
        cache,
    ]
    ran = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", _ON_A_SMALL_DISK, "bash", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    status, said = int((tmp_path / "status").read_text()), (tmp_path / "err").read_text()
    assert status == 2 and said.count("\n") == 1 and "No space left on device" in said and "step_" in said, said
    told = said.strip().removeprefix("error: ").replace(f"{disk}/run/", "")  # the path, and the bytes
    old = hashes(late / "checkpoints")
    same = {name: hashes(tmp_path / "full" / "checkpoints").get(name) for name in old} == old
    found = differences(tmp_path / "after", unbroken)
    figure(
        "a full disk",
        "old checkpoint's hash unchanged, one clear line that names path and bytes; goes on bit for bit afterwards",
        f"{'unchanged' if same else 'changed'}; {told}; {len(found)} differences",
        same and not found,
    )
