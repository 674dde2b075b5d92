"""train.py: what a run writes; sweeps; runs that are killed, stopped or damaged and resumed end as without a stop."""

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probe.opened_run import open_run
from probe.saved import training_command
from settings.command_line import hydra_arguments
from settings.train import compose_settings, flatten
from tests.program import FEW_STORIES, SHORT, SIGNALS, SMALL, forked, process_state, run_program
from train import GROUPS
from training.checkpoint import load_checkpoint, read_manifest
from training.device import StopRequest
from training.metrics import read_records


def losses_of(run, split="train"):
    """Return the recorded losses by step."""
    return {record["step"]: record["loss"] for record in read_records(run) if record["split"] == split}


def config_of(run):
    return json.loads((run / "config.json").read_text())


def resume(run, *arguments, **options):
    return run_program("train.py", "resume=true", f"out={run}", *arguments, **options)


def hashes(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_resumed_run_keeps_its_settings_but_those_that_change_no_step(run, cache):
    old = config_of(run)
    arguments = ["max_steps=6", "log_every_steps=2", "device=cpu", "seed=1", "optim=muon"]  # the last two are repeated
    assert resume(run, cache, *arguments).status == 0
    changed = {"max_steps": 6, "log_every_steps": 2, "device": "cpu", "out": str(run)}
    assert config_of(run) == old | {"run": old["run"] | changed}
    assert [*losses_of(run)] == [1, 2, 3, 4, 6] and [*losses_of(run, "validation")] == [0, 1, 2, 3, 4, 6]


CHANGED = {
    "seed=2": "seed=2: a resumed run keeps seed=1; start a new one from it with init=",
    "model.d_mlp=64": "model.d_mlp=64: a resumed run keeps model.d_mlp=",
    "variant=one_head": "model.n_layer=",
    "optim=adamw": "optim.name=adamw: a resumed run keeps optim.name=muon",
    "optim.learning_rate=0.001": "optim.learning_rate=0.001: a resumed run keeps ",
    "eval_every_steps=5": "eval_every_steps=5: a resumed run keeps ",
    "precision=bfloat16": "precision=bfloat16: a resumed run keeps ",
    "data.seed=7": "data.seed=7: a resumed run keeps ",
    "max_steps=3": "max_steps=3: the run has already taken 4 steps",
}


@pytest.mark.parametrize(("override", "problem"), CHANGED.items())
def test_a_resume_with_another_setting_is_refused(run, cache, override, problem):
    old = hashes(run)
    assert problem in resume(run, cache, override).error
    assert hashes(run) == old


def train_text(folder, path, *arguments):
    """Train a small model on a text, from its folder."""
    new = ["data=text", f"data.path={path}", "data.vocab_size=300", "model=nano", *SHORT]
    return run_program("train.py", *new, *arguments, cwd=folder)


def test_a_text_that_has_moved_is_read_from_its_new_path_and_another_text_is_refused(tmp_path):
    text = "".join(f"Lily met Tom in park {number}. She was happy.\n" for number in range(300))
    (tmp_path / "old.txt").write_text(text)
    assert train_text(tmp_path, "old.txt", "out=run").status == 0
    (tmp_path / "old.txt").rename(tmp_path / "moved, here.txt")
    (tmp_path / "other.txt").write_text(text[1:])
    assert "the text, or" in resume("run", "max_steps=6", "data.path=other.txt", cwd=tmp_path).error
    assert resume("run", "max_steps=6", "data.path=moved, here.txt", cwd=tmp_path).status == 0
    assert [*losses_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


def test_a_run_whose_last_evaluation_reads_a_part_of_the_text_has_ended(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"Lily met Tom in park {i}. She was happy.\n" for i in range(3000)))
    result = train_text(tmp_path, "long.txt", "out=run", "data.validation_fraction=0.5", "validation_tokens=128")
    assert "the loss is that of the first 8,192 of" in result.out
    result = run_program("eval.py", "run=run", "text=Lily met", cwd=tmp_path)
    assert "step 4 of 4; " in result.out and result.status == 0


def test_the_page_prints_the_command_that_gives_the_settings_of_a_run(trained_run, tmp_path):
    (tmp_path / "a text, of mine.txt").write_text("Lily met Tom. She was happy.\n" * 500)
    settings = ["experiment=english", "data.path=a text, of mine.txt", "data.validation_path=null", "model.n_layer=1"]
    assert run_program("train.py", *settings, *SHORT, "out=run", cwd=tmp_path).status == 0
    for run in (trained_run, tmp_path / "run"):
        opened = open_run(run, torch.device("cpu"))
        _, _, *arguments = shlex.split(*training_command(opened))
        composed = compose_settings(hydra_arguments(arguments, GROUPS))
        of_command, of_run = (flatten(each) | {"out": "", "cache_dir": ""} for each in (composed, opened.settings))
        assert of_command == of_run and not any(argument.startswith(("out=", "cache_dir=")) for argument in arguments)


def test_the_files_of_a_folder_or_a_pattern_are_counted_before_they_are_read(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / f"texts/{number}.txt").write_text("Lily met Tom in the park. She was happy.\n" * 5000)
    for path, count in (("texts", "3 file(s), 0.6 MB"), ("texts/[01].txt", "2 file(s), 0.4 MB"), ("texts/0.txt", "")):
        result = train_text(tmp_path, path)
        assert result.status == 0 and result.out.startswith(f"data    {count} from {path}\n" if count else "device")


@pytest.mark.parametrize(("kept", "problem"), [(0, "missing or empty"), (None, "")])
def test_a_resume_says_which_records_are_lost(kept, problem, run, cache):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines[:4]] == [0, 0, 1, 1]
    (run / "metrics.jsonl").write_text("".join(lines[:kept]))
    result = resume(run, "max_steps=6", "probe_sequences=8", cache)
    warnings = [line for line in result.err.splitlines() if "metrics.jsonl" in line]
    expected = f"warning: {run / 'metrics.jsonl'}: {problem}; records up to step 4 are lost"
    assert result.status == 0 and warnings == ([expected] if problem else [])


def raise_disk_full(*arguments, **named):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("function", "name"), [
    ("pathlib.Path.write_bytes", "cache/stories-"), ("pathlib.Path.write_text", "cache/stories-"),
    ("tensorboard.compat.tensorflow_stub.io.gfile.LocalFileSystem.append", "run: "),
])  # fmt: skip
def test_on_a_full_disk_one_line_says_what_could_not_be_written(function, name, tmp_path, monkeypatch):
    monkeypatch.setattr(function, raise_disk_full)
    error = run_program("train.py", "out=run", "cache_dir=cache", *SMALL, cwd=tmp_path).error
    assert error.startswith(name) and error.endswith(": No space left on device")


@pytest.mark.parametrize("config", [None, "{", "[]", "[" * 100_000], ids=["no checkpoint", "cut", "list", "deep"])
def test_a_damaged_run_is_refused_and_stays(run, cache, config):
    if config is None:
        shutil.rmtree(run / "checkpoints")
    else:
        (run / "config.json").write_text(config)
    old = hashes(run)
    assert resume(run, cache, "max_steps=6").error
    assert hashes(run) == old


def test_an_unusable_directory_is_refused_and_stays_as_it_is(run, cache):
    old = hashes(run)
    assert "resume=true" in run_program("train.py", f"out={run}", cache, *SMALL).error
    assert f"out={run}/config.json/x: " in run_program("train.py", f"out={run}/config.json/x", cache, *SMALL).error
    if os.access("/sys", os.F_OK):
        assert "/sys/run" in run_program("train.py", "out=/sys/run", cache, *SMALL).error
    assert hashes(run) == old
    run.chmod(0o555)
    if not os.access(run, os.W_OK):  # as root everything can be written
        assert str(run) in resume(run, "max_steps=6", cache).error


def test_a_sweep_writes_each_run_to_a_folder_and_a_resume_changes_no_finished_run(cache, tmp_path):
    sweep, states = tmp_path / "sweep", []
    # The experiment is a sweep, with and without -m.
    lab = ["experiment=lab/heads", "variant=standard", "out=sweep", cache, *SMALL]
    for arguments in (["seed=1,2"], ["-m", "seed=1,2,3", "resume=true"]):
        result = run_program("train.py", *lab, *arguments, cwd=tmp_path)
        assert result.status == 0 and re.search(r"^\[1\] .*seed=2", result.out, re.MULTILINE)
        shutil.rmtree(sweep / "0" / "tb")  # TensorBoard starts a file
        states.append(hashes(sweep / "0"))
    for seed, name in enumerate("012", 1):
        assert config_of(sweep / name)["run"]["seed"] == seed and [*losses_of(sweep / name)] == [1, 2, 3, 4]
    assert states[0] == states[1] and losses_of(sweep / "0") != losses_of(sweep / "1")
    assert [*tmp_path.iterdir()] == [sweep]


def test_a_run_starts_from_a_run_or_its_export_and_its_resume_does_not_need_them(run, cache, tmp_path):
    pytest.importorskip("transformers")
    assert run_program("antecedent_lab/__main__.py", "export", f"run={run}", f"out={tmp_path / 'export'}").status == 0

    def start(name, source, *arguments):
        out = tmp_path / name
        small = [*SHORT, *FEW_STORIES, cache, "validation_tokens=12800"]
        result = run_program("train.py", f"init={source}", f"out={out}", *small, *arguments)
        assert result.status == 0 and f"; from {source}, learning rates " in result.out
        return out

    same = start("same", run)
    before, after = (losses_of(each, "validation") for each in (run, same))
    assert before[4] == after[0]  # both of the whole split
    # The weights that it began with are no result of this run, however the loss rises.
    [best] = [entry.step for entry in read_manifest(same / "checkpoints") if entry.best]
    assert best > 0
    for name in ("learning_rate", "embedding_learning_rate"):
        assert config_of(same)["optim"][name] == pytest.approx(config_of(run)["optim"][name] / 10)

    # Other stories, at a given rate
    other = ["data.seed=7", "optim.learning_rate=0.02"]
    first, second = start("from run", run, *other), start("from export", tmp_path / "export", *other)
    assert losses_of(first) == losses_of(second) != losses_of(same)
    checksums = {json.loads((out / "environment.json").read_text())["init_sha256"] for out in (first, second)}
    assert len(checksums) == 1 and len(*checksums) == 64
    config = config_of(first)
    assert (config["run"]["init"], config["optim"]["learning_rate"]) == (str(run), 0.02)

    # A resume from step 2, without the source
    (tmp_path / "export").rename(tmp_path / "moved")
    (second / "checkpoints" / "step_00000004.pt").unlink()
    assert f"init={run}: a resumed run keeps init=" in resume(second, cache, f"init={run}").error
    assert resume(second, cache).status == 0
    assert_same_results(second, first)
    shutil.rmtree(second / "checkpoints")
    (second / "metrics.jsonl").unlink()
    assert "was stopped before its first checkpoint" in resume(second, cache).error


def test_words_that_the_first_text_lacks_are_counted_in_a_text_and_refused_in_stories(run, cache, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The cat met Lily in Paris. She was happy.\n" * 300)
    start = [*SHORT, cache, "data=text", f"data.path={text}"]
    result = run_program("train.py", f"init={run}", f"out={tmp_path / 'text'}", *start)
    assert result.status == 0 and "(unknown tokens: " in result.out
    assert run_program("eval.py", f"run={tmp_path / 'text'}", cache).status == 0
    words = ["data.tokenizer=words", "data.vocab_size=5"]
    assert run_program("train.py", f"out={tmp_path / 'words'}", *start, *words).status == 0
    stories = [f"init={tmp_path / 'words'}", f"out={tmp_path / 'stories'}", *SHORT, *FEW_STORIES, cache]
    assert "the tokenizer lacks " in run_program("train.py", *stories).error
    assert not (tmp_path / "stories").exists()


RUN = [
    *SMALL, "threads=1", "max_steps=40", "eval_every_steps=8", "model.dropout=0.1", "precision=float32",
    "probe_sequences=24",
]  # fmt: skip


def train(out, cache, *overrides):
    return run_program("train.py", f"out={out}", cache, *RUN, *overrides)


def end_at(pid, out, step, number):
    """Sends a signal as soon as metrics.jsonl has a line of `step`, and returns the exit status."""
    path, end = out / "metrics.jsonl", time.monotonic() + 120
    while not (path.exists() and f'"step": {step},' in path.read_text(errors="replace")):
        assert time.monotonic() < end, f"no step {step}"
        time.sleep(0.005)
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def assert_same_results(out, reference):
    """Compares all records but the speed, and the weights and optimizer state of the newest checkpoints."""
    speed = {"seconds": 0, "tokens_per_second": 0}
    records, expected = ([record | speed for record in read_records(run)] for run in (out, reference))
    assert records == expected
    state, expected_state = (load_checkpoint(run / "checkpoints") for run in (out, reference))
    for part in ("model", "optimizer"):
        torch.testing.assert_close(state[part], expected_state[part], rtol=0, atol=0)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, cache):
    """A run without a stop."""
    out = tmp_path_factory.mktemp("runs") / "reference"
    result = train(out, cache)
    assert result.status == 0 and result.err == ""
    (out.parent / "stdout.txt").write_text(result.out)
    return out


def test_the_validation_loss_is_also_recorded_where_the_probe_looks_and_these_steps_save_nothing(
    reference,
):
    assert [*losses_of(reference, "validation")] == [0, 4, 5, 8, 10, 15, 16, 20, 24, 30, 32, 40]
    assert {path.name for path in (reference / "checkpoints").glob("*.pt")} == {"step_00000032.pt", "step_00000040.pt"}


@pytest.mark.slow
def test_a_run_killed_five_times_ends_the_same(reference, tmp_path, cache):
    out = tmp_path / "run"
    for step in (0, 7, 16, 25, 33):
        pid = forked(lambda: train(out, cache, f"resume={out.exists()}").status)
        assert end_at(pid, out, step, signal.SIGKILL) == -signal.SIGKILL
    assert train(out, cache, "resume=true").status == 0
    assert_same_results(out, reference)
    events = EventAccumulator(str(out / "tb"), size_guidance={"scalars": 0}).Reload()
    assert [point.step for point in events.Scalars("loss/train")] == list(range(1, 41))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_and_the_run_resumes_exactly(number, reference, tmp_path, cache):
    out = tmp_path / "run"
    assert end_at(forked(lambda: train(out, cache).status), out, 10, number) == 128 + number
    step = max(record["step"] for record in read_records(out))
    assert load_checkpoint(out / "checkpoints")["step"] == step
    assert train(out, cache, "resume=true").status == 0
    assert_same_results(out, reference)


def test_a_run_that_stops_before_its_first_evaluation_is_tested_as_trained(tmp_path, cache):
    out = tmp_path / "run"
    assert end_at(forked(lambda: train(out, cache, "eval_every_steps=40").status), out, 10, signal.SIGINT) == 130
    assert load_checkpoint(out / "checkpoints", "best")["step"] >= 10


def test_a_resumed_run_that_stops_early_keeps_the_checkpoint_that_was_the_best(tmp_path, cache):
    out = tmp_path / "run"
    assert train(out, cache, "eval_every_steps=1000", "probe_sequences=0").status == 0  # evaluated at its end alone
    best = load_checkpoint(out / "checkpoints", "best")["step"]
    for step in (50, 70):
        assert end_at(forked(lambda: resume(out, "max_steps=4000").status), out, step, signal.SIGINT) == 130
        assert load_checkpoint(out / "checkpoints")["step"] >= step
        assert load_checkpoint(out / "checkpoints", "best")["step"] == best > 0


def test_stories_that_the_probe_refuses_leave_no_run(tmp_path):
    shares = ["data.share_verb=0.98", "data.share_agreement=0.01", "data.share_no_pronoun=0.01"]
    new = ["out=run", *SMALL, "probe_sequences=40"]
    assert "the tokenizer lacks" in run_program("train.py", *new, *shares, cwd=tmp_path).error
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_run_prints_fifteen_lines_and_divergence_names_the_learning_rate(reference, cache):
    out = (reference.parent / "stdout.txt").read_text()
    assert len(out.splitlines()) <= 15 and f"eval.py run={reference} {cache}\n" in out  # works when pasted
    overrides = ["optim.learning_rate=1e17", "optim.embedding_learning_rate=1e17", "optim.warmup_steps=0"]
    assert "optim.learning_rate" in train(reference.parent / "diverged", cache, *overrides).error


def test_an_ignored_signal_and_a_handler_of_another_library_stay():
    calls: list[int] = []
    with process_state():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
        stop = StopRequest()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal is None and calls == [signal.SIGTERM]


@pytest.mark.slow
def test_a_second_signal_ends_the_process_unless_it_is_an_echo_of_the_first():
    """torchrun passes Ctrl-C on to processes that got it from the terminal too."""
    reader, writer = os.pipe()

    def wait():
        StopRequest()
        os.write(writer, b"ready")
        time.sleep(60)

    pid = forked(wait)
    assert os.read(reader, 5) == b"ready"
    ends = []
    for seconds in (0.2, 2.2, 0.5):
        os.kill(pid, signal.SIGTERM)
        time.sleep(seconds)
        ends.append(os.waitpid(pid, os.WNOHANG))
    assert ends == [(0, 0), (0, 0), (pid, signal.SIGTERM)]
