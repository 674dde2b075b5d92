"""Files of a run survive crashes, damage, full disks and other processes; each step is there once."""

import json
import os
import random
import shutil
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG

from settings.errors import UserError
from settings.files import lock, write_files
from tests.program import forked
from tests.tiny_models import random_model
from training.checkpoint import MANIFEST, drop_checkpoints_after, load_checkpoint, read_manifest, save_checkpoint
from training.logging import RunLog
from training.metrics import load_metrics, read_records
from training.run_dir import find_run, find_runs, locked_run
from training.weight_history import HISTORY_FILE, load_weight_history, pack_parameters


def state_of(step):
    return {"step": step, "model": {"weight": torch.full((500,), float(step))}}


def save(folder, step, *, best=False, keep=2):
    save_checkpoint(folder, state_of(step), best=best, keep=keep)


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the steps 1 (best) and 2."""
    save(tmp_path / "checkpoints", 1, best=True)
    save(tmp_path / "checkpoints", 2)
    return tmp_path / "checkpoints"


def in_child(action):
    """Return the exit status of a forked process that runs `action`."""
    return os.waitstatus_to_exitcode(os.waitpid(forked(action), 0)[1])


def exit_at(call, action):
    """Returns `action` in a process that ends, as if killed, at the n-th file operation."""
    calls = count(1)

    def counted(operation):
        return lambda *args, **named: os._exit(99) if next(calls) == call else operation(*args, **named)

    def run():
        for name in ("fsync", "replace", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        action()

    return run


def test_the_newest_and_the_best_checkpoint_are_kept(tmp_path):
    for step in range(1, 7):
        save(tmp_path, step, best=step == 2)
    assert [(entry.step, entry.best) for entry in read_manifest(tmp_path)] == [(2, True), (5, False), (6, False)]
    assert {path.name for path in tmp_path.glob("*.pt")} == {f"step_0000000{step}.pt" for step in (2, 5, 6)}
    assert load_checkpoint(tmp_path)["step"] == 6
    assert load_checkpoint(tmp_path, "best")["step"] == 2


@pytest.mark.parametrize("call", range(1, 12))
def test_a_kill_at_any_operation_of_a_save_leaves_a_checkpoint(folder, call):
    status = in_child(exit_at(call, lambda: save(folder, 3)))
    assert status == (0 if call == 11 else status) and (call != 2 or status == 99)  # all operations were tried
    state = load_checkpoint(folder)
    assert state["step"] == 3 if status == 0 else state["step"] in (2, 3)
    torch.testing.assert_close(state, state_of(state["step"]))
    drop_checkpoints_after(folder, state["step"])
    save(folder, 4)
    assert load_checkpoint(folder)["step"] == 4
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_bit_flip_is_detected_and_the_one_before_used(folder, capsys):
    path = folder / "step_00000002.pt"
    content, rng = path.read_bytes(), random.Random(0)
    for _ in range(50):
        bit = rng.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert load_checkpoint(folder)["step"] == 1
        assert f"warning: {path}: damaged" in capsys.readouterr().err


def test_damage_that_leaves_no_checkpoint_is_an_error(folder):
    manifest, content = folder / MANIFEST, (folder / MANIFEST).read_text()
    for damaged in ("{}", content[:-9], content.replace("step_", "../"), content.replace('"step_00000001.pt"', "3")):
        manifest.write_text(damaged)
        with pytest.raises(ValueError, match="manifest.json: damaged"):
            load_checkpoint(folder)
    manifest.unlink()
    with pytest.raises(ValueError, match="missing"):  # not mistaken for a new run
        load_checkpoint(folder)
    manifest.write_text(content)
    for path in folder.glob("*.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="every checkpoint is damaged"):
        load_checkpoint(folder)


def test_on_a_full_disk_the_error_names_the_file_and_the_old_checkpoints_stay(folder):
    resource = pytest.importorskip("resource")
    old_files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def save_with_little_space():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # bytes of a file, like a disk that is full
        try:
            save(folder, 3)
        except OSError as error:
            return 3 if str(error.filename).endswith("step_00000003.pt") else 2
        return 0

    assert in_child(save_with_little_space) == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old_files


@pytest.mark.parametrize("call", range(1, 17))
def test_after_a_kill_files_are_old_or_new_or_without_marker(tmp_path, call):
    files = {"a.txt": "new a", "b.txt": "new b", "marker.json": "new"}
    write_files(tmp_path, dict.fromkeys(files, "old"), "marker.json")
    status = in_child(exit_at(call, lambda: write_files(tmp_path, files, "marker.json")))
    contents = {name: (tmp_path / name).read_text() if (tmp_path / name).exists() else None for name in files}
    if status == 0 or contents["marker.json"] == "new":
        assert contents == files
    elif contents["marker.json"] == "old":
        assert set(contents.values()) == {"old"}
    write_files(tmp_path, files, "marker.json")
    assert {*os.listdir(tmp_path)} == {"a.txt", "b.txt", "marker.json"}


def test_a_folder_in_the_place_of_a_file_costs_no_other_file(tmp_path):
    write_files(tmp_path, {"marker.json": "old"}, "marker.json")
    (tmp_path / "page.html").mkdir()
    with pytest.raises(IsADirectoryError, match="page.html"):
        write_files(tmp_path, {"page.html": "new", "marker.json": "new"}, "marker.json")
    assert (tmp_path / "marker.json").read_text() == "old"


def test_runs_without_a_name_get_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        runs = {stack.enter_context(locked_run(None)) for _ in range(8)}
    assert len(runs) == 8 and runs == {*Path("runs").iterdir()}


def test_a_locked_directory_is_refused_until_its_lock_is_closed(tmp_path):
    run_lock = lock(tmp_path)
    with pytest.raises(BlockingIOError, match="another process"), locked_run(str(tmp_path)):
        pass
    run_lock.close()
    with locked_run(str(tmp_path)):
        pass


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError) as error:
        lock(tmp_path / "run")
    assert str(error.value.filename).endswith(".lock") and (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("newest", ["runs/b", "runs/sweep/0", "runs/multirun/b/0"])
def test_the_newest_run_is_the_one_that_saved_last_whatever_the_time_of_its_files(newest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run yet"):
        find_run(None)
    first, *_, never_saved = runs = [
        Path(name) for name in ("runs/a", "sweep/0", "sweep/2", "sweep/10", newest, "runs/c")
    ]
    for run in runs:
        run.mkdir(parents=True)
        (run / "config.json").write_text("{}")
        if run != never_saved:
            save(run / "checkpoints", 1)
    shutil.copytree(first, "runs/copied later")
    os.utime(Path(newest, "checkpoints", MANIFEST), (1000, 1000))
    assert find_run(None) == Path(newest) and find_runs("sweep") == runs[1:4]
    save(first / "checkpoints", 2)  # resumed
    assert find_run(None) == first


def events_of(run):
    return EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0, "images": 0, "tensors": 0}).Reload()


MODEL = random_model()
N_WEIGHTS = sum(parameter.numel() for parameter in MODEL.parameters())
PACKED = pack_parameters(MODEL.parameters(), torch.float16)


# (first step, first step that was not recorded) of each part of a run that was killed
@pytest.mark.parametrize("parts", [[(0, 8), (5, 10), (7, 12)], [(0, 3), (0, 2)]])
def test_each_step_is_recorded_once_after_kills(parts, tmp_path):
    for first_step, end in parts:
        log = RunLog(tmp_path, first_step)
        for step in range(first_step, end):
            log.record(step, "train", {"loss": step + 0.5, "nested": {"inner": step}})
            log._weights.write(step, {"weights": PACKED})
        log.close()
        for name in ("metrics.jsonl", HISTORY_FILE):
            with (tmp_path / name).open("a") as file:
                file.write('{"step": 3, "spl')  # a line that the kill cut off
    assert [record["step"] for record in read_records(tmp_path)] == list(range(end))
    history = load_weight_history(tmp_path / HISTORY_FILE, N_WEIGHTS)
    assert history is not None and (history.steps, history.data) == (list(range(end)), [PACKED] * end)
    for tag in ("loss/train", "2_nested/inner"):
        assert [point.step for point in events_of(tmp_path).Scalars(tag)] == list(range(end))


def test_tensorboard_shows_finite_numbers_images_and_lines_of_text(tmp_path):
    log = RunLog(tmp_path)
    log.record(1, "train", {"loss": float("nan"), "norms": [1.0, float("inf")], "rate": 0.5})
    log.show(3, {"head_map/number": np.zeros((4, 5, 3), np.uint8)}, ["the cat → it", "a dog"])
    log.close()
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (record["loss"], record["norms"], record["rate"]) == (None, [1.0, None], 0.5)
    events = events_of(tmp_path)
    assert events.Tags()["scalars"] == ["other/rate/train"]
    (image,) = events.Images("head_map/number")
    assert (image.step, image.width, image.height) == (3, 5, 4)
    (text,) = events.Tensors("text/greedy/text_summary")
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (3, "    the cat → it\n    a dog\n")


def test_tensorboard_which_sorts_by_tag_shows_the_questions_then_the_loss_then_the_rest(run):
    tags, questions = events_of(run).Tags(), ["1_verb", "2_number", "3_gender"]
    for kind, groups in (("scalars", [*questions, "loss", "other"]), ("images", questions)):
        assert sorted({tag.partition("/")[0] for tag in tags[kind]}) == groups


def test_tensorboard_has_one_chart_of_the_losses_and_their_lower_bound(run):
    events = events_of(run)
    layout = Layout.FromString(events.Tensors(CONFIG_SUMMARY_TAG)[0].tensor_proto.string_val[0])
    (chart,) = layout.category[0].chart
    assert set(chart.multiline.tag) == {"loss/train", "loss/validation", "other/floor/validation"}
    assert set(chart.multiline.tag) <= set(events.Tags()["scalars"])


def test_every_record_of_a_run_is_read_by_its_split_and_question_or_named(run):
    metrics = load_metrics(run)
    assert [record.step for record in metrics.train] == [1, 2, 3, 4]
    speeds = [record.other["tokens_per_second"] for record in metrics.train]
    assert speeds[0] is None and all(speeds[1:])  # the first step compiles and records
    assert [record.step for record in metrics.validation] == [0, 1, 2, 3, 4] and metrics.has_ended(4)
    recorded = next(record for record in read_records(run) if record["split"] == "probe")
    [*_, point] = [point for point in metrics.probe if point.step == recorded["step"]]
    assert point.questions["number"].recorded() == recorded["number"]
    assert not metrics.has_ended(5)

    incomplete = '{"step": 20, "split": "train", "loss": 2.0}\n'
    for text, problem in (('{"step": 0}\n{"st\n{"step": 2}\n', "damaged"), (incomplete, "no field gradient_norm")):
        (run / "metrics.jsonl").write_text(text)
        with pytest.raises(UserError, match=f"metrics.jsonl: {problem}"):
            load_metrics(run)


@pytest.mark.parametrize(("old", "new"), [
    ('"step": 4', '"step": 1'), ('"step": 4', '"step": 4.5'), ('"weights": "', '"weights": "AAAA'),
    ('"weights": "', '"weights": "!!!!'), ('"weights"', '"other"'), ("{", "["),
])  # fmt: skip
def test_a_damaged_history_is_an_error(tmp_path, old, new):
    text = "".join(json.dumps({"step": step, "weights": PACKED}) + "\n" for step in (1, 4))
    assert old in text
    (tmp_path / HISTORY_FILE).write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=HISTORY_FILE):
        load_weight_history(tmp_path / HISTORY_FILE, N_WEIGHTS)
