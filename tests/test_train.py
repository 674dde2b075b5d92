"""train.py: what a run writes, resumes, sweeps, and directories that cannot be used."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.program import SMALL, run_program
from training.logging import read_records


def losses(run: Path, split: str = "train") -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_records(run) if record["split"] == split]


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_gives_the_same_losses(trained_run: Path, cache: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        assert run_program("train.py", f"out={tmp_path / str(seed)}", cache, *SMALL, f"seed={seed}").status == 0
    assert losses(tmp_path / "1") == losses(trained_run) != losses(tmp_path / "2")


def test_a_model_learns_a_text_from_a_file(cache: str, tmp_path: Path) -> None:
    (tmp_path / "a, b.txt").write_text("Tom ran. He sat.\n" * 200)
    arguments = ["data=text", "data.path=a*b.txt", "data.tokenizer=characters", "model=nano", "max_steps=40"]
    arguments += ["model.context_length=16", "tokens_per_batch=256", "log_every_steps=1", "sample_tokens=4", "out=run"]
    result = run_program("train.py", *arguments, cache, cwd=tmp_path)
    assert result.status == 0, result.err
    first, *_, last = losses(tmp_path / "run")
    assert last[1] < first[1] / 2


def test_a_finished_run_resumed_stays_as_it_is(run: Path, cache: str) -> None:
    shutil.rmtree(run / "tb")  # TensorBoard starts a file
    old = hashes(run)
    assert run_program("train.py", f"out={run}", "resume=true", "optim.learning_rate=7", cache).status == 0
    shutil.rmtree(run / "tb")
    assert hashes(run) == old


def test_a_resume_takes_new_settings_and_records_them(run: Path, cache: str) -> None:
    arguments = ["resume=true", "max_steps=6", "optim.learning_rate=0.001", "eval_every_steps=5", "device=cpu"]
    assert run_program("train.py", f"out={run}", cache, *arguments).status == 0
    config = json.loads((run / "config.json").read_text())
    (resume,) = [json.loads(line) for line in (run / "resumes.jsonl").read_text().splitlines()]
    assert [step for step, _ in losses(run)] == [1, 2, 3, 4, 5, 6]
    assert (config["run"]["max_steps"], config["optim"]["learning_rate"]) == (6, 0.001)
    assert [step for step, _ in losses(run, "validation")] == [0, 2, 4, 5, 6]
    assert resume["step"] == 4 and resume["settings"]["max_steps"] == [4, 6]


@pytest.mark.parametrize(
    "override", ["seed=2", "model.d_mlp=64", "variant=one_head", "optim=adamw", "data.seed=7", "max_steps=3"]
)
def test_a_resume_with_a_fixed_setting_changes_nothing(run: Path, cache: str, override: str) -> None:
    old = hashes(run)
    name = {"optim=adamw": "optim.name", "variant=one_head": "model.n_layer"}.get(override, override.partition("=")[0])
    assert name in run_program("train.py", f"out={run}", "resume=true", cache, override).error
    assert hashes(run) == old


@pytest.mark.parametrize("config", [None, "{", "[]", "[" * 100_000], ids=["no checkpoint", "cut", "list", "deep"])
def test_a_damaged_run_is_refused_and_stays_as_it_is(run: Path, cache: str, config: str | None) -> None:
    if config is None:
        shutil.rmtree(run / "checkpoints")
    else:
        (run / "config.json").write_text(config)
    old = hashes(run)
    assert run_program("train.py", f"out={run}", "resume=true", cache, "max_steps=6").error
    assert hashes(run) == old


def test_a_run_killed_before_a_checkpoint_starts_again(run: Path, trained_run: Path, cache: str) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").write_text("")
    assert run_program("train.py", f"out={run}", "resume=true", cache).status == 0
    assert losses(run) == losses(trained_run)


def test_an_unusable_directory_is_refused_and_stays_as_it_is(run: Path, cache: str) -> None:
    old = hashes(run)
    assert "resume=true" in run_program("train.py", f"out={run}", cache, *SMALL).error
    assert f"out={run}/config.json/x: " in run_program("train.py", f"out={run}/config.json/x", cache, *SMALL).error
    if os.access("/sys", os.F_OK):
        assert "/sys/run" in run_program("train.py", "out=/sys/run", cache, *SMALL).error
    assert hashes(run) == old
    run.chmod(0o555)
    if not os.access(run, os.W_OK):  # as root everything can be written
        assert str(run) in run_program("train.py", f"out={run}", "resume=true", "max_steps=6", cache).error


def test_a_sweep_writes_each_run_to_a_folder_and_resumes(cache: str, tmp_path: Path) -> None:
    sweep, metrics = tmp_path / "sweep", []
    for arguments in (["seed=1,2"], ["seed=1,2,3", "resume=true"]):
        assert run_program("train.py", "-m", "out=sweep", cache, *SMALL, *arguments, cwd=tmp_path).status == 0
        metrics.append((sweep / "0" / "metrics.jsonl").read_bytes())
    seeds = [json.loads((sweep / name / "config.json").read_text())["run"]["seed"] for name in "012"]
    assert seeds == [1, 2, 3] and [*tmp_path.iterdir()] == [sweep]
    assert all([step for step, _ in losses(sweep / name)] == [1, 2, 3, 4] for name in "012")
    assert metrics[0] == metrics[1]  # with the seconds of each step, so that run was not trained again
