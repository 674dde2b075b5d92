"""Settings: YAML files, limits, saved runs, resumes, and the command line."""

import json
import subprocess
import sys
import tomllib
from dataclasses import MISSING, asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from antecedent_lab.eval_settings import EvalSettings
from probe.config import ProbeConfig
from settings.command_line import check_arguments, hydra_arguments, one_line_errors
from settings.data import HubConfig, StoriesConfig, TextConfig
from settings.errors import UserError
from settings.model import ModelConfig
from settings.train import CONFIGS, Optimizer, compose_settings, saved_settings, to_settings
from tests.program import ROOT, run_program
from train import GROUPS

CHOICES = [
    path.relative_to(CONFIGS).with_suffix("").as_posix().replace("/", "=", 1)
    for group in ("model", "data", "optim", "experiment", "variant")
    for path in sorted((CONFIGS / group).rglob("[!_]*.yaml"))
]


def saved(*overrides):
    """Returns config.json of a run as JSON gives it back."""
    settings = asdict(compose_settings(overrides))
    return json.loads(json.dumps(settings, default=lambda value: value.value if isinstance(value, Enum) else value))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_yaml_file_gives_valid_settings(choice):
    needs_path = choice.startswith(("data=text", "data=shakespeare", "experiment=shakespeare"))
    required = ["data.name=owner/name"] * (choice == "data=hub") + ["data.path=x"] * needs_path
    assert compose_settings([choice, *required])


def test_the_command_line_overrides_the_experiment_which_overrides_the_defaults():
    default = compose_settings()
    experiment = compose_settings(["experiment=shakespeare/cpu_quick", "data.path=x"])
    overridden = compose_settings(["experiment=shakespeare/cpu_quick", "data.path=x", "max_steps=7", "optim=adamw"])
    assert isinstance(default.data, StoriesConfig) and isinstance(experiment.data, TextConfig)
    assert default.run.max_steps != experiment.run.max_steps == 188
    assert overridden.run.max_steps == 7 and overridden.optim.name is Optimizer.adamw


@pytest.mark.parametrize(("override", "answer"), [
    ("optim.learning_rate=0", "above 0 and at most 1e+18"),
    ("optim.learning_rate=nan", "above 0"),
    ("optim.momentum=1", "at least 0 and below 1"),
    ("seed=4294967296", "at least 0 and at most 4,294,967,295"),
    ("model.context_length=1", "2 or more"),
    ("max_steps=1.5", "an integer"),
    ("max_steps=null", "an integer"),
    ("max_steps=[1]", "an integer"),
    ("max_steps=99999999999999999999", ""),
    ("model.rope_theta=1e999", "64 bits"),
    ("device=tpu", "one of auto, cpu, cuda"),
    ("data=text", "no value"),
    ("resume=true", "needs out=DIR"),
    ("model.n_head=3", "multiple"),
    ("model.scale=none model.weighting=sum", "a common factor cancels"),
    ("model.d_model=15 model.n_head=1 model.position=sinusoidal", "even for model.position=sinusoidal"),
    ("model.d_model=30 model.n_head=6", "even for model.position=rope"),
])  # fmt: skip
def test_a_value_outside_its_limits_is_told_what_it_can_be(override, answer):
    with pytest.raises(UserError) as error:
        compose_settings(override.split())
    message = str(error.value)
    assert override.partition("=")[0] in message and answer in message and "\n" not in message


def test_yaml_files_have_the_defaults_of_python_and_no_target_that_hydra_could_call():
    model = OmegaConf.load(CONFIGS / "model" / "tiny.yaml")
    for field in fields(ModelConfig):
        assert field.default is MISSING or field.default == model[field.name]
    assert sum(field.default is MISSING for field in fields(ModelConfig)) == 8  # the sizes
    probe = OmegaConf.load(CONFIGS / "eval" / "eval.yaml").probe
    assert ProbeConfig() == to_settings(ProbeConfig, probe)
    assert {*probe} == {*ProbeConfig.__dataclass_fields__}
    files = list(Path(CONFIGS).rglob("*.yaml"))
    assert len(files) > 20 and not any("_target_" in path.read_text() for path in files)


def test_a_config_json_that_lacks_a_setting_interpolates_one_or_is_none_is_an_error():
    wrong = ([], {}, {"run": {}}, "text", {"run": 1, "model": 2, "data": 3, "optim": 4})
    problems: list[tuple[Any, str]] = [(content, "config.json") for content in wrong]
    for group, name in {"run": "max_steps", "model": "n_head", "data": "source", "optim": "name"}.items():
        config = saved()
        del config[group][name]
        problems.append((config, name))
    for group, name in {"data": "share_plural", "run": "cache_dir"}.items():  # refused instead of resolved
        config = saved()
        problems.append((config | {group: config[group] | {name: "${oc.env:HOME}"}}, name))
    for content, problem in problems:
        with pytest.raises(ValueError, match=problem):
            saved_settings(content)


NO_SETTINGS = """
+typo=1 max_steps ~model ~model=tiny =3 --foo model=null model=../../x model=tiny,x experiment=lab/_base
data@model=text +max_steps=3 cache_dir=\udcff --config-dir=/ --cfg cache_dir=${oc.env:HOME}
"""
# Hydra must not be made to call a function, or to write into another folder.
HARMFUL = """
hydra.launcher._target_=os.system
+hydra.launcher._target_=os.system
hydra.launcher.additional_parameters={_target_:os.system}
hydra/launcher={_target_:os.system}
hydra.callbacks.x._target_=os.getcwd
hydra.sweeper._target_=x
hydra.launcher.x=${seed}
hydra.launcher.a.b=1
hydra.searchpath=[file:///]
hydra=null
hydra.run.dir=x
hydra.sweep.subdir=../..
"""


@pytest.mark.parametrize("argument", [*NO_SETTINGS.split(), *HARMFUL.split()])
def test_an_argument_that_is_no_setting_or_could_do_harm_is_refused(argument):
    with pytest.raises(ValueError):
        check_arguments([argument], GROUPS)


def test_sweeps_and_launchers_are_allowed_and_free_text_is_read_as_it_was_written():
    check_arguments(["-m", "seed=range(1,6)", "model=tiny,nano", "variant=glob(*)"], GROUPS)
    check_arguments(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=x"], GROUPS)
    texts = [
        "plain", "a, b", "it's", 'say "it"', "[1,2]", "{a: 1}", "a=b", "back\\slash", "end\\", "\\'", "end\\\\", "$x",
        "(", "=", "~", "tab\there", "line\nbreak", "é 日本 🙂", " spaces ", "key: value", "#", "null ", "@", "",
    ]  # fmt: skip
    for text in texts:
        (argument,) = hydra_arguments([f"cache_dir={text}"], GROUPS)
        assert OverridesParser.create().parse_override(argument).value() == text


@pytest.mark.parametrize("error", [
    UserError("a\nb"), FileNotFoundError(2, "No such file", "x"), FloatingPointError("a"), MemoryError(),
    ModuleNotFoundError("a"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA out of memory. Tried"),
])  # fmt: skip
def test_an_error_of_the_user_is_one_line_and_status_2(error, capsys):
    with pytest.raises(SystemExit) as exit_, one_line_errors():
        raise error
    text = capsys.readouterr().err
    assert exit_.value.code == 2 and text.count("\n") == 1
    assert text.startswith("error: ") and len(text) > len("error: \n")
    with pytest.raises(KeyError), one_line_errors():  # an error of the program keeps its traceback
        raise KeyError("x")


@pytest.mark.parametrize(("arguments", "groups"), [
    ("train.py", {**GROUPS, "data": [StoriesConfig]}), ("train.py data=hub data.name=x", {"data": [HubConfig]}),
    ("train.py data=text data.path=x", {"data": [TextConfig]}),
    ("eval.py", {"": [EvalSettings], "probe": [ProbeConfig]}),
])  # fmt: skip
def test_help_has_a_line_with_the_meaning_of_every_setting(arguments, groups):
    lines = run_program(*arguments.split(), "--help").out.splitlines()
    for group, schemas in groups.items():
        for field in fields(schemas[0]) if schemas else ():
            info = field.metadata["setting"]
            assert len(info.meaning) > 5 and "\n" not in info.meaning
            start = f"  {group}.{field.name}=" if group else f"  {field.name}="
            (line,) = [line for line in lines if line.startswith(start)]
            assert info.meaning in line


@pytest.mark.parametrize(("arguments", "error"), [
    ("train.py max_steps=0", "max_steps=0: must be 1 or more"),
    ("train.py sed=1", "sed=1: no such setting; did you mean seed?"),
    ("train.py seed=[1", "seed=[1: cannot be read"),
    ("train.py seed=1,2", "seed=1,2: has several values"),
    ("train.py data=stories data.vocab_size=300", "data.vocab_size=300: not a setting of these data; choose"),
    ("train.py hydra/launcher=nowhere", "nowhere"),
    (f"train.py cache_dir={__file__}", "is a file; choose a folder"),
    ("train.py --hlep", "--hlep: no such flag; did you mean --help?"),
    ("train.py --info", "--help lists the settings, --cfg job [--resolve] prints the configuration"),
    ("eval.py --resolve", "--cfg job [--resolve] prints the configuration"),
    ("train.py -m --cfg job", "--cfg job [--resolve] prints the configuration"),
    ("train.py --cfg work", "--cfg job [--resolve] prints the configuration"),
    ("train.py model.context_length=1000000000", "tokens_per_batch=3072: must be 1000000000 or more, a row of model."),
    ("train.py -m seed=1,2,1", "seed=1,2,1: has a value twice"),
    ("train.py -m optim.learning_rate=0.01,1e-2", "has a value twice"),
    ("train.py model.n_haed=3", "did you mean model.n_head?"),
    ("train.py optim.lr=1", "optim has name, learning_rate"),
    ("train.py modle=tiny", "did you mean model?"),
    ("train.py model=tinny", "did you mean tiny?"),
    ("train.py init=nowhere", "init=nowhere: is neither a run nor"),
    (f"train.py init={ROOT / 'tests'}", "init="),
    ("train.py init=a model=nano", "model=nano: the shape and the tokenizer are those of init=a"),
    ("eval.py -m", "-m: only train.py has"),
    ("eval.py run=nowhere", "run=nowhere: does not exist"),
    (f"eval.py run={Path(__file__).parent}", "is not the directory of a run: it has no config.json"),
    ("eval.py threads=0", "threads=0: must"),
    ("eval.py model=", "model=: is empty"),
    ("eval.py model=a items=klingon", "items=klingon: not"),
    ("eval.py model=b items=a.jsonl", "a.jsonl: "),
    ("eval.py model=a,b items=c.jsonl", "items=c.jsonl: cannot be combined with model=A,B"),
    ("eval.py check=true", "check=true: give"),
    # What belongs to another mode of eval.py
    ("eval.py runs=a model=b", "model=b: cannot"),
    ("eval.py model=a run=b", "run=b: cannot"),
    ("eval.py before=a text=b", "text=b: cannot"),
    ("eval.py model=a,b text=it", "text=it: cannot be combined with model=A,B"),
    ("eval.py check=true items=a.jsonl before=b", "before=b: cannot"),
])  # fmt: skip
def test_a_bad_argument_writes_one_line_only(arguments, error, tmp_path):
    assert error in run_program(*arguments.split(), cwd=tmp_path).error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", ["--cfg job", "-c job", "--cfg job --resolve"])
def test_cfg_prints_the_composed_configuration(flags, tmp_path):
    result = run_program("train.py", *flags.split(), "seed=3", "out=a, b", "optim=adamw", cwd=tmp_path)
    printed = yaml.safe_load(result.out)
    assert (result.status, printed["seed"], printed["out"], printed["optim"]["name"]) == (0, 3, "a, b", "adamw")
    assert yaml.safe_load(run_program("eval.py", *flags.split(), cwd=tmp_path).out)["probe"]["n_untrained"] == 5
    assert "launcher" in run_program("train.py", "--cfg", "hydra").out and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", ["train.py", "eval.py", "antecedent_lab/__main__.py"])
def test_version_is_printed_in_a_checkout(program, tmp_path):
    result = run_program(program, "--version", cwd=tmp_path)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (result.status, result.out) == (0, f"antecedent-lab {version}\n")


def test_a_launcher_without_its_extra_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr("settings.command_line.distributions", lambda name: iter([]))
    error = run_program("train.py", "-m", "hydra/launcher=joblib", "seed=1,2").error
    assert error == f"hydra/launcher=joblib: needs the extra sweep: {sys.executable} -m pip install '.[sweep]'"


def test_a_closed_output_pipe_ends_the_program_quietly():
    command = f"{sys.executable} train.py --help | head -c 1; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.stderr == "" and process.returncode in (0, 141)
