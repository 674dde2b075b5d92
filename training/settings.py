"""What can be set about a run and its optimiser; the values are in configs/train.yaml and configs/optim/."""

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from inspect import cleandoc
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.config import SCHEMAS, DataConfig
from model.config import ModelConfig
from probe.config import ProbeConfig


class Device(Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    """In which numbers to multiply matrices; weights and losses are always float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Compile(Enum):
    """What torch.compile does to the step."""

    none = "none"
    default = "default"  # fuses what lies between matrix products
    graphs = "graphs"  # and replays the launches as CUDA graphs: a CUDA device only


class Sharding(Enum):
    """How several processes share a model."""

    none = "none"  # each has all of it (DDP)
    fsdp = "fsdp"  # each has a share of every weight and of its optimizer's state (FSDP2); one process has all


class Optimizer(Enum):
    """What moves the matrices; embeddings and norms are always moved by AdamW."""

    muon = "muon"
    adamw = "adamw"


class Format(Enum):
    """What others open (docs/export.md)."""

    hf = "hf"  # a folder for transformers' from_pretrained
    gguf = "gguf"  # a file for llama.cpp and what builds on it


class Task(Enum):
    """A test that nobody here wrote (docs/outside.md)."""

    minimal_pairs = "minimal_pairs"
    links = "links"
    winobias = "winobias"
    text = "text"


_MOST_THREADS = 1024  # CPU_SETSIZE of glibc; OpenMP ends the process where the system gives it no more


_MOST_SAMPLED = 2**16  # tokens of one sample, which TensorBoard keeps as one text


_HIGHEST_RATE = 1e18  # far above what trains; what is above float32 when weights are multiplied by it ends the process


def check_threads(threads: int | None) -> None:
    """Raise ValueError for a number of threads that cannot be."""
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"threads must be 1 to {_MOST_THREADS:,}, got {threads}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run of train.py."""

    seed: int  # of initial weights, batch order and dropout, 0 or more
    out: str | None  # the new run's directory; None: runs/<time, unique>
    resume: bool  # go on with the run in `out`
    resume_with_changes: bool  # settings given anew, or edited in its config.json, take the place of the run's own
    device: Device
    precision: Precision
    threads: int | None  # for the CPU; None: what torch chooses
    compile: Compile  # of forward pass, loss and backward pass
    sharding: Sharding  # of several processes
    max_steps: int  # 1 or more
    tokens_per_batch: int  # of one forward pass of all processes together, 1 or more
    gradient_accumulation_steps: int  # forward passes to one optimizer step, 1 or more
    log_every_steps: int  # 1 or more
    eval_every_steps: int  # 1 or more; also how often a checkpoint is kept
    keep_checkpoints: int  # the newest ones, 1 or more; the best stays as well
    validation_tokens: int  # of each evaluation but the last, which reads the whole split
    probe_sequences: int  # of each probe during training, 0 for none
    sample_tokens: int  # written at each evaluation, 0 for none
    sample_prompt: str  # what they go on from
    cache_dir: str  # where tokenized corpora are kept

    def __post_init__(self) -> None:
        """Refuse counts that mean nothing."""
        positive = (
            "max_steps tokens_per_batch gradient_accumulation_steps log_every_steps eval_every_steps validation_tokens"
        )
        for name in f"{positive} keep_checkpoints".split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("seed", "probe_sequences", "sample_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.sample_tokens > _MOST_SAMPLED:
            raise ValueError(f"sample_tokens must be {_MOST_SAMPLED:,} or less, got {self.sample_tokens}")
        if self.seed >= 2**32:
            raise ValueError(f"seed must be below 2**32, got {self.seed}")
        check_threads(self.threads)
        if self.resume and self.out is None:
            raise ValueError("resume=true needs out=DIR, the run to go on with")
        if self.resume_with_changes and not self.resume:
            raise ValueError("resume_with_changes=true goes with resume=true")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """One run of eval.py."""

    run: str | None  # the run's directory; None: the newest
    runs: str | None  # the directory of a sweep over seeds, to say what holds over them
    compare: str | None  # the directory of a sweep over variants and seeds, to say what a switch changes
    model: str | None  # a folder of transformers or a model on the hub, to probe in place of a run
    out: str | None  # where what is found of `model` is kept; None: probes/NAME
    text: str | None  # a sentence to look at instead of the whole probe
    task: Task | None  # a test of others to take instead of the probe
    path: str | None  # its files
    open: bool  # show the page in a browser
    figures: bool  # draw figures for a paper, which takes matplotlib
    device: Device
    threads: int | None  # for the CPU; None: what torch chooses
    cache_dir: str  # where tokenized corpora are kept

    def __post_init__(self) -> None:
        """Refuse a number of threads that cannot be, and several runs where one is meant."""
        for name, given in (("runs", self.runs), ("compare", self.compare)):
            if given is not None and (self.run is not None or self.text is not None):
                raise ValueError(f"{name}=DIR is about several runs: it goes with neither run= nor text=")
        if self.model is not None and (self.run, self.runs, self.compare) != (None, None, None):
            raise ValueError("model= is a model from elsewhere: it goes with none of run=, runs= and compare=")
        if self.out is not None and self.model is None:
            raise ValueError("out=DIR goes with model=: what is found of a run stands in the run")
        if "" in (self.model, self.out):
            raise ValueError("model= and out= are names: an empty one is none")
        if self.runs is not None and self.compare is not None:
            raise ValueError("runs= asks what holds over seeds, compare= what variants change: one at a time")
        if (self.task is None) != (self.path is None):
            raise ValueError(f"task= and path= go together: {'path' if self.path is None else 'task'}= is missing")
        if self.task is not None and (self.runs, self.compare, self.text) != (None, None, None):
            raise ValueError("task= is one test of one run: it goes with none of runs=, compare= and text=")
        if self.open and (self.runs, self.compare, self.task) != (None, None, None):
            raise ValueError("open=true shows the page of one run: it goes with none of runs=, compare= and task=")
        if self.figures and (self.compare, self.text, self.task) != (None, None, None):
            raise ValueError("figures=true draws a probe or runs=: it goes with none of compare=, text= and task=")
        check_threads(self.threads)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """Let a model go on from a prompt.

    python -m model.generate [NAME=VALUE ...]

    run          the run's directory; the newest where it is not given
    prompt       what to go on from; nothing: the beginning of a text
    n_tokens     how many to write at most, 1 or more (64)
    temperature  divides the logits; 0: always the likeliest token (1.0)
    seed         of the choices (0)
    """

    run: str | None = None
    prompt: str = ""
    n_tokens: int = 64
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be written."""
        if self.n_tokens < 1 or not 0 <= self.seed < 2**32:
            raise ValueError("n_tokens must be 1 or more, and seed 0 or more and below 2**32")
        if self.temperature != 0 and not 0.01 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 or lie between 0.01 and 100, got {self.temperature}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Write a trained model for other programs.

    python -m model.export to=hf [NAME=VALUE ...]

    to   hf: a folder for transformers, TransformerLens, lm-eval; gguf: a file for GGUF readers (docs/export.md)
    run  the run's directory; the newest where it is not given
    out  the new folder or file; hf/ or model.gguf in export/ of the run where it is not given
    """

    to: Format | None = None
    run: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        """Refuse an export to nothing."""
        if self.to is None:
            raise ValueError(f"to= is missing: one of {', '.join(one.value for one in Format)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """How the weights are moved."""

    name: Optimizer
    learning_rate: float  # peak, of the matrices inside the blocks
    embedding_learning_rate: float  # peak, of embedding and norms
    weight_decay: float  # decoupled, of the matrices inside the blocks
    embedding_weight_decay: float  # of the embedding; norms do not decay
    momentum: float  # of Muon
    beta_1: float  # of AdamW
    beta_2: float  # of AdamW
    warmup_steps: int  # linear from 0
    decay_power: float  # then (what is left of training) to this power, down to 0; above 0
    clip_norm: float  # of the whole gradient, above 0

    def __post_init__(self) -> None:
        """Refuse rates that cannot train."""
        for name in ("learning_rate", "embedding_learning_rate", "decay_power", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"optim.{name} must be above 0, got {getattr(self, name)}")
        for name in ("learning_rate", "embedding_learning_rate", "weight_decay", "embedding_weight_decay"):
            if getattr(self, name) > _HIGHEST_RATE:
                raise ValueError(f"optim.{name} must be {_HIGHEST_RATE:g} or less, got {getattr(self, name)}")
        for name in ("momentum", "beta_1", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must lie in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "embedding_weight_decay", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"optim.{name} must be 0 or more, got {getattr(self, name)}")


# What each door can be told: the schema of its own settings and those of its groups.
ENTRIES: dict[str, tuple[type, dict[str, list[type]]]] = {
    "train": (
        RunConfig,
        {"model": [ModelConfig], "data": [*SCHEMAS.values()], "optim": [OptimConfig], "experiment": [], "variant": []},
    ),
    "eval": (EvalConfig, {"probe": [ProbeConfig]}),
}


MODEL_NAME = "name"  # under which eval.py's model= is handed through Hydra, which would take it for a choice


# Settings that a resumed run need not share with its beginning.
_PLACES = ("out", "resume", "resume_with_changes", "cache_dir")


# And those that it need not share where they are given anew: a text is known by its content.
_MOVABLE = {"device", "sharding", "data.path", "data.validation_path", "data.tokenizer_path"}


# Where a run is and what is told of it: nothing that is learned depends on it.
_BESIDE = {*_PLACES, "threads", "sharding", "log_every_steps", "sample_tokens", "sample_prompt", "keep_checkpoints"}


# What a checkpoint's weights, its optimizers' state and its mark as the best hang on, whatever is asked for.
_OF_CHECKPOINT = re.compile(
    r"model\.(?!dropout$)|data\.|optim\.name$|(validation_tokens|vocab_size|data_fingerprint|tokenizer_sha256)$"
)


# Settings that make no variant, and settings by which runs of one seed would read other batches.
_SAME_VARIANT = {*_BESIDE, "seed", "probe_sequences"}


_SAME_ORDER = {"tokens_per_batch", "gradient_accumulation_steps", "model.context_length"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Everything train.py can be told."""

    run: RunConfig
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig


def typed_train(config: DictConfig) -> TrainSettings:
    """Turn Hydra's config into settings; raise ValueError with one line for anything that does not fit."""
    source = config.data.get("source")
    if source not in SCHEMAS:
        raise ValueError(f"data.source={source} is not one of {', '.join(SCHEMAS)}")
    return TrainSettings(
        run=_typed(RunConfig, _own(config, "train")),
        model=_typed(ModelConfig, config.model, "model."),
        data=_typed(SCHEMAS[source], config.data, "data."),
        optim=_typed(OptimConfig, config.optim, "optim."),
    )


def typed_eval(config: DictConfig) -> tuple[EvalConfig, ProbeConfig]:
    """Turn Hydra's config into settings; raise ValueError with one line for anything that does not fit."""
    own = _own(config, "eval")
    if isinstance(own["model"], DictConfig):
        own["model"] = own["model"][MODEL_NAME]
    return _typed(EvalConfig, own), _typed(ProbeConfig, config.probe, "probe.")


def typed_generate(arguments: list[str]) -> GenerateConfig:
    """Read NAME=VALUE arguments; raise ValueError with one line for anything that does not fit."""
    return _typed_arguments(GenerateConfig, arguments, {"n_tokens": int, "seed": int, "temperature": float})


def typed_export(arguments: list[str]) -> ExportConfig:
    """Read NAME=VALUE arguments; raise ValueError with one line for anything that does not fit."""
    return _typed_arguments(ExportConfig, arguments, {"to": Format})


def _typed_arguments(schema: type, arguments: list[str], kinds: Mapping[str, Callable[[str], Any]]) -> Any:
    """Read NAME=VALUE arguments of a door that is not Hydra's; `kinds` makes values of those that are no text.

    Where help is asked for, `schema` says it and that is all.
    """
    if {"-h", "--help"} & set(arguments):
        print(cleandoc(schema.__doc__ or ""))
        sys.exit()
    names = [field.name for field in fields(schema)]
    given: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        argument.encode()  # what is no text raises ValueError here
        if not equals or name not in names:
            raise ValueError(f"{argument} is not NAME=VALUE with NAME one of {', '.join(names)}{hint(name, names)}")
        try:
            given[name] = kinds.get(name, str)(value)
        except ValueError:
            choices = getattr(kinds[name], "__members__", ())  # of an Enum
            what = f"one of {', '.join(choices)}" if choices else "such a number"
            raise ValueError(f"{argument}: {value} is not {what}") from None
    return schema(**given)


def typed_saved(values: Any) -> TrainSettings:
    """Turn a run's config.json back into its settings; raise ValueError with one line where it is not one."""
    groups: dict[str, dict[str, Any]] = {}
    values = values if isinstance(values, dict) else {}
    for name in ("run", "model", "data", "optim"):
        if not isinstance(values.get(name), dict):
            raise ValueError(f"config.json is not a run's: it has no {name}")
        groups[name] = values[name]
    if groups["data"].get("source") not in SCHEMAS:
        raise ValueError(f"config.json is not a run's: its data.source is not one of {', '.join(SCHEMAS)}")
    source = SCHEMAS[groups["data"]["source"]]
    schemas = {"run": RunConfig, "model": ModelConfig, "data": source, "optim": OptimConfig}
    for name, schema in schemas.items():
        missing = [field.name for field in fields(schema) if field.name not in groups[name]]
        if missing:
            raise ValueError(f"config.json lacks {name}.{missing[0]}: the run was made before there was such a setting")
    try:
        return TrainSettings(
            run=_typed(RunConfig, groups["run"]),
            model=_typed(ModelConfig, groups["model"], "model."),
            data=_typed(source, groups["data"], "data."),
            optim=_typed(OptimConfig, groups["optim"], "optim."),
        )
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def resumed(asked: TrainSettings, config: Any, overrides: list[str]) -> TrainSettings:
    """Return the settings of a run that is gone on with; ValueError if one that was given anew is another.

    With resume_with_changes=true it is taken instead, unless the checkpoint would not fit it.

    Args:
        asked: what this call would have trained with.
        config: the run's config.json.
        overrides: of this call's command line.

    """
    saved = typed_saved(config)
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    wanted, anew = flat(asked), {*_PLACES, *(_MOVABLE & given)}
    taken = {where: wanted[where] for where in anew if where in wanted}
    for where, value in flat(saved).items():
        group = where.rpartition(".")[0]
        names = {where, group, "experiment", *(["variant"] if group == "model" else [])}  # variants are of the model
        other = wanted.get(where)
        if where == "data.revision" and not re.fullmatch("[0-9a-f]{40}", other or ""):  # what was a commit then
            continue
        if where not in anew and given & names and other != value:
            check_change(where, value, other, asked.run)
            taken[where] = other
    return _with(saved, taken)


def check_same(differences: dict[str, list[Any]], run: RunConfig) -> dict[str, list[Any]]:
    """Return the settings in which a run goes on otherwise than its checkpoint was made: [before, now] of each.

    Args:
        differences: of config.json then and now, by group and name; whether the command line or an edit of the file
            made them does not matter.
        run: of this call.

    Raises:
        ValueError: in one line, the first that is not allowed.

    """
    every = {name.removeprefix("run."): both for name, both in differences.items()}
    found = {name: both for name, both in every.items() if name not in {*_PLACES, *_MOVABLE}}
    for name, (before, now) in found.items():
        check_change(name, before, now, run)
    return found


def check_change(where: str, before: Any, now: Any, run: RunConfig) -> None:
    """Raise ValueError, with both values, where a run that is gone on with may not have another value of a setting."""
    before, now = (one.value if isinstance(one, Enum) else one for one in (before, now))
    if not run.resume_with_changes:
        raise ValueError(
            f"resume=true keeps the run's settings: {where} is {before}, not {now}; "
            "resume_with_changes=true takes the new"
        )
    if _OF_CHECKPOINT.match(where):
        raise ValueError(f"{where} is {before}, not {now}: what the run has learned would not fit that, in no way")


def _with(settings: TrainSettings, values: dict[str, Any]) -> TrainSettings:
    """Return `settings` with some of its values, named as on the command line, replaced."""
    groups = {}
    for group in fields(settings):
        part, prefix = getattr(settings, group.name), "" if group.name == "run" else f"{group.name}."
        own = {one.name: values[prefix + one.name] for one in fields(part) if prefix + one.name in values}
        groups[group.name] = replace(part, **own)
    return TrainSettings(**groups)


def check_seeds(configs: dict[str, Any]) -> dict[str, int]:
    """Return the seed of each run; ValueError where runs learned anything else or differ in nothing, or are of a text.

    Args:
        configs: each run's config.json by the run's name.

    """
    every = {
        name: flat(typed_saved(config)) | {"data_fingerprint": config.get("data_fingerprint")}
        for name, config in configs.items()
    }
    first = next(iter(every))
    seeds: dict[str, int] = {}
    for name, here in every.items():
        if here["data.source"] != "stories":
            raise ValueError(f"{name} was trained on a text, which has no gold links to compare heads by")
        for where in sorted((here.keys() | every[first].keys()) - {"seed", *_BESIDE}):
            ours, theirs = every[first].get(where), here.get(where)
            if ours != theirs:
                raise ValueError(
                    f"runs differ in more than their seed: {where} is {ours} in {first}, {theirs} in {name}"
                )
        if here["seed"] in seeds.values():
            raise ValueError(f"seed={here['seed']} is there twice, the second time in {name}")
        seeds[name] = here["seed"]
    return seeds


def check_variants(
    configs: dict[str, Any], defaults: TrainSettings
) -> tuple[dict[str, tuple[int, dict[str, Any]]], dict[str, Any]]:
    """Return of each run its seed and the settings in which it is not as the standard, and the standard's values there.

    The standard is the variant with the fewest departures from the defaults, of several the first.

    Args:
        configs: each run's config.json by the run's name.
        defaults: what train.py does without being told anything.

    Raises:
        ValueError: a run of a text, or runs that did not read the same stories in the same order.

    """
    every = {name: flat(typed_saved(config)) for name, config in configs.items()}
    for name, here in every.items():
        if here["data.source"] != "stories":
            raise ValueError(f"{name} was trained on a text, which has no gold links to compare heads by")
    expected = flat(defaults)
    departures = {
        name: sum(value != expected.get(where) for where, value in here.items() if where not in _SAME_VARIANT)
        for name, here in every.items()
    }
    first = min(every, key=lambda name: departures[name])
    for name, config in configs.items():
        others = {where for where in every[name] if every[name][where] != every[first].get(where)}
        other = sorted(where for where in others if where.startswith("data.") or where in _SAME_ORDER)
        if other or config.get("data_fingerprint") != configs[first].get("data_fingerprint"):
            what = other[0] if other else "the generator"
            raise ValueError(f"{first} and {name} did not read the same stories in the same order: {what} is another")
    found = {
        name: (
            here["seed"],
            {where: here[where] for where in sorted(here.keys() - _SAME_VARIANT) if here[where] != every[first][where]},
        )
        for name, here in every.items()
    }
    changed = sorted({where for _, some in found.values() for where in some})
    return found, {where: every[first][where] for where in changed}


def flat(settings: TrainSettings) -> dict[str, Any]:
    """Return every setting under the name by which the command line sets it."""
    values: dict[str, Any] = {}
    for group, some in asdict(settings).items():
        values |= {name if group == "run" else f"{group}.{name}": value for name, value in some.items()}
    return values


def of_result(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a result depends on, as the command line has them: a choice by its value."""
    every = ((name, value) for name, value in flat(settings).items() if name not in _BESIDE)
    return {name: value.value if isinstance(value, Enum) else value for name, value in every}


def _own(config: DictConfig, entry: str) -> dict[str, Any]:
    return {str(name): config[name] for name in config if name not in ENTRIES[entry][1]}


def _typed(schema: type, node: Any, prefix: str = "") -> Any:
    try:
        values: Any = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else node
        literal = OmegaConf.create({name: _literal(value) for name, value in values.items()})
        typed = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), literal))
    except OmegaConfBaseException as error:
        first, *_ = str(error).splitlines()
        key = str(getattr(error, "full_key", "") or getattr(error, "key", "") or "")
        names = [field.name for field in fields(schema)]
        if "mandatory" in first:
            first = f"must be given, as in {prefix}{key}=VALUE"
        elif key not in names:
            first = f"is not a setting here{hint(key, names)}"
        raise ValueError(f"{prefix}{key}: {first}") from None
    for field in fields(schema):
        _check_number(prefix + field.name, getattr(typed, field.name))
    return typed


def _check_number(name: str, value: Any) -> None:
    """Raise ValueError for a number that is none, or that 64 bits cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a number that is finite, got {value}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be below 2**63 in size")


def _literal(value: Any) -> Any:
    """Write a string so that OmegaConf takes it as it stands: what a user wrote is never interpolated."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def hint(name: str, names: list[str]) -> str:
    """Return the question whether the nearest of `names` was meant; "" where none is near."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""


def printable(text: str) -> str:
    """Return `text` in which nothing steers a terminal, whatever it holds; line ends and tabs stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


@contextmanager
def one_line_errors(*kinds: type[Exception], label: str = "") -> Iterator[None]:
    """Turn errors of `kinds`, by default those that bad input raises, into one line on stderr and exit status 2.

    `label`: says which of several runs it is.
    """
    try:
        yield
    except Exception as error:
        from training.memory import want_of_memory

        message = want_of_memory(error) or ""
        if not message and not isinstance(error, kinds or (ValueError, OSError, OmegaConfBaseException)):
            raise
        if isinstance(error, BrokenPipeError):  # nobody's bad input
            raise
        message = message or str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            message = f"{error.strerror}: {error.filename}"
        print(f"error: {label}{printable(' '.join(message.split()))}", file=sys.stderr)
        sys.exit(2)


@contextmanager
def hung_up() -> Iterator[None]:
    """Let nobody's leaving be an error: neither Ctrl-C nor the end of whoever reads what is printed."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read what is printed has had enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
