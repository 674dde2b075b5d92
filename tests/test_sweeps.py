"""Many runs by one command: side by side by joblib, and as jobs by submitit, which has a SLURM cluster's ways."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.doors import Doors

ROOT = Path(__file__).parent.parent
SHORT = [
    "model=nano", "threads=1", "max_steps=2", "eval_every_steps=2", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=0", "sample_tokens=0", "data.n_train_stories=4000", "data.n_validation_stories=40",
    "data.n_test_templates=2", "data.n_test_pairs=2",
]  # fmt: skip
PROBE = ["threads=1", "probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
ENVIRONMENT = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
SUBMITIT = "hydra_plugins.hydra_submitit_launcher"


def sweep(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a sweep in a process of its own: launchers start others, which are no forks of a test."""
    command = [sys.executable, str(ROOT / "train.py"), "-m", *arguments]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300)


def seeds(out: Path) -> dict[str, int]:
    """Return the seed of every run of a sweep by its number."""
    return {path.parent.name: json.loads(path.read_text())["run"]["seed"] for path in out.glob("*/config.json")}


def steps(run: Path) -> list[int]:
    """Return the steps whose training loss a run has recorded, in the order of the file."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [one["step"] for one in records if one["split"] == "train"]


def test_a_sweep_with_one_setting_that_cannot_be_is_refused_before_its_first_run(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    ran = doors.run("train.py", "-m", f"out={tmp_path / 'out'}", cache, *SHORT[:2], "max_steps=2,-1", cwd=tmp_path)
    assert (ran.status, ran.out, ran.err) == (2, "", "error: [1] max_steps must be 1 or more, got -1\n")
    assert list(tmp_path.iterdir()) == []


def test_without_slurm_its_launcher_is_one_line_and_nothing_is_made(doors: Doors, cache: str, tmp_path: Path) -> None:
    pytest.importorskip(SUBMITIT)
    asked = ["hydra/launcher=submitit_slurm", f"out={tmp_path / 'out'}", cache, *SHORT, "seed=1,2"]
    ran = doors.run("train.py", "-m", *asked, cwd=tmp_path, environment={"PATH": str(tmp_path)})
    assert ran.status == 2 and ran.err.count("\n") == 1 and "here is no srun" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_goes_on_with_what_has_begun_and_begins_the_rest(doors: Doors, cache: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = doors.run("train.py", "-m", f"out={out}", cache, *SHORT, "seed=1,2", cwd=tmp_path)
    assert first.status == 0, first.err
    assert sorted(path.name for path in out.iterdir()) == ["0", "1", "multirun.yaml"]
    assert list(tmp_path.iterdir()) == [out]  # nor does Hydra leave anything elsewhere
    before = (out / "0" / "metrics.jsonl").read_bytes()
    asked = ["resume=true", f"out={out}", cache, *SHORT, "seed=1,2,3"]
    again = doors.run("train.py", "-m", *asked, cwd=tmp_path)
    assert again.status == 0, again.err
    assert seeds(out) == {"0": 1, "1": 2, "2": 3} and (out / "0" / "metrics.jsonl").read_bytes() == before
    assert "[1] run     " in again.out and "(from step 2 of 2)" in again.out and "(from step 0 of 2)" in again.out
    said = f"ended   nothing is left to train; probe it with: python eval.py run={out / '0'}"
    assert f"[0] {said}\n" in again.out and again.out.count("ended   ") == 2 and "[2] ended" not in again.out


def test_a_sweep_one_run_of_which_cannot_begin_or_go_on_is_refused_before_its_first(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (out / "1").mkdir(parents=True)
    (out / "1" / "mine").touch()
    ran = doors.run("train.py", "-m", f"out={out}", cache, *SHORT, "seed=1,2", cwd=tmp_path)
    assert (ran.status, ran.out) == (2, "") and ran.err.startswith(f"error: [1] out={out}/1 is not empty"), ran.err
    assert ran.err.count("\n") == 1 and [path.name for path in out.iterdir()] == ["1"]
    (out / "1" / "mine").unlink()
    assert doors.run("train.py", f"out={out / '1'}", cache, *SHORT, "seed=2", cwd=tmp_path).status == 0
    ran = doors.run("train.py", "-m", "resume=true", f"out={out}", cache, *SHORT, "seed=1,3", cwd=tmp_path)
    assert (ran.status, ran.out) == (2, "") and "error: [1] resume=true keeps the run's settings: seed is 2" in ran.err
    assert [path.name for path in out.iterdir()] == ["1"]


@pytest.mark.slow
def test_runs_side_by_side_by_joblib_are_gathered(doors: Doors, cache: str, tmp_path: Path) -> None:
    """From another folder than the program's; a run that is refused is one line there too."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    asked = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "out=seeds", cache, *SHORT, "seed=1,2,3"]
    ran = sweep(*asked, cwd=tmp_path)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    assert seeds(tmp_path / "seeds") == {"0": 1, "1": 2, "2": 3} and [*tmp_path.iterdir()] == [tmp_path / "seeds"]
    gathered = doors.run("eval.py", f"runs={tmp_path / 'seeds'}", cache, *PROBE)
    assert gathered.status == 0 and (tmp_path / "seeds" / "probe" / "seeds.json").is_file(), gathered.err
    again = sweep(*asked, cwd=tmp_path)
    assert again.returncode == 2 and "is not empty: choose another" in again.stderr, again.stderr
    assert all(line.startswith("error: [") for line in again.stderr.splitlines()), again.stderr  # whose run came first


@pytest.mark.slow
def test_jobs_of_submitit_are_gathered_and_one_that_is_refused_is_one_line(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    """From another folder than the program's, two at a time."""
    pytest.importorskip(SUBMITIT)
    asked = ["hydra/launcher=submitit_local", "hydra.sweeper.max_batch_size=2", cache, *SHORT]
    ran = sweep(*asked, "out=seeds", "seed=1,2,3", cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), ran.stderr
    out = tmp_path / "seeds"
    assert seeds(out) == {"0": 1, "1": 2, "2": 3} and [*tmp_path.iterdir()] == [out]
    assert sorted(path.name for path in out.iterdir()) == [".submitit", "0", "1", "2", "multirun.yaml"]
    assert sum("done in" in path.read_text() for path in out.glob(".submitit/*/*.out")) == 3
    gathered = doors.run("eval.py", f"runs={out}", cache, *PROBE)
    assert gathered.status == 0 and (out / "probe" / "seeds.json").is_file(), gathered.err
    again = sweep(*asked, "out=seeds", "seed=1", cwd=tmp_path)
    refused = "error: [0] out=seeds/0 is not empty: choose another, or go on with its run by resume=true\n"
    assert (again.returncode, again.stdout, again.stderr) == (2, "", refused)


@pytest.mark.slow
def test_a_job_whose_queue_wants_its_place_saves_is_put_back_and_goes_on(cache: str, tmp_path: Path) -> None:
    """By the signal that SLURM is told to send before it takes a place away."""
    pytest.importorskip(SUBMITIT)
    run = tmp_path / "out" / "0"
    asked = ["resume=true", f"out={run.parent}", "hydra/launcher=submitit_local", cache, *SHORT, "log_every_steps=1"]
    command = [sys.executable, str(ROOT / "train.py"), "-m", *asked, "max_steps=400", "eval_every_steps=400"]
    launched = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while not ((run / "metrics.jsonl").exists() and steps(run)[2:]):
            assert launched.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        holder = (run / ".lock").read_text().split()[1]
        os.kill(int(holder), signal.SIGUSR2)
        _, said = launched.communicate(timeout=180)
    finally:
        launched.kill()
        launched.wait()
    assert (launched.returncode, said) == (0, "")
    assert steps(run) == list(range(1, 401))
    (resumed,) = map(json.loads, (run / "resumes.jsonl").read_text().splitlines())
    (log,) = run.parent.glob(".submitit/*/*_log.out")
    assert 0 < resumed["step"] < 400 and f"(from step {resumed['step']} of 400)" in log.read_text()
