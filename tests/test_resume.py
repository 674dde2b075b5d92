"""Going on with a run: as it was, with what has changed said and written down, or not at all."""

import json
import shutil
from pathlib import Path

import pytest

from tests.reliability.doors import Doors, Ended
from tests.test_train import QUICK, lines, losses, same_weights
from training.checkpoint import go_back, load_checkpoint, read_manifest, save_checkpoint

SHORT = [*QUICK, "max_steps=60", "eval_every_steps=20", "sample_tokens=0"]


@pytest.fixture(scope="module")
def ended(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ended"
    assert doors.run("train.py", f"out={out}", cache, *SHORT, "keep_checkpoints=3").status == 0
    return out


@pytest.fixture
def stopped(ended: Path, tmp_path: Path) -> Path:
    """The run as it was after 40 of its 60 steps."""
    out = tmp_path / "stopped"
    shutil.copytree(ended, out)
    go_back(out / "checkpoints", 40)
    return out


def resume(doors: Doors, out: Path, *overrides: str) -> Ended:
    return doors.run("train.py", "resume=true", f"out={out}", *overrides)


def resumes(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "resumes.jsonl").read_text().splitlines()]


def content(run: Path) -> dict[Path, bytes]:
    """Return every file of a run but the lock, which is of whoever asked last."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(ran: Ended, *words: str) -> None:
    assert ran.status == 2 and ran.err.count("\n") == 1, ran.err
    assert all(word in ran.err for word in words), ran.err


def test_a_damaged_newest_checkpoint_is_said_and_its_steps_are_taken_again_to_the_same_end(
    doors: Doors, ended: Path, cache: str, tmp_path: Path
) -> None:
    shutil.copytree(ended, stopped := tmp_path / "stopped")
    newest = stopped / "checkpoints" / read_manifest(stopped / "checkpoints")[-1]["file"]
    newest.write_bytes(newest.read_bytes()[:-1])
    ran = resume(doors, stopped, cache)
    assert ran.status == 0 and "step_00000060.pt is damaged" in ran.err, ran.err
    assert "(from step 40 of 60)" in ran.out
    assert losses(stopped) == losses(ended) and same_weights(stopped, ended)
    assert resumes(stopped) == [{"step": 40, "time": resumes(stopped)[0]["time"], "environment": {}, "settings": {}}]
    assert not (ended / "resumes.jsonl").exists()


def test_another_setting_is_refused_by_name_and_taken_where_that_is_asked_for(
    doors: Doors, stopped: Path, cache: str
) -> None:
    given = ["optim.learning_rate=0.005", "max_steps=80"]
    before = content(stopped)
    refused(resume(doors, stopped, cache, *given), "max_steps is 60, not 80", "resume_with_changes=true")
    assert content(stopped) == before
    ran = resume(doors, stopped, cache, *given, "resume_with_changes=true")
    assert ran.status == 0, ran.err
    assert "from step 40 on max_steps is 80, not 60" in ran.err
    assert [step for step, _ in losses(stopped)] == list(range(1, 81))
    power = json.loads((stopped / "config.json").read_text())["optim"]["decay_power"]
    warmup = json.loads((stopped / "config.json").read_text())["optim"]["warmup_steps"]
    wanted = 0.005 * ((80 - 40) / (80 - warmup)) ** power  # of the step from 40 to 41
    assert lines(stopped, "train")[40]["learning_rate"] == pytest.approx(wanted)
    groups = load_checkpoint(stopped / "checkpoints")[0]["optimizers"][0]["param_groups"]
    assert [group["peak"] for group in groups] == [0.005]
    [one] = resumes(stopped)
    assert one["settings"] == {"max_steps": [60, 80], "optim.learning_rate": [0.012, 0.005]} and one["step"] == 40
    config = json.loads((stopped / "config.json").read_text())
    assert config["run"]["max_steps"] == 80 and not config["run"]["resume_with_changes"]
    assert load_checkpoint(stopped / "checkpoints")[0]["config"] == config
    assert resume(doors, stopped, cache).status == 0  # what it is now it stays


@pytest.mark.parametrize(
    "given", ["model.d_model=48", "optim=adamw", "data.seed=5", "validation_tokens=400", "model.n_layer=2"]
)
def test_what_would_not_fit_the_checkpoint_is_refused_whatever_is_asked_for(
    doors: Doors, stopped: Path, cache: str, given: str
) -> None:
    before = content(stopped)
    name = {"optim=adamw": "optim.name"}.get(given, given.partition("=")[0])
    refused(resume(doors, stopped, cache, given, "resume_with_changes=true"), name, "would not fit")
    assert content(stopped) == before


def test_an_edited_config_is_found_out_by_the_checkpoint(doors: Doors, stopped: Path, cache: str) -> None:
    path = stopped / "config.json"
    config = json.loads(path.read_text())
    config["optim"]["momentum"] = 0.5
    path.write_text(json.dumps(config))
    refused(resume(doors, stopped, cache), "optim.momentum is 0.95, not 0.5")
    ran = resume(doors, stopped, cache, "resume_with_changes=true")
    assert ran.status == 0 and resumes(stopped)[0]["settings"] == {"optim.momentum": [0.95, 0.5]}, ran.err


def test_another_version_is_said_and_written_down(doors: Doors, ended: Path, stopped: Path, cache: str) -> None:
    path = stopped / "environment.json"
    about = json.loads(path.read_text())
    ours, about["packages"]["torch"] = about["packages"]["torch"], "1.0"
    path.write_text(json.dumps(about))
    ran = resume(doors, stopped, cache)
    assert ran.status == 0 and f"losses may differ in their last bits: torch is {ours}, not 1.0" in ran.err
    assert resumes(stopped)[0]["environment"] == {"packages.torch": ["1.0", ours]}
    assert losses(stopped) == losses(ended)


@pytest.mark.parametrize("left", [["config.json"], ["config.json", "tokenizer.json", ".environment.json.17"]])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    doors: Doors, ended: Path, cache: str, tmp_path: Path, left: list[str]
) -> None:
    out = tmp_path / "begun"
    out.mkdir()
    for name in left:
        (out / name).write_bytes((ended / name).read_bytes() if (ended / name).exists() else b"half")
    if len(left) > 1:  # its evaluation of step 0 was written, its checkpoint not
        (out / "metrics.jsonl").write_text((ended / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    ran = resume(doors, out, cache)
    assert ran.status == 0 and "(from step 0 of 60)" in ran.out, ran.err
    assert losses(out) == losses(ended) and same_weights(out, ended)
    assert lines(out, "probe") == lines(ended, "probe")
    assert (out / "environment.json").exists()


def test_a_second_process_is_refused_and_what_the_first_was_killed_over_is_no_run(
    doors: Doors, ended: Path, stopped: Path, cache: str, tmp_path: Path
) -> None:
    from training.run_dir import claim

    with claim(stopped):
        before = content(stopped)
        refused(resume(doors, stopped, cache), "is being written by process")
        assert content(stopped) == before
    begun = tmp_path / "begun"
    begun.mkdir()
    for name in (".lock", ".config.json.4711"):
        (begun / name).write_text("")
    ran = doors.run("train.py", f"out={begun}", cache, *SHORT)
    assert ran.status == 0 and losses(begun) == losses(ended)


def test_checkpoints_without_their_manifest_are_not_begun_over(doors: Doors, stopped: Path, cache: str) -> None:
    for name in ("manifest.json", "manifest_copy.json"):
        (stopped / "checkpoints" / name).unlink()
    before = content(stopped)
    refused(resume(doors, stopped, cache), "manifest.json is gone and checkpoints are there")
    assert content(stopped) == before


def test_a_checkpoint_of_another_program_is_one_line(doors: Doors, stopped: Path, cache: str) -> None:
    state = load_checkpoint(stopped / "checkpoints")[0]
    del state["optimizers"]
    save_checkpoint(stopped / "checkpoints", state, 41, best=False)
    before = content(stopped)
    refused(resume(doors, stopped, cache), "its checkpoint is not one of this training")
    assert content(stopped) == before


def test_an_environment_that_is_gone_is_written_anew_and_one_that_is_none_is_named(
    doors: Doors, stopped: Path, cache: str
) -> None:
    path = stopped / "environment.json"
    path.write_text("[]")
    refused(resume(doors, stopped, cache), "environment.json is damaged")
    path.unlink()
    with (stopped / "metrics.jsonl").open("ab") as stream:
        stream.write(b"\xff\xfe\n")  # and a record with what is no text is cut as one that was cut off is
    ran = resume(doors, stopped, cache)
    assert (ran.status, ran.err) == (0, "") and json.loads(path.read_text())["python"]


def test_a_run_and_its_text_moved_elsewhere_go_on_together_and_with_another_text_not(
    doors: Doors, tmp_path: Path
) -> None:
    here, away, out = tmp_path / "here.txt", tmp_path / "away.txt", tmp_path / "run"
    here.write_text("".join(f"Tom saw cat {i}. He ran to it.\n" for i in range(200)))
    data = ["data=text", "data.tokenizer=characters", f"cache_dir={tmp_path / 'cache'}"]
    short = [
        "model=nano",
        "threads=1",
        "max_steps=6",
        "eval_every_steps=3",
        "log_every_steps=1",
        "tokens_per_batch=128",
    ]
    begun = doors.run("train.py", f"out={out}", *data, f"data.path={here}", *short, "keep_checkpoints=3")
    assert begun.status == 0, begun.err
    moved = Path(shutil.copytree(out, tmp_path / "moved"))
    go_back(moved / "checkpoints", 3)
    here.rename(away)
    refused(resume(doors, moved, data[-1]), "no text found at", "here.txt")
    ran = resume(doors, moved, *data, f"data.path={away}")
    assert ran.status == 0 and "(from step 3 of 6)" in ran.out, ran.err
    assert losses(moved) == losses(out) and same_weights(moved, out)
    away.write_text(away.read_text() + "More.\n")
    refused(
        resume(doors, moved, *data, f"data.path={away}"),
        "its data, a text or the generator of the stories, has changed",
    )


def test_a_run_whose_checkpoints_are_gone_is_not_begun_over(doors: Doors, stopped: Path, cache: str) -> None:
    shutil.rmtree(stopped / "checkpoints")
    before = content(stopped)
    refused(resume(doors, stopped, cache), "its checkpoints are gone, though metrics.jsonl tells of 60 steps")
    assert content(stopped) == before


def test_a_lost_tokenizer_is_written_anew_and_lost_records_are_said(
    doors: Doors, ended: Path, stopped: Path, cache: str
) -> None:
    (stopped / "tokenizer.json").write_text("{}")
    first, second, *rest = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text("".join([first, f"x{second}", *rest]))
    (stopped / "attention.jsonl").unlink()
    ran = resume(doors, stopped, cache)
    assert ran.status == 0 and ran.err.count("warning: ") == ran.err.count("\n") == 3, ran.err
    assert "tokenizer.json was gone or damaged and has been written anew" in ran.err
    assert "metrics.jsonl: 1 damaged line left out" in ran.err
    assert "attention.jsonl is gone: what was recorded up to step 40 is lost" in ran.err
    assert (stopped / "tokenizer.json").read_bytes() == (ended / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("max_steps", [30, 40])
def test_an_end_that_lies_behind_is_refused(doors: Doors, stopped: Path, cache: str, max_steps: int) -> None:
    before = content(stopped)
    ran = resume(doors, stopped, cache, f"max_steps={max_steps}", "resume_with_changes=true")
    refused(ran, f"max_steps is {max_steps}, and 40 steps have been taken")
    assert content(stopped) == before


def test_where_no_run_can_be_written_is_said_before_the_data_are_read(doors: Doors, cache: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in ("/proc/nope", f"{tmp_path}/file/run", f"{tmp_path}/{'x' * 300}"):
        refused(doors.run("train.py", f"out={out}", f"cache_dir={tmp_path}/new", *SHORT), out)
        assert not (tmp_path / "new").exists()


def test_a_config_that_was_made_nonsense_is_named(doors: Doors, stopped: Path, cache: str) -> None:
    path = stopped / "config.json"
    path.write_text(path.read_text().replace('"seed": 1,', '"seed": "abc",', 1))
    refused(resume(doors, stopped, cache), "config.json: ", "seed")
