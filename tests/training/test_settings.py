"""Settings: YAML files, limits, conversion, saved runs and resumes."""

import json
from dataclasses import MISSING, asdict, fields
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from data.config import REMOVED_SETTINGS, StoriesConfig, TextConfig
from data.errors import UserError
from model.config import ModelConfig
from probe.config import ProbeConfig
from training.settings import CONFIGS, Optimizer, TrainSettings, compose_settings, result_settings

from training.settings import resumed_settings, saved_settings, to_settings  # isort: skip

REQUIRED = {"data=text": ["data.path=x"], "data=shakespeare": ["data.path=x"], "data=hub": ["data.name=owner/name"]}
CHOICES = [
    f"{group}={path.relative_to(CONFIGS / group).with_suffix('').as_posix()}"
    for group in ("model", "data", "optim", "experiment", "variant")
    for path in sorted((CONFIGS / group).rglob("*.yaml"))
    if not path.name.startswith("_")
]


def saved(*overrides: str) -> dict:
    """Returns config.json of a run as JSON gives it back."""
    settings = asdict(compose_settings(overrides))
    return json.loads(json.dumps(settings, default=lambda value: value.value if isinstance(value, Enum) else value))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_yaml_file_gives_valid_settings(choice: str) -> None:
    needs_path = choice.startswith(("experiment=shakespeare", "experiment=english"))
    settings = compose_settings([choice, *(REQUIRED.get(choice) or (["data.path=x"] if needs_path else []))])
    assert isinstance(settings, TrainSettings)


def test_the_command_line_overrides_the_experiment_which_overrides_the_defaults() -> None:
    default = compose_settings()
    experiment = compose_settings(["experiment=shakespeare/cpu_quick", "data.path=x"])
    overridden = compose_settings(["experiment=shakespeare/cpu_quick", "data.path=x", "max_steps=7", "optim=adamw"])
    assert isinstance(default.data, StoriesConfig) and isinstance(experiment.data, TextConfig)
    assert default.run.max_steps != experiment.run.max_steps == 170
    assert overridden.run.max_steps == 7 and overridden.optim.name is Optimizer.adamw


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("optim.learning_rate=0", "above 0 and at most 1e+18"), ("optim.learning_rate=nan", "above 0"),
        ("optim.weight_decay=-1", "at least 0 and at most 1e+18"), ("optim.momentum=1", "at least 0 and below 1"),
        ("model.n_layer=0", "above 0"), ("threads=0", "at least 1 and at most 1,024"),
        ("max_steps=0", "1 or more"), ("seed=4294967296", "at least 0 and at most 4,294,967,295"),
        ("resume=true", "needs out=DIR"), ("model.n_head=3", "multiple"), ("max_steps=1.5", "an integer"),
        ("max_steps=null", "an integer"), ("max_steps=[1]", "an integer"), ("device=tpu", "one of auto, cpu, cuda"),
        ("optim.name=sgd", "one of muon, adamw"), ("model.rope_theta=1e999", "64 bits"), ("data=text", "no value"),
        ("max_steps=99999999999999999999", ""), ("model.context_length=1", "2 or more"), ("model.dropout=1", "below 1"),
        ("model.norm_eps=0", "above 0"), ("model.scale=none model.weighting=sum", "a common factor cancels"),
        ("model.position=alibi model.weighting=sum", "needs model.weighting=softmax"),
        ("model.d_model=15 model.n_head=1 model.position=sinusoidal", "even for model.position=sinusoidal"),
        ("model.d_model=30 model.n_head=6", "even for model.position=rope"),
    ],
)  # fmt: skip
def test_a_value_outside_its_limits_or_type_is_answered_with_what_it_can_be(override: str, answer: str) -> None:
    with pytest.raises(UserError) as error:
        compose_settings(override.split())
    message = str(error.value)
    assert override.partition("=")[0] in message and answer in message and "\n" not in message


def test_defaults_in_python_are_those_of_the_standard_yaml_files() -> None:
    model = OmegaConf.load(CONFIGS / "model" / "tiny.yaml")
    for field in fields(ModelConfig):
        assert field.default is MISSING or field.default == model[field.name]
    assert sum(field.default is MISSING for field in fields(ModelConfig)) == 8  # the sizes
    probe = OmegaConf.load(CONFIGS / "eval" / "eval.yaml").probe
    assert ProbeConfig() == to_settings(ProbeConfig, probe)
    assert {*probe} == {field.name for field in fields(ProbeConfig)}


def test_saved_settings_are_read_back_those_of_an_earlier_version_unless_it_had_a_removed_family() -> None:
    assert saved_settings(saved("optim=adamw", "seed=3")) == compose_settings(["optim=adamw", "seed=3"])
    config = saved()
    config["data"] |= REMOVED_SETTINGS
    assert saved_settings(config) == compose_settings([])
    config["data"]["share_plural"] = 0.1
    with pytest.raises(ValueError, match="share_plural"):
        saved_settings(config)


@pytest.mark.parametrize("content", [[], {}, {"run": {}}, "text", {"run": 1, "model": 2, "data": 3, "optim": 4}])
def test_a_config_json_of_another_shape_is_an_error(content: object) -> None:
    with pytest.raises(ValueError, match="config.json"):
        saved_settings(content)


def test_a_config_json_that_lacks_a_setting_or_interpolates_one_is_an_error() -> None:
    config = saved()
    config["run"]["sample_prompt"] = "${oc.env:HOME}"
    with pytest.raises(ValueError, match="sample_prompt"):  # refused instead of resolved
        saved_settings(config)
    for group, name in {"run": "max_steps", "model": "n_head", "data": "source", "optim": "name"}.items():
        config = saved()
        del config[group][name]
        with pytest.raises(ValueError, match=name):
            saved_settings(config)


# Resuming


def resumed(run: list[str], *overrides: str) -> TrainSettings:
    requested = compose_settings([*overrides, "resume=true", "out=x"])
    return resumed_settings(requested, compose_settings(run), [*overrides, "resume=true", "out=x"])


def test_a_resumed_run_keeps_the_settings_that_the_command_line_does_not_name() -> None:
    settings = resumed(["max_steps=500", "optim=adamw", "seed=4", "model=nano"])
    assert (settings.run.max_steps, settings.optim.name, settings.run.seed) == (500, Optimizer.adamw, 4)
    assert settings.model == compose_settings(["model=nano"]).model
    assert settings.run.resume and settings.run.out == "x"


def test_a_text_that_was_moved_can_be_resumed_from_its_new_path() -> None:
    settings = resumed(["data=text", "data.path=old.txt"], "data=text", "data.path=new.txt")
    assert settings.data.path == "new.txt"


def test_results_depend_on_neither_directories_nor_on_what_is_printed() -> None:
    old = result_settings(compose_settings(["out=a", "threads=1"]))
    assert result_settings(compose_settings(["cache_dir=b", "log_every_steps=3", "threads=2"])) == old
    assert result_settings(compose_settings(["seed=2"])) != old


def test_configs_hold_no_target_that_hydra_could_call() -> None:
    files = list(Path(CONFIGS).rglob("*.yaml"))
    assert len(files) > 20 and not any("_target_" in path.read_text() for path in files)
