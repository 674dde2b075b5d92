"""Settings of training: types, limits, and the one place where YAML, command line and saved runs become dataclasses."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from enum import Enum
from inspect import cleandoc
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.config import SCHEMAS, DataConfig
from model.config import ModelConfig

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MAX_THREADS = 1024
MAX_SAMPLE_TOKENS = 2**16
MAX_LEARNING_RATE = 1e18  # products with larger rates overflow float32


class Device(Enum):
    """Where to compute; auto: CUDA if there is a device, else the CPU."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """Number format of matrix products; weights and losses are always float32. auto: bfloat16 on a GPU."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """Mode of torch.compile for the training step."""

    none = "none"
    default = "default"
    graphs = "graphs"  # with CUDA graphs (mode="reduce-overhead"); needs a CUDA device


class Sharding(Enum):
    """How several processes hold the model."""

    none = "none"  # a full replica in each (DDP)
    fsdp = "fsdp"  # parameters, gradients and optimizer state sharded (FSDP2)


class Optimizer(Enum):
    """Optimizer of the matrices in the blocks; embeddings and norms always use AdamW."""

    muon = "muon"
    adamw = "adamw"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Settings of one run of train.py outside the groups model, data and optim (values: configs/train.yaml)."""

    seed: int  # initial weights, batch order and dropout; 0 to 2**32 - 1
    out: str | None  # directory for the run; if None, a new one in runs/ named by the time
    resume: bool  # continue the run in `out`
    device: Device
    precision: Precision
    threads: int | None  # CPU threads; if None, torch's default
    compile: Compile
    sharding: Sharding
    max_steps: int  # optimizer steps
    tokens_per_batch: int  # tokens in one forward pass, summed over all processes
    gradient_accumulation_steps: int  # forward passes per optimizer step
    log_every_steps: int
    eval_every_steps: int  # also the interval between checkpoints
    keep_checkpoints: int  # number of newest checkpoints to keep besides the best
    validation_tokens: int  # used by each evaluation except the last, which reads the whole split
    probe_sequences: int  # sentences in the probe during training; 0: no probe
    sample_tokens: int  # length of the text generated at each evaluation; 0: none
    sample_prompt: str
    cache_dir: str  # folder for tokenized corpora

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its limits."""
        counts = "max_steps tokens_per_batch gradient_accumulation_steps log_every_steps eval_every_steps"
        for name in [*counts.split(), "keep_checkpoints", "validation_tokens"]:
            check_limits(name, getattr(self, name), 1)
        check_limits("seed", self.seed, 0, 2**32 - 1)
        check_limits("probe_sequences", self.probe_sequences, 0)
        check_limits("sample_tokens", self.sample_tokens, 0, MAX_SAMPLE_TOKENS)
        check_threads(self.threads)
        if self.resume and self.out is None:
            raise ValueError("resume=true: needs out=DIR, the directory of the run to resume")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimSettings:
    """Settings of the optimizer and the learning-rate schedule (values: configs/optim/)."""

    name: Optimizer
    learning_rate: float  # peak, for the matrices in the blocks
    embedding_learning_rate: float  # peak, for embeddings and norms
    weight_decay: float  # decoupled, for the matrices in the blocks
    embedding_weight_decay: float  # embeddings; norms have none
    momentum: float  # Muon only
    beta_1: float  # AdamW only
    beta_2: float  # AdamW only
    warmup_steps: int  # linear from peak / warmup_steps to the peak
    decay_power: float  # after the warm-up: peak * (remaining fraction of the steps) ** decay_power
    clip_norm: float  # upper limit of the global gradient norm

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its limits."""
        for name in ("learning_rate", "embedding_learning_rate", "decay_power", "clip_norm"):
            if not 0 < getattr(self, name) <= MAX_LEARNING_RATE:
                raise ValueError(f"optim.{name}={getattr(self, name)}: must be above 0 and at most 1e18")
        for name in ("weight_decay", "embedding_weight_decay"):
            check_limits(f"optim.{name}", getattr(self, name), 0, MAX_LEARNING_RATE)
        for name in ("momentum", "beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name}={getattr(self, name)}: must be at least 0 and below 1")
        check_limits("optim.warmup_steps", self.warmup_steps, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """All settings of a training run."""

    run: RunSettings
    model: ModelConfig
    data: DataConfig
    optim: OptimSettings


def check_limits(name: str, value: float, low: float, high: float | None = None) -> None:
    """Raises ValueError unless low <= value <= high."""
    if value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"between {low} and {high:,}"
        raise ValueError(f"{name}={value}: must be {limits}")


def check_threads(threads: int | None) -> None:
    """Raises ValueError for an impossible number of CPU threads."""
    if threads is not None:
        check_limits("threads", threads, 1, MAX_THREADS)


# Conversion of untyped values


def typed(schema: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Returns an instance of the flat dataclass `schema`, with every value checked and converted by OmegaConf.

    Raises ValueError with one line for an unknown, missing or badly typed setting; `prefix` precedes its name there.
    """
    types = {field.name: field.type for field in fields(schema)}
    for name, value in values.items():
        if name not in types:
            raise ValueError(f"{prefix}{name}={value}: no such setting{did_you_mean(str(name), list(types))}")
        if isinstance(value, str) and "${" in value:  # text is data: it must not become an interpolation
            raise ValueError(f"{prefix}{name}={value}: may not contain ${{")
    for field in fields(schema):
        if values.get(field.name, field.default) in (MISSING, "???"):
            raise ValueError(f"{prefix}{field.name}=: no value; set it to {accepted(field.type)}")
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values)))
    except OmegaConfBaseException as error:
        name = str(error.full_key or error.key)
        raise ValueError(f"{prefix}{name}={values.get(name)}: must be {accepted(types.get(name))}") from None
    for name in types:
        value = getattr(settings, name)
        if isinstance(value, int | float) and not -(2**63) <= value < 2**63:  # False for nan too
            raise ValueError(f"{prefix}{name}={value}: must be a number of at most 64 bits")
    return settings


def accepted(annotation: Any) -> str:
    """Returns in words which values a setting with this annotation accepts."""
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    types = get_args(annotation) or (annotation,)
    return " or ".join(words.get(kind) or f"one of {', '.join(kind.__members__)}" for kind in types)


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Returns "; did you mean X?" with the most similar of `names`, or "" if none is similar."""
    similar = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def settings_from_arguments(schema: type, arguments: Sequence[str]) -> Any:
    """Returns an instance of `schema` from NAME=VALUE arguments, for programs without Hydra.

    --help prints the docstring of `schema` and exits.
    """
    if {"-h", "--help"} & set(arguments):
        print(cleandoc(schema.__doc__ or ""))
        raise SystemExit(0)
    for argument in arguments:
        if "=" not in argument:
            raise ValueError(f"{argument}: settings are written NAME=VALUE")
    return typed(schema, dict(argument.split("=", 1) for argument in arguments))


def train_settings(config: DictConfig) -> TrainSettings:
    """Returns the settings in Hydra's config; raises ValueError with a one-line message."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    groups = {name: values.pop(name) for name in ("model", "data", "optim")}
    return _from_groups({"run": values} | groups)


def compose_settings(overrides: Sequence[str] = ()) -> TrainSettings:
    """Returns the settings of train.py with these arguments, for other programs."""
    GlobalHydra.instance().clear()  # set in a program that Hydra started
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return train_settings(compose("train", list(overrides)))


def saved_settings(config: Any) -> TrainSettings:
    """Returns the settings in the config.json of a run; raises ValueError if they are damaged or of another version."""
    names = [field.name for field in fields(TrainSettings)]
    if not isinstance(config, dict) or not all(isinstance(config.get(name), dict) for name in names):
        raise ValueError("config.json: not the settings of a run")
    try:
        return _from_groups(config)
    except ValueError as error:
        raise ValueError(f"config.json: {error}; the file is damaged or another version wrote it") from None


def _from_groups(groups: Mapping[str, Any]) -> TrainSettings:
    source = groups["data"].get("source")
    if source not in SCHEMAS:
        raise ValueError(f"data.source={source}: must be one of {', '.join(SCHEMAS)}")
    return TrainSettings(
        run=typed(RunSettings, groups["run"]),
        model=typed(ModelConfig, groups["model"], "model."),
        data=typed(SCHEMAS[source], groups["data"], "data."),
        optim=typed(OptimSettings, groups["optim"], "optim."),
    )


def flat(settings: TrainSettings) -> dict[str, Any]:
    """Returns every setting by its name on the command line, enums by their value."""
    return {
        name if group == "run" else f"{group}.{name}": value.value if isinstance(value, Enum) else value
        for group, values in asdict(settings).items()
        for name, value in values.items()
    }


# Comparing settings

DIRECTORIES = {"out", "resume", "cache_dir"}  # which directories a run uses; always from the command line
# Where the text is: a resumed run may have another path, and the change is not recorded.
TEXT_PATHS = {"data.path", "data.validation_path", "data.tokenizer_path"}
# A checkpoint fits no other value of these. (The text itself is compared by its fingerprint.)
SET_BY_CHECKPOINT = re.compile(r"seed|optim\.name|(model|data)\..*")
# Without influence on what a model learns.
PRESENTATION = set(
    "threads sharding log_every_steps probe_sequences sample_tokens sample_prompt keep_checkpoints".split()
)
# Runs with one seed and different values of these read different batches.
BATCH_ORDER = re.compile(r"data.*|tokens_per_batch|gradient_accumulation_steps|model\.context_length")


def resumed_settings(requested: TrainSettings, saved: TrainSettings, overrides: Sequence[str]) -> TrainSettings:
    """Returns the settings of a resumed run: those it was started with, replaced by the ones on the command line.

    `requested` are the settings that this command line would give to a new run, `saved` those in config.json.
    `overrides` are its NAME=VALUE arguments; a group (model, data, optim, experiment, variant) stands for all settings
    that it can change. Raises ValueError if the checkpoint does not fit one of the new settings.
    """
    named = {override.partition("=")[0] for override in overrides}
    values = flat(saved)
    for name, value in flat(requested).items():
        group = name.rpartition(".")[0]
        sources = {name, group, "experiment", "variant" if group == "model" else name}
        is_branch = name == "data.revision" and not re.fullmatch("[0-9a-f]{40}", value or "")
        if name in DIRECTORIES or (sources & named and not is_branch):
            values[name] = value  # a branch of a dataset was resolved to a commit when the run began
    for name, (old, new) in changed_settings(flat(saved), values).items():
        if SET_BY_CHECKPOINT.fullmatch(name):
            raise ValueError(f"{name}={new}: the checkpoint was trained with {name}={old}; start a new run instead")
    groups: dict[str, dict[str, Any]] = {"run": {}, "model": {}, "data": {}, "optim": {}}
    for name, value in values.items():
        group, _, field = name.rpartition(".")
        groups[group or "run"][field] = value
    return _from_groups(groups)


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns [old value, new value] by name of the `flat` settings that differ, except paths."""
    names = [name for name in {**old, **new} if name not in DIRECTORIES | TEXT_PATHS]
    return {name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)}


def result_settings(settings: TrainSettings) -> dict[str, Any]:
    """Returns the `flat` settings that a result depends on."""
    return {name: value for name, value in flat(settings).items() if name not in DIRECTORIES | PRESENTATION}


def check_seeds(configs: Mapping[str, Any]) -> dict[str, int]:
    """Returns the seed of each run, from the content of their config.json files by run name.

    Raises ValueError if two have one seed, or they differ in more than the seed.
    """
    runs, differing = check_variants(configs, saved_settings(next(iter(configs.values()))), only_stories=False)
    for name in differing:
        raise ValueError(f"{name} differs between the runs; compare runs that differ by seed only")
    return {run: seed for run, (seed, _) in runs.items()}


def check_variants(
    configs: Mapping[str, Any], defaults: TrainSettings, *, only_stories: bool = True
) -> tuple[dict[str, tuple[int, dict[str, Any]]], dict[str, Any]]:
    """Returns the seed of each run and its settings that differ from the standard variant, and the standard's values.

    The standard is the first run with the fewest differences from `defaults`, the settings of train.py without
    arguments; `configs` has the content of config.json by run name. Raises ValueError if two runs are the same, if runs
    did not read the same batches in the same order, or, with `only_stories`, if a run was trained on a text.
    """
    variants: dict[str, dict[str, Any]] = {}
    for run, config in configs.items():
        settings = result_settings(saved_settings(config))
        if only_stories and settings["data.source"] != "stories":
            raise ValueError(f"{run}: data.source={settings['data.source']}: only runs on stories can be compared")
        variants[run] = settings | {"data_fingerprint": config.get("data_fingerprint")}
    for run, other in combinations(variants, 2):
        if variants[run] == variants[other]:
            raise ValueError(f"{run} and {other} have the same settings and the same seed; leave out one of them")
    seeds = {run: settings.pop("seed") for run, settings in variants.items()}
    n_changes = {run: len(changed_settings(result_settings(defaults), variants[run])) for run in variants}
    first = min(variants, key=n_changes.__getitem__)
    runs: dict[str, tuple[int, dict[str, Any]]] = {}
    standard: dict[str, Any] = {}
    for run, variant in variants.items():
        changes = changed_settings(variants[first], variant)
        for name in filter(BATCH_ORDER.fullmatch, changes):
            raise ValueError(f"{run}: {name} differs from {first}; compare runs that read the same batches")
        runs[run] = seeds[run], {name: value for name, (_, value) in sorted(changes.items())}
        standard |= {name: value for name, (value, _) in changes.items()}
    return runs, dict(sorted(standard.items()))
