"""A run from outside: what it leaves, and that nothing but the machine's own end can change where it goes."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data.corpus import CLASSES, load_corpus
from data.loader import training_batches
from model.transformer import Transformer
from tests.reliability.doors import Doors, Ended, Running
from training.checkpoint import load_checkpoint
from training.command_line import quoted
from training.evaluate import row_losses, token_losses, validation_loss
from training.logging import gap_lines
from training.optim import is_probe_step
from training.settings import typed_saved, typed_train
from training.setup import Run, prepare

ROOT = Path(__file__).parent.parent
QUICK = [
    "model=nano", "threads=1", "max_steps=240", "eval_every_steps=40", "log_every_steps=1", "tokens_per_batch=256",
    "validation_tokens=500", "probe_sequences=40", "sample_tokens=5", "data.n_train_stories=6000",
    "data.n_validation_stories=400", "data.n_test_templates=3", "data.n_test_pairs=2", "model.dropout=0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "unbroken, with a comma"
    door = [sys.executable, str(ROOT / "train.py"), f"out={out}", cache, *QUICK]
    ran = subprocess.run(door, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    (out / "stdout").write_text(ran.stdout)
    return out


def lines(run: Path, split: str) -> list[dict]:
    every = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["split"] == split]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(run, "train")]


def same_weights(one: Path, other: Path) -> bool:
    a, b = (load_checkpoint(run / "checkpoints")[0]["model"] for run in (one, other))
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_leaves_what_is_needed_to_read_it(unbroken: Path) -> None:
    assert {path.name for path in unbroken.iterdir()} - {"stdout"} == {
        "config.json", "tokenizer.json", "environment.json", "metrics.jsonl", "attention.jsonl", "checkpoints", "tb",
        ".lock",
    }  # fmt: skip
    config = json.loads((unbroken / "config.json").read_text())
    assert (
        config["run"]["max_steps"] == 240 and config["model"]["n_layer"] == 1 and config["data"]["source"] == "stories"
    )
    assert json.loads((unbroken / "environment.json").read_text())["threads"] == 1
    first, *_, last = lines(unbroken, "train")
    assert {
        "step",
        "split",
        "loss",
        "bits_per_byte",
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "seconds",
    } <= set(first)
    assert [step for step, _ in losses(unbroken)] == list(range(1, 241))
    assert last["loss"] < first["loss"]
    validation = lines(unbroken, "validation")
    assert [line["step"] for line in validation] == list(range(0, 241, 40))
    assert [line["whole"] for line in validation] == [False] * 6 + [True]
    assert set(validation[-1]["loss_by_class"]) == {"function", "content", "pronoun", "payoff", "end"}
    assert "counted_5grams" not in validation[-1] and "5-grams" not in (unbroken / "stdout").read_text()


def test_tensorboard_shows_losses_the_probe_and_the_map_of_heads(unbroken: Path) -> None:
    events = EventAccumulator(str(unbroken / "tb"), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    expected = {"loss/train", "loss/validation", "loss_by_class/payoff", "learning_rate/train", "gradient_norm/train"}
    expected |= {
        "tokens_per_second/train",
        "number/accuracy",
        "number/pronoun_contrast",
        "number/luck",
        "later_cue/accuracy",
    }
    assert expected <= set(tags["scalars"])
    assert not {"number/head", "seconds/train", "whole/validation"} & set(tags["scalars"])
    assert "custom_scalars__config__" in tags["tensors"]
    expected = {"V_S1_payoff/model", "head_types/previous", "probe_loss/payoff"}
    assert expected <= set(tags["scalars"])
    assert {"probe/number", "probe/later_cue", "probe/V_S1_pronoun_contrast", "it_to_cat/best_head"} <= set(
        tags["images"]
    )
    assert "sample/text_summary" in tags["tensors"]
    assert len(events.Images("probe/number")) == len(lines(unbroken, "probe"))


def test_the_small_probe_keeps_every_heads_scores_at_log_spaced_steps_and_at_evaluations(unbroken: Path) -> None:
    probes = lines(unbroken, "probe")
    steps = [step for step in range(241) if is_probe_step(step, 240) or step % 40 == 0]
    assert [line["step"] for line in probes] == steps and len(steps) > 50
    for line in probes:
        seen = line["number"]
        assert (
            len(seen["pronoun_contrast_heads"]) == 1
            and len(seen["pronoun_contrast_heads"][0]) == len(seen["accuracy_heads"][0]) == 2
        )
        assert seen["accuracy"] == pytest.approx(seen["accuracy_heads"][0][seen["head"]], abs=1e-4)
        assert 0.5 <= seen["luck"] <= 1 and set(line["head_types"]) >= {"previous", "induction", "first"}
    first, *_, last = probes
    assert last["V_S1_payoff"]["model"] < first["V_S1_payoff"]["model"]
    assert last["probe_loss"]["payoff"] < first["probe_loss"]["payoff"]


def test_the_gap_to_the_floor_is_over_the_same_tokens_with_its_error_over_stories(cache: str, tmp_path: Path) -> None:
    """A floor made of the model's own losses leaves no gap; one that lies above them is found out."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        settings = typed_train(compose("train", [quoted(f"out={tmp_path / 'run'}"), quoted(cache), *QUICK]))
    run = prepare(settings)
    run.model.eval()
    split = run.corpus.validation
    floor = np.zeros(len(split.tokens), dtype=np.float32)
    floor[1:] = own_losses(run)
    noise = np.random.default_rng(0).normal(0.25, 1, len(floor)).astype(np.float32)
    found = {}
    for name, some in (("none", None), ("own", floor), ("below", floor - noise), ("above", floor + 0.5)):
        corpus = replace(run.corpus, validation=replace(split, floor=some))
        found[name] = validation_loss(replace(run, corpus=corpus), None)
    run.recorder.close()
    run.claim.close()
    assert not any("gap" in name or "floor" in name for name in found["none"]) and gap_lines(found["none"]) == []
    assert found["own"]["gap"] == pytest.approx(0, abs=1e-3)
    below = found["below"]
    assert below["gap"] == pytest.approx(noise[1:].mean(), abs=1e-3)
    assert below["loss"] - below["floor"] == pytest.approx(below["gap"])
    for place, name in enumerate(CLASSES):
        there = split.classes[1:] == place
        assert below["gap_by_class"][name] == pytest.approx(noise[1:][there].mean(), abs=2e-3)
        assert below["gap_error_by_class"][name] == pytest.approx(1 / there.sum() ** 0.5, rel=0.15)
    [line] = gap_lines(below)
    assert line.startswith("gap     to the floor, nats/token: all 0.2") and "payoff 0." in line
    _, warning = gap_lines(found["above"])
    assert warning.startswith("warning: below the floor")


def own_losses(run: Run) -> np.ndarray:
    """Return the loss of every validation token but the first, in the order of the tokens."""
    split, found = run.corpus.validation, []
    for first, last in zip(split.starts, split.starts[1:], strict=False):
        story = torch.from_numpy(split.tokens[first : last + 1].astype(np.int64))[None]
        with torch.no_grad(), run.training.place.autocast():
            logits = run.model(story[:, :-1])
        found.append(token_losses(logits, story[:, 1:])[0])
    return torch.cat(found).numpy()


def test_what_is_printed_says_where_and_what_and_nothing_moves_on_a_log(unbroken: Path) -> None:
    out = (unbroken / "stdout").read_text()
    for word in ("device", "data", "model", "run", "tensorboard --logdir", "step   240", "python eval.py"):
        assert word in out
    assert "\r" not in out and "\033" not in out


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    doors: Doors, unbroken: Path, cache: str, tmp_path: Path
) -> None:
    """The unbroken run is of a Python of its own, and all others here of forks: these give the same to the bit."""
    for seed, same in ((1, True), (2, False)):
        out = tmp_path / str(seed)
        assert doors.run("train.py", f"out={out}", cache, *QUICK, f"seed={seed}", "max_steps=240").status == 0
        assert (losses(out) == losses(unbroken)) is same


def start_and_wait(doors: Doors, out: Path, cache: str, step: int, *overrides: str) -> Running:
    """Start a run, or go on with one, and return once it has recorded `step`."""
    run = doors.start("train.py", f"out={out}", cache, *QUICK, *overrides)
    while not run.has_ended:
        text = (out / "metrics.jsonl").read_text() if (out / "metrics.jsonl").exists() else ""
        if any(json.loads(line)["step"] >= step for line in text.splitlines(keepends=True) if line.endswith("\n")):
            return run
        time.sleep(0.005)
    raise AssertionError(f"the run ended before step {step}: {run.wait().err}")


def resume(doors: Doors, out: Path, cache: str, *overrides: str) -> Ended:
    return doors.run("train.py", f"out={out}", "resume=true", cache, *QUICK, *overrides)


@pytest.mark.slow
def test_killed_and_resumed_the_losses_are_bit_identical_to_the_unbroken_run(
    doors: Doors, unbroken: Path, cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    for step, overrides in ((50, []), (130, ["resume=true"])):
        process = start_and_wait(doors, out, cache, step, *overrides)
        process.send(signal.SIGKILL)
        assert process.wait().status == -signal.SIGKILL
    assert resume(doors, out, cache).status == 0
    assert losses(out) == losses(unbroken)
    assert same_weights(out, unbroken)
    assert lines(out, "probe") == lines(unbroken, "probe")
    assert (out / "attention.jsonl").read_bytes() == (unbroken / "attention.jsonl").read_bytes()
    assert [line["step"] for line in lines(out, "validation")] == list(range(0, 241, 40))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_a_run_saves_and_leaves_and_goes_on_exactly(
    doors: Doors, unbroken: Path, cache: str, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "stopped"
    process = start_and_wait(doors, out, cache, 60)
    process.send(number)
    assert process.wait(20).status == 128 + number
    stopped_at = load_checkpoint(out / "checkpoints")[0]["step"]
    assert stopped_at == losses(out)[-1][0]  # no step was lost
    assert resume(doors, out, cache).status == 0
    assert losses(out) == losses(unbroken)
    assert same_weights(out, unbroken)


def test_accumulating_two_batches_is_one_step_over_all_their_tokens(doors: Doors, cache: str, tmp_path: Path) -> None:
    """Forty batches of one step are one epoch of another size: the loss is the mean over tokens, not over batches."""
    common = [*QUICK, "model.dropout=0", "precision=float32", "data.n_train_stories=6000", cache, "max_steps=1"]
    found = {}
    for tokens, accumulate in ((256, 2), (256, 1)):
        out = tmp_path / f"{tokens} {accumulate}"
        arguments = [f"out={out}", *common, f"tokens_per_batch={tokens}", f"gradient_accumulation_steps={accumulate}"]
        assert doors.run("train.py", *arguments).status == 0
        found[accumulate] = losses(out)[0][1]
    assert found[1] != found[2]
    assert found[2] == pytest.approx(two_batches(tmp_path / "256 2", cache), rel=1e-5)


def two_batches(run: Path, cache: str) -> float:
    """Return the untrained model's mean loss over all tokens of the first two batches together."""
    settings = typed_saved(json.loads((run / "config.json").read_text()))
    corpus = load_corpus(settings.data, Path(cache.removeprefix("cache_dir=")))
    batches = training_batches(corpus.train, tokens_per_batch=256, context_length=64, seed=settings.run.seed)
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), settings.run.seed).eval()
    rows = row_losses(model, [(one.model_inputs(single_document=True), one.targets, None, None) for one in map(batches.at, (0, 1))], 1)
    return (rows.losses.sum() / rows.counts.sum()).item()


def test_a_directory_that_holds_a_run_is_refused_and_left_as_it_is(doors: Doors, unbroken: Path, cache: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    ran = doors.run("train.py", f"out={unbroken}", cache, *QUICK)
    assert ran.status == 2
    assert ran.err.count("\n") == 1 and "is not empty" in ran.err and "resume=true" in ran.err
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before


@pytest.mark.slow
def test_a_resumed_run_keeps_its_own_settings_and_another_is_refused_by_name(
    doors: Doors, unbroken: Path, cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "again"
    process = start_and_wait(doors, out, cache, 60)
    process.send(signal.SIGKILL)
    process.wait()
    bare = ["train.py", "resume=true", f"out={out}", cache]
    ran = doors.run(*bare, "model.dropout=0.3")
    assert ran.status == 2 and ran.err.count("\n") == 1
    assert doors.run(*bare).status == 0
    assert losses(out) == losses(unbroken)
    ran = resume(doors, out, cache, "model.dropout=0.3")
    assert ran.status == 2 and "model.dropout is 0.1, not 0.3" in ran.err
    assert doors.run(*bare, "max_steps=240").status == 0


def test_a_run_without_its_files_is_one_line(doors: Doors, unbroken: Path, cache: str, tmp_path: Path) -> None:
    for missing in ("config.json", "checkpoints", "tokenizer.json"):
        out = tmp_path / missing
        shutil.copytree(unbroken, out)
        shutil.rmtree(out / missing) if missing == "checkpoints" else (out / missing).unlink()
        ran = doors.run("eval.py", f"run={out}", cache)
        assert ran.status == 2 and ran.err.count("\n") == 1 and missing in ran.err


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "{"),
        ("config.json", None),  # another width than the checkpoint's
        ("tokenizer.json", "{}"),
        ("probe/probe.json", "{}"),
    ],
)
def test_a_damaged_run_is_one_line(
    doors: Doors, unbroken: Path, cache: str, tmp_path: Path, file: str, content: str | None
) -> None:
    shutil.copytree(unbroken, out := tmp_path / "run")
    if content is None:
        content = (out / file).read_text().replace('"d_model": 32', '"d_model": 48')
    (out / file).parent.mkdir(exist_ok=True)
    (out / file).write_text(content)
    ran = doors.run("eval.py", f"run={out}", cache, "text=The cat sat near the buses. It")
    assert ran.status == 2 and ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err


def test_a_run_whose_text_has_changed_is_not_gone_on_with(doors: Doors, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mat.\n" * 100)
    quick = ["data=shakespeare", f"data.path={tmp_path / 'text.txt'}", "model=nano", "threads=1", "max_steps=4"]
    quick += ["eval_every_steps=2", f"cache_dir={tmp_path / 'cache'}", f"out={tmp_path / 'run'}"]
    assert doors.run("train.py", *quick).status == 0
    (tmp_path / "text.txt").write_text("A zebra sat on the mat.\n" * 100)
    ran = doors.run("train.py", *quick[-2:], "resume=true")
    assert ran.status == 2 and "has changed since" in ran.err and ran.err.count("\n") == 1


@pytest.fixture(scope="module")
def sweep(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep, of two")
    settings = [f"out={out}", cache, *QUICK, "max_steps=2", "seed=1,2", "data.n_test_templates=2"]
    ran = doors.run("train.py", "-m", *settings, cwd=out.parent)
    assert ran.status == 0, ran.err
    assert "[0] step     2  validation" in ran.out and "[1] step     2  validation" in ran.out
    return out


def test_each_run_of_a_sweep_has_its_own_directory(sweep: Path) -> None:
    assert [json.loads((sweep / n / "config.json").read_text())["run"]["seed"] for n in "01"] == [1, 2]


def test_runs_that_cannot_be_compared_are_one_line(
    doors: Doors, unbroken: Path, sweep: Path, cache: str, tmp_path: Path
) -> None:
    shutil.copytree(sweep / "0", tmp_path / "other" / "0")
    shutil.copytree(unbroken, tmp_path / "other" / "1")
    shutil.copytree(sweep / "1", tmp_path / "half" / "0")
    path = tmp_path / "half" / "0" / "metrics.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"whole": true' not in line))
    for runs, message in ((tmp_path / "other", "differ in more than their seed"), (tmp_path / "half", "has not ended")):
        ran = doors.run("eval.py", f"runs={runs}", cache)
        assert ran.status == 2 and ran.err.count("\n") == 1 and message in ran.err, ran.err


def test_a_finished_run_can_be_resumed_further(doors: Doors, unbroken: Path, cache: str, tmp_path: Path) -> None:
    out = tmp_path / "longer"
    shutil.copytree(unbroken, out)
    ran = resume(doors, out, cache)
    assert ran.status == 0 and losses(out) == losses(unbroken)


def test_a_model_without_a_mask_is_said_to_cheat_and_its_heads_are_not_probed(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    out = tmp_path / "cheat"
    settings = [
        f"out={out}",
        cache,
        *QUICK,
        "variant=no_mask",
        "max_steps=60",
        "eval_every_steps=60",
        "sample_tokens=3",
    ]
    trained = doors.run("train.py", *settings)
    assert trained.status == 0, trained.err
    assert "this model cheats" in trained.out and "a bug or a leak" not in trained.out
    assert "number" not in trained.out
    asked = doors.run("eval.py", f"run={out}", cache)
    assert asked.status == 0 and "this model cheats" in asked.out, asked.err
    last = [one for one in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if one.get("whole")][-1]
    told = float(re.search(r"loss +([\d.]+) nats", asked.out)[1])  # in float32
    assert told == pytest.approx(last["loss"], abs=0.01) and not (out / "probe").exists()
    words = [f"run={out}", "text=The cat sat near the buses. It"]
    look = doors.run("eval.py", *words, cache)
    assert look.status == 2 and look.err.count("\n") == 1 and "model.mask=none" in look.err


def test_a_sentence_of_ones_own_is_shown_with_what_cannot_be_known(doors: Doors, unbroken: Path, cache: str) -> None:
    def ask(text: str) -> Ended:
        return doors.run("eval.py", f"run={unbroken}", cache, f"text={text}")

    out = ask("The cat sat near the buses. It").out
    assert "leaves one candidate: cat" in out and 'at "It"' in out and "L0H1" in out
    out = ask("The zebra, the cat and the mat: it was tired.").out
    assert "does not know zebra" in out and "the clue comes after the pronoun" in out and 'at "tired"' in out
    nothing = ask("The cat purred.")
    assert nothing.status == 0 and nothing.err == "" and "L0H1" not in nothing.out
    assert "no pronoun in text" in nothing.out and "only the page shows it" in nothing.out


def test_a_run_goes_on_from_a_prompt(doors: Doors, unbroken: Path) -> None:
    ran = doors.run("model/generate.py", f"run={unbroken}", "prompt=One sunny day,", "n_tokens=8")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("One sunny day,") and len(ran.out) > len("One sunny day,\n")


@pytest.mark.slow
def test_a_run_on_text_prints_bits_per_byte(doors: Doors, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The cat sat on the mat. It was tired, and so it slept.\n" * 200)
    common = ["model=nano", "threads=1", "max_steps=20", "eval_every_steps=10", f"cache_dir={tmp_path / 'cache'}"]
    for kind in ("characters", "bpe", "words"):
        out = tmp_path / kind
        data = ["data=text", f"data.tokenizer={kind}", f"data.path={tmp_path / 'text.txt'}"]
        ran = doors.run("train.py", *data, f"out={out}", *common)
        assert ran.status == 0, ran.err
        assert ("and is too low" in ran.out) == (kind == "words")  # what bits/byte leave out is said
        ran = doors.run("eval.py", f"run={out}", common[-1])
        assert ran.status == 0 and "bits/byte" in ran.out, ran.err
        assert ("and is too low" in ran.out) == (kind == "words")
        printed = float(re.search(r"([0-9.]+) bits/byte", ran.out)[1])
        assert printed == pytest.approx(lines(out, "validation")[-1]["bits_per_byte"], rel=0.05)  # one is in bfloat16


def test_a_run_that_learns_by_heart_keeps_its_best_step_and_says_so_and_eval_reads_it(
    doors: Doors, tmp_path: Path
) -> None:
    words = np.random.default_rng(0).integers(97, 123, size=(500, 3)).astype(np.uint8)
    (tmp_path / "text.txt").write_text(" ".join(bytes(word).decode() for word in words))  # nothing in it generalises
    out = tmp_path / "run"
    quick = ["data=shakespeare", f"data.path={tmp_path / 'text.txt'}", "data.validation_fraction=0.3", "threads=1"]
    quick += [
        "max_steps=120",
        "eval_every_steps=20",
        "tokens_per_batch=512",
        "sample_tokens=0",
        "validation_tokens=400",
    ]
    settings = [*quick, f"cache_dir={tmp_path / 'cache'}", f"out={out}"]
    ran = doors.run("train.py", *settings)
    assert ran.status == 0, ran.err
    partly = [one["loss"] for one in lines(out, "validation")[:-1]]  # the last is of the whole split
    best = 20 * partly.index(min(partly))
    assert 0 < best < 100 and partly[-1] > min(partly) + 0.1
    state, _ = load_checkpoint(out / "checkpoints", best=True)
    assert state["step"] == best and state["best_loss"] == min(partly)
    assert load_checkpoint(out / "checkpoints")[0]["step"] == 120
    bits = next(one["bits_per_byte"] for one in lines(out, "validation") if one["step"] == best)
    *_, grams, said, speed, done = ran.out.splitlines()
    last = lines(out, "validation")[-1]
    counted = last["counted_5grams"]
    assert grams == (
        f"counted 5-grams of the same text: {counted['loss']:.3f} nats/token, {counted['bits_per_byte']:.3f} "
        f"bits/byte; this model {last['loss']:.3f}, {last['bits_per_byte']:.3f}"
    )
    assert counted["tokens"] == counted["of_tokens"] and 2 < counted["loss"] < 3.1  # letters at random, spaces known
    assert not any("counted_5grams" in one for one in lines(out, "validation")[:-1])
    assert said == (
        f"best    step {best}: {min(partly):.3f} nats/token, {bits:.3f} bits/byte on the first 400 tokens of "
        "validation, the lowest; eval.py reads it"
    )
    assert done.startswith("done in ")
    share = lines(out, "speed")[-1]["utilisation"]
    assert re.fullmatch(
        rf"speed   [\d,]+ tokens/s, {share * 100:.0f} % of the matmul ceiling measured here \(\w+, [\d,]+ \wFLOP/s\)",
        speed,
    )
    asked = doors.run("eval.py", f"run={out}", f"cache_dir={tmp_path / 'cache'}")
    assert asked.status == 0 and f"best checkpoint: step {best} of 120" in asked.out, asked.err
