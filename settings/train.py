"""Settings of training: types and limits; how YAML, command line and saved runs become dataclasses."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from enum import Enum
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_args

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from settings.data import SCHEMAS, DataConfig
from settings.errors import UserError
from settings.fields import SettingInfo, check_limits, setting
from settings.model import ModelConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MAX_THREADS = 1024
MAX_LEARNING_RATE = 1e18  # products with larger rates overflow float32


class Device(Enum):
    """Where to compute; auto: CUDA if there is a device, else the CPU."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """Number format of matrix products; auto: bfloat16 if the GPU or CPU has instructions for it, else float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """Mode of torch.compile for the training step."""

    none = "none"
    default = "default"


class Optimizer(Enum):
    """Optimizer of the matrices in the blocks; embeddings and norms always use AdamW."""

    muon = "muon"
    adamw = "adamw"


# Which directories a run uses: always those of the command line.
DIRECTORIES = ("out", "resume", "cache_dir")
# The other settings that a resumed run may change. The text of a path is compared by its fingerprint.
CHANGEABLE = {"max_steps", "device", "threads", "keep_checkpoints", "log_every_steps"}
CHANGEABLE |= {"data.path", "data.validation_path", "items"}
_presentation = partial(setting, affects_result=False)
_positive = partial(setting, above=0, high=MAX_LEARNING_RATE)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of one run of train.py outside the groups model, data and optim (values: configs/train.yaml)."""

    seed: int = setting("initial weights, order of the batches, dropout", low=0, high=2**32 - 1)
    out: str | None = _presentation("directory of the run; null: runs/TIME")
    init: str | None = setting("run or exported folder to start from", default=None)
    resume: bool = _presentation("continue the run in out; in a sweep, the runs that were started")
    device: Device = setting("where to compute; auto: CUDA if there is a device, else the CPU")
    precision: Precision = setting("of matrix products; auto: bfloat16 if the device has instructions for it")
    threads: int | None = _presentation("CPU threads; null: torch's default", low=1, high=MAX_THREADS)
    compile: Compile = setting("default: torch.compile")
    max_steps: int = setting("optimizer steps", low=1)
    tokens_per_batch: int = setting(
        "tokens of one forward pass of all processes, in whole rows of model.context_length", low=1, orders_batches=True
    )
    gradient_accumulation_steps: int = setting("forward passes per optimizer step", low=1, orders_batches=True)
    log_every_steps: int = _presentation("steps between records", low=1)
    eval_every_steps: int = setting("steps between evaluations and checkpoints", low=1)
    keep_checkpoints: int = _presentation("newest checkpoints to keep, besides the best", low=1)
    validation_tokens: int = setting("read by each evaluation except the last, which reads the whole split", low=1)
    probe_sequences: int = _presentation("sentences of the probe during training; 0: no probe", low=0)
    items: str | None = _presentation(
        "FILE.jsonl: a question of your own to watch; eval.py asks it too, unless the data are stories",
        default=None,
    )
    cache_dir: str = _presentation("folder for tokenized corpora")

    def __post_init__(self) -> None:
        check_limits(self)
        if self.resume and self.out is None:
            raise UserError("resume=true: needs out=DIR, the directory of the run to resume")


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """Settings of the optimizer and the learning-rate schedule (values: configs/optim/)."""

    name: Optimizer = setting("optimizer of the matrices in the blocks; the others use AdamW")
    learning_rate: float = _positive("peak learning rate, for the matrices in the blocks")
    embedding_learning_rate: float = _positive("peak learning rate, for embeddings and norms")
    weight_decay: float = setting("decoupled, for the matrices in the blocks", low=0, high=MAX_LEARNING_RATE)
    embedding_weight_decay: float = setting("for embeddings; norms have none", low=0, high=MAX_LEARNING_RATE)
    momentum: float = setting("of Muon's average of gradients", low=0, below=1)
    beta_1: float = setting("of AdamW's average of gradients", low=0, below=1)
    beta_2: float = setting("of AdamW's average of squared gradients", low=0, below=1)
    warmup_steps: int = setting("steps of linear warm-up, from peak / warmup_steps to the peak", low=0)
    decay_power: float = _positive("after the warm-up: peak * (remaining fraction of the steps) ** decay_power")
    clip_norm: float = _positive("upper limit of the global gradient norm")

    def __post_init__(self) -> None:
        check_limits(self, "optim.")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """All settings of a training run."""

    run: RunSettings
    model: ModelConfig
    data: DataConfig
    optim: OptimSettings


# Config group of train.py -> dataclasses of its settings; "" has those outside all groups.
GROUPS: dict[str, list[type[Any]]] = {
    "": [RunSettings],
    "model": [ModelConfig],
    "data": [*SCHEMAS.values()],
    "optim": [OptimSettings],
    "experiment": [],
    "variant": [],
}


def to_settings(schema: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return the flat dataclass `schema` with checked values; UserError, in which `prefix` precedes the name."""
    types = {field.name: field.type for field in fields(schema)}
    for name, value in values.items():
        if name not in types:
            raise UserError(f"{prefix}{name}={value}: no such setting{did_you_mean(str(name), list(types))}")
        # Text is data: it must not become an interpolation.
        if isinstance(value, str) and "${" in value:
            raise UserError(f"{prefix}{name}={value}: may not contain ${{")
    for field in fields(schema):
        if values.get(field.name, field.default) in (MISSING, "???"):
            raise UserError(f"{prefix}{field.name}=: no value; set it to {describe_type(field.type)}")

    # OmegaConf checks and converts the types, and the dataclass its limits.
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values)))
    except OmegaConfBaseException as error:
        name = str(error.full_key or error.key)
        raise UserError(f"{prefix}{name}={values.get(name)}: must be {describe_type(types.get(name))}") from None
    for name in types:
        value = getattr(settings, name)
        if isinstance(value, int | float) and not -(2**63) <= value < 2**63:  # False for nan too
            raise UserError(f"{prefix}{name}={value}: must be a number of at most 64 bits")
    return settings


def describe_type(annotation: Any) -> str:
    """Return in words which values a setting with this annotation accepts."""
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    types = get_args(annotation) or (annotation,)
    return " or ".join(words.get(kind) or f"one of {', '.join(kind.__members__)}" for kind in types)


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return "; did you mean X?" with the most similar of `names`, or those of its group; "" if there is neither."""
    # The names of a group are compared without the prefix that they share.
    group, dot, last = name.rpartition(".")
    prefix = group + dot
    options = [other.removeprefix(prefix) for other in names if other.startswith(prefix)]
    if not options:  # no such group
        prefix, last, options = "", name, list(names)
    similar = difflib.get_close_matches(last, options, n=1)
    if similar:
        return f"; did you mean {prefix}{similar[0]}?"
    return f"; {group} has {', '.join(options)}" if prefix else ""


def settings_from_arguments(schema: type, arguments: Sequence[str]) -> Any:
    """Return an instance of `schema` from NAME=VALUE arguments, without Hydra; --help prints its docstring."""
    if {"-h", "--help"} & set(arguments):
        print(cleandoc(schema.__doc__ or ""))
        raise SystemExit(0)
    for argument in arguments:
        if "=" not in argument:
            raise UserError(f"{argument}: settings are written NAME=VALUE")
    return to_settings(schema, dict(argument.split("=", 1) for argument in arguments))


def train_settings(config: DictConfig) -> TrainSettings:
    """Return the settings in Hydra's config; raises UserError with a one-line message."""
    return _from_groups(**_groups(config))


def run_settings(config: DictConfig) -> RunSettings:
    """Return the settings outside the groups; raises UserError with a one-line message."""
    run: RunSettings = to_settings(RunSettings, _groups(config)["run"])
    return run


def _groups(config: DictConfig) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(config, resolve=True)
    groups = {name: values.pop(name) for name in ("model", "data", "optim")}
    return {"run": values, **groups}


def compose_settings(overrides: Sequence[str] = ()) -> TrainSettings:
    """Return the settings of train.py with these arguments, for other programs."""
    GlobalHydra.instance().clear()  # set in a program that Hydra started
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return train_settings(compose("train", list(overrides)))


def saved_settings(config: Any) -> TrainSettings:
    """Return the settings in the config.json of a run; raises UserError if they are damaged or of another version."""
    groups = {}
    for name in ("run", "model", "data", "optim"):
        if not (isinstance(config, dict) and isinstance(config.get(name), dict)):
            raise UserError("config.json: not the settings of a run")
        groups[name] = config[name]
    try:
        return _from_groups(**groups)
    except UserError as error:
        raise UserError(f"config.json: {error}; the file is damaged or another version wrote it") from None


def _from_groups(run: Any, model: Any, data: Any, optim: Any) -> TrainSettings:
    source = data.get("source")
    if source not in SCHEMAS:
        raise UserError(f"data.source={source}: must be one of {', '.join(SCHEMAS)}")
    for name, value in data.items():
        sources = [kind for kind, schema in SCHEMAS.items() if name in schema.__dataclass_fields__]
        if sources and source not in sources:
            raise UserError(
                f"data.{name}={value}: not a setting of these data; choose data={' or data='.join(sources)}"
            )
    return TrainSettings(
        run=to_settings(RunSettings, run),
        model=to_settings(ModelConfig, model, "model."),
        data=to_settings(SCHEMAS[source], data, "data."),
        optim=to_settings(OptimSettings, optim, "optim."),
    )


def flatten(settings: TrainSettings) -> dict[str, Any]:
    """Return every setting by its name on the command line, enums by their value."""
    flat = {}
    for group, values in asdict(settings).items():
        for name, value in values.items():
            flat[full_name(group, name)] = value.value if isinstance(value, Enum) else value
    return flat


def full_name(group: str, name: str) -> str:
    """Return the name of a setting on the command line; outside all groups the group is "run" or ""."""
    return name if group in ("", "run") else f"{group}.{name}"


# Meaning and limits of every setting of train.py, by its name on the command line.
INFOS: dict[str, SettingInfo] = {}
for group, schemas in GROUPS.items():
    for schema in schemas:
        for field in fields(schema):
            INFOS[full_name(group, field.name)] = field.metadata["setting"]


def resumed_settings(config: DictConfig, saved: Any, overrides: Sequence[str]) -> TrainSettings:
    """Return the settings of a resumed run: those it was started with, but for DIRECTORIES and CHANGEABLE.

    `config` is what Hydra makes of the arguments `overrides` and the defaults, `saved` the content of config.json.
    UserError for another value of any other setting.
    """
    saved_settings(saved)  # or a UserError
    named = {override.partition("=")[0].lstrip("+") for override in overrides}
    new_groups = _groups(config)
    groups = {group: dict(saved[group]) for group in new_groups}
    for group, values in new_groups.items():
        for field, value in values.items():
            name = full_name(group, field)
            # A group stands for all settings that it can change.
            choices = {name, group, "experiment"}
            if group == "model":
                choices.add("variant")
            # A branch of a dataset was resolved to a commit when the run began.
            is_branch = name == "data.revision" and not re.fullmatch("[0-9a-f]{40}", value or "")
            old = groups[group].get(field)
            if name in DIRECTORIES or (named & choices and name in CHANGEABLE):
                groups[group][field] = value
            elif named & choices and not is_branch and old != value:
                raise UserError(f"{name}={value}: a resumed run keeps {name}={old}; start a new one from it with init=")
    return _from_groups(**groups)


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return [old value, new value] by name of the entries that differ."""
    return {name: [old.get(name), new.get(name)] for name in {**old, **new} if old.get(name) != new.get(name)}


def result_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a result depends on, as `flatten` names them."""
    return {name: value for name, value in flatten(settings).items() if INFOS[name].affects_result}
