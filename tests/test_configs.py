"""Settings: every shipped file loads, and every mistake is one line that says what was meant."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from data.config import StoriesConfig, TextConfig, TokenizerKind
from model.transformer import Transformer, n_parameters
from training.command_line import check_overrides, flags_first, quoted
from training.settings import (
    EvalConfig,
    Format,
    Optimizer,
    Precision,
    TrainSettings,
    check_seeds,
    check_variants,
    of_result,
    resumed,
    typed_eval,
    typed_export,
    typed_generate,
    typed_saved,
    typed_train,
)
from training.sweeps import jobs, of_sweep

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
CHOICES = [
    f"{group}={path.relative_to(CONFIGS / group).with_suffix('').as_posix()}"
    for group in ("model", "data", "optim", "experiment", "variant")
    for path in sorted((CONFIGS / group).rglob("*.yaml"))
    if not path.name.startswith("_")
]


def train(*overrides: str) -> TrainSettings:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return typed_train(compose("train", [*overrides]))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_shipped_file_makes_settings(choice: str) -> None:
    needs = {"data=hub": ["data.name=own/name"]} | {one: ["data.path=x.txt"] for one in NEED_PATH}
    settings = train(choice, *needs.get(choice, []))
    assert settings.run.max_steps > 0


SHAKESPEARE = [f"experiment=shakespeare/{path.stem}" for path in CONFIGS.glob("experiment/shakespeare/*.yaml")]
NEED_PATH = ("data=shakespeare", *SHAKESPEARE, "data=text", "experiment=english")


@pytest.mark.parametrize(("name", "in_blocks", "with_4096"), [("small", 10.6, 12.2), ("base", 27.3, 29.4)])
def test_the_larger_models_are_as_large_as_their_files_say(name: str, in_blocks: float, with_4096: float) -> None:
    settings = train(f"model={name}").model
    model = Transformer(settings, 4096, seed=0)
    assert round(n_parameters(model.blocks) / 1e6, 1) == in_blocks
    assert round(n_parameters(model) / 1e6, 1) == with_4096
    said = (CONFIGS / "model" / f"{name}.yaml").read_text()
    assert f"{in_blocks} M weights in the blocks; {with_4096} M with a vocabulary of 4,096" in said
    assert settings.context_length == {"small": 256, "base": 512}[name]


def test_every_shipped_probe_makes_settings() -> None:
    for path in sorted((CONFIGS / "probe").glob("*.yaml")):
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            settings, probe = typed_eval(compose("eval", [f"probe={path.stem}"]))
        assert settings.run is None and probe.n_untrained >= 2


def test_the_command_line_wins_over_the_experiment_and_that_over_the_file() -> None:
    assert train("experiment=shakespeare/cpu_quick", "data.path=x").run.max_steps == 160
    settings = train(
        "experiment=shakespeare/cpu_quick", "data.path=x", "max_steps=7", "optim=adamw", "precision=float32"
    )
    assert (settings.run.max_steps, settings.optim.name, settings.run.precision) == (
        7,
        Optimizer.adamw,
        Precision.float32,
    )
    assert isinstance(settings.data, TextConfig) and settings.data.tokenizer is TokenizerKind.characters
    assert isinstance(train().data, StoriesConfig)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        train().run.max_steps = 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.n_haed=3", "model.n_haed is not a setting: did you mean model.n_head?"),
        ("modle=tiny", "modle is not a setting: did you mean model?"),
        ("+typo=1", "typo is not a setting"),
        ("model=tinny", "model=tinny is not one of base, nano, small, tiny: did you mean tiny?"),
        ("model=tiny,tinny", "did you mean tiny?"),
        ("max_step=5", "did you mean max_steps?"),
        ("max_steps", "max_steps: settings are written NAME=VALUE"),
        ("experiment=english,nowhere", "experiment=nowhere is not one of"),
        ("model=null", "model=null is not one of"),
        ("--foo", "--foo is not a flag"),
        ("--hlep", "did you mean --help?"),
        ("~model", "~model: settings are written NAME=VALUE"),
        ("=3", "=3: settings are written NAME=VALUE"),
        ("seed=1,2", "asked for by -m"),
        ("data.path=x", "data.path is not a setting of the stories: choose data=text"),
        ("sample_prompt=\udcff", "surrogates not allowed"),
    ],
)
def test_a_name_that_is_not_there_is_answered_with_the_nearest(override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        check_overrides(["-m", override] if "tiny,tinny" in override or "english," in override else [override], "train")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_path_of_a_text_that_was_moved_needs_all_that_the_run_began_with_of_its_data() -> None:
    """Hydra alone would say that there is no such setting: without data= there are the stories."""
    with pytest.raises(ValueError, match="data.path alone is not enough: give data= too"):
        check_overrides(["resume=true", "out=x", "data.path=moved.txt"], "train")
    check_overrides(["resume=true", "out=x", "data=text", "data.path=moved.txt"], "train")


def test_what_hydra_offers_is_let_through() -> None:
    check_overrides(
        [
            "-m",
            "seed=range(1,6)",
            "model=tiny,nano",
            "hydra/launcher=joblib",
            "hydra.sweep.dir=x",
            "hydra.sweeper.max_batch_size=2",
        ],
        "train",
    )
    check_overrides(["-m", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "seed=1,2"], "train")
    check_overrides(["run=x", "text=a, b", "probe.n_bootstrap=500"], "eval")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["max_steps=abc"], "max_steps: "),
        (["max_steps=3.5"], "max_steps: "),
        (["model.d_model=64", "model.n_head=5"], "model.d_model=64 is not a multiple of model.n_head=5"),
        (["model.d_model=64", "model.n_head=64"], "must be even"),
        (["device=gpu"], "device: "),
        (["data=shakespeare"], "data.path: must be given, as in data.path=VALUE"),
        (["resume=true"], "resume=true needs out=DIR"),
        (["data=shakespeare", "data.path=x", "data.validation_fraction=1.5"], "between 0 and 1"),
        (["+data.path=x"], "data.path: is not a setting here"),
        (["optim.learning_rate=-1"], "must be above 0"),
        (["data.share_agreement=nan"], "data.share_* must be 0 or more and add up to 1"),
        (["seed=99999999999999999999999"], "seed must be below 2**32"),
        (["data.source=nowhere"], "data.source=nowhere is not one of stories, text, hub"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError) as error:
        train(*overrides)
    assert message in str(error.value) and "\n" not in str(error.value)


FREE_TEXTS = [
    "The cat, sat. It", "It's \"odd\" ${oc.env:HOME} \\${x} \\ a\\'b", "a=b,c", "[x]", "{a:1}", "choice(a,b)", "", "'x",
    "${", "\\", "ends\\", "\\\\'", "\"Hello,\" said Tom. He", "null ", "%&|;<>", "日本 🙂",
]  # fmt: skip


@pytest.mark.parametrize("text", FREE_TEXTS)
def test_free_text_reaches_the_program_as_it_was_written(text: str) -> None:
    parsed = OverridesParser.create().parse_override(quoted(f"text={text}")).value()
    assert OmegaConf.create({"text": parsed}).text == text


@pytest.mark.parametrize("text", FREE_TEXTS)
def test_free_text_is_never_interpolated_on_its_way_into_settings(text: str) -> None:
    settings = train(quoted(f"sample_prompt={text}"), quoted(f"out={text}"), "data=text", quoted(f"data.path={text}"))
    assert (settings.run.sample_prompt, settings.run.out, settings.data.path) == (text, text, text)
    saved = json.loads(json.dumps(asdict(settings), default=lambda choice: choice.value))
    assert typed_saved(saved) == settings


@pytest.mark.parametrize("text", FREE_TEXTS)
def test_a_models_folder_reaches_the_program_though_train_py_has_choices_of_that_name(text: str) -> None:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose("eval", [quoted(f"model={text}", "eval")])
    assert config.model.name == text
    if text:
        assert typed_eval(config)[0].model == text
    assert quoted("model=nano") == "model=nano"


def test_what_the_user_quoted_for_hydra_and_other_settings_are_left_alone() -> None:
    for argument in ("text='a, b'", 'text="a"', "seed=1,2", "text=null", "-m"):
        assert quoted(argument) == argument


@pytest.mark.parametrize("overrides", [[], ["data=text", "data.path=x,y", "optim=adamw", "precision=float32", "out=a"]])
def test_a_saved_config_becomes_the_same_settings_again(overrides: list[str]) -> None:
    settings = train(*map(quoted, overrides))
    saved = json.loads(json.dumps(asdict(settings), default=lambda choice: choice.value))
    assert typed_saved(saved) == settings
    for broken in ({}, saved | {"data": {"source": "nowhere"}}, saved | {"model": {"n_layer": 1}}, saved | {"run": 3}):
        with pytest.raises(ValueError) as error:
            typed_saved(broken)
        assert "\n" not in str(error.value)


def saved(*overrides: str, fingerprint: str = "f") -> dict:
    values = json.loads(json.dumps(asdict(train(*overrides)), default=lambda choice: choice.value))
    return values | {"data_fingerprint": fingerprint}


def test_runs_that_differ_in_their_seed_alone_are_runs_of_one_sweep() -> None:
    """However many threads they had and however often they told of it: nothing that is learned depends on that."""
    other = saved("seed=5", "out=b", "cache_dir=c", "threads=2", "sharding=fsdp", "log_every_steps=7")
    assert check_seeds({"0": saved("seed=3", "out=a"), "1": other}) == {"0": 3, "1": 5}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            saved("seed=2", "model.n_layer=17"),
            f"runs differ in more than their seed: model.n_layer is {train().model.n_layer} in 0, 17 in 1",
        ),
        (saved("seed=2", "max_steps=9"), f"max_steps is {train().run.max_steps} in 0, 9 in 1"),
        (saved("seed=2", fingerprint="g"), "data_fingerprint is f in 0, g in 1"),
        (saved("seed=1", "out=b"), "seed=1 is there twice, the second time in 1"),
        (saved("data=text", "data.path=x", "seed=2"), "1 was trained on a text"),
        ({}, "config.json is not a run's"),
    ],
)
def test_runs_that_differ_in_anything_else_or_in_nothing_are_no_sweep(other: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        check_seeds({"0": saved("seed=1"), "1": other})
    assert message in str(error.value) and "\n" not in str(error.value)


def test_several_runs_are_asked_for_alone_and_their_directory_is_free_text() -> None:
    def ask(*overrides: str) -> EvalConfig:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return typed_eval(compose("eval", [*map(quoted, overrides)]))[0]

    assert ask("runs=a, b=c").runs == "a, b=c" and ask().runs is None
    for other in ("run=a", "text=The cat"):
        with pytest.raises(ValueError, match="goes with neither run= nor text="):
            ask("runs=a", other)
    check_overrides(["runs=a,b"], "eval")
    with pytest.raises(ValueError, match="runs is not a setting"):
        check_overrides(["runs=a"], "train")


def test_generate_reads_its_own_few_settings() -> None:
    asked = typed_generate(["prompt=a=b ${x}", "n_tokens=3", "temperature=0"])
    assert (asked.prompt, asked.n_tokens, asked.temperature) == ("a=b ${x}", 3, 0.0)
    for wrong, message in (
        ("promt=x", "did you mean prompt?"),
        ("n_tokens=x", "not such a number"),
        ("n_tokens=0", "1 or more"),
        ("temperature=nan", "temperature must be"),
        ("temperature=1e-42", "temperature must be"),
        ("seed=99999999999999999999999", "below 2**32"),
        ("prompt=\udcff", "surrogates not allowed"),
    ):
        with pytest.raises(ValueError) as error:
            typed_generate([wrong])
        assert message in str(error.value)


def test_export_reads_its_own_few_settings() -> None:
    asked = typed_export(["to=gguf", "run=a", "out=b=c"])
    assert (asked.to, asked.run, asked.out) == (Format.gguf, "a", "b=c")
    for wrong, message in (
        ([], "to= is missing: one of hf, gguf"),
        (["to=onnx"], "to=onnx: onnx is not one of hf, gguf"),
        (["too=hf"], "did you mean to?"),
        (["to=hf", "out=\udcff"], "surrogates not allowed"),
    ):
        with pytest.raises(ValueError) as error:
            typed_export(wrong)
        assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("door", ["train.py", "eval.py"])
@pytest.mark.parametrize(
    "wrong",
    [
        "sede=1",
        "device=gpu",
        "model..x=1",
        "threads=[",
        "threads=0",
        "run=nowhere/at/all",
        "runs=nowhere/at/all",
        "--foo",
    ],
)
def test_a_mistake_at_the_door_is_one_line_on_stderr_and_status_two(door: str, wrong: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / door), wrong], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ") and ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_heavy_libraries_are_not_touched_by_help_or_a_typo(tmp_path: Path) -> None:
    """What makes the answer quick; how quick is for benchmarks/ to say."""
    check = (
        "import runpy, sys\nsys.argv = ['train.py', {!r}]\n"
        "try: runpy.run_path({!r}, run_name='__main__')\n"
        "finally: print('heavy', sorted({{'torch', 'datasets', 'numpy', 'tokenizers'}} & set(sys.modules)))"
    )
    for argument in ("--help", "sede=1", "max_steps=abc"):
        code = check.format(argument, str(ROOT / "train.py"))
        ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert "heavy []" in ran.stdout, ran.stderr


LAB = sorted((CONFIGS / "experiment" / "lab").glob("[a-z]*.yaml"))


@pytest.mark.parametrize("path", LAB, ids=lambda path: path.stem)
def test_every_experiment_of_the_lab_sweeps_over_variants_that_exist_the_standard_first(path: Path) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", [f"experiment=lab/{path.stem}"], return_hydra_config=True)
    assert config.hydra.mode.name == "MULTIRUN"
    swept = config.hydra.sweeper.params
    names = swept.variant.split(",")
    assert names[0] == "standard" and len(set(names)) == len(names) >= 2
    assert swept.seed == ("1" if path.stem == "quick" else "1,2,3,4,5")
    settings = [asdict(train(f"experiment=lab/{path.stem}", f"variant={name}")) for name in names]
    assert all(one["model"] != settings[0]["model"] and one["run"] == settings[0]["run"] for one in settings[1:])
    if path.stem == "quick":
        assert set(names) == {path.stem for path in (CONFIGS / "variant").glob("*.yaml")}


def test_a_variant_is_named_by_what_it_changes_and_places_do_not_count() -> None:
    runs = {"0": saved("out=a"), "1": saved("variant=two_heads", "seed=4"), "2": saved("seed=2", "threads=1")}
    assert check_variants(runs, train()) == (
        {"0": (1, {}), "1": (4, {"model.n_head": 2}), "2": (2, {})},
        {"model.n_head": 4},
    )


def test_what_a_result_depends_on_is_written_as_the_command_line_has_it() -> None:
    found = of_result(train("out=there", "device=cpu", "model.weighting=sum", "threads=2"))
    assert (found["device"], found["optim.name"], found["model.weighting"]) == ("cpu", "muon", "sum")
    assert found["seed"] == 1 and json.loads(json.dumps(found)) == found
    assert not {"out", "resume", "cache_dir", "threads", "sample_prompt"} & set(found)


def test_the_standard_is_the_variant_nearest_to_the_defaults_wherever_it_stands() -> None:
    runs = {"0": saved("variant=one_head"), "1": saved("variant=no_position"), "2": saved(), "3": saved("seed=2")}
    found, standard = check_variants(runs, train())
    assert found["0"] == (1, {"model.n_head": 1}) and found["2"] == (1, {}) and found["3"] == (2, {})
    assert standard == {"model.n_head": 4, "model.position": "rope"}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (saved("data=text", "data.path=x"), "1 was trained on a text"),
        (saved("data.seed=1"), "0 and 1 did not read the same stories in the same order: data.seed is another"),
        (saved("tokens_per_batch=64"), "tokens_per_batch is another"),
        (saved("seed=2", fingerprint="g"), "the generator is another"),
    ],
)
def test_runs_that_did_not_read_the_same_are_no_variants(other: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_variants({"0": saved(), "1": other}, train())


def test_a_run_from_before_a_setting_is_told_so() -> None:
    old = saved()
    del old["model"]["mask"]
    with pytest.raises(ValueError, match="config.json lacks model.mask: the run was made before"):
        typed_saved(old)


def test_flags_may_stand_anywhere() -> None:
    given = ["seed=1,2", "-m", "out=x", "--cfg", "job", "model=nano"]
    assert flags_first(given) == ["-m", "--cfg", "job", "seed=1,2", "out=x", "model=nano"]


def test_a_resumed_run_keeps_its_commit_whatever_its_branch_means_now_and_refuses_another_commit() -> None:
    ours, other = "a" * 40, "b" * 40
    given = ["data=hub", "data.name=own/name", "data.revision=main"]
    run = saved(*given[:2], f"data.revision={ours}")
    assert resumed(train(*given), run, given).data.revision == ours
    given[2] = f"data.revision={other}"
    with pytest.raises(ValueError, match=f"data.revision is {ours}, not {other}"):
        resumed(train(*given), run, given)


def test_a_resumed_run_may_name_its_own_variant_again_and_no_other() -> None:
    run, mine = saved("variant=one_head", "threads=1", "out=a"), ["variant=one_head"]
    assert resumed(train("variant=one_head", "out=a"), run, mine).model.n_head == 1
    with pytest.raises(ValueError, match="model.n_head is 1, not 2"):
        resumed(train("variant=two_heads", "out=a"), run, ["variant=two_heads"])


def test_a_choice_in_a_folder_is_answered_with_the_nearest() -> None:
    check_overrides(["experiment=lab/heads", "variant=standard"], "train")
    with pytest.raises(ValueError, match="a sweep itself: one at a time"):
        check_overrides(["-m", "experiment=lab/heads,lab/mask"], "train")
    with pytest.raises(ValueError, match="experiment=null is not one of"):
        check_overrides(["experiment=null"], "train")
    with pytest.raises(ValueError, match="did you mean lab/heads"):
        check_overrides(["experiment=lab/head"], "train")
    with pytest.raises(ValueError, match="did you mean two_heads"):
        check_overrides(["variant=two_head"], "train")
    with pytest.raises(ValueError, match="experiment=lab/_base is not one of"):
        check_overrides(["experiment=lab/_base"], "train")


def test_a_reader_that_has_had_enough_is_no_error() -> None:
    door = "import sys\nfrom training.command_line import door\nsys.argv = ['eval.py']\nwith door('eval'):\n    "
    printing = f"{door}print('x\\n' * 10**6)"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(printing)} | head -1"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("x\n", "")


def test_a_sweep_is_kept_where_out_is() -> None:
    assert of_sweep(["-m", "out=a b", "seed=1,2"]) == ["-m", "out=a b", "seed=1,2", "hydra.sweep.dir=a b"]
    for arguments in (["-m", "seed=1,2"], ["out=null"], ["out=a", "hydra.sweep.dir=b"]):
        assert of_sweep(arguments) == arguments


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (f"Job 7 has not produced any output\nError stream produced:\n{'-' * 40}\nnote\nerror: no room\n", "no room"),
        (f"Job failed with trace:\n{'-' * 22}\n  x\nKeyError: 3\n\n{'-' * 22}\nYou can check\n  - a", "KeyError: 3"),
        ("Job not requeued because: timed-out too many times.", "Job not requeued because: timed-out too many times."),
    ],
)
def test_of_a_job_that_did_not_end_well_its_last_line_is_said(
    told: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "hydra/launcher=submitit_local"])
    with pytest.raises(SystemExit, match="2"), jobs():
        assert os.environ["PYTHONPATH"] == f"{ROOT}{os.pathsep}before"
        raise type("UncompletedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})(told)
    assert capsys.readouterr().err == f"error: {line}\n"
    assert os.environ["PYTHONPATH"] == "before"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(RuntimeError), jobs():
        assert os.environ["PYTHONPATH"] == "before"  # nobody else's children find other modules
        raise RuntimeError("another's")
